"""Idle dialogs: announces dialogs without a message for long, and ends them later (REL-44).

Reads: the stores, by pages of endpoints.      Calls: broker.changeset, the log, the transmitter.
Never: ends a dialog that was not announced for the whole notice, that has moved since, or of which
       messages wait to be sent; touches the broker's own dialogs.
Wakes: with each tick while a round is under way; a round begins 16 times in `dialog.idle_after`.
Fails: `Busy` and a full disk leave the rest to the next tick.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from brokerd.broker import sweeps
from brokerd.broker.broker import Broker
from brokerd.broker.changeset import Changeset
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.state import Live
from brokerd.clock import Clock, Instant, later, show_instant
from brokerd.config.settings import Dialog
from brokerd.errors import Busy, StoreFull
from brokerd.ids import EndpointKey
from brokerd.protocol import dialog
from brokerd.protocol.transitions import State
from brokerd.storage.rows import idle_dialogs as stored
from brokerd.storage.rows.idle_dialogs import Announced, Idle
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import IDLE
from brokerd.units import counted, show_duration

PAGE: Final = 2_000
"""Number of endpoints of each broker that one tick looks at: 1 to 7 ms of the writer."""
BATCH: Final = 500
"""Most dialogs that one tick ends, of each broker."""
ROUNDS: Final = 16
"""Rounds in the time after which a dialog is idle: it is noticed late by one of them at most."""
_OPEN: Final = (State.STARTED_OUTBOUND, State.CONVERSING)
_START: Final = EndpointKey(-1)

Refuse = Callable[[Broker, Outgoing, int, str], None]
"""Sends an Error made by this broker to the peer of a dialog."""


class _Round(msgspec.Struct):
    """How far a broker's endpoints have been looked at."""

    began_at: float
    after: EndpointKey = _START
    is_over: bool = False
    announced: int = 0


