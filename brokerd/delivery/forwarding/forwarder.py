"""Forwarder: sends arrivals for other instances on, from memory only (FWD).

Reads:  items of boxcars, arrival routes.      Calls: peers.router, forwarding.report.
Never:  acknowledges (FWD-3), joins fragments (FWD-4), inspects a body, or stops reading from a
        peer: if a next hop is slow, the memory for forwarded messages fills, and items that do not
        fit are dropped, because their sender still has them (FWD-2).
Wakes:  on arrival, when a destination has room; a pass drops items held too long (FWD-9).
Fails:  with a reason for each item, to the log and to the neighbour that brought it (NBT-6).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec

from brokerd.clock import SECOND, Clock, Instant
from brokerd.delivery.forwarding.report import ForwardReport
from brokerd.delivery.peers.router import Router
from brokerd.ids import BrokerId, ConversationId, InstanceId, show
from brokerd.model import DEFAULT_PRIORITY
from brokerd.protocol.frames import Fragment, Header, Item
from brokerd.protocol.neighbour import Notice
from brokerd.protocol.passing import passed_on
from brokerd.routing.classify import ArrivalKey, Remote
from brokerd.routing.reasons import DropReason, Reason

ITEM_COST: Final = 1024
"""Bytes of memory that an item takes in addition to its body."""
HEADER_ROOM: Final = 400
"""Bytes reserved for the header of an item in a boxcar, without what a secured one adds."""
SHARE: Final = 4
"""A next hop may hold this multiple of the free memory, so a slow one leaves room for others."""
MEGABYTE: Final = 1024 * 1024
"""The unit of MESSAGE_FORWARD_SIZE, in bytes (END-9)."""
MOST_NOTICES: Final = 100
"""Limit of NOTICEs that wait for a connection to one address."""
MOST_NOTIFIED: Final = 100
"""Limit of addresses for which NOTICEs wait: the services that a peer names may choose them."""
_MILLISECONDS: Final = 1000
_Key = tuple[ConversationId, bool, int, int]


class ForwarderOptions(msgspec.Struct, frozen=True):
    """Settings of the forwarder (END-9, FWD-9)."""

    forwarding: bool = False
    limit: int = 10 * MEGABYTE
    """Bytes of memory for held items (FWD-7)."""
    max_age: timedelta = timedelta(seconds=60)
    starvation: timedelta = timedelta(seconds=10)
    """Waiting time that raises an item by one level, each time it elapses (TRN-42)."""
    largest_item: int = 1024 * 1024 - 1
    """Bytes of the largest item that fits into a frame (TRN-33)."""


class Held(msgspec.Struct, frozen=True, gc=False):
    """One item that is held to be forwarded."""

    item: Item
    header: Header
    key: _Key | None
    """Identity of a fragment; None for an unsequenced item."""
    hops: int
    """Number of forwarding steps that count for this instance (RTE-43)."""
    arrived: float
    peer: InstanceId
    """Neighbour that brought the item."""
    size: int
    """Bytes of memory that the item takes."""


class _NextHop:
    """Items that wait for one address."""

    __slots__ = ("held", "size")

    def __init__(self) -> None:
        self.held: deque[Held] = deque()
        self.size = 0


class Forwarder:
    """The forwarding side of an instance, which has exactly one."""

    def __init__(
        self,
        *,
        router: Router,
        clock: Clock,
        options: ForwarderOptions,
        report: ForwardReport,
        notify: Callable[[str], None],
        notice: Callable[[str, Notice], bool],
    ) -> None:
        self._router = router
        self._arrival_routes = router.arrival_routes
        self._clock = clock
        self._max_age = options.max_age.total_seconds()
        self._starvation = options.starvation.total_seconds()
        self._largest = options.largest_item
        self._notify = notify
        self._notice = notice
        self._hops: dict[str, _NextHop] = {}
        self._keys: set[_Key] = set()
        self._notices: dict[str, list[Notice]] = {}
        """NOTICEs that wait for a connection to an address."""
        self._stopping = False
        self.report = report
        self.forwarding = options.forwarding
        """Whether items for other instances are forwarded (END-9)."""
        self.limit = options.limit
        self.used = 0
        """Bytes of memory in use."""

    @property
    def held(self) -> int:
        """Number of held items of every kind."""
        return sum(len(line.held) for line in self._hops.values())

    @property
    def fragments_held(self) -> int:
        """Number of held fragments (NBT-15)."""
        return len(self._keys)

    # Arriving.

    def accept(self, items: list[Item], headers: list[Header], peer: InstanceId) -> list[Item]:
        """Hold the items for other instances; return those for this instance."""
        arrival_routes, now = self._arrival_routes, self._clock.monotonic()
        ours: list[Item] = []
        woken: dict[str, None] = {}  # in the order of arrival; a set has no stable one (HK-1)
        for item, header in zip(items, headers, strict=True):
            route = arrival_routes.for_item(item)
            address = route.address
            if address is None:
                ours.append(item)
                continue
            key: _Key | None = None
            if isinstance(item, Fragment):
                self.report.received += 1
                key = (item.conversation_id, item.from_initiator, item.sequence, item.fragment)
                size = ITEM_COST + len(item.body)
            else:
                size = ITEM_COST
            reason = self._refusal(item, key, route.hops, size, address)
            if reason is not None:
                self.report.dropped_one(item, reason, size=size, address=address, peer=peer)
                continue
            line = self._hops.get(address)
            if line is None:
                line = self._hops[address] = _NextHop()
            line.held.append(Held(item, header, key, route.hops, now, peer, size))
            line.size += size
            self.used += size
            if key is not None:
                self._keys.add(key)
            woken[address] = None
        for address in woken:
            self._notify(address)
        return ours

    def _refusal(
        self, item: Item, key: _Key | None, hops: int, size: int, address: str
    ) -> DropReason | None:
        """Return why an item is dropped; None = it is held (FWD-6 to FWD-8, FWD-10)."""
        hop = item.hop
        if hop.hops < hops:
            return DropReason.HOPS_EXHAUSTED
        if hop.time_consumed >= hop.time_to_live:
            return DropReason.TIME_TO_LIVE_OVER
        if key in self._keys:
            return DropReason.FORWARD_DUPLICATE
        left = self.limit - self.used - size
        line = self._hops.get(address)
        if left < 0 or (line is not None and line.size > SHARE * left):
            return DropReason.FORWARD_STORE_FULL
        return DropReason.TRANSPORT_STOPPING if self._stopping else None

    # Leaving.

    def level(self, address: str) -> int | None:
        """Return the level of the first item for an address; None = nothing waits (TRN-43)."""
        line = self._hops.get(address)
        if line is None:
            return None
        waited = self._clock.monotonic() - line.held[0].arrived
        return DEFAULT_PRIORITY + int(waited / self._starvation)

    def fill(
        self, address: str, room_bytes: int, room_items: int, *, alone: bool = True
    ) -> list[bytes]:
        """Return encoded items for a destination in the order of arrival, with updated hop blocks.

        `alone`: the boxcar is still empty, so the first item may be larger than the room."""
        line = self._hops.get(address)
        if line is None:
            return []
        now, report = self._clock.monotonic(), self.report
        items: list[bytes] = []
        room = room_bytes
        while line.held and len(items) < room_items:
            one = line.held[0]
            item, hop = one.item, one.item.hop
            body = item.body if isinstance(item, Fragment) else b""
            if (items or not alone) and len(body) + HEADER_ROOM > room:
                break
            line.held.popleft()
            self._release(line, one)
            spent = int((now - one.arrived) * _MILLISECONDS)
            if hop.time_consumed + spent >= hop.time_to_live:
                self._drop(one, address, DropReason.TIME_TO_LIVE_OVER, now)
                continue
            packed = passed_on(one.header, body, hops=one.hops, milliseconds=spent)
            if len(packed) > self._largest:
                self._drop(one, address, DropReason.FORWARD_SEND_ERROR, now)
                continue
            items.append(packed)
            room -= len(packed)
            report.passed(
                item, len(packed), address, hop.hops - one.hops, hop.time_consumed + spent
            )
        if not line.held:
            del self._hops[address]
        return items

    def _release(self, line: _NextHop, one: Held) -> None:
        """Free the memory of an item that has left its line."""
        line.size -= one.size
        self.used -= one.size
        if one.key is not None:
            self._keys.discard(one.key)

    # Dropping.

    def purge(self) -> int:
        """Drop items held too long, every fifth tick (FWD-9); return their number."""
        self.report.notices_dropped += sum(map(len, self._notices.values()))
        self._notices.clear()
        now = self._clock.monotonic()
        oldest = now - self._max_age
        purged = 0
        for address, line in list(self._hops.items()):
            while line.held and line.held[0].arrived <= oldest:
                one = line.held.popleft()
                self._release(line, one)
                self._drop(one, address, DropReason.FORWARD_AGE, now)
                purged += 1
            if not line.held:
                del self._hops[address]
        return purged

    def routes_changed(self) -> None:
        """Drop items that are held for an address to which their route no longer leads (FWD-11)."""
        for address in list(self._hops):
            self._drop_where(
                address,
                DropReason.ROUTE_NO_LONGER_VALID,
                partial(self._leads_elsewhere, address),
            )

    def _leads_elsewhere(self, address: str, one: Held) -> bool:
        return self._arrival_routes.for_item(one.item).address != address

    def configure(self, *, forwarding: bool, limit: int) -> None:
        """Apply new settings at once (END-6, END-9); without forwarding drop all items (FWD-17)."""
        self.limit = limit
        if self.forwarding and not forwarding:
            self._drop_all(Reason.FORWARDING_DISABLED)
        self.forwarding = forwarding
        self._router.allow_forwarding(forwarding)

    def stop(self) -> None:
        """Drop all held items, because the transport stops (FWD-11)."""
        self._stopping = True
        self._drop_all(DropReason.TRANSPORT_STOPPING)
        self.report.summarise(all_of_it=True)

    def _drop_all(self, reason: str) -> None:
        for address in list(self._hops):
            self._drop_where(address, reason, lambda _one: True)

    def _drop_where(self, address: str, reason: str, wanted: Callable[[Held], bool]) -> None:
        now = self._clock.monotonic()
        line = self._hops[address]
        kept: deque[Held] = deque()
        for one in line.held:
            if wanted(one):
                self._release(line, one)
                self._drop(one, address, reason, now)
            else:
                kept.append(one)
        line.held = kept
        if not kept:
            del self._hops[address]

    def _drop(self, one: Held, address: str, reason: str, now: float) -> None:
        spent = int((now - one.arrived) * _MILLISECONDS)
        self.report.dropped_one(
            one.item,
            reason,
            size=one.size,
            address=address,
            peer=one.peer,
            consumed=one.item.hop.time_consumed + spent,
        )

    # NOTICEs of other instances.

    def pass_notice(self, notice: Notice) -> bool:
        """Pass a NOTICE on to the sender of the fragment (NBT-6); return whether it was sent."""
        if not self.forwarding or not notice.to_service:
            return False
        asked = ArrivalKey(
            notice.to_service,
            BrokerId(notice.to_broker) if notice.to_broker else None,
            not notice.from_initiator,
            notice.hops,
        )
        decision = self._router.notified(asked)
        if isinstance(decision, Remote) and decision.hops_used <= notice.hops:
            less = msgspec.structs.replace(notice, hops=notice.hops - decision.hops_used)
            return self._send_notice(decision.address, less)
        self.report.notices_dropped += 1
        return False

    def came_online(self, address: str) -> None:
        """Send the NOTICEs that waited for a connection to an address."""
        for notice in self._notices.pop(address, ()):
            self._send_notice(address, notice)

    def _send_notice(self, address: str, notice: Notice) -> bool:
        """Send a NOTICE now, or keep it for a connection until the next pass.

        At most `MOST_NOTICES` are kept for an address, for at most `MOST_NOTIFIED` addresses.
        Return whether it was sent."""
        if self._notice(address, notice):
            self.report.notices_passed += 1
            return True
        kept = self._notices.get(address, [])
        has_room = address in self._notices or len(self._notices) < MOST_NOTIFIED
        if has_room and len(kept) < MOST_NOTICES:
            kept.append(notice)
            self._notices[address] = kept
        else:
            self.report.notices_dropped += 1
        return False

    # For views.

    def waiting(self) -> dict[str, tuple[int, int]]:
        """Return the number of held items and their bytes of memory, by next hop (MON-8)."""
        return {address: (len(line.held), line.size) for address, line in self._hops.items()}

    def counters(self) -> dict[str, object]:
        """Return the row of `forwarder_counters`: gauges, and totals since the start (MON-13)."""
        return {
            "is_forwarding": self.forwarding,
            "limit_bytes": self.limit,
            "used_bytes": self.used,
            "pending_messages": self.held,
            "pending_fragments": self.fragments_held,
            "next_hops": len(self._hops),
            **self.report.totals(),
            "discarded_messages_total": self.report.discarded.total(),
            "discarded_by_reason": dict(self.report.discarded),
            "fragments_dropped": dict(self.report.dropped),
        }

    def rows(self) -> list[dict[str, object]]:
        """Return the rows of `forwarded_messages`, in sending order for each address (MON-2)."""
        now, utc = self._clock.monotonic(), self._clock.utc()
        return [
            _row(one, address, now, utc)
            for address, line in self._hops.items()
            for one in line.held
        ]


def _row(one: Held, address: str, now: float, utc: Instant) -> dict[str, object]:
    item, hop = one.item, one.item.hop
    held = now - one.arrived
    fragment = item if isinstance(item, Fragment) else None
    return {
        "conversation_id": show(item.conversation_id),
        "is_initiator": item.from_initiator,
        "to_service_name": item.to_service,
        "to_broker_instance": show(hop.to_broker) if hop.to_broker else None,
        "from_service_name": item.from_service,
        "from_broker_instance": show(item.from_broker),
        "adjacent_broker_address": address,
        "message_sequence_number": fragment.sequence if fragment is not None else None,
        "message_fragment_number": fragment.fragment if fragment is not None else None,
        "hops_remaining": hop.hops - one.hops,
        "time_to_live": hop.time_to_live,
        "time_consumed": hop.time_consumed + int(held * _MILLISECONDS),
        "message_id": show(fragment.message_id) if fragment is not None else None,
        "arrived_at": utc - int(held * SECOND),
        "size_bytes": one.size,
    }
