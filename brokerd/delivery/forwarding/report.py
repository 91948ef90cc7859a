"""Report of forwarded and dropped items: counters, log lines, NOTICEs (FWD-12, NBT-6).

Reads:  its arguments.      Calls: the log; `refuse`, to send a NOTICE to a neighbour.
Never:  decides that an item is dropped, or writes a line per message, except at level debug: of
        many drops for one reason the first is logged, and the others are summed up (MON-11).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import msgspec

from brokerd.clock import Clock
from brokerd.ids import InstanceId, show
from brokerd.protocol.frames import Fragment, Item
from brokerd.routing.reasons import SSB_CODES, DropReason
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import FORWARDED_MESSAGE_DROPPED, FORWARDED_MESSAGE_SENT

MOST_FLOODS: Final = 1000
"""Limit of pairs of reason and next hop that are summed up separately; the rest is one sum."""
OTHERS: Final = "(others)"


class ReportOptions(msgspec.Struct, frozen=True):
    """Settings of the log of forwarded and dropped items."""

    each: bool = False
    """Whether each message gets a line, at level debug (MON-16)."""
    summary: timedelta = timedelta(minutes=1)
    """Period after which the drops that were not logged are summed up (MON-11)."""


class _Flood:
    """Drops for one reason on the way to one next hop."""

    __slots__ = ("count", "size", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.count = self.size = 0


class ForwardReport:
    """Counters and log of the forwarder, one per instance."""

    def __init__(
        self,
        *,
        clock: Clock,
        log: Log,
        options: ReportOptions,
        refuse: Callable[[Fragment, str, InstanceId], None],
    ) -> None:
        self._clock = clock
        self._log = log
        self.options = options
        self._refuse = refuse
        """Sends a NOTICE to a neighbour with the reason why its fragment was dropped (NBT-6)."""
        self._floods: dict[tuple[str, str], _Flood] = {}
        self.received = self.sent = 0
        """Number of fragments received to be forwarded, and passed on (NBT-15)."""
        self.messages_sent = self.bytes_sent = 0
        """Number of items of every kind passed on, acknowledgements included, and their bytes
        (MON-13)."""
        self.dropped: Counter[str] = Counter()
        """Number of fragments dropped, by reason (DSP-13)."""
        self.discarded: Counter[str] = Counter()
        """Number of items of every kind dropped, by reason (MON-13)."""
        self.notices_passed = self.notices_dropped = 0

    def passed(self, item: Item, size: int, address: str, hops: int, consumed: int) -> None:
        """Count and log an item that has left for the next hop."""
        self.messages_sent += 1
        self.bytes_sent += size
        if isinstance(item, Fragment):
            self.sent += 1
        if self.options.each:
            self._log.debug(FORWARDED_MESSAGE_SENT, **_fields(item, address, hops, consumed))

    def dropped_one(
        self,
        item: Item,
        reason: str,
        *,
        size: int,
        address: str = "",
        peer: InstanceId | None = None,
        consumed: int = 0,
    ) -> None:
        """Count and log a dropped item; send a NOTICE to the neighbour that brought it (NBT-6)."""
        self.discarded[reason] += 1
        if isinstance(item, Fragment):
            self.dropped[reason] += 1
            # A duplicate is no failure: the first copy is still on its way (FWD-10).
            if peer is not None and reason != DropReason.FORWARD_DUPLICATE:
                self._refuse(item, reason, peer)
        self.log_drop(item, reason, size=size, address=address, consumed=consumed)

    def log_drop(
        self, item: Item, reason: str, *, size: int = 0, address: str = "", consumed: int = 0
    ) -> None:
        """Log a dropped item, at once or in the sum for its reason and next hop (MON-11)."""
        if self.options.each:
            self._log.debug(
                FORWARDED_MESSAGE_DROPPED,
                reason=reason,
                ssb_code=SSB_CODES.get(reason),
                **_fields(item, address, item.hop.hops, consumed),
            )
            return
        if reason == DropReason.FORWARD_DUPLICATE:
            return
        key = (reason, address)
        flood = self._floods.get(key)
        if flood is None and len(self._floods) >= MOST_FLOODS:
            key = (reason, OTHERS)
            flood = self._floods.get(key)
        if flood is not None:
            flood.count += 1
            flood.size += size
            return
        until = self._clock.monotonic() + self.options.summary.total_seconds()
        self._floods[key] = _Flood(until)
        self._log.warning(
            FORWARDED_MESSAGE_DROPPED,
            reason=reason,
            ssb_code=SSB_CODES.get(reason),
            **_fields(item, address, item.hop.hops, consumed),
        )

    def summarise(self, *, all_of_it: bool = False) -> int:
        """Log the sums whose period is over; return the number of lines."""
        now = self._clock.monotonic()
        written = 0
        for key, flood in list(self._floods.items()):
            if flood.until > now and not all_of_it:
                continue
            del self._floods[key]
            if flood.count:
                reason, address = key
                self._log.warning(
                    FORWARDED_MESSAGE_DROPPED,
                    reason=reason,
                    ssb_code=SSB_CODES.get(reason),
                    next_address=address,
                    repeated=flood.count,
                    size_bytes=flood.size,
                )
                written += 1
        return written

    def totals(self) -> dict[str, int]:
        """Return the totals since the start (MON-13)."""
        return {
            "forwarded_messages_total": self.messages_sent,
            "forwarded_bytes_total": self.bytes_sent,
            "fragments_received_total": self.received,
            "fragments_sent_total": self.sent,
            "notices_passed_total": self.notices_passed,
            "notices_dropped_total": self.notices_dropped,
        }


def _fields(item: Item, address: str, hops: int, consumed: int) -> dict[str, object]:
    """Return the fields, common to both events, by which an operator finds the message (MON)."""
    fields: dict[str, object] = {
        "conversation_id": show(item.conversation_id),
        "role": "initiator" if item.from_initiator else "target",
        "from_service": item.from_service,
        "from_broker": show(item.from_broker),
        "to_service": item.to_service,
        "to_broker": item.hop.to_broker.hex(),
        "next_address": address,
        "hops_remaining": hops,
        "time_to_live": item.hop.time_to_live,
        "time_consumed": consumed or item.hop.time_consumed,
    }
    if isinstance(item, Fragment):
        fields |= {
            "message_id": show(item.message_id),
            "sequence": item.sequence,
            "fragment": item.fragment,
        }
    return fields
