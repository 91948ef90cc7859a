"""Sequencer: decides about each arrival whether it is next, early, repeated or refused (DLP-48).

Reads: the endpoint and the buffer of the dialog.      Calls: arrival_writer, acknowledgements.
Never: stores; `arrival_writer.py` does, with consecutive fragments.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec

from brokerd.broker import ordinary
from brokerd.broker.state import Live
from brokerd.clock import Clock, later
from brokerd.delivery.incoming.acknowledgements import Acknowledgements
from brokerd.delivery.incoming.admission import NO_SEND_PERMISSION, Admission, no_permission
from brokerd.delivery.incoming.arrival_memory import ArrivalMemory, EarlyShares
from brokerd.delivery.incoming.arrival_writer import ArrivalWriter
from brokerd.delivery.incoming.buffer import Arrivals, weight
from brokerd.delivery.incoming.counters import MEMORY_FULL, ArrivalCounters
from brokerd.delivery.incoming.dialogs import ArrivingDialog, ArrivingDialogs
from brokerd.delivery.incoming.open_changesets import OpenChangesets
from brokerd.delivery.incoming.opening_dialogs import OpeningDialogs
from brokerd.delivery.incoming.unsealing import Unsealing
from brokerd.delivery.outgoing.orphan_replies import OrphanReplies
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.ids import InstanceId
from brokerd.protocol import dialog
from brokerd.protocol.frames import (
    END,
    ERROR,
    AckOnly,
    BrokerErrorItem,
    Fragment,
    Item,
)
from brokerd.protocol.transitions import OVER, State
from brokerd.protocol.wire import MAX_ERROR
from brokerd.routing.reasons import DropReason

_LONGEST_TEXT = 3000

# Service Broker's error numbers for a fragment that does not belong to the dialog it names.
OTHER_SERVICE, OTHER_CONTRACT, OTHER_BROKER = 11222, 11223, 11224


class Sequencer:
    """The sorter of items, one at a time, each of a dialog that the dispatcher has found."""

    def __init__(
        self,
        *,
        dialogs: ArrivingDialogs,
        writer: ArrivalWriter,
        acknowledgements: Acknowledgements,
        changesets: OpenChangesets,
        transmitter: Transmitter,
        answers: OrphanReplies,
        counters: ArrivalCounters,
        memory: ArrivalMemory,
        early: EarlyShares,
        openings: OpeningDialogs,
        unsealing: Unsealing,
        admission: Admission,
        clock: Clock,
        mem_dialog: int,
    ) -> None:
        self._dialogs = dialogs
        self._writer = writer
        self._acknowledgements = acknowledgements
        self._changesets = changesets
        self._transmitter = transmitter
        self._answers = answers
        self._counters = counters
        self._memory = memory
        self._early = early
        self._openings = openings
        self._unsealing = unsealing
        self._admission = admission
        self._clock = clock
        self._mem_dialog = mem_dialog
        self.tick = 0
        """Number of ticks so far; each dialog keeps the tick of its latest arrival."""

    def process(self, one: ArrivingDialog, item: Item, neighbour: InstanceId | None) -> None:
        """Open and sort one item; `neighbour`: brought it, None = a broker of this instance."""
        self._release_gone(one)
        opened = self._unsealing.open(one, item, neighbour)
        if opened is not None:
            self.sort(one, opened, neighbour)
        elif one.live is None and one.rests:
            self._dialogs.release(one)

    def _release_gone(self, one: ArrivingDialog) -> None:
        """Release the endpoint if it has ended meanwhile; keep its keys for answers."""
        # The endpoint is gone: drop the buffer, and sort the item like any other for a
        # dialog without an endpoint here.
        if one.live is not None and one.live.gone:
            if one.arrivals is not None:
                self._writer.drop(one, "over")
            one.keys = one.live.keys
            self._dialogs.hold(one, None)
            one.arrivals = Arrivals(0, 0)

    def sort(
        self,
        one: ArrivingDialog,
        item: Fragment | AckOnly | BrokerErrorItem,
        neighbour: InstanceId | None,
    ) -> None:
        """Sort one item that is authentic, as far as its dialog demands."""
        match item:
            case Fragment():
                if one.live is None or self._fits(one, one.live, item, neighbour):
                    self._fragment(one, item, neighbour)
            case AckOnly():
                if one.live is not None:
                    self._acknowledgements.apply_ack(one.broker, one.live, item.ack)
                elif not item.from_initiator:  # DLP-57
                    settled = partial(self._answers.confirm_first_acked, one.broker, item, one.keys)
                    self._changesets.when_durable(one.broker, settled)
            case BrokerErrorItem():
                if one.live is not None:
                    self._acknowledgements.apply_error(one.broker, one.live, item, neighbour)

    def _fits(
        self, one: ArrivingDialog, live: Live, item: Fragment, neighbour: InstanceId | None
    ) -> bool:
        """Return whether sender, service and contract of an item are the dialog's own.

        False: the item was refused or dropped, and reported (DLP-45, DLP-48)."""
        endpoint, broker = live.endpoint, one.broker
        if ordinary.names_match(endpoint, item):
            return True
        if endpoint.bound and item.from_broker != endpoint.far_broker:
            text = "another broker has this dialog"
            self._counters.undeliverable(
                broker, item, live, text, counted="stray", ssb_code=OTHER_BROKER
            )
            self._answers.refuse(
                broker, item, dialog.ELSEWHERE, text, neighbour=neighbour, keys=live.keys
            )
            return False
        text = "service or contract are not those of the dialog"
        code = OTHER_SERVICE if item.to_service != endpoint.service else OTHER_CONTRACT
        self._counters.undeliverable(
            broker, item, live, text, counted="names_differ", ssb_code=code
        )
        return False

    def _fragment(self, one: ArrivingDialog, item: Fragment, neighbour: InstanceId | None) -> None:
        if one.neighbour != neighbour:
            self._dialogs.came_from(one, neighbour)
        if item.ack is not None and one.live is not None:
            self._acknowledgements.apply_ack(one.broker, one.live, item.ack)
        # Only now: the acknowledgement may have changed the state that decides on the fragment.
        arrivals, live = one.arrivals, one.live
        assert arrivals is not None
        if live is None and not self._may_open(one, arrivals, item, neighbour):
            return
        if live is not None and live.endpoint.state in OVER and not _is_repeat(live, item):
            text = "the dialog is over at this side"
            self._counters.undeliverable(one.broker, item, live, text, counted="over")
            self._writer.refuse(one.broker, live, dialog.PEER_GONE, text)
            return
        if live is not None:
            arrivals.catch_up(live.endpoint.receive_sequence)
        place = arrivals.place(item)
        if place < 0:
            self._repeat(one, item)
        elif item.flags & ERROR and (live is not None or item.sequence):
            self._application_error(one, item)
        else:
            self._keep(one, arrivals, item, neighbour)
        arrivals.tick = self.tick

    def _keep(
        self,
        one: ArrivingDialog,
        arrivals: Arrivals,
        item: Fragment,
        neighbour: InstanceId | None,
    ) -> None:
        """Buffer a fragment that is next or early, if the memory limits allow it (DSP-10)."""
        size, is_next = weight(item), arrivals.place(item) == 0
        if not arrivals.agrees(item):
            self._counters.corrupted(item, "fragment_count")
        elif not self._memory.has_room(size):
            self._counters.refuse(item, MEMORY_FULL, neighbour)
        elif arrivals.size + size > self._mem_dialog and (arrivals.run or not is_next):
            # The next fragment is exempt from the limit once the run is stored: the early ones that
            # fill the buffer wait for it, and would never leave otherwise.
            self._counters.refuse(item, "dialog_memory", neighbour)
        elif one.live is None and not self._may_begin(item, neighbour):
            self._counters.refuse(item, "openings", neighbour)
            if arrivals.is_empty:
                self._dialogs.release(one)
        elif is_next:
            arrivals.append(item)
            self._memory.size += size
            self._early.update(one)
            self._writer.schedule(one)
        elif not self._early.has_room(neighbour, size):
            self._counters.refuse(item, "early_memory", neighbour)
        else:
            if arrivals.keep_early(item, self.tick):
                self._memory.size += size
                self._early.update(one)
            else:
                self._counters.repeated(item)
            self._note_gap(one)

    def _may_begin(self, item: Fragment, neighbour: InstanceId | None) -> bool:
        """Return whether the neighbour may begin another dialog with this fragment (DSP-16).

        A fragment that is a whole first message always may: it leaves no incomplete message."""
        is_whole = item.fragments == 1 and not item.sequence
        return is_whole or self._openings.begin(item.conversation_id, neighbour)

    def _may_open(
        self,
        one: ArrivingDialog,
        arrivals: Arrivals,
        item: Fragment,
        neighbour: InstanceId | None,
    ) -> bool:
        """Return whether a fragment may create the endpoint that its dialog lacks here (DLP-48).

        If not, answer it once the removal of the former endpoint is durable. A crash before that
        would restore the endpoint, and it would wait forever for acknowledged messages (REL-4)."""
        settled = item.ack is not None and item.ack.first_acked
        # The message may be addressed to a broker id that this broker had before (MAN-6).
        former = item.hop.to_broker not in (b"", one.broker.broker_id)
        if item.from_initiator and not settled and not former:
            if self._admission.admits(one.broker, item, neighbour, one.principal):
                return True
            self._refuse_sender(one, item)
            if arrivals.is_empty:
                self._dialogs.release(one)
            return False
        if item.flags & (END | ERROR):
            self._counters.repeated(item)
            answer = partial(self._answers.acknowledge, one.broker, item)
        else:
            self._counters.drop((item,), "unknown_conversation")
            text = "no such dialog is open here"
            answer = partial(self._answers.refuse, one.broker, item, dialog.PEER_GONE, text)
        settle = partial(answer, neighbour=one.neighbour, keys=one.keys)
        self._changesets.when_durable(one.broker, settle)
        self._dialogs.release(one)
        return False

    def _refuse_sender(self, one: ArrivingDialog, item: Fragment) -> None:
        """Drop a fragment of a sender without the permission; answer one that is known (SEC-54)."""
        self._counters.drop((item,), DropReason.NO_SEND_PERMISSION)
        if one.principal is not None:
            text = no_permission(one.principal, item)
            answer = partial(self._answers.refuse, one.broker, item, NO_SEND_PERMISSION, text)
            settle = partial(answer, neighbour=one.neighbour, keys=one.keys)
            self._changesets.when_durable(one.broker, settle)

    def _repeat(self, one: ArrivingDialog, item: Fragment) -> None:
        """Count a repeated fragment; if it is stored, acknowledge it again (DLP-19, DLP-33)."""
        self._counters.repeated(item)
        if one.live is not None:
            out = one.broker.outgoing(one.live)
            if self._acknowledgements.contradicts(one.broker, one.live, item):
                return
            stored = out.acks.stored_sequence, out.acks.stored_fragment
            if (item.sequence, item.fragment) <= stored:
                self._transmitter.owe_ack(one.broker, out, 1, at_once=True)

    def _note_gap(self, one: ArrivingDialog) -> None:
        if one.live is not None and one.arrivals is not None:
            out = one.broker.outgoing(one.live)
            out.acks.buffered(one.arrivals.ranges(), one.arrivals.highest_seen)
            if out.acks.stored_sequence >= 0:
                self._transmitter.owe_ack(one.broker, out, 1, at_once=False)

    def _application_error(self, one: ArrivingDialog, item: Fragment) -> None:
        """Process an application's Error at once, even if earlier messages are missing (DLG-30)."""
        code, text = _read_error(item.body)  # the text is for an open dialog's application
        changeset = self._changesets.for_broker(one.broker)
        live = one.live
        if live is None:  # message 0 was withdrawn: create a tombstone (DLG-T30)
            live = self._writer.new_target(one, item, State.CLOSED)
            closed = msgspec.structs.replace(
                live.endpoint,
                receive_sequence=item.sequence + 1,
                far_end_sequence=item.sequence,
                error_code=code,
                purge_at=later(self._clock.utc(), one.broker.options.replay_guard),
            )
            live.stepped(closed)
            changeset.create(live)
        else:
            changeset.step(live, dialog.ErrorReceived(code, text, item.sequence))
        assert one.arrivals is not None
        self._memory.size -= one.arrivals.size
        self._counters.drop(one.arrivals.drop_run(item.sequence + 1, 0), "after_error")
        self._early.update(one)
        self._counters.stored += 1
        stored = partial(self._writer.stored, one, live, [item], over=True)
        self._changesets.finish(one.broker.broker_id, urgent=True, then=stored)
        self._changesets.finish_all(urgent=True)


def _is_repeat(live: Live, item: Fragment) -> bool:
    return item.sequence < live.endpoint.receive_sequence


def _read_error(body: bytes) -> tuple[int, str]:
    """Return code and description of an application's Error (DLG-28).

    A body that cannot be decoded gives code 1 and a generic text."""
    try:
        value = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1, "the error message of the other side cannot be read"
    return value.code, value.description[:_LONGEST_TEXT]


class _ErrorBody(msgspec.Struct):
    code: Annotated[int, msgspec.Meta(ge=1, le=MAX_ERROR)]
    """The code of an application's error; negative codes are for errors of brokers (DLG-28)."""
    description: str = ""
