"""Transmitter: gives classified dialogs to destinations, fairly and within a window (XMT).

Reads:  transmission objects of the brokers, routing.   Calls: routes, protocol.frames.
Never:  changes dialog state (acks come back through the dispatcher) or waits for a peer.
Wakes:  after a SEND commits, when a destination has room, at the latest every second tick.
Fails:  a destination fails alone; what cannot be sent keeps its place and its reason.
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
from brokerd.delivery.outgoing.classification import HERE, Classifying
from brokerd.delivery.outgoing.items import OutgoingItems
from brokerd.delivery.outgoing.lines import Line
from brokerd.delivery.outgoing.orphan_replies import HandBack
from brokerd.delivery.outgoing.owed_acks import OwedAcks
from brokerd.delivery.outgoing.ready_line import Turns
from brokerd.delivery.outgoing.reroute import Rerouting
from brokerd.delivery.outgoing.retransmission import RetransmissionTimers
from brokerd.delivery.outgoing.transmission_status import transmission_status
from brokerd.delivery.peers.router import Router
from brokerd.ids import show
from brokerd.model import HIGHEST_PRIORITY
from brokerd.protocol.frames import Item, encode_item
from brokerd.routing.classify import Delayed
from brokerd.routing.reasons import Reason
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import TRANSMISSION


class TransmitterOptions(msgspec.Struct, frozen=True):
    """Figures of the dialog protocol's sending side."""

    ack_delay: timedelta = timedelta(milliseconds=200)
    ack_every: int = 32
    """Unacknowledged fragments at which an ack leaves at once (DLP-19)."""
    hops: int = 10
    time_to_live: timedelta = timedelta(seconds=60)
    error_pause: timedelta = timedelta(seconds=5)
    """For how long nothing is sent after an internal error (XMT-15)."""
    turn_bytes: int = 32 * 1024
    """What a dialog sends before the next one has its turn (TRN-40)."""
    starvation: timedelta = timedelta(seconds=10)
    """What waits so long counts as a level higher, and again after each so long (TRN-42)."""


