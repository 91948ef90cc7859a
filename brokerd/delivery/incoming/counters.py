"""Counters and log lines for the outcome of every fragment that arrived (DSP-13, NBT-15).

Reads: its arguments.      Calls: the log, refusal_notices.
Never: decides that a fragment is dropped; the caller does, and reports each fragment once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.clock import Clock, Instant
from brokerd.delivery.peers.refusal_notices import RefusalNotices
from brokerd.ids import InstanceId, show
from brokerd.protocol.frames import Fragment, Item
from brokerd.protocol.headers import content_of, trace_of
from brokerd.routing.reasons import SSB_CODES, DropReason, Reason
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import (
    AUDIT_CONVERSATION,
    CORRUPTED_MESSAGE,
    MESSAGE_UNDELIVERABLE,
)

MEMORY_FULL = "dispatcher_memory"
"""Reason for fragments dropped because the dispatcher's memory is full (DSP-10)."""
PLAIN_ON_SECURED = "plain_on_secured"
"""Reason for items in clear that were dropped because their dialog is secured (SEC-20)."""
STORE_FAILED = "store_failed"
"""Reason for fragments that could not be stored, through no fault of the store (DSP-8)."""


_FOR_OTHERS: Final = frozenset({Reason.FORWARDING_DISABLED, DropReason.HOPS_EXHAUSTED})
"""Reasons for dropping items that are not for this instance (RTE-24, FWD-6)."""


_SSB_CODES: Final = SSB_CODES | dict.fromkeys((MEMORY_FULL, "dialog_memory", "early_memory"), 11237)


class ArrivalCounters:
    """Counters of the dispatcher, one set per instance."""

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
        notices: RefusalNotices,
        not_forwarded: Callable[[Item, str], None],
    ) -> None:
        self._clock = clock
        self._log = log
        self._notices = notices
        self._not_forwarded = not_forwarded
        self.received = self.stored = self.duplicates = 0
        """Number of fragments received from the transport, stored, and repeated (NBT-15)."""
        self.parts = 0
        """Number of stored fragments that did not complete a message."""
        self.dropped: Counter[str] = Counter()
        """Number of fragments dropped, by reason (DSP-13)."""
        self.memory_full_at: Instant | None = None
        """Time at which a fragment was last dropped because memory was full; None = never."""

    def refuse(self, item: Item, reason: str, neighbour: InstanceId | None) -> None:
        """Drop an item without recipient, or without room for it; notify its sender (NBT-4)."""
        self.drop((item,), reason)
        if reason == MEMORY_FULL:
            self.memory_full_at = self._clock.utc()
        if isinstance(item, Fragment):
            self._notices.refuse(item, reason, neighbour)

    def drop(self, items: Iterable[Item], reason: str) -> int:
        """Count and log dropped items without a NOTICE; return the number of fragments.

        Items for other instances are reported through `not_forwarded` instead of logged here."""
        count = 0
        for item in items:
            sequenced = isinstance(item, Fragment)
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
        """Count and log a fragment that had been received before (DLP-33)."""
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
        """Count and log a fragment whose header contradicts earlier fragments (DLP-13).

        No NOTICE is sent."""
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

    def not_of_its_kind(self, item: Item, reason: str, ssb_code: int) -> None:
        """Count and log an item whose security is not that of its dialog (SEC-20).

        No NOTICE is sent."""
        self.dropped[reason] += 1
        about = _about(item)
        self._log.warning(
            MESSAGE_UNDELIVERABLE,
            subclass="sequenced" if isinstance(item, Fragment) else "unsequenced",
            reason=reason,
            ssb_code=ssb_code,
            **about,
        )
        if reason == PLAIN_ON_SECURED:
            self._log.warning(AUDIT_CONVERSATION, subclass="no_security_header", **about)

    def not_authentic(
        self,
        item: Item,
        reason: str,
        neighbour: InstanceId | None,
        certificate: str,
        *,
        problem: str,
        ssb_code: int,
    ) -> None:
        """Count and log an item that is not authentic; notify its sender (SEC-25, NBT-5).

        `certificate`: identifier of the certificate that is not known here; empty = they are.
        `problem`: further text, for this side only (SX-5)."""
        self.dropped[reason] += 1
        sequenced = item if isinstance(item, Fragment) else None
        about = _about(item)
        self._log.warning(
            CORRUPTED_MESSAGE,
            reason=reason,
            items=1,
            sequence=None if sequenced is None else sequenced.sequence,
            fragment=None if sequenced is None else sequenced.fragment,
            ssb_code=ssb_code,
            **about,
        )
        self._log.warning(
            AUDIT_CONVERSATION,
            subclass="no_certificate" if certificate else "invalid_signature",
            certificate_id=certificate or None,
            problem=problem or None,
            neighbour=None if neighbour is None else show(neighbour),
            **about,
        )
        if sequenced is not None:
            self._notices.refuse(sequenced, reason, neighbour, certificate)

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
        """Log that a message for this broker cannot be put on its queue, and why (EVT-10).

        `counted`: the reason under which the fragment counts as dropped; empty = it does not."""
        if counted:
            self.dropped[counted] += 1
        out = live.outgoing if live is not None else None
        whole = content_of(item.body, item.flags) if item.fragments == 1 else None
        self._log.warning(
            MESSAGE_UNDELIVERABLE,
            subclass="sequenced",
            broker=broker.name,
            conversation_id=show(item.conversation_id),
            handle=show(live.endpoint.handle) if live is not None else None,
            role="target" if item.from_initiator else "initiator",
            service=item.to_service,
            far_service=item.from_service,
            contract=item.contract,
            message_type=item.message_type,
            sequence=item.sequence,
            fragment=item.fragment,
            last_acked_sequence=out.acks.stored_sequence if out is not None else -1,
            last_acked_fragment=out.acks.stored_fragment if out is not None else -1,
            reason=reason,
            dropped_as=counted or None,
            ssb_code=ssb_code,
            **trace_of(whole),
        )

    def failed(self, broker: Broker, item: Fragment, attempts: int, error: Exception) -> None:
        """Log that a run could not be stored, through no fault of the store (DSP-8)."""
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
        """Log that an acknowledgement or a broker's error was refused, and why (DLP-17)."""
        self._log.warning(
            MESSAGE_UNDELIVERABLE,
            subclass="unsequenced",
            reason=what,
            conversation_id=live.endpoint.conversation_id.hex(),
            ssb_code=ssb_code,
        )


def _about(item: Item) -> dict[str, object]:
    """Return the fields by which an operator finds the dialog of an item."""
    return {
        "conversation_id": show(item.conversation_id),
        "role": "target" if item.from_initiator else "initiator",
        "far_service": item.from_service,
    }
