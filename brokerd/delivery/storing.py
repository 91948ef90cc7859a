"""Storing what waits: a run a dialog, one changeset a broker and round, then the ack (DSP-3).

Reads: runs of the dialogs.      Calls: the open rounds, transmitter, answers.
Never: acknowledges before the commit (DLP-15).
Wakes: soon after something is due, once for all that became due meanwhile.
Fails: a dialog that may not be stored is left out; the others go on.
"""

from __future__ import annotations

import asyncio
from functools import partial

from brokerd.broker import checks
from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.broker.transmission import WHOLE
from brokerd.clock import Clock
from brokerd.delivery.acceptance import check_run, refuse_opening
from brokerd.delivery.accounts import Accounts
from brokerd.delivery.answers import LooseAnswers
from brokerd.delivery.arrival_memory import ArrivalMemory
from brokerd.delivery.arrivals import Arrivals
from brokerd.delivery.arriving_dialogs import ArrivingDialog, ArrivingDialogs, Key
from brokerd.delivery.inspecting import Arriving
from brokerd.delivery.open_rounds import OpenRounds
from brokerd.delivery.transmitter import Transmitter
from brokerd.ids import BrokerId
from brokerd.protocol import dialog
from brokerd.protocol.frames import Fragment
from brokerd.protocol.transitions import State

Batch = tuple[ArrivingDialog, Live, list[Fragment], int]
"""What is being stored of one dialog, and how many fragments were taken for it."""


