"""Delivery and identity of a broker: enable, disable, error conversations, new identifier (MAN).

Reads: the stores' identities.      Calls: broker.sweeps, storage; routing and others by callbacks.
Never: runs during open transactions of the broker (MAN-1), or leaves an operation half done: it is
marked in the store when it begins, and finished at the next open if the daemon dies.
Each operation writes one line to the event log: actor, operation, before and after.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import msgspec

from brokerd.broker import sweeps
from brokerd.broker.broker import Broker
from brokerd.broker.changeset import Changeset
from brokerd.broker.state import Live
from brokerd.errors import DuplicateBroker, InvalidArgument
from brokerd.ids import ID_SIZE, BrokerId, IdSource, Incarnation, InstanceId, parse, show
from brokerd.model import MSDB
from brokerd.protocol import dialog
from brokerd.protocol.admin_verbs import Exclusion
from brokerd.protocol.transitions import State
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION

BATCH: Final = 1000
FORMER_KEPT: Final = 16
"""The number of a broker's former identifiers that are kept."""
MANUAL: Final = "manual"
ERROR_CONVERSATIONS: Final = "error_conversations"
NEW_BROKER: Final = "new_broker"
RESTORED: Final = "the broker was restored or set anew; all its conversations were ended"
_LIVING: Final = frozenset(
    {
        State.STARTED_OUTBOUND,
        State.STARTED_INBOUND,
        State.CONVERSING,
        State.DISCONNECTED_INBOUND,
    }
)


class Surrounding(msgspec.Struct, frozen=True):
    """The functions of other parts of the instance that operations call."""

    hold: Callable[[Broker, bool, float], Awaitable[None]]
    """Function of broker, force and seconds; keeps the broker's clients out, or raises `Busy`."""
    release: Callable[[Broker], None]
    switched: Callable[[Broker], None]
    """Function that notifies routing, transmitter and readers of a new delivery or identifier."""
    remember: Callable[[str, BrokerId], Awaitable[None]]
    """Function that durably records the name and identifier of a broker (MAN-16)."""
    tell: Callable[[Broker, Live, int, str], None]
    """Function that sends an error made by this broker to a peer (DLP-42)."""
    expire: Callable[[Broker], Awaitable[int]]
    """Function that processes lifetimes and timers that ended while delivery was off (MAN-4)."""


