"""Transmitter: gives classified dialogs to destinations, fairly and within a window (XMT).

Reads:  transmission objects of the brokers.  Calls: classification, item_builder.
Never:  changes dialog state (acks come back through the dispatcher) or waits for a peer.
Wakes:  after a SEND commits, when a destination has room, at the latest every second tick.
Fails:  a destination fails alone; a dialog that cannot be sent keeps its place and its reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.clock import SECOND, Clock
from brokerd.delivery.outgoing.ack_log import AckLog
from brokerd.delivery.outgoing.boxcar import Boxcar
from brokerd.delivery.outgoing.classification import HERE, Classifier
from brokerd.delivery.outgoing.item_builder import ItemBuilder
from brokerd.delivery.outgoing.orphan_replies import HandBack
from brokerd.delivery.outgoing.ready_line import Line, Turns
from brokerd.delivery.outgoing.reclassification import Reclassification
from brokerd.delivery.outgoing.timers import AckTimers, RetransmissionTimers
from brokerd.delivery.outgoing.transmission_status import transmission_status
from brokerd.delivery.peers.dialog_security import DialogSecurity
from brokerd.delivery.peers.router import Router
from brokerd.ids import show
from brokerd.model import HIGHEST_PRIORITY
from brokerd.protocol.frames import Item
from brokerd.routing.classify import Delayed
from brokerd.routing.reasons import Reason
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import TRANSMISSION

MOST_LINES = 10_000
"""Number of lines of destinations at which those are dropped in which nothing waits."""


class TransmitterOptions(msgspec.Struct, frozen=True):
    """Settings of the sending side of the dialog protocol."""

    ack_delay: timedelta = timedelta(milliseconds=200)
    ack_every: int = 32
    """Number of unacknowledged fragments at which an ack leaves without delay (DLP-19)."""
    hops: int = 10
    time_to_live: timedelta = timedelta(seconds=60)
    error_pause: timedelta = timedelta(seconds=5)
    """Pause of all sending after an internal error (XMT-15)."""
    turn_bytes: int = 32 * 1024
    """Bytes that a dialog sends before the next dialog has its turn (TRN-40)."""
    starvation: timedelta = timedelta(seconds=10)
    """Waiting time that raises a dialog by one level, each time it elapses (TRN-42)."""


class Transmitter:
    """The sending side of an instance, which has exactly one (XMT-2)."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        router: Router,
        security: DialogSecurity,
        clock: Clock,
        options: TransmitterOptions,
        notify: Callable[[str], None],
        is_online: Callable[[str], bool],
        deliver_here: Callable[[list[Item]], None],
        orphan_replies: Callable[[str, int], list[Item]],
        hand_back: HandBack | None,
        log: Log,
        ack_log: AckLog,
    ) -> None:
        """Create the transmitter.

        If an acknowledgement has no route, `hand_back` sends it to the neighbour that brought the
        message; None = it waits for a route (NBT-1). `orphan_replies` returns answers without an
        endpoint for an address, up to a number. `is_online` tests whether a connection serves an
        address."""
        self._brokers = brokers
        self._clock = clock
        self._options = options
        self._notify = notify
        self._is_online = is_online
        self._deliver_here = deliver_here
        self._orphan_replies = orphan_replies
        self._hand_back = hand_back
        self._log = log
        self._ack_log = ack_log
        self._lines: dict[str, Line] = {}
        self._here_due = False
        self._items = ItemBuilder(
            hops=options.hops,
            time_to_live=options.time_to_live,
            security=security,
            clock=clock,
        )
        self._classifier = Classifier(
            router=router, security=security, clock=clock, log=log, settled=self._queue_all
        )
        self.reclassification = Reclassification(
            brokers=brokers,
            classifier=self._classifier,
            lines=self._lines,
            queue_all=self._queue_all,
        )
        self._paused = False
        self._retransmission_timers = RetransmissionTimers(clock=clock, due=self._retransmit)
        self._ack_timers = AckTimers(
            clock=clock, delay=options.ack_delay.total_seconds(), due=self._ack_now
        )
        self.retransmitted = 0
        """Number of fragments that were retransmitted (MON-9)."""
        self.resumed = 0
        """Number of dialogs resumed after a pause of this transmitter (XMT-15), or after the end of
        a refusal because their peer had no room or its queue was off (DSP-11)."""
        self.sent_at_level = [0] * (HIGHEST_PRIORITY + 1)
        """Number of fragments sent, by the level of their dialog (MON-12)."""

    @property
    def acks_sent(self) -> int:
        """Number of acknowledgements sent alone (MON-9)."""
        return self._items.acks_sent

    @property
    def acks_carried(self) -> int:
        """Number of acknowledgements sent within a fragment (MON-9)."""
        return self._items.acks_carried

    # New work.

    def ready(self, broker: Broker, out: Outgoing) -> None:
        """Queue a dialog that has something to send for its destination; classify it if needed."""
        if out.route.is_queued or out.held:
            return
        if not self._classifier.classified(broker, out):
            return
        if out.has_work():
            self._queue(out)

    def _queue(self, out: Outgoing) -> None:
        address = out.route.address
        assert address is not None
        out.route.joined_line()
        self._line(address).ready.append(out)
        self._announce(address)

    def owe_ack(self, broker: Broker, out: Outgoing, count: int, *, at_once: bool) -> None:
        """Acknowledge stored or repeated fragments soon (DLP-18, DLP-19).

        `at_once`: do not wait for a fragment that could carry the acknowledgement."""
        owed = out.acks.owe(count)
        if at_once or owed >= self._options.ack_every:
            self._ack_now(broker, out)
        elif out.acks.due_at is None:
            self._ack_timers.wait(broker, out)
        elif out.route.address is None and self._hand_back is not None:
            # An ack without a route could not be handed back when it was due: try the neighbour
            # that brought this fragment, which may be another one.
            self._ack_now(broker, out)

    def send_owed_acks(self) -> None:
        """Send all delayed acks, because the connections are about to close (DLP-19)."""
        self._ack_timers.expire_all()

    def refuse(self, broker: Broker, out: Outgoing, code: int, text: str) -> None:
        """Send an error made by this broker to the peer (DLP-42)."""
        out.acks.owe_error(code, text)
        self._ack_now(broker, out)

    def _ack_now(self, broker: Broker, out: Outgoing) -> None:
        out.acks.due(self._clock.monotonic())
        if not self._classifier.classified(broker, out):
            self._acknowledge_to_neighbour(broker, out)
            return
        address = out.route.address
        assert address is not None
        self._line(address).acks[out] = None
        self._announce(address)

    def _acknowledge_to_neighbour(self, broker: Broker, out: Outgoing) -> None:
        """Acknowledge to the neighbour that brought the message, for lack of a route (NBT-1)."""
        acks, decision = out.acks, out.route.decision
        neighbour = acks.neighbour
        if self._hand_back is None or neighbour is None or not isinstance(decision, Delayed):
            return
        if decision.reason in (Reason.SENDER_DISABLED, Reason.DUPLICATE_BROKER):
            return  # nothing may leave for that broker or from this one (RTE-72, MAN-3)
        owed, due_at, errors = acks.owed, acks.due_at, acks.errors
        items = self._items.unsequenced(out)
        if not items or not self._hand_back(neighbour, items):
            acks.unsent(owed, due_at, errors)
            return
        if self._ack_log.is_on:
            self._note_sent(out, items)
        if acks.warn_once():
            endpoint = out.live.endpoint
            self._log.warning(
                TRANSMISSION,
                broker=broker.name,
                conversation_id=show(endpoint.conversation_id),
                status_key=decision.reason,
                reason="no route leads back, so it is acknowledged to the neighbour it came from",
                to_service=endpoint.far_service,
            )

    def _queue_all(self, broker: Broker, out: Outgoing) -> None:
        """Queue everything that a dialog has to send, if its destination is known."""
        self.ready(broker, out)
        if out.acks.is_owing:
            self._ack_now(broker, out)

    # Destinations.

    def level(self, address: str) -> int | None:
        """Return the level of the dialog that would be sent to an address first.

        None: no dialog is queued for the address; acknowledgements or answers may still wait.
        """
        line = self._lines.get(address)
        return line.ready.level if line is not None and line.ready else None

    def fill(
        self, address: str, room_bytes: int, room_items: int, *, alone: bool = True
    ) -> list[bytes]:
        """Return encoded items for a destination: acks and errors, then fragments (TRN-40).

        `alone`: the boxcar is still empty, so the first item may be larger than the room."""
        if self._paused:
            return []
        boxcar = Boxcar(room_bytes, room_items, has_others=not alone)
        try:
            return self._fill(address, boxcar)
        except Exception as error:  # noqa: BLE001  # XMT-15: no error here may reach the transport
            self._pause("fill", error)
            return []

    def _fill(self, address: str, boxcar: Boxcar) -> list[bytes]:
        for answer in self._orphan_replies(address, boxcar.room // _ANSWER_ROOM):
            boxcar.add(answer)
        line = self._lines.get(address)
        if line is not None:
            self._dequeue_items(line, boxcar)
        return boxcar.encoded

    def changed(self, address: str, online: bool) -> None:
        """Queue the dialogs of a destination that came ONLINE or went offline (DLP-29)."""
        for broker in self._brokers.values():
            for live in broker.endpoints.all():
                out = live.outgoing
                if out is None or out.route.address != address:
                    continue
                out.route.refusal_over()  # the change of the connection is the newer event (XMT-18)
                if online:
                    self._queue_all(broker, out)
                else:
                    self._requeue(out)

    def _requeue(self, out: Outgoing) -> None:
        """Queue the outstanding fragments for the next connection (DLP-28, DLP-29).

        Queueing also announces the destination; otherwise no connection would be opened (TRN-14).
        """
        out.window.lost()
        route = out.route
        route.stop_measuring()
        if route.address is not None and not route.is_queued and out.has_work():
            self._queue(out)

    def _dequeue_items(self, line: Line, boxcar: Boxcar) -> None:
        while line.acks and not boxcar.is_full and boxcar.fits(_UNSEQUENCED_ROOM):
            out, _ = line.acks.popitem(last=False)
            unsequenced = self._items.unsequenced(out)
            for item in unsequenced:
                boxcar.add(item)
            if self._ack_log.is_on:
                self._note_sent(out, unsequenced)
        ready, items = line.ready, boxcar.items
        while ready and not boxcar.is_full:
            out = ready.first()
            before = len(items)
            elevation = ready.elevation if self._ack_log.is_on else 0
            fits = self._fill_turn(out, boxcar)
            if self._ack_log.is_on:
                self._note_sent(out, items[before:], elevation)
            self.sent_at_level[out.level] += len(items) - before
            if not fits:
                break  # its next fragment does not fit: it keeps its turn for the next boxcar
            # Leave first, then join the end: the dialogs of a level share the connection in turn.
            ready.leave()
            if out.has_work():
                ready.append(out)
            else:
                out.route.left_line()

    def _note_sent(self, out: Outgoing, items: list[Item], elevation: int = 0) -> None:
        """Log the acknowledgements that leave with these items (MON-16)."""
        home = out.live.broker_id
        broker = next((one for one in self._brokers.values() if one.broker_id == home), None)
        for item in items:
            if broker is not None:
                self._ack_log.sent(broker, item, out.live, elevation=elevation)

    def _fill_turn(self, out: Outgoing, boxcar: Boxcar) -> bool:
        """Add the fragments of one dialog's turn to a boxcar.

        False: not even its first fragment fits into the room that is left."""
        now = self._clock.monotonic()
        used = 0
        if out.held:
            return True
        if out.route.timed is None and out.window.unsent:
            self._time(out, now)
        fragment_room = out.fragment_room
        while used < self._options.turn_bytes and boxcar.room_items > 0:
            if not boxcar.fits(fragment_room):
                if not used:
                    return False
                break
            taken = out.window.next_fragment(now)
            if taken is None:
                break
            row, number, count = taken
            used += boxcar.add(self._items.fragment(out, row, number, count))
        self._retransmission_timers.arm(out)
        out.refill()
        return True

    def _time(self, out: Outgoing, now: float) -> None:
        """Begin to measure the next message that leaves, until it is acknowledged (design D12)."""
        first = out.window.first_unsent
        if first is not None and out.route.address is not None:
            out.route.measure(first.sequence, now)
            self._line(out.route.address).outbox.add(self._clock.utc() - first.enqueued_at)

    def line(self, address: str) -> Line | None:
        """Return the line of a destination; None = nothing has ever waited for it."""
        return self._lines.get(address)

    def _line(self, address: str) -> Line:
        line = self._lines.get(address)
        if line is None:
            if len(self._lines) % MOST_LINES == MOST_LINES - 1:  # rarely, however many are in use
                self._drop_empty_lines()
            starvation = self._options.starvation.total_seconds()
            turns = Turns(now=self._clock.monotonic, starvation=starvation)
            line = self._lines[address] = Line(turns)
        return line

    def _drop_empty_lines(self) -> None:
        """Drop the lines in which nothing waits: peers may choose addresses (RTE-62)."""
        empty = [address for address, one in self._lines.items() if not one.ready and not one.acks]
        for address in empty:
            del self._lines[address]

    def _announce(self, address: str) -> None:
        if address != HERE:
            self._notify(address)
        elif not self._here_due:
            self._here_due = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Pass items for brokers of this instance to the dispatcher, not a socket (design D6)."""
        self._here_due = False
        if self._paused:
            return
        line, boxcar = self._line(HERE), Boxcar(_HERE_BYTES, 512, is_for_here=True)
        try:
            self._dequeue_items(line, boxcar)
        except Exception as error:  # noqa: BLE001  # XMT-15
            self._pause("hand_over", error)
            return
        if boxcar.items:
            self._deliver_here(boxcar.items)
        if line.ready or line.acks:
            self._announce(HERE)

    def _pause(self, operation: str, error: Exception) -> None:
        """Stop sending for a while after a serious internal error (XMT-15)."""
        self._paused = True
        self._log.warning(
            TRANSMISSION,
            operation=operation,
            status_key=Reason.TRANSMITTER_PAUSED,
            error=repr(error),
            ssb_code=28073 if isinstance(error, MemoryError) else 28072,
        )
        asyncio.get_running_loop().call_later(
            self._options.error_pause.total_seconds(), self._end_pause
        )

    def _end_pause(self) -> None:
        """Resume sending after a pause, beginning with all unacknowledged fragments (DLP-29).

        Fragments dequeued before the error count as sent, but may never have left."""
        self._paused = False
        for broker in self._brokers.values():
            for live in broker.endpoints.all():
                if live.outgoing is not None:
                    self.resumed += live.outgoing.pending > 0
                    live.outgoing.window.lost()
                    self._queue_all(broker, live.outgoing)
        for address in list(self._lines):
            self._announce(address)

    # Acknowledgements and retransmission.

    def resume(self, broker: Broker, out: Outgoing) -> None:
        """Send refused fragments again at once, because the peer would accept them now (DSP-11)."""
        self.resumed += 1
        out.window.lost()
        if not out.route.is_queued:
            self.ready(broker, out)

    def acknowledged(self, broker: Broker, out: Outgoing) -> None:
        """Continue sending after the peer acknowledged something: the window may have room."""
        route = out.route
        route.refusal_over()
        if route.timed is not None and route.address is not None:
            seconds = route.measured(out.window.settled, self._clock.monotonic())
            if seconds is not None:
                self._line(route.address).wire.add(round(seconds * SECOND))
        if not route.is_queued and out.has_work():
            self.ready(broker, out)

    def _retransmit(self, out: Outgoing, now: float) -> None:
        """Retransmit due fragments; without a connection, queue them for the next one (DLP-28)."""
        address = out.route.address
        if address is None or (address != HERE and not self._is_online(address)):
            self._requeue(out)
            return
        out.route.stop_measuring()
        self.retransmitted += out.expire(now)
        if not out.route.is_queued:
            self._queue(out)
        self._retransmission_timers.arm(out)

    # Figures and status, for views.

    def delayed_count(self) -> dict[str, int]:
        """Return the number of delayed dialogs by status key (MON-9)."""
        return self._classifier.counts()

    def status(self, out: Outgoing) -> tuple[str, str]:
        """Return status key and detail of a dialog's transmission (XMT-17)."""
        return transmission_status(out, self._is_online, paused=self._paused)


_HERE_BYTES = 1024 * 1024
_ANSWER_ROOM = 800
"""Bytes counted for an answer without an endpoint: these take half of a boxcar at most."""
_UNSEQUENCED_ROOM = 8 * 1024
"""Bytes that a boxcar must have free for the errors and the acknowledgement of one dialog."""