class Storing:
    """The dialogs that have a run to be stored, and the way it takes."""

    __slots__ = (
        "_accounts",
        "_answers",
        "_clock",
        "_dialogs",
        "_due",
        "_inspecting",
        "_limit",
        "_memory",
        "_rounds",
        "_scheduled",
        "_transmitter",
    )

    def __init__(
        self,
        *,
        dialogs: ArrivingDialogs,
        rounds: OpenRounds,
        transmitter: Transmitter,
        answers: LooseAnswers,
        accounts: Accounts,
        memory: ArrivalMemory,
        clock: Clock,
        batch: int,
    ) -> None:
        self._dialogs = dialogs
        self._rounds = rounds
        self._transmitter = transmitter
        self._answers = answers
        self._accounts = accounts
        self._memory = memory
        self._clock = clock
        self._limit = batch
        self._inspecting = Arriving(
            is_here=lambda one: dialogs.known.get(one.key) is one, resume=self.schedule
        )
        self._due: dict[Key, ArrivingDialog] = {}
        self._scheduled = False

    def schedule(self, one: ArrivingDialog) -> None:
        """It has a run: store it soon, or when what is being stored of it is durable."""
        assert one.arrivals is not None
        if not one.arrivals.busy:
            self._due[one.key] = one
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._store)

    def forget(self, one: ArrivingDialog) -> None:
        """Nothing of it is to be stored any more."""
        self._due.pop(one.key, None)

    def _store(self) -> None:
        """Store what waits, of as many dialogs as there are, in one changeset a broker (DSP-3)."""
        self._scheduled = False
        due, self._due = self._due, {}
        stored: dict[BrokerId, list[Batch]] = {}
        for one in due.values():
            run = self._batch(one)
            if not run:
                continue
            taken = len(run)
            live = self._step(one, run)
            if live is not None:
                stored.setdefault(one.broker.broker_id, []).append((one, live, run, taken))
        for broker_id, batches in stored.items():
            self._rounds.finish(broker_id, urgent=True, then=partial(self.durable, batches))
        self._rounds.finish_all(urgent=True)

    def _batch(self, one: ArrivingDialog) -> list[Fragment]:
        arrivals = one.arrivals
        if arrivals is None or arrivals.busy or not arrivals.run:
            self._inspecting.forget(one)
            return []
        service = arrivals.run[0].to_service
        if one.live is not None:
            queue = one.live.queue
        else:
            known = one.broker.services.get(service)
            if known is None:
                return self._taken(arrivals, self._limit)
            queue = one.broker.queues[known.queue]
        if one.broker.is_full:
            self._reject_run(one, "peer_store_full")  # REL-26: likewise
            return []
        if queue.queue.enqueue_enabled:
            ready = self._inspecting.ready(one, self._limit)
            return self._taken(arrivals, ready) if ready else []
        self._reject_run(one, "peer_queue_disabled")  # DSP-11: kept by its sender
        return []

    def _taken(self, arrivals: Arrivals, limit: int) -> list[Fragment]:
        size = arrivals.size
        run = arrivals.take_run(limit)
        self._memory.size -= size - arrivals.size
        return run

    def _reject_run(self, one: ArrivingDialog, reason: str) -> None:
        """Neither stored nor acknowledged; the sender is told why and keeps it."""
        arrivals = one.arrivals
        assert arrivals is not None
        first = arrivals.run[0]
        endpoint = one.live.endpoint if one.live is not None else None
        expected = (endpoint.receive_sequence, endpoint.receive_fragment) if endpoint else (0, 0)
        self._memory.size -= arrivals.size
        self._accounts.dropped[reason] += arrivals.drop_run(*expected)
        if one.live is not None and one.live.outgoing is not None:
            one.live.outgoing.held_ranges = ()
        self._accounts.tell_sender(first, reason)

    def _step(self, one: ArrivingDialog, run: list[Fragment]) -> Live | None:
        """Step the endpoint with a run; None when it was refused and nothing is kept."""
        round_, accounts = self._rounds.of(one.broker), self._accounts
        live, first = one.live, run[0]
        if live is None:
            refusal = refuse_opening(one.broker, first, self._clock.utc())
            if refusal is not None:
                accounts.dropped["refused"] += len(run)
                accounts.undeliverable(one.broker, first, None, refusal[1])
                self._answers.refuse(one.broker, first, *refusal)
                self._inspecting.forget(one)
                self._dialogs.let_go(one)
                return None
            live = self.new_target(one.broker, first, State.STARTED_INBOUND)
            self._dialogs.hold(one, live)
            round_.create(live)
        good, refusal = check_run(one.broker, live, run, one.inspecting)
        self._inspecting.forget(one)
        if good:
            outcome = round_.step(
                live, dialog.FragmentsReceived(good, one.broker.options.replay_guard)
            )
            for effect in outcome.effects:
                if isinstance(effect, dialog.Refuse):
                    self.refuse(one.broker, live, effect.code, effect.description)
                elif isinstance(effect, dialog.Anomaly):
                    accounts.undeliverable(one.broker, first, live, effect.what)
        if refusal is not None:  # both sides are errored (DLG-43)
            accounts.undeliverable(one.broker, run[len(good)], live, refusal[1])
            round_.step(live, dialog.FaultStruck(*checks.struck(refusal)))
            self.refuse(one.broker, live, *refusal)
            run[:] = good
        accounts.stored += len(run)
        return live

    def new_target(self, broker: Broker, first: Fragment, state: State) -> Live:
        """Make the endpoint of a dialog that was begun elsewhere; not recorded yet (DLP-37)."""
        live = broker.new_target(
            conversation_id=first.conversation_id,
            service=first.to_service,
            contract=first.contract,
            far_service=first.from_service,
            far_broker=first.from_broker,
            expires_at=first.expires_at,
            now=self._clock.utc(),
            state=state,
        )
        broker.outgoing(live)
        return live

    def refuse(self, broker: Broker, live: Live, code: int, text: str) -> None:
        """Answer with an error made by this broker; in ER, its own again if it made one."""
        made = live.endpoint.error_code
        if live.endpoint.state is State.ERROR and made is not None and made < 0:
            code, text = checks.told(made), live.endpoint.error_text or ""
        self._transmitter.refuse(broker, broker.outgoing(live), code, text)

    def durable(self, batches: list[Batch]) -> None:
        """The commit of these is through."""
        for one, live, run, taken in batches:
            assert one.arrivals is not None
            one.arrivals.stored(taken)
            self.stored(one, live, run)
            if one.arrivals.run:
                self.schedule(one)
        self._memory.check()

    def stored(self, one: ArrivingDialog, live: Live, run: list[Fragment]) -> None:
        """The commit is through: now, and only now, it may be acknowledged (DLP-15)."""
        if live.gone:
            if run:
                self._answers.acknowledge(one.broker, run[-1])
            return
        out = one.broker.outgoing(live)
        if one.arrivals is not None:
            out.held_ranges = one.arrivals.ranges()
            out.highest_seen = max(out.highest_seen, one.arrivals.highest_seen)
        if not run:
            return
        last = run[-1]
        out.stored_sequence = last.sequence
        out.stored_fragment = last.fragment if last.fragment + 1 < last.fragments else WHOLE
        at_once = run[0].sequence == 0 or any(item.flags for item in run)
        self._transmitter.owe_ack(one.broker, out, len(run), at_once=at_once)
