"""What one dialog endpoint has to send through the transmission queue (XMT-3).

Reads: the store, for rows that are not in memory.      Calls: protocol.sending, storage.
Never: classifies or transmits; the transmitter does, with what it finds here.

Everything here can be lost without harm: after a restart the rows are read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from brokerd.broker.endpoints import Spawn
from brokerd.clock import Instant
from brokerd.ids import Incarnation, InstanceId
from brokerd.model import DEFAULT_PRIORITY
from brokerd.protocol import dialog
from brokerd.protocol.frames import Ack
from brokerd.protocol.sending import SendWindow, WindowLimits
from brokerd.protocol.transitions import State
from brokerd.storage.changes import OutgoingRemoval, OutgoingRow

if TYPE_CHECKING:
    from brokerd.broker.endpoints import Live
    from brokerd.broker.pairs import Pair
    from brokerd.routing.classify import OutgoingDecision
    from brokerd.routing.table import Choice
    from brokerd.storage.store import OutgoingPage

WHOLE: Final = dialog.WHOLE
"""Fragment number in an ack that means: all fragments of this message."""

ROW_COST: Final = 900
"""Bytes of memory that a message in a send window costs beside its body."""


FEW: Final = 4
FEW_BYTES: Final = 4096
"""What a dialog reads at a time while memory is full; a message beyond that comes alone."""


class Told(NamedTuple):
    """What the far side or a forwarder said about something it did not take (NBT-4)."""

    key: str
    """Status key (XMT-19)."""
    detail: str
    since: Instant


_HELD: Final = {
    State.DISCONNECTED_INBOUND: "held_after_end",
    State.ERROR: "held_after_error",
}


def held_in(state: State) -> str | None:
    """Status key under which sends are held in this state; None = they are sent (DLP-50)."""
    return _HELD.get(state)


class OutgoingOptions(msgspec.Struct, frozen=True):
    """How much of the transmission queue is held in memory (design D4)."""

    memory: int = 48 * 1024 * 1024
    """Bytes for all dialogs of a broker; what is beyond stays in the store."""
    page_messages: int = 256
    page_bytes: int = 1024 * 1024
    limits: WindowLimits = WindowLimits()

    @property
    def page_cost(self) -> int:
        """Bytes of memory that a page takes."""
        return self.page_messages * ROW_COST + self.page_bytes


class OutgoingMemory:
    """Bytes that the send windows of one broker hold."""

    __slots__ = ("honors_priority", "left", "limit", "made", "on_damaged", "reading", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.reading = 0
        """Bytes that what is being read may need at most."""
        self.left = 0
        """Messages acknowledged or withdrawn since the start (MON-13)."""
        self.made = 0
        """Transmission objects made since the start (MON-14)."""
        self.honors_priority = False
        """Whether what this broker sends goes by level (OBJ-55)."""
        self.on_damaged: Callable[[Outgoing], None] = _tell_nobody
        """Told of a dialog that stops sending, because what it has to send next is damaged."""

    @property
    def full(self) -> bool:
        """Whether new messages have to stay in the store."""
        return self.used >= self.limit

    def has_room(self, size: int) -> bool:
        """Whether so much more may be read."""
        return self.used + self.reading + size <= self.limit


PageOutgoing = Callable[["Live", int, int, int], Awaitable["OutgoingPage"]]
"""(endpoint, from sequence, limit, bytes) to its rows beyond memory, by sequence."""


def _tell_nobody(out: Outgoing) -> None:
    """Where nobody listens."""


class Outgoing:
    """The transmission object of one dialog endpoint."""

    __slots__ = (
        "_beyond",
        "_coming",
        "_joined",
        "_memory",
        "_options",
        "_page",
        "_paging",
        "_spawn",
        "ack_at",
        "address",
        "choice",
        "choosing",
        "damaged",
        "decision",
        "detail",
        "errors",
        "first_acked",
        "going",
        "held",
        "held_ranges",
        "highest_seen",
        "incarnation",
        "last_sequence",
        "live",
        "matched_at",
        "matches",
        "neighbour",
        "notice",
        "owed",
        "peer_holds",
        "queued",
        "ready",
        "settled_flag",
        "since",
        "status",
        "stored_fragment",
        "stored_message",
        "stored_sequence",
        "timed",
        "timer",
        "unpublished",
        "warned",
        "window",
        "withdrawn_before",
    )

    def __init__(  # noqa: PLR0915  # one for each attribute
        self,
        live: Live,
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
        self._options = options
        self._memory = memory
        memory.made += 1
        self.incarnation = incarnation
        """Of the store these messages are sent from (REL-15)."""
        self.going = going
        """Counts the messages that it sends."""
        self._page = page
        self._spawn = spawn
        self.ready = ready
        """Tells the transmitter that there is something to send."""
        self.window: SendWindow[OutgoingRow] = SendWindow(options.limits)
        self._beyond = 0
        self._coming = 0
        self._joined = live.endpoint.send_sequence - 1  # highest sequence that ever had a row
        self._paging = False
        self.last_sequence = -1
        """Highest sequence that has been in memory, or was acknowledged before it was."""
        self.unpublished: deque[int] = deque()
        """Transmission orders of messages whose commit is under way."""
        self.withdrawn_before = 0
        """Messages with a lower transmission order were withdrawn (DLG-T11)."""
        endpoint = live.endpoint
        # What is durable here, as far as the peer is concerned: the truth behind every ack.
        self.stored_sequence = endpoint.receive_sequence - (
            1 if not endpoint.receive_fragment else 0
        )
        self.stored_fragment = endpoint.receive_fragment - 1 if endpoint.receive_fragment else WHOLE
        self.stored_message = endpoint.last_message
        """Identity of the message with that sequence (REL-15)."""
        self.highest_seen = self.stored_sequence
        self.held_ranges: tuple[tuple[int, int, int, int], ...] = ()
        """Out of order fragments that the dispatcher holds (DLP-16)."""
        self.owed = 0
        """Fragments stored or repeated since the last ack left."""
        self.ack_at: float | None = None
        """When a dedicated ack goes out at the latest (DLP-19); None = none is owed."""
        self.errors: list[tuple[int, str]] = []
        """Errors made by this broker that wait for the next connection (DLP-3)."""
        self.first_acked = endpoint.first_acked and endpoint.is_initiator
        """Message 0 is acknowledged to this initiator, which is durable (DLP-57)."""
        self.settled_flag = False
        """FIRST_ACKED has been said, or there is something to say it with (DLP-57)."""
        self.peer_holds: tuple[tuple[int, int, int, int], ...] = ()
        """What the peer's latest ack said it has in memory beyond the prefix."""
        # The transmitter's own notes.
        self.decision: OutgoingDecision | None = None
        self.choice: Choice | None = None
        self.address: str | None = None
        self.timer: float = 0.0
        """When its retransmission timer is looked at (monotonic); 0 = it is not armed."""
        self.queued = self.warned = self.choosing = False
        """Whether it is in a line; said already that no route leads back (NBT-1); waits until its
        choice of a route is stored (RTE-29)."""
        self.damaged: int | None = None
        """Sequence of a message whose body is not the one written; nothing from there on is sent,
        and new messages stay behind it in the store (REL-6)."""
        self.timed: tuple[int, float] | None = None
        """Sequence of the message whose way is measured, and when it left (monotonic)."""
        self.held: str | None = None
        """Status key if nothing more may be sent (DLP-50)."""
        self.status = self.detail = ""
        self.since = 0
        self.matches = 0
        """How often it was matched with the routes since it waits for one (XMT-9)."""
        self.matched_at: Instant | None = None
        """When it was last matched in vain."""
        self.notice: Told | None = None
        """Why the receiving side did not take what was sent last (PBT-2)."""
        self.neighbour: InstanceId | None = None
        """Who brought what came last; None = a broker of this instance, or nothing came (NBT-1)."""

    @property
    def idle(self) -> bool:
        """Whether the endpoint's row says all there is."""
        return (
            not len(self.window)
            and not self.waiting
            and not self.unpublished
            and self.ack_at is None
            and not self.errors
            and not self.queued
            and not self._paging
        )

    @property
    def level(self) -> int:
        """Its level among what is to be sent, as of now (OBJ-55 to OBJ-57)."""
        honored = self._memory.honors_priority
        return self.live.endpoint.priority if honored else DEFAULT_PRIORITY

    @property
    def fragment_room(self) -> int:
        """Bytes a boxcar must have free for this dialog's largest next fragment."""
        return self.window.largest_fragment + 512

    @property
    def waiting(self) -> int:
        """Messages in the store that are not in memory."""
        return self._beyond + self._coming

    @property
    def undelivered(self) -> int:
        """Application messages of this dialog that the peer has not acknowledged."""
        held = self._held
        end = self.live.endpoint.end_sequence
        return held - 1 if held and 0 <= end <= self._joined else held

    @property
    def _held(self) -> int:
        """Messages that wait for the peer's acknowledgement, wherever they are."""
        before, joining = self.withdrawn_before, len(self.unpublished)
        if before and joining:  # some of them were withdrawn before they are durable
            joining = sum(order >= before for order in self.unpublished)
        return len(self.window) + self._beyond + joining

    @property
    def pending(self) -> int:
        """Messages of this dialog that the peer has not acknowledged, as far as is durable."""
        return len(self.window) + self._beyond

    def status_since(self, key: str) -> Instant | None:
        """Since when the status has this key, where that is known (XMT-18)."""
        if self.notice is not None and key == self.notice.key:
            return self.notice.since
        return Instant(self.since) if self.since and key == self.status else None

    def recovered(self, count: int, lowest: int) -> None:
        """After opening the store: that many rows, none of them in memory."""
        self._beyond = count
        self.last_sequence = lowest - 1

    def must_page(self) -> bool:
        """Whether the next message has to stay in the store, behind those already there."""
        return self.waiting > 0 or self._memory.full

    def joining(self, row: OutgoingRow) -> None:
        """A message of this dialog has joined the commit pipeline."""
        self.unpublished.append(row.transmission_order)
        self._joined = row.sequence
        if row.paged:
            self._coming += 1

    def published(self, row: OutgoingRow) -> None:
        """It is durable and may be sent."""
        self.unpublished.popleft()
        if not row.flags:
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
        """Whether it would send something in its turn, or read what it sends in the next one."""
        return not self.held and (self.window.has_work() or self._may_read)

    @property
    def _may_read(self) -> bool:
        """Whether few unsent rows are left in memory, and there is room for more.

        Where memory is full, a dialog still has some rows in it at a time, or it would never end:
        but those of a destination that takes nothing have no turn, and so read nothing (D4)."""
        return (
            self._beyond > 0
            and not self._paging
            and self.damaged is None
            and self.window.unsent < max(1, self._options.page_messages // 4)
            and not (self._memory.full and len(self.window))
        )

    def refill(self) -> None:
        """It has had its turn: read the next rows, when few unsent ones are left in memory."""
        if self._may_read:
            self._spawn(self._begin(few=not self._memory.has_room(self._options.page_cost)))

    def bring_in(self, resume: Callable[[], None]) -> None:
        """Read the next rows although nothing is to be sent, then go on."""

        async def read() -> None:
            if not self._paging:
                await self._begin(few=False)
            resume()

        self._spawn(read())

    def _begin(self, *, few: bool) -> Coroutine[object, object, None]:
        """Room for what is read is taken before others look whether there is some."""
        self._paging = True
        options = self._options
        cost = FEW * ROW_COST + FEW_BYTES if few else options.page_cost
        self._memory.reading += cost
        return self._bring_in(few=few, cost=cost)

    async def _bring_in(self, *, few: bool, cost: int) -> None:
        options = self._options
        before = self.last_sequence
        try:
            page = await self._page(
                self.live,
                before + 1,
                FEW if few else options.page_messages,
                FEW_BYTES if few else options.page_bytes,
            )
            has_moved = self.last_sequence != before  # acknowledged while it was read (DLP-20)
            rows = page.rows
            if page.damaged:  # which row that was cannot be told once the beginning is another one
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
        """The messages that may still be sent: nothing behind a damaged one is (REL-10)."""
        if not self._beyond:  # withdrawn while it was read
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
        """Take an acknowledgement: what it covers is done with, wherever it is (DLP-20).

        After a start the rows are in the store, and the peer may acknowledge them before they are
        read. What is not durable yet it cannot have. Returns what the store has to delete."""
        self.peer_holds = ack.ranges
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
        """Count off the messages up to that sequence that are in the store alone; how many."""
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
        """Forget every message; `before`: the transmission order that is given next."""
        rows = self.window.clear()
        self._left_memory(rows)
        orders = [row.transmission_order for row in rows]
        orders += [order for order in self.unpublished if order >= self.withdrawn_before]
        beyond = self.waiting
        self._memory.left += self._beyond
        self._beyond = 0
        self.withdrawn_before = before
        self.damaged = None
        return OutgoingRemoval(orders, self._joined, beyond)

    @property
    def base_sequence(self) -> int:
        """The oldest sequence that this side still holds for the other (REL-15).

        0, which says nothing, where messages were withdrawn before the other side had them."""
        endpoint = self.live.endpoint
        if endpoint.state is State.CLOSED or (
            endpoint.end_sequence >= 0 and endpoint.error_code is not None
        ):
            return 0
        return max(0, endpoint.send_sequence - self._held)

    def ack(self, *, flag: bool) -> Ack:
        """The acknowledgement block as of now: committed state only (REL-4)."""
        return Ack(
            sequence=self.stored_sequence,
            fragment=self.stored_fragment if self.stored_sequence >= 0 else -1,
            highest_seen=max(self.highest_seen, self.stored_sequence),
            base_sequence=self.base_sequence,
            broker_id=self.live.queue.broker_id,
            first_acked=flag,
            ranges=self.held_ranges,
        )

    def _hold(self, row: OutgoingRow) -> None:
        self.window.add(row)
        self.last_sequence = row.sequence
        self._memory.used += ROW_COST + len(row.body or b"")