class IdleDialogs:
    """The pass that finds, announces and ends idle dialogs."""

    def __init__(
        self,
        options: Dialog,
        brokers: Mapping[str, Broker],
        clock: Clock,
        log: Log,
        refuse: Refuse,
    ) -> None:
        self._brokers = brokers
        self._clock = clock
        self._log = log
        self._after = options.idle_after
        self._notice = options.idle_notice
        self._refuse = refuse
        self._rounds: dict[str, _Round] = {}
        self._announced: dict[str, Announced] = {}

    async def check(self) -> int:
        """Look at a page of each broker; return the number of dialogs announced or ended."""
        if not self._after:
            return 0
        done = 0
        for broker in [one for one in self._brokers.values() if one.enabled]:
            try:
                done += await self._check(broker)
            except (Busy, StoreFull):
                continue
        return done

    def texts(self) -> dict[str, str]:
        """Return a sentence about the announced dialogs of each broker that has some."""
        found = {name: self._text(seen) for name, seen in self._announced.items()}
        return {name: text for name, text in found.items() if text and name in self._brokers}

    def _text(self, seen: Announced) -> str:
        if not seen.dialogs or seen.since is None or seen.announced_at is None:
            return ""
        text = counted(seen.dialogs, "dialog has", "dialogs have")
        text += f" had no message either way for {show_duration(self._after)} (dialog.idle_after), "
        text += f"the first since {show_instant(seen.since)}: "
        if not self._notice:
            return text + "none is ended (dialog.idle_notice is 0)"
        return text + f"ended from {show_instant(later(seen.announced_at, self._notice))} on"

    async def _check(self, broker: Broker) -> int:
        now, known = self._clock.monotonic(), self._rounds.get(broker.name)
        if known is None:
            self._announced[broker.name] = await stored.count(broker.store)
            known = self._rounds[broker.name] = _Round(now)
        elif known.is_over and now - known.began_at >= self._after.total_seconds() / ROUNDS:
            known = self._rounds[broker.name] = _Round(now)
        announced = 0 if known.is_over else await self._examine(broker, known)
        return announced + await self._end_due(broker)

    async def _examine(self, broker: Broker, at: _Round) -> int:
        now = self._clock.utc()
        found = await stored.examine(
            broker.store,
            at.after,
            PAGE,
            now=now,
            before=later(now, -self._after / ROUNDS),
            idle=later(now, -self._after),
        )
        at.announced += found.announced
        if found.through is not None:
            at.after = found.through
            return found.announced
        at.is_over = True
        # Once a round: a million announced dialogs take the writer a third of a second to count.
        seen = self._announced[broker.name] = await stored.count(broker.store)
        if at.announced:
            self._log.warning(
                IDLE,
                subclass="announced",
                broker=broker.name,
                endpoints=at.announced,
                since=None if seen.since is None else show_instant(seen.since),
                reason=self._text(seen),
            )
        return found.announced

    async def _end_due(self, broker: Broker) -> int:
        """End dialogs whose notice is over; return their number."""
        if not self._notice or not self._announced[broker.name].dialogs:
            return 0
        now = self._clock.utc()
        due = await stored.due(broker.store, later(now, -self._notice), BATCH)
        if not due:
            return 0
        lives = await broker.endpoints.hold({one.key for one in due})
        held = [*lives.values()]
        try:
            held += await _hold_peers(broker, held)
            ended = await self._end(broker, due, lives, now)
        finally:
            sweeps.release(held)
        for one in due:
            if one.key in ended:
                self._report(broker, lives[one.key], one.since)
        moved = [one.key for one in due if one.key not in ended]
        await stored.settle(broker.store, ended=ended, moved=moved, now=now)
        seen = self._announced[broker.name]
        self._announced[broker.name] = seen._replace(dialogs=max(0, seen.dialogs - len(due)))
        return len(ended)

    async def _end(
        self, broker: Broker, due: list[Idle], lives: Mapping[EndpointKey, Live], now: Instant
    ) -> set[EndpointKey]:
        code, text = dialog.DIALOG_IDLE, self._why(broker)
        changeset, ended = Changeset(broker, now), set[EndpointKey]()
        for one in due:
            live = lives.get(one.key)
            if live is None or not _is_idle(live, one):
                continue
            ended.add(one.key)
            outcome = changeset.step(live, dialog.FaultStruck(code, text))
            peer = live.peer
            if live.is_local and peer is not None and not peer.gone:
                changeset.step(peer, dialog.ErrorReceived(code, text))
            elif any(isinstance(effect, dialog.Refuse) for effect in outcome.effects):
                self._tell_peer(broker, changeset, live, code, text)
        if not changeset.empty:
            await changeset.commit()
        return ended

    def _tell_peer(
        self, broker: Broker, changeset: Changeset, live: Live, code: int, text: str
    ) -> None:
        """Send the Error to the peer elsewhere, once it is durable here (REL-4)."""
        out = broker.outgoing(live)
        live.pin()

        def send() -> None:
            live.unpin()
            self._refuse(broker, out, code, text)

        changeset.when_published(send)

    def _why(self, broker: Broker) -> str:
        whole = show_duration(self._after + self._notice)
        return (
            f"no message either way for {whole}: broker {broker.name!r} ends such dialogs "
            f"(dialog.idle_after {show_duration(self._after)}, "
            f"dialog.idle_notice {show_duration(self._notice)})"
        )

    def _report(self, broker: Broker, live: Live, since: Instant) -> None:
        endpoint = live.endpoint
        self._log.warning(
            IDLE,
            subclass="ended",
            broker=broker.name,
            conversation_id=endpoint.conversation_id,
            service=endpoint.service,
            far_service=endpoint.far_service,
            since=show_instant(since),
            reason=self._why(broker),
        )


def _is_idle(live: Live, then: Idle) -> bool:
    """Return whether a dialog is open, as far as it was, and has nothing to send."""
    endpoint, out = live.endpoint, live.outgoing
    return (
        not live.gone
        and endpoint.state in _OPEN
        and (endpoint.send_sequence, endpoint.receive_sequence) == (then.sent, then.received)
        and (out is None or not out.pending)
    )


async def _hold_peers(broker: Broker, lives: Sequence[Live]) -> list[Live]:
    """Load and pin the peers that are in this broker."""
    held: list[Live] = []
    for live in lives:
        endpoint = live.endpoint
        if not live.is_local:
            continue
        key = None if live.peer is None else live.peer.endpoint.key
        if key is None:
            peer = await broker.store.endpoints.by_conversation(
                endpoint.conversation_id, not endpoint.is_initiator
            )
            key = None if peer is None else peer.key
        if key is not None:
            held += (await broker.endpoints.hold({key})).values()
    return held
