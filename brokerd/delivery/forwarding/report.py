"""What became of what others sent through here: counters, the log, and a NOTICE (FWD-12, NBT-6).

Reads:  what it is told.      Calls: the log; whoever sends a NOTICE to a neighbour.
Never:  decides that something is dropped, or writes a line for each message: of many drops for one
        reason the first is written at once, the others are summed up (MON-11).
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
"""Reasons and next hops whose drops are summed up apart; the rest is summed up together."""
OTHERS: Final = "(others)"


class ReportOptions(msgspec.Struct, frozen=True):
    """How much is told."""

    each: bool = False
    """Whether there is a line for each message, at level debug (MON-16)."""
    summary: timedelta = timedelta(minutes=1)
    """After which the drops that were held back are summed up (MON-11)."""


class _Flood:
    """Drops for one reason on the way to one next hop."""

    __slots__ = ("count", "size", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.count = self.size = 0


class ForwardReport:
    """One per instance."""

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
        """Tells a neighbour why a fragment of it was not taken (NBT-6)."""
        self._floods: dict[tuple[str, str], _Flood] = {}
        self.received = self.sent = 0
        """Fragments: taken to be forwarded, passed on (NBT-15)."""
        self.messages_sent = self.bytes_sent = 0
        """Items of every kind, acknowledgements included, and their bytes (MON-13)."""
        self.dropped: Counter[str] = Counter()
        """Fragments dropped, by reason (DSP-13)."""
        self.discarded: Counter[str] = Counter()
        """Items of every kind dropped, by reason (MON-13)."""
        self.notices_passed = self.notices_dropped = 0

    def passed(self, item: Item, size: int, address: str, hops: int, consumed: int) -> None:
        """It has left for the next hop."""
        self.messages_sent += 1
        self.bytes_sent += size
        if type(item) is Fragment:
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
        """It goes nowhere; the neighbour it came from is told (NBT-6)."""
        self.discarded[reason] += 1
        if type(item) is Fragment:
            self.dropped[reason] += 1
            # Of a duplicate the first copy is still on its way, so nothing is wrong.
            if peer is not None and reason != DropReason.FORWARD_DUPLICATE:
                self._refuse(item, reason, peer)
        self.tell(item, reason, size=size, address=address, consumed=consumed)

    def tell(
        self, item: Item, reason: str, *, size: int = 0, address: str = "", consumed: int = 0
    ) -> None:
        """Write that it was dropped, at once or with the others for this reason (MON-11)."""
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
        """Write what was held back for long enough; returns how many lines."""
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
        """Totals since the start (MON-13)."""
        return {
            "forwarded_messages_total": self.messages_sent,
            "forwarded_bytes_total": self.bytes_sent,
            "fragments_received_total": self.received,
            "fragments_sent_total": self.sent,
            "notices_passed_total": self.notices_passed,
            "notices_dropped_total": self.notices_dropped,
        }


def _fields(item: Item, address: str, hops: int, consumed: int) -> dict[str, object]:
    """The own fields of both events (MON): what an operator needs to find the message."""
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
    if type(item) is Fragment:
        fields |= {
            "message_id": show(item.message_id),
            "sequence": item.sequence,
            "fragment": item.fragment,
        }
    return fields