class Transmitter:
    """One per instance (XMT-2)."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        router: Router,
        clock: Clock,
        options: TransmitterOptions,
        notify: Callable[[str], None],
        is_online: Callable[[str], bool],
        deliver_here: Callable[[list[Item]], None],
        loose: Callable[[str, int], list[Item]],
        hand_back: HandBack | None,
        log: Log,
        ack_log: AckLog,
    ) -> None:
        """`hand_back`: for what has no route back; None = it waits for one (NBT-1)."""
        self._brokers = brokers
        self._clock = clock
        self._options = options
        self._notify = notify
        self._is_online = is_online
        self._deliver_here = deliver_here
        self._loose = loose
        self._hand_back = hand_back
        self._log = log
        self._ack_log = ack_log
        self._lines: dict[str, Line] = {}
        self._here_due = False
        self._items = OutgoingItems(hops=options.hops, time_to_live=options.time_to_live)
        self._classifying = Classifying(router=router, clock=clock, log=log, settled=self._go_on)
        self.rerouting = Rerouting(
            brokers=brokers, classifying=self._classifying, lines=self._lines, go_on=self._go_on
        )
        self._paused = False
        self._timers = RetransmissionTimers(clock=clock, due=self._retransmit)
        self._acks = OwedAcks(
            clock=clock, delay=options.ack_delay.total_seconds(), due=self._ack_now
        )
        self.retransmitted = 0
        """Fragments sent again (MON-9)."""
        self.resumed = 0
        """Dialogs sent again that had lacked something: memory here (XMT-15), room or a queue that
        is on at their peer (DSP-11)."""
        self.sent_at_level = [0] * (HIGHEST_PRIORITY + 1)
        """Fragments sent, by the level of their dialog (MON-12)."""

    @property
    def acks_sent(self) -> int:
        """Acknowledgements sent alone (MON-9)."""
        return self._items.acks_sent

    @property
    def acks_carried(self) -> int:
        """Acknowledgements sent within a fragment (MON-9)."""
        return self._items.acks_carried

    # Work comes in.

    def ready(self, broker: Broker, out: Outgoing) -> None:
        """A dialog has something to send: classify it if needed, and queue it."""
        if out.queued or out.held:
            return
        if not self._classifying.classified(broker, out):
            return
        if out.has_work():
            self._queue(out)

    def _queue(self, out: Outgoing) -> None:
        out.queued = True
        assert out.address is not None
        self._line(out.address).ready.append(out)
        self._announce(out.address)

    def owe_ack(self, broker: Broker, out: Outgoing, count: int, *, at_once: bool) -> None:
        """Fragments were stored (or repeated): acknowledge them soon (DLP-18, DLP-19)."""
        out.owed += count
        if at_once or out.owed >= self._options.ack_every:
            self._ack_now(broker, out)
        elif out.ack_at is None:
            self._acks.wait(broker, out)
        elif out.address is None and self._hand_back is not None:
            self._ack_now(broker, out)  # nobody took it when it was due; who brought this may

    def send_owed_acks(self) -> None:
        """Connections are about to close: what is owed on them leaves before (DLP-19)."""
        self._acks.hurry()

    def refuse(self, broker: Broker, out: Outgoing, code: int, text: str) -> None:
        """Tell the peer of an error made by this broker (DLP-42)."""
        out.errors.append((code, text))
        self._ack_now(broker, out)

    def _ack_now(self, broker: Broker, out: Outgoing) -> None:
        out.ack_at = self._clock.monotonic()
        if not self._classifying.classified(broker, out):
            self._give_back(broker, out)
            return
        assert out.address is not None
        self._line(out.address).acks[out] = None
        self._announce(out.address)

    def _give_back(self, broker: Broker, out: Outgoing) -> None:
        """No route leads back: acknowledge to the neighbour that the message came from (NBT-1)."""
        neighbour, decision = out.neighbour, out.decision
        if self._hand_back is None or neighbour is None or not isinstance(decision, Delayed):
            return
        if decision.reason in (Reason.SENDER_DISABLED, Reason.DUPLICATE_BROKER):
            return
        owed, due, errors = out.owed, out.ack_at, list(out.errors)
        items = self._items.unsequenced(out)
        if not self._hand_back(neighbour, items):
            out.owed, out.ack_at, out.errors = owed, due, errors
            return
        if self._ack_log.is_on:
            self._note_sent(out, items)
        if not out.warned:
            out.warned = True
            endpoint = out.live.endpoint
            self._log.warning(
                TRANSMISSION,
                broker=broker.name,
                conversation_id=show(endpoint.conversation_id),
                status_key=decision.reason,
                reason="no route leads back, so it is acknowledged to the neighbour it came from",
                to_service=endpoint.far_service,
            )

    def _go_on(self, broker: Broker, out: Outgoing) -> None:
        """Whatever it has to send may be sent, if it is known where."""
        self.ready(broker, out)
        if out.errors or out.ack_at is not None:
            self._ack_now(broker, out)

    # Destinations.

    def level(self, address: str) -> int | None:
        """The level of what would be sent there first; None if only loose answers may wait."""
        line = self._lines.get(address)
        return line.ready.level if line is not None and line.ready else None

    def fill(self, address: str, room_bytes: int, room_items: int) -> list[bytes]:
        """Items for a destination: acks and errors, then fragments in turn (TRN-40)."""
        if self._paused:
            return []
        try:
            return self._fill(address, room_bytes, room_items)
        except Exception as error:  # noqa: BLE001  # XMT-15: none of it may reach the transport
            self._pause("fill", error)
            return []

    def _fill(self, address: str, room_bytes: int, room_items: int) -> list[bytes]:
        items = self._loose(address, room_bytes // (2 * _ITEM_ROOM))
        line = self._lines.get(address)
        if line is not None:
            used = len(items) * _ITEM_ROOM
            items += self._take(line, room_bytes - used, room_items - len(items))
        return [encode_item(item) for item in items]

    def changed(self, address: str, online: bool) -> None:
        """A destination came ONLINE, or is no longer: requeue what was outstanding (DLP-29)."""
        for broker in self._brokers.values():
            for live in broker.endpoints.all():
                out = live.outgoing
                if out is None or out.address != address:
                    continue
                out.notice = None  # what the connection does is newer (XMT-18)
                if online:
                    self._go_on(broker, out)
                else:
                    self._requeue(out)

    def _requeue(self, out: Outgoing) -> None:
        """Its connection is gone: what that carried waits for the next one (DLP-28, DLP-29).

        It is announced as well, or nobody would open that connection (TRN-14).
        """
        out.window.lost()
        out.timed = None
        if out.address is not None and not out.queued and out.has_work():
            self._queue(out)

    def _take(self, line: Line, room_bytes: int, room_items: int) -> list[Item]:
        items: list[Item] = []
        room = room_bytes
        while line.acks and len(items) < room_items and room > _ITEM_ROOM:
            out, _ = line.acks.popitem(last=False)
            unsequenced = self._items.unsequenced(out)
            items += unsequenced
            room -= len(unsequenced) * _ITEM_ROOM
            if self._ack_log.is_on:
                self._note_sent(out, unsequenced)
        ready = line.ready
        while ready and len(items) < room_items and room > 0:
            out = ready.first()
            before = len(items)
            elevation = ready.elevation if self._ack_log.is_on else 0
            fits = self._turn(out, items, room, room_items)
            if self._ack_log.is_on:
                self._note_sent(out, items[before:], elevation)
            self.sent_at_level[out.level] += len(items) - before
            if fits < 0:
                break  # the next fragment needs a boxcar of its own
            room -= fits
            ready.leave()
            if out.has_work():
                ready.append(out)
            else:
                out.queued = False
        return items

    def _note_sent(self, out: Outgoing, items: list[Item], elevation: int = 0) -> None:
        """Log the acknowledgements that leave with these (MON-16)."""
        home = out.live.queue.broker_id
        broker = next((one for one in self._brokers.values() if one.broker_id == home), None)
        for item in items:
            if broker is not None:
                self._ack_log.sent(broker, item, out.live, elevation=elevation)

    def _turn(self, out: Outgoing, items: list[Item], room: int, room_items: int) -> int:
        """Let one dialog send; bytes used, -1 when its next fragment does not fit now."""
        now = self._clock.monotonic()
        used = 0
        if out.held:
            return 0
        if out.timed is None and out.window.unsent:
            self._time(out, now)
        fragment_room = out.fragment_room
        while used < self._options.turn_bytes and len(items) < room_items:
            if room - used < fragment_room:
                return used or -1
            taken = out.window.take(now)
            if taken is None:
                break
            row, number, count = taken
            item = self._items.fragment(out, row, number, count)
            items.append(item)
            used += len(item.body) + _ITEM_ROOM
        self._timers.arm(out)
        out.refill()
        return used

    def _time(self, out: Outgoing, now: float) -> None:
        """The next message that leaves is measured, until it is acknowledged (design D12)."""
        first = out.window.first_unsent
        if first is not None and out.address is not None:
            out.timed = (first.sequence, now)
            self._line(out.address).outbox.add(self._clock.utc() - first.enqueued_at)

    def line(self, address: str) -> Line | None:
        """What waits for a destination, and how long it took; None = nothing ever did."""
        return self._lines.get(address)

    def _line(self, address: str) -> Line:
        line = self._lines.get(address)
        if line is None:
            starvation = self._options.starvation.total_seconds()
            turns = Turns(now=self._clock.monotonic, starvation=starvation)
            line = self._lines[address] = Line(turns)
        return line

    def _announce(self, address: str) -> None:
        if address != HERE:
            self._notify(address)
        elif not self._here_due:
            self._here_due = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Items for a broker of this instance go to the dispatcher without a socket (design D6)."""
        self._here_due = False
        if self._paused:
            return
        line = self._line(HERE)
        try:
            items = self._take(line, _HERE_BYTES, 512)
        except Exception as error:  # noqa: BLE001  # XMT-15
            self._pause("hand_over", error)
            return
        if items:
            self._deliver_here(items)
        if line.ready or line.acks:
            self._announce(HERE)

    def _pause(self, operation: str, error: Exception) -> None:
        """A serious internal error: nothing is sent for a while (XMT-15)."""
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
        """What was taken when it failed has not left: it is sent again (DLP-29)."""
        self._paused = False
        for broker in self._brokers.values():
            for live in broker.endpoints.all():
                if live.outgoing is not None:
                    self.resumed += live.outgoing.pending > 0
                    live.outgoing.window.lost()
                    self._go_on(broker, live.outgoing)
        for address in list(self._lines):
            self._announce(address)

    # Acknowledgements and retransmission.

    def resume(self, broker: Broker, out: Outgoing) -> None:
        """What was refused would be taken now: send it again at once (DSP-11)."""
        self.resumed += 1
        out.window.lost()
        if not out.queued:
            self.ready(broker, out)

    def acknowledged(self, broker: Broker, out: Outgoing) -> None:
        """The window has moved: there may be room to send."""
        out.notice = None
        timed = out.timed
        if timed is not None and timed[0] <= out.window.settled and out.address is not None:
            out.timed = None
            seconds = self._clock.monotonic() - timed[1]
            self._line(out.address).wire.add(round(seconds * SECOND))
        if not out.queued and out.has_work():
            self.ready(broker, out)

    def _retransmit(self, out: Outgoing, now: float) -> None:
        """Retransmit what is due; where the destination is down, the clock stands (DLP-28)."""
        if out.address is None or (out.address != HERE and not self._is_online(out.address)):
            self._requeue(out)
            return
        out.timed = None  # which of the two was acknowledged could not be told
        held, out.peer_holds = out.peer_holds, ()  # left out once: it may have dropped them
        self.retransmitted += out.window.expire(now, held)
        if not out.queued:
            self._queue(out)
        self._timers.arm(out)

    # What people ask.

    def delayed_count(self) -> dict[str, int]:
        """Delayed dialogs by status key (MON-9)."""
        return self._classifying.counts()

    def status(self, out: Outgoing) -> tuple[str, str]:
        """Status key and detail of a dialog's transmission (XMT-17)."""
        return transmission_status(out, self._is_online, paused=self._paused)


_HERE_BYTES = 1024 * 1024
_ITEM_ROOM = 400
"""Bytes allowed for the header of an item."""
