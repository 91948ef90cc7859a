"""Transmitter: gives classified dialogs to destinations, fairly and within a window (XMT).

Reads:  transmission objects of the brokers, routing.   Calls: routes, protocol.frames.
Never:  changes dialog state (acks come back through the dispatcher) or waits for a peer.
Wakes:  after a SEND commits, when a destination has room, at the latest every second tick.
Fails:  a destination fails alone; what cannot be sent keeps its place and its reason.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from heapq import heappop, heappush

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.rounds import Round
from brokerd.broker.transmission import Outgoing
from brokerd.clock import Clock
from brokerd.delivery.routes import Router
from brokerd.delivery.turns import Turns
from brokerd.ids import MessageId
from brokerd.protocol import dialog, fragments
from brokerd.protocol.frames import (
    AckOnly,
    BrokerErrorItem,
    Fragment,
    Hop,
    Item,
    encode_item,
)
from brokerd.routing.classify import Delayed, Local, Remote
from brokerd.routing.reasons import Reason
from brokerd.storage.changes import OutgoingRow


class TransmitterOptions(msgspec.Struct, frozen=True):
    """Figures of the dialog protocol's sending side."""

    ack_delay: timedelta = timedelta(milliseconds=200)
    ack_every: int = 32
    """Unacknowledged fragments at which an ack leaves at once (DLP-19)."""
    hops: int = 10
    time_to_live: timedelta = timedelta(seconds=60)
    turn_bytes: int = 32 * 1024
    """What a dialog sends before the next one has its turn (TRN-40)."""
    starvation: timedelta = timedelta(seconds=10)
    """What waits so long counts as a level higher, and again after each so long (TRN-42)."""


class _Line:
    """The dialogs that have something for one destination."""

    __slots__ = ("acks", "ready")

    def __init__(self, ready: Turns) -> None:
        self.ready = ready
        self.acks: deque[Outgoing] = deque()


