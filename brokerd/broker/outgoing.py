"""The messages of one dialog endpoint in the transmission queue (XMT-3).

Reads: the store, for rows that are not in memory.      Calls: protocol.sending, storage.
Never: classifies or transmits; the transmitter does, with these rows.

An `Outgoing` is what Service Broker calls a transmission object. In addition to the rows it has two
records: `route` has their destination and timers (`outgoing_route.py`), `acks` the acknowledgements
owed to the peer (`ack_state.py`). Each module alone writes the fields of its record. All three can
be lost without harm: after a restart the rows are read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from brokerd.broker.ack_state import AckState, Ranges
from brokerd.broker.outgoing_route import OutgoingRoute
from brokerd.broker.store_reads import Spawn
from brokerd.clock import Instant
from brokerd.ids import BrokerId, Incarnation
from brokerd.model import DEFAULT_PRIORITY
from brokerd.protocol.dialog import WHOLE
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import ENDS, HEADERS, Ack
from brokerd.protocol.headers import Content
from brokerd.protocol.sending import SendWindow, WindowLimits
from brokerd.protocol.transitions import State
from brokerd.storage.changes import OutgoingRemoval, OutgoingRow

if TYPE_CHECKING:
    from brokerd.broker.pairs import Pair
    from brokerd.security.kept_keys import DialogKeys
    from brokerd.storage.store import OutgoingPage

ROW_COST: Final = 900
"""Bytes of memory that a message in a send window costs in addition to its body."""


_HEADER_ROOM: Final = 1536
"""Most bytes of a fragment's header without the names of its dialog: the name of its message type,
sixteen ranges of an acknowledgement, and the rest."""
_SECURED_ROOM: Final = 640
"""Bytes that a secured item is longer than a plain one, at most: with a security header."""


FEW: Final = 4
FEW_BYTES: Final = 4096
"""The limits of a page while memory is full; a larger message is read alone."""


_HELD: Final = {
    State.DISCONNECTED_INBOUND: "held_after_end",
    State.ERROR: "held_after_error",
    State.CLOSED: "held_after_end",
}
"""The status keys of the states in which nothing more is sent (DLP-50)."""


class OutgoingOptions(msgspec.Struct, frozen=True):
    """Limits on the part of the transmission queue that is held in memory (design D4)."""

    memory: int = 48 * 1024 * 1024
    """Bytes for all dialogs of a broker; messages that do not fit stay in the store."""
    page_messages: int = 256
    page_bytes: int = 1024 * 1024
    limits: WindowLimits = WindowLimits()

    @property
    def page_cost(self) -> int:
        """Bytes of memory that a page may take."""
        return self.page_messages * ROW_COST + self.page_bytes


class OutgoingMemory:
    """The memory that the send windows of one broker use, in bytes."""

    __slots__ = ("honors_priority", "left", "limit", "made", "on_damaged", "reading", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.reading = 0
        """Bytes reserved for the reads under way."""
        self.left = 0
        """Number of messages acknowledged or withdrawn since the start (MON-13)."""
        self.made = 0
        """Number of transmission objects created since the start (MON-14)."""
        self.honors_priority = False
        """Whether the broker transmits its messages by priority level (OBJ-55)."""
        self.on_damaged: Callable[[Outgoing], None] = _ignore_damage
        """Called with a dialog that stops sending because its next message is damaged."""

    @property
    def full(self) -> bool:
        """Whether new messages have to stay in the store."""
        return self.used >= self.limit

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes may be read."""
        return self.used + self.reading + size <= self.limit


class Sender(Protocol):
    """The dialog endpoint that sends these messages, a `Live`, as its transmission sees it."""

    endpoint: DialogEndpoint
    gone: bool
    keys: DialogKeys | None

    @property
    def broker_id(self) -> BrokerId:
        """The identifier of the endpoint's broker."""
        ...

    def use_keys(self, keys: DialogKeys) -> None:
        """Set the keys of the dialog, which the endpoint has in wrapped form."""
        ...


