"""Storing what waits: a run a dialog, one changeset a broker and round, then the ack (DSP-3).

Reads: runs of the dialogs.      Calls: the open rounds, transmitter, answers.
Never: acknowledges before the commit (DLP-15).
Wakes: soon after something is due, once for all that became due meanwhile.
Fails: a dialog that may not be stored is left out; the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping
from functools import partial

from brokerd.broker import checks
from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.broker.outgoing import WHOLE
from brokerd.broker.queues import QueueState
from brokerd.clock import Clock
from brokerd.delivery.incoming.acceptance import check_run, refuse_opening
from brokerd.delivery.incoming.buffer import Arrivals
from brokerd.delivery.incoming.counters import STORE_FAILED, Accounts
from brokerd.delivery.incoming.dialogs import ArrivingDialog, ArrivingDialogs, Key
from brokerd.delivery.incoming.inspection import Arriving
from brokerd.delivery.incoming.memory import ArrivalMemory, EarlyShares
from brokerd.delivery.incoming.openings import Openings
from brokerd.delivery.incoming.rounds import OpenRounds
from brokerd.delivery.outgoing.orphan_replies import LooseAnswers
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.delivery.peers.notices import Notices
from brokerd.ids import BrokerId
from brokerd.protocol import dialog
from brokerd.protocol.frames import Fragment
from brokerd.protocol.transitions import State
from brokerd.routing.reasons import Reason

Batch = tuple[ArrivingDialog, Live, list[Fragment], int]
"""What is being stored of one dialog, and how many fragments were taken for it."""
_Verdict = tuple[list[Fragment] | None, checks.Refusal | None]
"""What of a run may be stored, None = not even an endpoint is to be made; and why not the rest."""


class Storing:
    """The dialogs that have a run to be stored, and the way it takes."""

    __slots__ = (
        "_accounts",
        "_answers",
        "_clock",
        "_dialogs",
        "_due",
        "_early",
        "_inspecting",
        "_limit",
        "_memory",
        "_most_failures",
        "_notices",
        "_openings",
        "_rounds",
        "_scheduled",
        "_transmitter",
        "restarts",
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
        early: EarlyShares,
        openings: Openings,
        notices: Notices,
        clock: Clock,
        batch: int,
        retries: int,
    ) -> None:
        self._dialogs = dialogs
        self._rounds = rounds
        self._transmitter = transmitter
        self._answers = answers
        self._accounts = accounts
        self._memory = memory
        self._early = early
        self._openings = openings
        self._clock = clock
        self._notices = notices
        self._limit = batch
        self._inspecting = Arriving(
            is_here=lambda one: dialogs.known.get(one.key) is one, resume=self.schedule
        )
        self._most_failures = retries
        self._due: dict[Key, ArrivingDialog] = {}
        self._scheduled = False
        self.restarts = 0
        """Runs that nobody was storing, and that a tick gave to the handler again (DSP-7)."""

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
        self._inspecting.forget(one)

    def _store(self) -> None:
        """Store what waits, of as many dialogs as there are, in one changeset a broker (DSP-3)."""
        self._scheduled = False
        due, self._due = self._due, {}
        stored: dict[BrokerId, list[Batch]] = {}
        for one in due.values():
            if one.live is not None and one.live.gone and one.arrivals is not None:
                self.drop(one, "over")  # ended since it came: a step would write its progress anew
                continue
            run = self._batch(one)
            if not run:
                continue
            taken = len(run)
            try:
                verdict = self._judge(one, run)
            except Exception as error:  # noqa: BLE001  # of a validator, or of memory (DSP-8)
                self._failed(one, run, error)
                continue
            one.failures = 0
            overruns = self._inspecting.overruns(one, run) if one.inspected else {}
            self._inspecting.stored(one, run)
            live = self._step(one, run, verdict, overruns)
            if live is not None:
                stored.setdefault(one.broker.broker_id, []).append((one, live, run, taken))
        for broker_id, batches in stored.items():
            over = [live for _, live, _, _ in batches if live.gone]
            self._rounds.finish(broker_id, urgent=True, then=partial(self.durable, batches, over))
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
            self._reject_run(one, queue, Reason.PEER_STORE_FULL)  # REL-26: likewise
            return []
        if queue.queue.enqueue_enabled:
            return self._inspected(one, arrivals)
        self._reject_run(one, queue, Reason.PEER_QUEUE_DISABLED)
        return []

    def _inspected(self, one: ArrivingDialog, arrivals: Arrivals) -> list[Fragment]:
        """The run as far as its bodies have been checked; nothing while one still is."""
        limit = self._limit if one.live is None else self._with_its_parts(one, one.live)
        if not limit:
            return []
        ready = self._inspecting.ready(one, limit)
        if ready:
            return self._taken(arrivals, ready)
        refused = self._inspecting.refuses(one)
        if refused:  # neither stored nor acknowledged: its sender keeps it, and is told
            first = arrivals.run[0]
            self.drop(one, refused)
            self._notices.refuse(first, refused, one.neighbour)
        return []

    def _with_its_parts(self, one: ArrivingDialog, live: Live) -> int:
        """How many fragments may be stored now; 0 = the stored ones of a message that is about to
        be complete are read first, and then it is scheduled again (DSP-15)."""
        assert one.arrivals is not None
        if not live.parts_stored:
            return self._limit
        for at, item in enumerate(one.arrivals.run[: self._limit]):
            if item.fragment + 1 == item.fragments:
                if not at:
                    self._dialogs.read_parts(one)
                return at
        return self._limit

    def retry(self, one: ArrivingDialog) -> None:
        """A tick: what could not be stored is tried again (DSP-7, DSP-8)."""
        arrivals = one.arrivals
        if arrivals is not None and arrivals.run:
            self.restarts += not arrivals.busy and one.key not in self._due
            self.schedule(one)

    def _failed(self, one: ArrivingDialog, run: list[Fragment], error: Exception) -> None:
        """Keep it in memory, unacknowledged, or drop it when it has failed too often (DSP-8)."""
        arrivals = one.arrivals
        assert arrivals is not None
        size = arrivals.size
        arrivals.put_back(run)
        self._memory.size += arrivals.size - size
        one.failures += 1
        self._accounts.failed(one.broker, run[0], one.failures, error)
        if one.failures >= self._most_failures:
            one.failures = 0
            self.drop(one, STORE_FAILED)

    def drop(self, one: ArrivingDialog, reason: str) -> int:
        """Forget what waits of a dialog; it was not acknowledged and comes again. How many."""
        arrivals = one.arrivals
        assert arrivals is not None
        endpoint = one.live.endpoint if one.live is not None else None
        expected = (endpoint.receive_sequence, endpoint.receive_fragment) if endpoint else (0, 0)
        self._memory.size -= arrivals.size
        dropped = self._accounts.drop(arrivals.drop_run(*expected), reason)
        self._early.update(one)
        if one.live is not None:
            one.broker.unfinished.let_go(one.live)
        if one.live is not None and one.live.outgoing is not None:
            one.live.outgoing.held_ranges = ()
        self._inspecting.forget(one)
        return dropped

    def _taken(self, arrivals: Arrivals, limit: int) -> list[Fragment]:
        size = arrivals.size
        run = arrivals.take_run(limit)
        self._memory.size -= size - arrivals.size
        return run

    def _reject_run(self, one: ArrivingDialog, queue: QueueState, reason: Reason) -> None:
        """Its queue is off: neither stored nor acknowledged, kept by its sender (DSP-11)."""
        assert one.arrivals is not None
        first = one.arrivals.run[0]
        self.drop(one, reason)
        self._notices.refuse_for(one.broker, queue, first, one.neighbour, reason)

    def _judge(self, one: ArrivingDialog, run: list[Fragment]) -> _Verdict:
        """What of the run may be stored; nothing is changed yet."""
        if one.live is None:
            refusal = refuse_opening(one.broker, run[0], self._clock.utc())
            if refusal is not None:
                return None, refusal
        return check_run(one.broker, one.live, run, one.inspected)

    def _step(
        self,
        one: ArrivingDialog,
        run: list[Fragment],
        verdict: _Verdict,
        overruns: Mapping[int, str],
    ) -> Live | None:
        """Step the endpoint with a run; None when it was refused and nothing is kept.

        `overruns`: messages of it whose checks came to no verdict, by sequence (OBJ-62)."""
        round_, accounts = self._rounds.of(one.broker), self._accounts
        live, first = one.live, run[0]
        good, refusal = verdict
        if good is None:
            assert refusal is not None
            accounts.undeliverable(one.broker, first, None, refusal[1], counted="refused")
            accounts.drop(run[1:], "refused")
            self._answers.refuse(one.broker, first, *refusal, neighbour=one.neighbour)
            self.drop(one, "refused")
            self._dialogs.let_go(one)
            return None
        if live is None:
            live = self.new_target(one.broker, first, State.STARTED_INBOUND)
            self._dialogs.hold(one, live)
            round_.create(live)
        if good:
            good = self._receive(one.broker, live, good)
            for sequence, why in overruns.items():
                round_.park_unchecked(live, sequence, why)
        if refusal is not None:  # both sides are errored (DLG-43)
            self._leave_out(one.broker, live, run[len(verdict[0] or ()) :], refusal[1], "refused")
            round_.step(live, dialog.FaultStruck(*checks.struck(refusal)))
            self.refuse(one.broker, live, *refusal)
        run[:] = good
        accounts.stored += len(run)
        accounts.parts += sum(item.fragment + 1 < item.fragments for item in run)
        return live

    def _receive(self, broker: Broker, live: Live, run: list[Fragment]) -> list[Fragment]:
        """Step the endpoint with what may be stored; the part of it that its state takes."""
        round_ = self._rounds.of(broker)
        event = dialog.FragmentsReceived(run, broker.options.replay_guard)
        before = live.endpoint.receive_sequence, live.endpoint.receive_fragment
        outcome = round_.step(live, event)
        now = live.endpoint.receive_sequence, live.endpoint.receive_fragment
        # An Error may have passed them since they came: they are behind it then, and not taken.
        taken = [item for item in run if before <= (item.sequence, item.fragment) < now]
        for effect in outcome.effects:
            if isinstance(effect, dialog.Refuse):
                self._leave_out(broker, live, run[len(taken) :], effect.description, "over")
                self.refuse(broker, live, effect.code, effect.description)
            elif isinstance(effect, dialog.Anomaly):
                self._leave_out(broker, live, run[len(taken) :], effect.what, "unexpected")
        return taken

    def _leave_out(
        self, broker: Broker, live: Live, rest: list[Fragment], why: str, reason: str
    ) -> None:
        """The rest of a run is not taken."""
        self._accounts.undeliverable(broker, rest[0], live, why, counted=reason)
        self._accounts.drop(rest[1:], reason)

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
        """Answer with an error made by this broker; in ER, its own again if it made one.

        It leaves when what led to it is durable: the dialog is over at both sides or at none."""
        made = live.endpoint.error_code
        if live.endpoint.state is State.ERROR and made is not None and made < 0:
            code, text = checks.told(made), live.endpoint.error_text or ""
        out = broker.outgoing(live)

        def answer() -> None:
            live.pins -= 1
            self._transmitter.refuse(broker, out, code, text)

        live.pins += 1  # a closed one would leave memory, and its answer with it
        self._rounds.when_durable(broker, answer)

    def durable(self, batches: list[Batch], over: Container[Live] = ()) -> None:
        """The commit of these is through. `over`: dialogs that were gone when it was joined."""
        for one, live, run, taken in batches:
            assert one.arrivals is not None
            one.arrivals.stored(taken)
            self._openings.stored(one.broker, live, one.neighbour)
            self.stored(one, live, run, over=live in over)
            if one.arrivals.run:
                self.schedule(one)
        self._memory.check()
        self._dialogs.read_more()

    def stored(self, one: ArrivingDialog, live: Live, run: list[Fragment], *, over: bool) -> None:
        """The commit is through: now, and only now, it may be acknowledged (DLP-15).

        A dialog that has gone since the commit was joined is `over` in memory alone: what ended it
        is acknowledged when that is durable (REL-4), and nothing of the dialog before.
        """
        if live.gone:
            if run and over:
                self._answers.acknowledge(one.broker, run[-1], neighbour=one.neighbour)
            return
        out = one.broker.outgoing(live)
        if one.arrivals is not None:
            out.held_ranges = one.arrivals.ranges()
            out.highest_seen = max(out.highest_seen, one.arrivals.highest_seen)
        if not run:
            return
        last = run[-1]
        out.stored_sequence, out.stored_message = last.sequence, last.message_id
        out.stored_fragment = last.fragment if last.fragment + 1 < last.fragments else WHOLE
        at_once = run[0].sequence == 0 or any(item.flags for item in run)
        self._transmitter.owe_ack(one.broker, out, len(run), at_once=at_once)
