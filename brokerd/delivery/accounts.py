"""What became of every fragment that arrived, by count and in the log (DSP-13, NBT-15).

Reads: what it is told.      Calls: the log.
Never: decides that something is dropped; whoever does says so here, once for each fragment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.ids import ConversationId, show
from brokerd.logs import MESSAGE_UNDELIVERABLE
from brokerd.protocol.frames import Fragment, Item
from brokerd.routing.reasons import DropReason, Reason


class Log(Protocol):
    """Where events go (MON)."""

    def info(self, event: str, **fields: object) -> object:
        """Something an operator may want to know."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Something is wrong."""
        ...

    def debug(self, event: str, **fields: object) -> object:
        """What happens once per message."""
        ...


_FOR_OTHERS: Final = frozenset({Reason.FORWARDING_DISABLED, DropReason.HOPS_EXHAUSTED})
"""Reasons for which something is dropped that is not for this instance (RTE-24, FWD-6)."""


class Accounts:
    """The dispatcher's counters; one set per instance."""

    __slots__ = ("_log", "_not_forwarded", "_notice", "dropped", "duplicates", "received", "stored")

    def __init__(
        self,
        *,
        log: Log,
        notice: Callable[[ConversationId, bool, int, str], None],
        not_forwarded: Callable[[Item, str], None],
    ) -> None:
        self._log = log
        self._not_forwarded = not_forwarded
        self._notice = notice
        self.received = self.stored = self.duplicates = 0
        """Fragments: taken from the transport, stored, had already (NBT-15)."""
        self.dropped: Counter[str] = Counter()
        """Fragments dropped, by reason (DSP-13)."""

    def drop(self, item: Item, reason: str) -> None:
        """It is not for anybody here, or there is no room for it."""
        if type(item) is Fragment:
            self.dropped[reason] += 1
            self.tell_sender(item, reason)
        if reason in _FOR_OTHERS:
            self._not_forwarded(item, reason)
            return
        self._log.debug(
            MESSAGE_UNDELIVERABLE,
            subclass="sequenced" if type(item) is Fragment else "unsequenced",
            reason=reason,
            conversation_id=item.conversation_id.hex(),
            to_service=item.to_service,
        )

    def tell_sender(self, item: Fragment, reason: str) -> None:
        """It was not taken: let its sender show why (PBT-2)."""
        self._notice(item.conversation_id, item.from_initiator, item.sequence, reason)

    def undeliverable(self, broker: Broker, item: Fragment, live: Live | None, reason: str) -> None:
        """Say that a message for us cannot be put on its queue, and why (EVT-10)."""
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
        )

    def unsequenced(self, live: Live, what: str) -> None:
        """Say that an acknowledgement was not taken, and why (DLP-17)."""
        self._log.warning(
            MESSAGE_UNDELIVERABLE,
            subclass="unsequenced",
            reason=what,
            conversation_id=live.endpoint.conversation_id.hex(),
        )
