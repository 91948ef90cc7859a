"""Arrival writer: stores runs, one per dialog, in one changeset per broker, then acks (DSP-3).

Reads: runs of the dialogs.      Calls: open_changesets, inspection, transmitter, orphan_replies.
Never: acknowledges before the commit (DLP-15).
Wakes: in the next turn of the event loop after a run became due, once for all due runs.
Fails: a dialog that cannot be stored is left out; the others continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping
from functools import partial

import msgspec

from brokerd.broker import checks
from brokerd.broker.broker import Broker
from brokerd.broker.state import HomeQueue, Live
from brokerd.clock import Clock, Instant
from brokerd.delivery.incoming.admission import NO_SEND_PERMISSION, Admission, no_permission
from brokerd.delivery.incoming.arrival_memory import ArrivalMemory, EarlyShares
from brokerd.delivery.incoming.buffer import Arrivals
from brokerd.delivery.incoming.counters import STORE_FAILED, ArrivalCounters
from brokerd.delivery.incoming.dialogs import ArrivingDialog, ArrivingDialogs, Key
from brokerd.delivery.incoming.inspection import (
    ArrivalInspection,
    is_complete,
    is_damaged,
    joined,
)
from brokerd.delivery.incoming.open_changesets import OpenChangesets
from brokerd.delivery.incoming.opening_dialogs import OpeningDialogs
from brokerd.delivery.outgoing.orphan_replies import OrphanReplies
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.delivery.peers.dialog_security import DialogSecurity
from brokerd.delivery.peers.refusal_notices import RefusalNotices
from brokerd.ids import BrokerId, InstanceId, show
from brokerd.protocol import dialog
from brokerd.protocol.frames import ENDS, HEADERS, Fragment
from brokerd.protocol.headers import Content, find_content_problem
from brokerd.protocol.transitions import State
from brokerd.routing.reasons import DropReason, Reason
from brokerd.security.kept_keys import DialogKeys

Batch = tuple[ArrivingDialog, Live, list[Fragment], int]
"""Fragments of a dialog that are being stored, and the number taken from its buffer for that."""
_Verdict = tuple[list[Fragment] | None, checks.Refusal | None]
"""The storable prefix of a run (None: do not create the endpoint), and the refusal of the rest."""


class ArrivalWriter:
    """The writer that stores the due runs of all dialogs."""

    __slots__ = (
        "_admission",
        "_answers",
        "_changesets",
        "_clock",
        "_counters",
        "_dialogs",
        "_due",
        "_early",
        "_inspecting",
        "_limit",
        "_memory",
        "_most_dialogs",
        "_most_failures",
        "_notices",
        "_openings",
        "_scheduled",
        "_security",
        "_transmitter",
        "restarts",
    )

    def __init__(
        self,
        *,
        dialogs: ArrivingDialogs,
        changesets: OpenChangesets,
        transmitter: Transmitter,
        answers: OrphanReplies,
        counters: ArrivalCounters,
        memory: ArrivalMemory,
        early: EarlyShares,
        openings: OpeningDialogs,
        notices: RefusalNotices,
        security: DialogSecurity,
        admission: Admission,
        clock: Clock,
        batch: int,
        retries: int,
        most_dialogs: int,
    ) -> None:
        self._dialogs = dialogs
        self._changesets = changesets
        self._transmitter = transmitter
        self._answers = answers
        self._counters = counters
        self._memory = memory
        self._early = early
        self._openings = openings
        self._clock = clock
        self._notices = notices
        self._security = security
        self._admission = admission
        self._limit = batch
        self._inspecting = ArrivalInspection(
            is_here=lambda one: dialogs.known.get(one.key) is one, resume=self.schedule
        )
        self._most_failures = retries
        self._most_dialogs = most_dialogs
        self._due: dict[Key, ArrivingDialog] = {}
        self._scheduled = False
        self.restarts = 0
        """Number of runs that a tick scheduled again because they were not being stored (DSP-7)."""

    def schedule(self, one: ArrivingDialog) -> None:
        """Store the run of a dialog soon, or once its fragments being stored are durable."""
        assert one.arrivals is not None
        if not one.arrivals.busy:
            self._due[one.key] = one
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._store)

    def unschedule(self, one: ArrivingDialog) -> None:
        """Remove a dialog from those to be stored, and drop the checks of its bodies."""
        self._due.pop(one.key, None)
        self._inspecting.drop(one)

    def _store(self) -> None:
        """Store the runs of all due dialogs, in one changeset per broker (DSP-3)."""
        self._scheduled = False
        due, self._due = self._due, {}
        stored: dict[BrokerId, list[Batch]] = {}
        for one in due.values():
            if one.live is not None and one.live.gone and one.arrivals is not None:
                # It ended after the run arrived: a step would write its progress row again.
                self.drop(one, "over")
                continue
            run = self._batch(one)
            if not run:
                continue
            taken = len(run)
            try:
                verdict = self._check_run(one, run)
            except Exception as error:  # noqa: BLE001  # from a validator or lack of memory (DSP-8)
                self._failed(one, run, error)
                continue
            one.failures = 0
            overruns = self._inspecting.overruns(one, run) if one.inspected else {}
            self._inspecting.stored(one, run)
            live = self._step(one, run, verdict, overruns)
            if live is not None:
                stored.setdefault(one.broker.broker_id, []).append((one, live, run, taken))
        # Only now, when all runs of a broker are in its changeset (DSP-3).
        for broker_id, batches in stored.items():
            # Which dialogs are over must be noted before the commit: one that ends after that is
            # acknowledged by whatever ended it, once that is durable (REL-4).
            over = [live for _, live, _, _ in batches if live.gone]
            self._changesets.finish(
                broker_id, urgent=True, then=partial(self.durable, batches, over)
            )
        self._changesets.finish_all(urgent=True)

    def _batch(self, one: ArrivingDialog) -> list[Fragment]:
        arrivals = one.arrivals
        if arrivals is None or arrivals.busy or not arrivals.run:
            self._inspecting.drop(one)
            return []
        service = arrivals.run[0].to_service
        if one.live is not None:
            queue: HomeQueue = one.live.queue
        else:
            known = one.broker.services.get(service)
            if known is None:
                return self._dequeue(arrivals, self._limit)
            queue = one.broker.queues[known.queue]
        over = self._is_over_limit(one)
        if over is None:
            return []
        fitting, refused = self._find_room(one, arrivals, queue, over=over)
        if refused is None:
            return self._inspected(one, arrivals, fitting)
        self._reject_run(one, queue, refused)
        return []

    def _find_room(
        self, one: ArrivingDialog, arrivals: Arrivals, queue: HomeQueue, *, over: bool
    ) -> tuple[int, Reason | None]:
        """Return the number of fragments that may be stored now, or why there is no room.

        `over`: whether the peer has begun as many dialogs as it may."""
        if one.broker.is_full:
            return 0, Reason.PEER_STORE_FULL  # REL-26: as if the queue was off
        if not queue.queue.enqueue_enabled:
            return 0, Reason.PEER_QUEUE_DISABLED
        if over:
            return 0, Reason.PEER_DIALOG_LIMIT  # REL-45
        if queue.room is None:
            return self._limit, None
        fitting = _count_fitting(queue, one.live, arrivals.run)
        if fitting:
            return min(fitting, self._limit), None
        queue.room.refuse(one.broker.clock.utc(), elsewhere=True)
        return 0, Reason.PEER_QUEUE_FULL  # REL-42

    def _is_over_limit(self, one: ArrivingDialog) -> bool | None:
        """Return whether the peer of a new dialog has begun as many as it may (REL-45).

        None: its dialogs are being counted; the run is scheduled again afterwards."""
        peer, most = one.neighbour, self._most_dialogs
        if not most or one.live is not None or peer is None:
            return False
        owner, owners = owner_of(peer), one.broker.owners
        if owners.may_begin(owner, most):
            return False
        if not owners.is_fresh(owner):
            owners.count(owner, partial(self.retry, one))
            return None
        owners.refuse(owner, most)
        return True

    def _inspected(self, one: ArrivingDialog, arrivals: Arrivals, most: int) -> list[Fragment]:
        """Dequeue the prefix of the run whose bodies have been checked; it may be empty.

        `most`: the greatest number of fragments."""
        limit = most if one.live is None else self._with_its_parts(one, one.live, most)
        if not limit:
            return []
        ready = self._inspecting.ready(one, limit)
        if ready:
            return self._dequeue(arrivals, ready)
        refused = self._inspecting.refuses(one)
        if refused:  # neither stored nor acknowledged: the sender keeps it and gets a NOTICE
            first = arrivals.run[0]
            self.drop(one, refused)
            self._notices.refuse(first, refused, one.neighbour)
        return []

    def _with_its_parts(self, one: ArrivingDialog, live: Live, most: int) -> int:
        """Return the number of fragments, of `most`, that may be stored given the parts in memory.

        0: the first fragment completes a message whose earlier parts are only in the store
        (DSP-15). They are read first, then the dialog is scheduled again."""
        assert one.arrivals is not None
        if not live.parts_stored:
            return most
        for at, item in enumerate(one.arrivals.run[:most]):
            if item.fragment + 1 == item.fragments:
                if not at:
                    self._dialogs.read_parts(one)
                return at
        return most

    def retry(self, one: ArrivingDialog) -> None:
        """Schedule again a run that could not be stored; called every tick (DSP-7, DSP-8)."""
        arrivals = one.arrivals
        if arrivals is not None and arrivals.run:
            self.restarts += not arrivals.busy and one.key not in self._due
            self.schedule(one)

    def _failed(self, one: ArrivingDialog, run: list[Fragment], error: Exception) -> None:
        """Put a run back into memory, unacknowledged; drop it if it failed too often (DSP-8)."""
        arrivals = one.arrivals
        assert arrivals is not None
        size = arrivals.size
        arrivals.put_back(run)
        self._memory.size += arrivals.size - size
        one.failures += 1
        self._counters.failed(one.broker, run[0], one.failures, error)
        if one.failures >= self._most_failures:
            one.failures = 0
            self.drop(one, STORE_FAILED)

    def drop(self, one: ArrivingDialog, reason: str) -> int:
        """Drop all buffered fragments of a dialog; return their number.

        They were not acknowledged, so the peer sends them again."""
        arrivals = one.arrivals
        assert arrivals is not None
        endpoint = one.live.endpoint if one.live is not None else None
        expected = (endpoint.receive_sequence, endpoint.receive_fragment) if endpoint else (0, 0)
        self._memory.size -= arrivals.size
        dropped = self._counters.drop(arrivals.drop_run(*expected), reason)
        self._early.update(one)
        if one.live is not None:
            one.broker.unfinished.release(one.live)
        if one.live is not None and one.live.outgoing is not None:
            one.live.outgoing.acks.dropped(())
        self._inspecting.drop(one)
        return dropped

    def _dequeue(self, arrivals: Arrivals, limit: int) -> list[Fragment]:
        size = arrivals.size
        run = arrivals.dequeue_run(limit)
        self._memory.size -= size - arrivals.size
        return run

    def _reject_run(self, one: ArrivingDialog, queue: HomeQueue, reason: Reason) -> None:
        """Drop a run whose queue is off or store is full; its sender keeps it (DSP-11, REL-26)."""
        assert one.arrivals is not None
        first = one.arrivals.run[0]
        self.drop(one, reason)
        self._notices.refuse_for(one.broker, queue, first, one.neighbour, reason)

    def _check_run(self, one: ArrivingDialog, run: list[Fragment]) -> _Verdict:
        """Decide which part of a run may be stored, without changing anything."""
        if one.live is None:
            # Asked when the fragment arrived, too: the grant may have been revoked since (SEC-50).
            if not self._admission.admits(one.broker, run[0], one.neighbour, one.principal):
                return None, (NO_SEND_PERMISSION, no_permission(one.principal, run[0]))
            refusal = refuse_opening(one.broker, run[0], self._clock.utc(), one.inspected)
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
        """Step the endpoint with a run; None = the dialog was refused, and no endpoint is kept.

        `overruns`: messages of the run whose checks came to no verdict, by sequence (OBJ-62)."""
        changeset, counters = self._changesets.for_broker(one.broker), self._counters
        live, first = one.live, run[0]
        good, refusal = verdict
        if good is None:
            assert refusal is not None
            is_denied = refusal[0] == NO_SEND_PERMISSION
            if is_denied:  # `admission` has logged it
                counters.drop(run, DropReason.NO_SEND_PERMISSION)
            else:
                counters.undeliverable(one.broker, first, None, refusal[1], counted="refused")
                counters.drop(run[1:], "refused")
            # Only a sender that has proven itself is told that it has no right (SEC-54).
            if not is_denied or one.principal is not None:
                self._answers.refuse(
                    one.broker, first, *refusal, neighbour=one.neighbour, keys=one.keys
                )
            self.drop(one, "refused")
            self._dialogs.release(one)
            return None
        if live is None:
            live = self.new_target(one, first, State.STARTED_INBOUND)
            self._dialogs.hold(one, live)
            changeset.create(live)
            if self._most_dialogs and one.neighbour is not None:
                one.broker.owners.begun(live, owner_of(one.neighbour))
        if good:
            good = self._receive(one.broker, live, good)
            for sequence, why in overruns.items():
                changeset.park_unchecked(live, sequence, why)
        if refusal is not None:  # both sides are errored (DLG-43)
            self._leave_out(one.broker, live, run[len(verdict[0] or ()) :], refusal[1], "refused")
            changeset.step(live, dialog.FaultStruck(*checks.struck(refusal)))
            self.refuse(one.broker, live, *refusal)
        run[:] = good
        counters.stored += len(run)
        counters.parts += sum(item.fragment + 1 < item.fragments for item in run)
        return live

    def _receive(self, broker: Broker, live: Live, run: list[Fragment]) -> list[Fragment]:
        """Step the endpoint with the storable run; return the part that its state accepts."""
        changeset = self._changesets.for_broker(broker)
        event = dialog.FragmentsReceived(run, broker.options.replay_guard)
        before = live.endpoint.receive_sequence, live.endpoint.receive_fragment
        outcome = changeset.step(live, event)
        now = live.endpoint.receive_sequence, live.endpoint.receive_fragment
        # An Error may have overtaken these fragments since they arrived (DLG-30). It moved the
        # expected sequence past them, so the step does not take them.
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
        """Report and drop the rest of a run, which is not stored."""
        self._counters.undeliverable(broker, rest[0], live, why, counted=reason)
        self._counters.drop(rest[1:], reason)

    def new_target(self, one: ArrivingDialog, first: Fragment, state: State) -> Live:
        """Create a target endpoint for a dialog begun by a peer; record no row yet (DLP-37)."""
        broker = one.broker
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
        if isinstance(one.keys, DialogKeys):  # stored in the commit that creates the endpoint
            wrapped = self._security.secure(live, one.keys)
            live.stepped(msgspec.structs.replace(live.endpoint, security=wrapped))
        broker.outgoing(live)
        return live

    def refuse(self, broker: Broker, live: Live, code: int, text: str) -> None:
        """Answer with an error made by this broker; in state ER repeat the earlier one, if any.

        The error is sent once its cause is durable, so that the dialog ends on both sides or on
        neither."""
        made = live.endpoint.error_code
        if live.endpoint.state is State.ERROR and made is not None and made < 0:
            code, text = checks.code_for_peer(made), live.endpoint.error_text or ""
        out = broker.outgoing(live)

        def answer() -> None:
            live.unpin()
            self._transmitter.refuse(broker, out, code, text)

        live.pin()  # a closed endpoint would leave memory, and the answer with it
        self._changesets.when_durable(broker, answer)

    def durable(self, batches: list[Batch], over: Container[Live] = ()) -> None:
        """Finish batches whose commit is durable.

        `over`: dialogs that had already ended when the commit was joined."""
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
        """Acknowledge fragments whose commit is durable, which must not happen before (DLP-15).

        `over`: the dialog had ended when the commit was joined, so its end is durable, too. If it
        ended later, its end is in memory only: nothing is acknowledged here, because the commit
        that ended it will do so (REL-4).
        """
        if live.gone:
            if run and over:
                self._answers.acknowledge(
                    one.broker, run[-1], neighbour=one.neighbour, keys=live.keys
                )
            return
        out = one.broker.outgoing(live)
        if one.arrivals is not None:
            out.acks.buffered(one.arrivals.ranges(), one.arrivals.highest_seen)
        if not run:
            return
        out.acks.stored(run[-1])
        at_once = run[0].sequence == 0 or any(item.flags & ENDS for item in run)
        self._transmitter.owe_ack(one.broker, out, len(run), at_once=at_once)


def owner_of(peer: InstanceId) -> str:
    """Return the name under which the dialogs that a peer has begun are counted."""
    return f"peer:{show(peer)}"


def _count_fitting(queue: HomeQueue, live: Live | None, run: list[Fragment]) -> int:
    """Return the length of the prefix of a run for which a queue with limits has room (REL-42).

    An END or Error always fits: nothing else would ever end the dialog. A message of several
    fragments is not begun while the queue is full, and completed once it is not."""
    messages = size = 0
    body = 0 if live is None else live.parts_size
    for at, item in enumerate(run):
        if not item.flags & ENDS and queue.is_at_limit(messages, size):
            return at
        body = len(item.body) + (body if item.fragment else 0)
        if item.fragment + 1 == item.fragments:
            messages, size = messages + 1, size + body
    return len(run)


def refuse_opening(
    broker: Broker, first: Fragment, now: Instant, inspected: Mapping[int, bytes]
) -> checks.Refusal | None:
    """Return why this fragment may not begin a dialog; None = it may.

    `inspected`: bodies that were checked already, by sequence."""
    body: bytes | None = first.body
    if first.flags & HEADERS and first.fragments == 1:
        refusal = _refuse_headers(first, first.body)
        if refusal is not None:
            return refusal
        body = _body_alone(first, first.body, inspected)
    return checks.refuse_dialog(
        broker.catalog_index,
        service=first.to_service,
        contract=first.contract,
        message_type=first.message_type,
        body=body,
        expires_at=first.expires_at,
        now=now,
        whole=first.fragments == 1,
        judge=broker.inspection.evaluate,
    )


def check_run(
    broker: Broker,
    live: Live | None,
    run: list[Fragment],
    inspected: Mapping[int, bytes],
) -> tuple[list[Fragment], checks.Refusal | None]:
    """Return the prefix of a run that may be stored, and the refusal of the rest, if any (OBJ-29).

    Without an endpoint the run begins a dialog, which `refuse_opening` has accepted. `inspected`:
    bodies that were checked already, by sequence; bodies of several fragments are joined."""
    contract = broker.contracts[run[0].contract] if live is None else live.contract
    known = broker.message_types
    size = 0 if live is None else live.parts_size
    for at, item in enumerate(run):
        if item.flags & ENDS:
            continue
        size = len(item.body) + (size if item.fragment else 0)
        announced = size
        if item.fragments > 1 and not item.fragment:  # only the last fragment is not full
            announced = (item.fragments - 1) * size + 1
        # Refuse a message by its announced size at its first fragment, before storing parts of it
        # (DLP-13, DSP-15).
        if max(size, announced) > broker.options.max_message:
            about = "about " if item.fragments > 1 else ""
            text = f"{about}{max(size, announced)} bytes are more than this broker takes"
            return run[:at], (checks.TOO_LARGE, text)
        body: bytes | None = item.body
        whole = item.fragments == 1
        if not whole or item.flags:  # most messages are one fragment, without headers
            body, whole, refused = _whole_body(broker, live, run, at, inspected)
            if refused is not None:
                return run[:at], refused
        refusal = checks.refuse_message(
            contract,
            item.message_type,
            body,
            known=known,
            from_initiator=item.from_initiator,
            whole=whole,
            judge=broker.inspection.evaluate,
        )
        if refusal is not None:
            return run[:at], refusal
    return run, None


def _whole_body(
    broker: Broker, live: Live | None, run: list[Fragment], at: int, inspected: Mapping[int, bytes]
) -> tuple[bytes | None, bool, checks.Refusal | None]:
    """Return the body that the fragment at a place of the run completes, and whether it can be
    checked now; or why its headers are refused."""
    item = run[at]
    body: bytes | None = item.body
    has_headers, is_last = bool(item.flags & HEADERS), item.fragment + 1 == item.fragments
    if item.fragments == 1:
        whole = True
    elif not is_last or is_damaged(broker, live, item) or not is_complete(live, run[: at + 1]):
        return body, False, None
    else:
        whole = has_headers or checks.needs_whole(broker.message_types, item.message_type)
        if whole and item.sequence in inspected and not has_headers:
            body = inspected[item.sequence]
        elif whole:
            body = joined(live, run[: at + 1])
    if not has_headers:
        return body, whole, None
    content = body or b""
    return (_body_alone(item, content, inspected), whole, _refuse_headers(item, content))


def _refuse_headers(item: Fragment, content: bytes) -> checks.Refusal | None:
    """Return why the headers of a complete message are refused, as a bad body is (DLP-60)."""
    why = find_content_problem(content)
    if not why:
        return None
    return checks.INVALID_BODY, f"a message of type {item.message_type!r} was refused: {why}"


def _body_alone(item: Fragment, content: bytes, inspected: Mapping[int, bytes]) -> bytes | None:
    """Return the body of a message with headers: the object that was checked, if one was."""
    found = inspected.get(item.sequence)
    return Content(content).body if found is None else found