class Operations:
    """Performer of an administrator's operations on whole brokers of one instance."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        ids: IdSource,
        instance_id: InstanceId,
        host: bytes | None,
        around: Surrounding,
        log: Log,
    ) -> None:
        self._brokers = brokers
        self._ids = ids
        self._instance_id = instance_id
        self._host = host
        self._around = around
        self._log = log

    async def enable(self, broker: Broker, how: Exclusion, actor: str) -> dict[str, object]:
        """Switch delivery on, under the same identifier (MAN-2).

        Raises `DuplicateBroker` if another broker of the instance uses the identifier (OBJ-3).
        """
        _refuse_msdb(broker)
        async with self._alone(broker, how, actor, "enable", under=broker.broker_id):
            await self._switch(broker, on=True)
        await self._around.expire(broker)
        return self._shown(broker)

    async def disable(self, broker: Broker, how: Exclusion, actor: str) -> dict[str, object]:
        """Switch delivery off; the identifier stays (MAN-3)."""
        _refuse_msdb(broker)
        async with self._alone(broker, how, actor, "disable"):
            await self._switch(broker, on=False, reason=MANUAL)
        return self._shown(broker)

    async def error_conversations(
        self, broker: Broker, how: Exclusion, actor: str
    ) -> dict[str, object]:
        """End every dialog with an error, -9719 on this side and -9720 at the peer (MAN-5)."""
        _refuse_msdb(broker)
        under = broker.broker_id
        async with self._alone(broker, how, actor, ERROR_CONVERSATIONS, under=under) as counts:
            await self._switch(
                broker, on=False, reason=ERROR_CONVERSATIONS, unfinished=ERROR_CONVERSATIONS
            )
            counts.update(await self._error_all(broker))
            await self._switch(broker, on=True)
        return self._shown(broker, counts)

    async def new_broker(
        self, broker: Broker, broker_id: BrokerId, how: Exclusion, actor: str
    ) -> dict[str, object]:
        """Remove every dialog and give the broker this identifier (MAN-6).

        Nothing is done if the broker already has the identifier."""
        _refuse_msdb(broker)
        if broker_id == broker.broker_id:
            return self._shown(broker)
        async with self._alone(broker, how, actor, NEW_BROKER, under=broker_id) as counts:
            await self._switch(
                broker, on=False, reason=NEW_BROKER, unfinished=f"{NEW_BROKER} {show(broker_id)}"
            )
            counts.update(await self._remove_all(broker))
            await self._rename(broker, broker_id)
        return self._shown(broker, counts)

    async def finish(self, broker: Broker) -> None:
        """Finish an operation that a crash interrupted, before any program uses the broker.

        Raises `DuplicateBroker` if another broker of the instance delivers under the identifier.
        """
        what, _, argument = (broker.store.identity.unfinished or "").partition(" ")
        if not what:
            return
        wanted = BrokerId(parse(argument)) if argument else broker.broker_id
        before = self._shown(broker)
        counts: Counter[str] = Counter()
        with self._reserved(wanted, broker):
            if what == ERROR_CONVERSATIONS:
                counts.update(await self._error_all(broker))
                await self._switch(broker, on=True)
            else:
                counts.update(await self._remove_all(broker))
                await self._rename(broker, wanted)
        self._audit(what, "the daemon, which finishes what was begun", before, broker, counts)

    @contextmanager
    def _reserved(self, broker_id: BrokerId | None, broker: Broker) -> Iterator[None]:
        """Keep other brokers from delivering under this identifier until this one does (OBJ-3).

        Raises:
            DuplicateBroker: another broker of the instance delivers under it, or is about to."""
        if broker_id is not None:
            self._refuse_duplicate(broker_id, broker)
        broker.reserved_id = broker_id
        try:
            yield
        finally:
            broker.reserved_id = None

    def _refuse_duplicate(self, broker_id: BrokerId, broker: Broker) -> None:
        for other in self._brokers.values():
            if other is not broker and other.delivers_under(broker_id):
                raise DuplicateBroker(
                    f"broker {other.name!r} delivers under the identifier {show(broker_id)} "
                    f"already, so {broker.name!r} cannot"
                )

    # The steps of operations.

    @asynccontextmanager
    async def _alone(
        self,
        broker: Broker,
        how: Exclusion,
        actor: str,
        what: str,
        *,
        under: BrokerId | None = None,
    ) -> AsyncIterator[Counter[str]]:
        """Run an operation with the broker's clients kept out (MAN-1), and audit it.

        `under`: the identifier under which the operation switches delivery on; None = it does not.
        The identifier is checked before the wait for clients, and again after, since another broker
        may have taken it meanwhile.
        """
        before = self._shown(broker)
        counts: Counter[str] = Counter()
        if under is not None:
            self._refuse_duplicate(under, broker)
        await self._around.hold(broker, how.force, how.wait)
        try:
            with self._reserved(under, broker):
                yield counts
        finally:
            self._around.release(broker)
        self._audit(what, actor, before, broker, counts)

    def _audit(
        self,
        what: str,
        actor: str,
        before: dict[str, object],
        broker: Broker,
        counts: Counter[str],
    ) -> None:
        self._log.info(
            ADMINISTRATION,
            subclass=what,
            actor=actor,
            broker=broker.name,
            before=before,
            after=self._shown(broker),
            endpoints=dict(counts),
        )

    async def _switch(
        self,
        broker: Broker,
        *,
        on: bool,
        reason: str | None = None,
        unfinished: str | None = None,
        **facts: object,
    ) -> None:
        """Write the identity durably, then notify routing.

        A broker that is switched on belongs to this instance and machine from then on (MAN-7).
        """
        facts |= {"is_broker_enabled": on, "disabled_reason": reason, "unfinished": unfinished}
        if on:
            facts |= {"instance_id": self._instance_id, "host": self._host}
        await broker.store.change_identity(**facts)
        broker.use_identity()
        self._around.switched(broker)

    async def _rename(self, broker: Broker, broker_id: BrokerId) -> None:
        """Give the broker its new identity: the last step of `new_broker`, a change of one row."""
        # Before the store has the identity: a crash in between leaves an operation that the next
        # open finishes.
        await self._around.remember(broker.name, broker_id)
        former = broker.broker_id + (broker.store.identity.former_ids or b"")
        await self._switch(
            broker,
            on=True,
            broker_id=broker_id,
            former_ids=former[: FORMER_KEPT * ID_SIZE],
            incarnation=Incarnation(self._ids.fresh()),
        )

    async def _error_all(self, broker: Broker) -> Counter[str]:
        """End every live dialog with an error; return their number by former state."""
        counts: Counter[str] = Counter()
        after = None
        while True:
            lives, after = await sweeps.batch(broker, after, BATCH)
            changeset = Changeset(broker, broker.clock.utc())
            for live in lives:
                if live.gone or live.endpoint.state not in _LIVING:
                    continue
                counts[str(live.endpoint.state)] += 1
                # The far side of a local dialog is an endpoint here, too: it needs no message.
                outcome = changeset.step(live, dialog.FaultStruck(dialog.RESTORED, RESTORED))
                if not live.is_local and any(
                    isinstance(one, dialog.Refuse) for one in outcome.effects
                ):
                    self._around.tell(broker, live, dialog.PEER_RESTORED, RESTORED)
            if not changeset.empty:
                await changeset.commit()
            sweeps.release(lives)
            if after is None:
                return counts

    async def _remove_all(self, broker: Broker) -> Counter[str]:
        """Remove every endpoint, in batches; return their number by former state."""
        counts: Counter[str] = Counter()
        after = None
        while True:
            lives, after = await sweeps.batch(broker, after, BATCH)
            states = {id(live): str(live.endpoint.state) for live in lives}
            removed = await sweeps.clean(broker, lives, "a new identifier is being given")
            counts.update(states[id(live)] for live in removed)
            sweeps.release(lives)
            if after is None:
                return counts

    def _shown(self, broker: Broker, counts: Counter[str] | None = None) -> dict[str, object]:
        shown: dict[str, object] = {
            "name": broker.name,
            "broker_id": show(broker.broker_id),
            "is_broker_enabled": broker.enabled,
            "disabled_reason": broker.store.identity.disabled_reason,
        }
        return shown if counts is None else shown | {"endpoints": dict(counts)}


def _refuse_msdb(broker: Broker) -> None:
    if broker.name == MSDB:
        raise InvalidArgument(
            "msdb holds what belongs to the instance; it delivers nothing and keeps its identity"
        )