NO_BINDING = -9727
"""Encryption was asked for and nothing to encrypt with is set up (DLG-12, SEC-14)."""


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
    ) -> None:
        self._brokers = brokers
        self._router = router
        self._clock = clock
        self._options = options
        self._notify = notify
        self._is_online = is_online
        self._deliver_here = deliver_here
        self._loose = loose
        self._lines: dict[str, _Line] = {}
        self._delayed: dict[Outgoing, Broker] = {}
        self._homes: dict[Outgoing, Broker] = {}
        self._here_due = False
        self._timers: list[tuple[float, int, Outgoing]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._acks_owed: deque[Outgoing] = deque()
        self._ack_timer: asyncio.TimerHandle | None = None
        self._time_to_live = options.time_to_live // timedelta(milliseconds=1)
        self.retransmitted = self.acks_sent = self.acks_carried = 0
        """Fragments sent again; acks sent alone and within a fragment (MON-9)."""

    # Work comes in.

    def ready(self, broker: Broker, out: Outgoing) -> None:
        """A dialog has something to send: classify it if needed, and queue it."""
        if out.queued or out.held:
            return
        if not self._classified(broker, out):
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
            self._homes[out] = broker
            out.ack_at = self._clock.monotonic() + self._options.ack_delay.total_seconds()
            self._acks_owed.append(out)
            if self._ack_timer is None:
                self._ack_timer = asyncio.get_running_loop().call_later(
                    self._options.ack_delay.total_seconds(), self._acks_due
                )

    def refuse(self, broker: Broker, out: Outgoing, code: int, text: str) -> None:
        """Tell the peer of an error made by this broker (DLP-42)."""
        out.errors.append((code, text))
        self._ack_now(broker, out)

    def _ack_now(self, broker: Broker, out: Outgoing) -> None:
        out.ack_at = self._clock.monotonic()
        if not self._classified(broker, out):
            return
        assert out.address is not None
        line = self._line(out.address)
        if out not in line.acks:
            line.acks.append(out)
        self._announce(out.address)

    def _acks_due(self) -> None:
        """The wait of the oldest owed acks is over; those that rode along are not owed any more."""
        self._ack_timer = None
        now = self._clock.monotonic()
        while self._acks_owed:
            out = self._acks_owed[0]
            broker = self._homes.get(out)
            if out.ack_at is None or broker is None:
                self._acks_owed.popleft()
                self._homes.pop(out, None)
            elif out.ack_at <= now + 0.001:
                self._acks_owed.popleft()
                self._homes.pop(out, None)
                self._ack_now(broker, out)
            else:
                self._ack_timer = asyncio.get_running_loop().call_later(
                    out.ack_at - now, self._acks_due
                )
                return

    # Classifying.

    def _classified(self, broker: Broker, out: Outgoing) -> bool:
        """Whether it is known where this dialog sends; else it is delayed with a reason (XMT-6)."""
        endpoint = out.live.endpoint
        if out.address is not None:
            return True
        decision = self._router.outgoing(broker, endpoint, out)
        out.decision = decision
        if isinstance(decision, Delayed):
            self._explain(out, decision.reason, decision.detail)
            self._delayed[out] = broker
            return False
        self._delayed.pop(out, None)
        if isinstance(decision, Local):
            out.address = HERE
        elif isinstance(decision, Remote):
            if endpoint.encryption:
                self._fail(broker, out)
                return False
            out.address = decision.address
            if decision.ambiguous and not endpoint.bound and endpoint.route != decision.route:
                self._keep_choice(broker, out, decision.route)
        return True

    def _fail(self, broker: Broker, out: Outgoing) -> None:
        """It must be encrypted and cannot be: error it, never send in clear (DLG-12)."""
        text = "the dialog must be encrypted, and no dialog security is set up for this service"
        self._explain(out, Reason.NO_BINDING, out.live.endpoint.far_service)
        round_ = Round(broker, self._clock.utc())
        round_.step(out.live, dialog.FaultStruck(NO_BINDING, text))
        round_.join(lambda: None)

    def _keep_choice(self, broker: Broker, out: Outgoing, route: str) -> None:
        """Where there was a choice, it survives a restart (RTE-29)."""
        round_ = Round(broker, self._clock.utc())
        live = out.live
        chosen = msgspec.structs.replace(live.endpoint, route=route)
        round_.apply(live, dialog.Step(chosen))
        round_.join(lambda: None)

    def reclassify(self) -> int:
        """Every second tick: try the delayed dialogs again (XMT-9)."""
        delayed, self._delayed = self._delayed, {}
        for out, broker in delayed.items():
            self.ready(broker, out)
            if out.errors or out.ack_at is not None:
                self._ack_now(broker, out)
        return len(delayed)

    def forget_routes(self) -> None:
        """Routing changed: every dialog that is not on its way is classified anew (XMT-11)."""
        for broker in self._brokers.values():
            for live in broker.endpoints.all():
                out = live.outgoing
                if out is not None and not out.queued:
                    out.address = None
                    self.ready(broker, out)

    def withhold(self, broker: Broker) -> None:
        """Delivery of a broker is off: nothing of it is sent, acknowledgements included (MAN-3).

        What was sent and not acknowledged is sent again when delivery is on."""
        ids = {id(live.outgoing) for live in broker.endpoints.all()}
        for line in self._lines.values():
            line.ready.drop(ids)
            line.acks = deque(out for out in line.acks if id(out) not in ids)
        for live in broker.endpoints.all():
            out = live.outgoing
            if out is not None:
                out.queued, out.address = False, None
                out.window.lost()
                self.ready(broker, out)
                if out.errors or out.ack_at is not None:
                    self._ack_now(broker, out)

    # Destinations.

    def fill(self, address: str, room_bytes: int, room_items: int) -> list[bytes]:
        """Items for a destination: acks and errors, then fragments in turn (TRN-40)."""
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
                if online:
                    self.ready(broker, out)
                    if out.ack_at is not None or out.errors:
                        self._ack_now(broker, out)
                else:
                    self._requeue(out)

    def _requeue(self, out: Outgoing) -> None:
        """Its connection is gone: what that carried waits for the next one (DLP-28, DLP-29).

        It is announced as well, or nobody would open that connection (TRN-14).
        """
        out.window.lost()
        if out.address is not None and not out.queued and out.has_work():
            self._queue(out)

    def _take(self, line: _Line, room_bytes: int, room_items: int) -> list[Item]:
        items: list[Item] = []
        room = room_bytes
        while line.acks and len(items) < room_items and room > _ITEM_ROOM:
            out = line.acks.popleft()
            for item in self._unsequenced(out):
                items.append(item)
                room -= _ITEM_ROOM
        ready = line.ready
        while ready and len(items) < room_items and room > 0:
            out = ready.first()
            fits = self._turn(out, items, room, room_items)
            if fits < 0:
                break  # the next fragment needs a boxcar of its own
            room -= fits
            ready.leave()
            if out.has_work():
                ready.append(out)
            else:
                out.queued = False
        return items

    def _turn(self, out: Outgoing, items: list[Item], room: int, room_items: int) -> int:
        """Let one dialog send; bytes used, -1 when its next fragment does not fit now."""
        now = self._clock.monotonic()
        used = 0
        if out.held:
            return 0
        fragment_room = out.fragment_room
        while used < self._options.turn_bytes and len(items) < room_items:
            if room - used < fragment_room:
                return used or -1
            taken = out.window.take(now)
            if taken is None:
                break
            row, number, count = taken
            item = self._fragment(out, row, number, count)
            items.append(item)
            used += len(item.body) + _ITEM_ROOM
        self._arm(out)
        out.refill()
        return used

    def _fragment(self, out: Outgoing, row: OutgoingRow, number: int, count: int) -> Fragment:
        endpoint = out.live.endpoint
        broker_id = out.live.queue.broker_id
        flag = endpoint.is_initiator and endpoint.first_acked
        carries = flag or out.ack_at is not None or not endpoint.is_initiator
        if carries:
            if out.ack_at is not None:
                self.acks_carried += 1
            out.owed, out.ack_at = 0, None
            out.settled_flag |= flag
        body = row.body or b""
        return Fragment(
            conversation_id=endpoint.conversation_id,
            from_initiator=endpoint.is_initiator,
            message_id=MessageId(row.message_id),
            sequence=row.sequence,
            fragment=number,
            fragments=count,
            flags=row.flags,
            from_service=endpoint.service,
            to_service=endpoint.far_service,
            from_broker=broker_id,
            contract=endpoint.contract,
            message_type=row.message_type,
            expires_at=endpoint.expires_at,
            incarnation=out.incarnation,
            ack=out.ack(flag=flag) if carries else None,
            hop=self._hop(out),
            body=fragments.piece(body, row.fragment_size, number),
        )

    def _unsequenced(self, out: Outgoing) -> list[Item]:
        """The dedicated ack and the errors of one dialog (DLP-3, DLP-5)."""
        endpoint = out.live.endpoint
        broker_id = out.live.queue.broker_id
        items: list[Item] = [
            BrokerErrorItem(
                endpoint.conversation_id,
                endpoint.is_initiator,
                endpoint.service,
                endpoint.far_service,
                broker_id,
                code,
                text,
                self._hop(out),
            )
            for code, text in out.errors
        ]
        out.errors.clear()
        if out.ack_at is not None:
            out.owed, out.ack_at = 0, None
            flag = endpoint.is_initiator and endpoint.first_acked
            out.settled_flag |= flag
            self.acks_sent += 1
            items.append(
                AckOnly(
                    endpoint.conversation_id,
                    endpoint.is_initiator,
                    endpoint.service,
                    endpoint.far_service,
                    broker_id,
                    out.ack(flag=flag),
                    self._hop(out),
                )
            )
        return items

    def _hop(self, out: Outgoing) -> Hop:
        far = out.live.endpoint.far_broker
        return Hop(far or b"", self._options.hops, self._time_to_live, 0)

    def _line(self, address: str) -> _Line:
        line = self._lines.get(address)
        if line is None:
            starvation = self._options.starvation.total_seconds()
            turns = Turns(now=self._clock.monotonic, starvation=starvation)
            line = self._lines[address] = _Line(turns)
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
        line = self._line(HERE)
        items = self._take(line, _HERE_BYTES, 512)
        if items:
            self._deliver_here(items)
        if line.ready or line.acks:
            self._announce(HERE)

    # Acknowledgements and retransmission.

    def acknowledged(self, broker: Broker, out: Outgoing) -> None:
        """The window has moved: there may be room to send."""
        out.notice = None
        if not out.queued and out.has_work():
            self.ready(broker, out)

    def _arm(self, out: Outgoing) -> None:
        """See that the dialog's timer is looked at when it is due (DLP-27)."""
        if out.timer or out.window.due is None:
            return
        out.timer = True
        self._count += 1
        heappush(self._timers, (out.window.due, self._count, out))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and self._timers:
            wait = max(0.0, self._timers[0][0] - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, self._expired)

    def _expired(self) -> None:
        """Retransmit what is due; where the destination is down, the clock stands (DLP-28)."""
        self._timer = None
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now + 0.001:
            _, _, out = heappop(self._timers)
            out.timer = False
            due = out.window.due
            if due is None or out.held or out.live.gone:
                continue
            if due > now + 0.001:
                self._arm(out)
                continue
            if out.address is None or (out.address != HERE and not self._is_online(out.address)):
                self._requeue(out)
                continue
            held, out.peer_holds = out.peer_holds, ()  # left out once: it may have dropped them
            self.retransmitted += out.window.expire(now, held)
            if not out.queued:
                self._queue(out)
            self._arm(out)
        self._set_timer()

    # What people ask.

    def delayed_count(self) -> dict[str, int]:
        """Delayed dialogs by status key (MON-9)."""
        counts: dict[str, int] = {}
        for out in self._delayed:
            counts[out.status] = counts.get(out.status, 0) + 1
        return counts

    def status(self, out: Outgoing) -> tuple[str, str]:
        """Status key and detail of a dialog's transmission, never blank while it waits (NBT-2).

        An acknowledgement or an error that is owed waits as well, without a row (XMT-17)."""
        if not out.pending and out.ack_at is None and not out.errors:
            return "", ""
        if out.held and out.pending:
            return out.held, ""
        if isinstance(out.decision, Delayed):
            return out.status, out.detail
        if out.notice is not None:
            return out.notice[0], ""
        if out.address is not None and out.address != HERE and not self._is_online(out.address):
            return Reason.TRANSPORT_UNAVAILABLE, out.address
        return (Reason.AWAITING_ACK, "") if out.window.outstanding else (Reason.NOT_ATTEMPTED, "")

    def _explain(self, out: Outgoing, status: str, detail: str) -> None:
        if (out.status, out.detail) != (status, detail):
            out.status, out.detail, out.since = status, detail, self._clock.utc()


HERE = "LOCAL"
"""In place of an address: a broker of this instance."""
_HERE_BYTES = 1024 * 1024
_ITEM_ROOM = 400
"""Bytes allowed for the header of an item."""