PageOutgoing = Callable[[Sender, int, int, int], Awaitable["OutgoingPage"]]
"""Reads rows that are not in memory, by sequence: (endpoint, from sequence, limit, bytes)."""


def _ignore_damage(out: Outgoing) -> None:
    """Do nothing: no listener has been set."""


class Outgoing:
    """The rows of one dialog endpoint in the transmission queue, and their part in memory.

    A row joins with its commit, is published once that is durable, and leaves when the peer has
    acknowledged it or the dialog is withdrawn. In the order of their sequences, the rows are:

    - in `window`: durable and in memory, up to `last_sequence`;
    - only in the store: `_beyond` of them, which a read brings into the window;
    - in `unpublished`: their commit is under way. `_coming` of them stay in the store after it.

    A message is behind all earlier ones of its dialog, so while rows are only in the store a new
    one stays there, too.
    """

    __slots__ = (
        "_beyond",
        "_coming",
        "_joined",
        "_memory",
        "_options",
        "_page",
        "_paging",
        "_peer_holds",
        "_spawn",
        "acks",
        "damaged",
        "going",
        "incarnation",
        "last_sequence",
        "live",
        "ready",
        "route",
        "unpublished",
        "window",
        "withdrawn_before",
    )

    def __init__(
        self,
        live: Sender,
        *,
        options: OutgoingOptions,
        memory: OutgoingMemory,
        incarnation: Incarnation,
        going: Pair,
        page: PageOutgoing,
        spawn: Spawn,
        ready: Callable[[Outgoing], None],
    ) -> None:
        self.live = live
        self.route = OutgoingRoute()
        self.acks = AckState(live.endpoint)
        self._options = options
        self._memory = memory
        memory.made += 1
        self.incarnation = incarnation
        """The incarnation of the store from which these messages are sent (REL-15)."""
        self.going = going
        """Counters of the messages that the endpoint sends."""
        self._page = page
        self._spawn = spawn
        self.ready = ready
        """Notifies the transmitter that the dialog has something to send."""
        self.window: SendWindow[OutgoingRow] = SendWindow(options.limits)
        self._beyond = 0
        self._coming = 0
        self._joined = live.endpoint.send_sequence - 1  # highest sequence that ever had a row
        self._paging = False
        self.last_sequence = -1
        """The highest sequence that was loaded, or acknowledged before it was loaded."""
        self.unpublished: deque[int] = deque()
        """Transmission orders of messages whose commit is under way."""
        self.withdrawn_before = 0
        """Messages with a lower transmission order were withdrawn (DLG-T11)."""
        self._peer_holds: Ranges = ()
        # The fragments behind the stored prefix that the peer holds, by its latest ack.
        self.damaged: int | None = None
        """Sequence of a message whose body fails its hash. Neither it nor any later message is
        sent, and new messages stay behind it in the store (REL-6)."""

    @property
    def held(self) -> str | None:
        """The status key of a state that holds messages back; None = they are sent (DLP-50)."""
        return _HELD.get(self.live.endpoint.state)

    @property
    def idle(self) -> bool:
        """Whether nothing is to be sent, read or acknowledged: the endpoint may be evicted."""
        return (
            not len(self.window)
            and not self.waiting
            and not self.unpublished
            and not self.acks.is_owing
            and not self.route.is_queued
            and not self._paging
        )

    @property
    def level(self) -> int:
        """The present priority level of the dialog for sending (OBJ-55 to OBJ-57)."""
        honored = self._memory.honors_priority
        return self.live.endpoint.priority if honored else DEFAULT_PRIORITY

    @property
    def fragment_room(self) -> int:
        """Bytes a boxcar must have free for this dialog's largest next fragment."""
        endpoint = self.live.endpoint
        names = len(endpoint.service) + len(endpoint.far_service) + len(endpoint.contract)
        secured = 0 if endpoint.security is None else _SECURED_ROOM
        return self.window.largest_fragment + _HEADER_ROOM + 4 * names + secured

    @property
    def oldest_at(self) -> Instant | None:
        """Enqueue time of the oldest message in memory; None = no message is in memory."""
        return self.window.oldest.enqueued_at if len(self.window) else None

    @property
    def waiting(self) -> int:
        """Number of messages that are in the store and not in memory."""
        return self._beyond + self._coming

    @property
    def undelivered(self) -> int:
        """Number of this dialog's application messages that the peer has not acknowledged."""
        held = self._held
        end = self.live.endpoint.end_sequence
        return held - 1 if held and 0 <= end <= self._joined else held

    @property
    def _held(self) -> int:
        """Number of messages that wait for the peer's acknowledgement, wherever they are."""
        before, joining = self.withdrawn_before, len(self.unpublished)
        if before and joining:  # some of them were withdrawn before they became durable
            joining = sum(order >= before for order in self.unpublished)
        return len(self.window) + self._beyond + joining

    @property
    def pending(self) -> int:
        """Number of this dialog's durable messages that the peer has not acknowledged."""
        return len(self.window) + self._beyond

    def recovered(self, count: int, lowest: int) -> None:
        """Count the rows that were in the store at the start; none is in memory."""
        self._beyond = count
        self.last_sequence = lowest - 1

    def must_page(self) -> bool:
        """Return whether the next message has to stay in the store, behind earlier ones."""
        return self.waiting > 0 or self._memory.full

    def joining(self, row: OutgoingRow) -> None:
        """Note that a message of this dialog has joined the commit pipeline."""
        self.unpublished.append(row.transmission_order)
        self._joined = row.sequence
        if row.paged:
            self._coming += 1

    def published(self, row: OutgoingRow) -> None:
        """Make a message that has become durable available to be sent."""
        self.unpublished.popleft()
        if not row.flags & ENDS:
            self.going.sent += 1
        withdrawn = row.transmission_order < self.withdrawn_before
        if row.paged:
            self._coming -= 1
            if not withdrawn:
                self._beyond += 1
        elif not withdrawn:
            self._hold(row)
        if not self.held:
            self.ready(self)

    def has_work(self) -> bool:
        """Return whether the next turn would send something, or read rows for a later turn."""
        return not self.held and (self.window.has_work() or self._may_load)

    @property
    def _may_load(self) -> bool:
        """Whether few unsent rows are left in memory, and memory has room for more.

        Even if memory is full, each dialog may have a few rows in it, or it would never finish. But
        a dialog whose destination accepts nothing gets no turn, and so reads nothing (D4)."""
        return (
            self._beyond > 0
            and not self._paging
            and self.damaged is None
            and self.window.unsent < max(1, self._options.page_messages // 4)
            and not (self._memory.full and len(self.window))
        )

    def refill(self) -> None:
        """Load the next rows after a turn, if few unsent ones are left in memory."""
        if self._may_load:
            self._spawn(self._begin_load(few=not self._memory.has_room(self._options.page_cost)))

    def load(self, resume: Callable[[], None]) -> None:
        """Load the next rows even if nothing is to be sent, then call `resume`."""

        async def read() -> None:
            if not self._paging:
                await self._begin_load(few=False)
            resume()

        self._spawn(read())

    def _begin_load(self, *, few: bool) -> Coroutine[object, object, None]:
        """Reserve memory for a page before any other dialog checks for room; return the read."""
        self._paging = True
        options = self._options
        cost = FEW * ROW_COST + FEW_BYTES if few else options.page_cost
        self._memory.reading += cost
        return self._load_page(few=few, cost=cost)

    async def _load_page(self, *, few: bool, cost: int) -> None:
        options = self._options
        before = self.last_sequence
        try:
            page = await self._page(
                self.live,
                before + 1,
                FEW if few else options.page_messages,
                FEW_BYTES if few else options.page_bytes,
            )
            has_moved = self.last_sequence != before  # acknowledged during the read (DLP-20)
            rows = page.rows
            if page.damaged:  # which row is damaged is unknown if rows before it have gone
                rows = [] if has_moved else self._before_damage(page)
            for row in rows:
                if row.transmission_order < self.withdrawn_before or not self._beyond:
                    continue
                if row.sequence <= self.last_sequence:
                    continue
                self._beyond -= 1
                self._hold(row)
        finally:
            self._paging = False
            self._memory.reading -= cost
        if rows or has_moved:
            self.ready(self)

    def _before_damage(self, page: OutgoingPage) -> list[OutgoingRow]:
        """Return the messages that may still be sent: those before the damaged one (REL-10)."""
        if not self._beyond:  # withdrawn during the read
            return []
        first = self.base_sequence if not len(self.window) else self.last_sequence + 1
        sound: list[OutgoingRow] = []
        for row in page.rows:
            if row.sequence != first + len(sound):
                break
            sound.append(row)
        is_known, self.damaged = self.damaged is not None, first + len(sound)
        if not is_known:
            self._memory.on_damaged(self)
        return sound

    def acknowledge(self, ack: Ack, now: float) -> OutgoingRemoval | None:
        """Process an acknowledgement; return the rows to delete, None = there are none (DLP-20).

        The acknowledged messages are finished with, in memory or not. After a start the rows are in
        the store, and the peer may acknowledge them before they are read. It cannot have messages
        that are not durable."""
        self._peer_holds = ack.ranges
        rows = self.window.acknowledge(
            ack.sequence, ack.fragment, ack.highest_seen, ack.ranges, now
        )
        self._left_memory(rows)
        through = ack.sequence if ack.fragment >= WHOLE else ack.sequence - 1
        beyond = self._acknowledge_beyond(through)
        if not rows and not beyond:
            return None
        through = min(through, self.last_sequence)
        return OutgoingRemoval([row.transmission_order for row in rows], through, beyond)

    def _acknowledge_beyond(self, last: int) -> int:
        """Count as acknowledged the messages up to `last` that are only in the store.

        Return their number."""
        if not self._beyond:
            return 0
        first = self.live.endpoint.send_sequence - len(self.unpublished) - self._beyond
        count = min(last + 1 - first, self._beyond)
        if count <= 0:
            return 0
        self._beyond -= count
        self._memory.left += count
        self.last_sequence = first + count - 1
        if self.damaged is not None and self.damaged <= self.last_sequence:
            self.damaged = None
        return count

    def _left_memory(self, rows: Sequence[OutgoingRow]) -> None:
        self._memory.left += len(rows)
        for row in rows:
            self._memory.used -= ROW_COST + len(row.body or b"")

    def withdraw(self, before: int) -> OutgoingRemoval:
        """Withdraw every message; `before`: the next transmission order to be given."""
        rows = self.window.clear()
        self._left_memory(rows)
        orders = [row.transmission_order for row in rows]
        orders += [order for order in self.unpublished if order >= self.withdrawn_before]
        beyond = self.waiting
        self._memory.left += self._beyond
        self._beyond = 0
        self.withdrawn_before = before
        self.damaged = None
        # Reads go on behind the withdrawn rows: a sweep deletes these later, and until then a page
        # of nothing else would be read again and again.
        self.last_sequence = max(self.last_sequence, self._joined)
        return OutgoingRemoval(orders, self._joined, beyond)

    @property
    def base_sequence(self) -> int:
        """The oldest sequence that this side still holds for the peer (REL-15).

        0, which says nothing, if messages were withdrawn before the peer had them."""
        endpoint = self.live.endpoint
        if endpoint.state is State.CLOSED or (
            endpoint.end_sequence >= 0 and endpoint.error_code is not None
        ):
            return 0
        return max(0, endpoint.send_sequence - self._held)

    def expire(self, now: float) -> int:
        """Mark the fragments whose timer is over as unsent; return their number (DLP-27).

        Fragments that the peer holds are skipped once only: it may drop them."""
        skipped, self._peer_holds = self._peer_holds, ()
        return self.window.expire(now, skipped)

    def _hold(self, row: OutgoingRow) -> None:
        if row.flags & HEADERS and type(row.body) is Content:
            row.body.release()
        self.window.add(row)
        self.last_sequence = row.sequence
        self._memory.used += ROW_COST + len(row.body or b"")
