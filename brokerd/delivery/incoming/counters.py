"""What became of every fragment that arrived, by count and in the log (DSP-13, NBT-15).

Reads: what it is told.      Calls: the log.
Never: decides that something is dropped; whoever does says so here, once for each fragment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.clock import Clock, Instant
from brokerd.delivery.peers.notices import Notices
from brokerd.ids import InstanceId, show
from brokerd.protocol.frames import Fragment, Item
from brokerd.routing.reasons import SSB_CODES, DropReason, Reason
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import CORRUPTED_MESSAGE, MESSAGE_UNDELIVERABLE

MEMORY_FULL = "dispatcher_memory"
"""Why fragments are dropped that there is no room for, of any dialog (DSP-10)."""
STORE_FAILED = "store_failed"
"""Why fragments were dropped that could not be stored, though the store is well (DSP-8)."""


_FOR_OTHERS: Final = frozenset({Reason.FORWARDING_DISABLED, DropReason.HOPS_EXHAUSTED})
"""Reasons for which something is dropped that is not for this instance (RTE-24, FWD-6)."""


_SSB_CODES: Final = SSB_CODES | dict.fromkeys((MEMORY_FULL, "dialog_memory", "early_memory"), 11237)


class Accounts:
    """The dispatcher's counters; one set per instance."""

    __slots__ = (
        "_clock",
        "_log",
        "_not_forwarded",
        "_notices",
        "dropped",
        "duplicates",
        "memory_full_at",
        "parts",
        "received",
        "stored",
    )

    def __init__(
        self,
        *,
        clock: Clock,
        log: Log,
        notices: Notices,
        not_forwarded: Callable[[Item, str], None],
    ) -> None:
        self._clock = clock
        self._log = log
        self._notices = notices
        self._not_forwarded = not_forwarded
        self.received = self.stored = self.duplicates = 0
        """Fragments: taken from the transport, stored, had already (NBT-15)."""
        self.parts = 0
        """Of the stored ones, those that did not complete a message."""
        self.dropped: Counter[str] = Counter()
        """Fragments dropped, by reason (DSP-13)."""
        self.memory_full_at: Instant | None = None
        """When one was last dropped for want of memory."""

    def refuse(self, item: Item, reason: str, neighbour: InstanceId | None) -> None:
        """It is not for anybody here, or there is no room for it: its sender is told (NBT-4)."""
        self.drop((item,), reason)
        if reason == MEMORY_FULL:
            self.memory_full_at = self._clock.utc()
        if type(item) is Fragment:
            self._notices.refuse(item, reason, neighbour)

    def drop(self, items: Iterable[Item], reason: str) -> int:
        """These are not wanted, or not any more; how many fragments. Nobody is told."""
        count = 0
        for item in items:
            sequenced = type(item) is Fragment
            count += sequenced
            if reason in _FOR_OTHERS:
                self._not_forwarded(item, reason)
                continue
            self._log.debug(
                MESSAGE_UNDELIVERABLE,
                subclass="sequenced" if sequenced else "unsequenced",
                reason=reason,
                conversation_id=item.conversation_id.hex(),
                to_service=item.to_service,
                ssb_code=_SSB_CODES.get(reason),
            )
        if count:
            self.dropped[reason] += count
        return count

    def repeated(self, item: Fragment) -> None:
        """It was here already (DLP-33)."""
        self.duplicates += 1
        self._log.debug(
            MESSAGE_UNDELIVERABLE,
            subclass="sequenced",
            reason="duplicate",
            conversation_id=item.conversation_id.hex(),
            sequence=item.sequence,
            fragment=item.fragment,
            ssb_code=11218,
        )

    def corrupted(self, item: Fragment, reason: str) -> None:
        """Its header contradicts what came before; nobody is told but the log (DLP-13)."""
        self.dropped[reason] += 1
        self._log.warning(
            CORRUPTED_MESSAGE,
            reason=reason,
            items=1,
            conversation_id=show(item.conversation_id),
            sequence=item.sequence,
            fragment=item.fragment,
            ssb_code=11274,
        )

    def undeliverable(
        self,
        broker: Broker,
        item: Fragment,
        live: Live | None,
        reason: str,
        *,
        counted: str = "",
        ssb_code: int | None = None,
    ) -> None:
        """Say that a message for us cannot be put on its queue, and why (EVT-10).

        `counted`: the reason under which this fragment is dropped, where it is."""
        if counted:
            self.dropped[counted] += 1
        out = live.outgoing if live is not None else None
        self._log.warning(
            MESSAGE_UNDELIVERABLE,
            subclass="sequenced",
            broker=broker.name,
            conversation_id=show(item.conversation_id),
            handle=show(live.endpoint.handle) if live is not None else None,
            role="target" if item.from_initiator else "initiator",
            message_type=item.message_type,
            sequence=item.sequence,
            fragment=item.fragment,
            last_acked_sequence=out.stored_sequence if out is not None else -1,
            last_acked_fragment=out.stored_fragment if out is not None else -1,
            reason=reason,
            ssb_code=ssb_code,
        )

    def failed(self, broker: Broker, item: Fragment, attempts: int, error: Exception) -> None:
        """What waits of a dialog could not be stored, for no fault of the store (DSP-8)."""
        self._log.warning(
            MESSAGE_UNDELIVERABLE,
            subclass="sequenced",
            broker=broker.name,
            conversation_id=show(item.conversation_id),
            sequence=item.sequence,
            fragment=item.fragment,
            reason=STORE_FAILED,
            attempts=attempts,
            error=repr(error),
            ssb_code=28005,
        )

    def unsequenced(self, live: Live, what: str, ssb_code: int | None = None) -> None:
        """Say that an acknowledgement or a broker's error was not taken, and why (DLP-17)."""
        self._log.warning(
            MESSAGE_UNDELIVERABLE,
            subclass="unsequenced",
            reason=what,
            conversation_id=live.endpoint.conversation_id.hex(),
            ssb_code=ssb_code,
        )
