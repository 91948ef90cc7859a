"""One queue in memory: the ready groups, a window of messages, and who waits (RCV, design D4).

Reads: the store, for messages beyond the window.      Calls: storage (through `page`).
Never: commits; transactions take messages from here and give them back.

The window holds, level by level, the messages with the lowest queuing orders. A message that
arrives while others of its level are beyond the window stays beyond it too, so no message is ever
in memory before one that it has to follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.endpoints import Spawn
from brokerd.clock import Instant
from brokerd.ids import BrokerId, EndpointKey, Handle, MessageId
from brokerd.model import Queue
from brokerd.storage.changes import QueueRow

if TYPE_CHECKING:
    from brokerd.broker.endpoints import Live
    from brokerd.broker.groups import Group, Holder


class QueuedMessage(msgspec.Struct, gc=False):
    """A committed message in the window."""

    order: int
    sequence: int
    message_type: str
    enqueued_at: Instant
    message_id: MessageId
    body: bytes | None
    deliveries: int = 0
    """Receives of it that were rolled back since this daemon started (RCV-30)."""


class WindowOptions(msgspec.Struct, frozen=True):
    """How much of a queue is held in memory."""

    window_messages: int = 20_000
    window_bytes: int = 16 * 1024 * 1024
    page_messages: int = 2_000
    """Messages brought in at a time."""
    page_bytes: int = 4 * 1024 * 1024


class ReceiveWait:
    """A receive that waits for a message."""

    __slots__ = ("end", "resume", "selective")

    def __init__(self, *, resume: Resume, end: Resume, selective: bool) -> None:
        self.resume = resume
        """Try again: there may be a message."""
        self.end = end
        """Give up, as if the time were over."""
        self.selective = selective


MESSAGE_COST = 700
"""Bytes of memory that a message in the window costs beside its body."""

Page = Callable[[int, int, int, int], Awaitable[Sequence[QueueRow]]]
"""(priority, after order, limit, bytes) to rows beyond the window, by queuing order."""
PageOf = Callable[[Sequence[EndpointKey], int, int], Awaitable[Sequence[QueueRow]]]
"""(endpoints, limit, bytes) to their rows beyond the window, by endpoint and sequence."""


class QueueState:
    """What one queue holds in memory between two commits."""

    def __init__(
        self,
        queue: Queue,
        *,
        broker_id: BrokerId,
        options: WindowOptions,
        page: Page,
        page_of: PageOf,
        admit: Callable[[Sequence[QueueRow]], Awaitable[list[tuple[Live, QueueRow]]]],
        spawn: Spawn,
        on_arrival: Callable[[QueueState, bool], None],
        on_empty: Callable[[QueueState], None],
        observe_wait: Callable[[int], None],
        now: Callable[[], float],
    ) -> None:
        self._now = now
        self.youngest_at: float | None = None
        """When the latest message was committed (monotonic)."""
        self._observe_wait = observe_wait
        self.on_arrival = on_arrival
        self.on_empty = on_empty
        self.queue = queue
        self.broker_id = broker_id
        self._options = options
        self._page = page
        self._page_of = page_of
        self._admit = admit
        self._spawn = spawn
        self._heap: list[tuple[int, int, Group]] = []
        self._window = 0
        self._window_bytes = 0
        self._beyond: dict[int, int] = {}
        self._coming: dict[int, int] = {}  # written beyond the window, commit under way
        self._cursor: dict[int, int] = {}  # highest order brought in, per level
        self._ahead: set[int] = set()  # brought in out of turn, above the cursor
        self._paging = False
        self._page_waiters: list[Resume] = []
        self.waiting: deque[ReceiveWait] = deque()
        """Receives that wait, in order of arrival (RCV-21)."""
        self.selective: list[ReceiveWait] = []
        self.taken = 0
        """Messages received in transactions that are still open."""
        self.enqueued = self.received = self.rolled_back = 0
        """Since this daemon started: arrivals, committed receives, receives given back."""

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.name

    @property
    def ready_count(self) -> int:
        """Messages that can be received, locked groups included."""
        return self._window + sum(self._beyond.values())

    @property
    def beyond(self) -> int:
        """Of them, those not in memory."""
        return sum(self._beyond.values())

    @property
    def oldest_at(self) -> Instant | None:
        """When the oldest message of an unlocked group was enqueued; None = there is none."""
        for entry in self._heap:
            group = entry[2]
            if group.entry is entry and group.ready:
                return min(live.ready[0].enqueued_at for live in group.ready.values())
        return None

    def recovered(self, priority: int, count: int) -> None:
        """After opening the store: that many messages of a level, all beyond the window."""
        self._beyond[priority] = self._beyond.get(priority, 0) + count

    def alter(self, queue: Queue) -> None:
        """Use the queue's options as they now are; who waits sees it at once (RCV-19)."""
        self.queue = queue
        if not queue.receive_enabled:
            self.wake_all()

    def join(self, waiting: ReceiveWait) -> None:
        """A receive waits for a message."""
        (self.selective if waiting.selective else self.waiting).append(waiting)

    def leave(self, waiting: ReceiveWait) -> None:
        """It waits no longer (RCV-22)."""
        line = self.selective if waiting.selective else self.waiting
        if waiting in line:
            line.remove(waiting)

    @property
    def page_limit(self) -> int:
        """Messages brought in at a time."""
        return self._options.page_messages

    @property
    def stuck(self) -> bool:
        """Whether all that can be in memory is there, in groups that are locked."""
        return self._window >= self._options.window_messages // 2

    def wake_all(self) -> None:
        """Let every waiting receive try again."""
        waiting, self.waiting = self.waiting, deque()
        for wait in waiting:
            wait.resume()
        self.wake()

    # Messages come in.

    def must_page(self, priority: int, size: int) -> bool:
        """Whether a message of this level has to stay beyond the window."""
        return (
            self._beyond.get(priority, 0) + self._coming.get(priority, 0) > 0
            or self._window >= self._options.window_messages
            or self._window_bytes + size > self._options.window_bytes
        )

    def joining_beyond(self, priority: int) -> None:
        """A message beyond the window has joined the commit pipeline."""
        self._coming[priority] = self._coming.get(priority, 0) + 1

    def published_beyond(self, priority: int, *, dropped: bool) -> None:
        """It is durable, or was deleted unread in the meantime."""
        self._coming[priority] -= 1
        if not dropped:
            self._beyond[priority] = self._beyond.get(priority, 0) + 1
            self.enqueued += 1

    def add(self, live: Live, message: QueuedMessage) -> None:
        """A committed message enters the window; `offer` its group when the round is through."""
        ready = live.ready
        if not ready:
            live.group.ready[live.endpoint.key] = live
            ready.append(message)
        elif message.sequence < 0:
            _insert(ready, message)
        else:
            ready.append(message)
        self._window += 1
        self._window_bytes += MESSAGE_COST + len(message.body or b"")

    def offer(self, group: Group) -> None:
        """Put an unlocked group among the ready ones, and wake who waits (RCV-20, RCV-21)."""
        if group.holder is not None or not group.ready or group.entry is not None:
            return
        level, order = _rank(group)
        entry = (-level, order, group)
        group.entry = entry
        heappush(self._heap, entry)
        self.wake()

    def arrived(self, groups: Iterable[Group], *, was_empty: bool) -> None:
        """Messages of these groups have been committed: tell who waits and the monitor (ACT-6a)."""
        self.youngest_at = self._now()
        for group in groups:
            self.offer(group)
        if self.waiting and self._beyond and not self._heap:
            self.refill()
        self.on_arrival(self, was_empty)

    def end_waits(self) -> None:
        """The daemon drains: receives that wait end with nothing."""
        for wait in [*self.waiting, *self.selective]:
            wait.end()

    def wake(self) -> None:
        """Let one unselective receive try, and every selective one."""
        if self.waiting:
            self.waiting.popleft().resume()
        if self.selective:
            selective, self.selective = self.selective, []
            for wait in selective:
                wait.resume()

    # Messages go out.

    def best(self, holder: Holder) -> Group | None:
        """The group an unselective receive takes: unlocked or the transaction's own (RCV-3)."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if entry[2].entry is entry:
                break
            heappop(heap)
        own = [g for g in holder.locked if g.queue is self and g.ready]
        if not own:
            return heap[0][2] if heap else None
        mine = min(own, key=_key)
        return heap[0][2] if heap and heap[0][:2] < _key(mine) else mine

    def take(
        self, group: Group, limit: int, max_bytes: int, *, only: Handle | None = None
    ) -> list[tuple[Live, QueuedMessage]]:
        """Remove up to `limit` messages of a locked group from the window, in order (RCV-7).

        `only`: those of one conversation of it (RCV-5)."""
        taken: list[tuple[Live, QueuedMessage]] = []
        lives = list(group.ready.values())
        if only is not None:
            lives = [live for live in lives if live.endpoint.handle == only]
        if len(lives) > 1:
            lives.sort(key=lambda one: (-one.endpoint.priority, one.ready[0].order))
        size = 0
        for live in lives:
            ready = live.ready
            while ready and len(taken) < limit:
                size += len(ready[0].body or b"")
                if taken and size > max_bytes:
                    limit = 0
                    break
                taken.append((live, ready.popleft()))
            if not ready:
                del group.ready[live.endpoint.key]
            if len(taken) >= limit:
                break
        self._left_window(taken)
        self.taken += len(taken)
        return taken

    def put_back(self, taken: Sequence[tuple[Live, QueuedMessage]]) -> None:
        """A receive was rolled back: its messages return to their places (RCV-15)."""
        for live, message in reversed(taken):
            if live.gone or message.order < live.dropped_before:
                continue
            message.deliveries += 1
            live.group.ready[live.endpoint.key] = live
            if live.ready and live.ready[0].sequence < message.sequence:
                _insert(live.ready, message)
            else:
                live.ready.appendleft(message)
            self._window += 1
            self._window_bytes += MESSAGE_COST + len(message.body or b"")
        self.taken -= len(taken)
        self.rolled_back += len(taken)

    def consumed(self, taken: Sequence[tuple[Live, QueuedMessage]], now: Instant) -> None:
        """A receive of these messages is durable."""
        self.taken -= len(taken)
        self.received += len(taken)
        observe = self._observe_wait
        for _, message in taken:
            observe(now - message.enqueued_at)

    def drop(self, live: Live) -> list[int]:
        """Delete an endpoint's messages unread; return the queuing orders of those in memory."""
        dropped = [(live, message) for message in live.ready]
        live.ready.clear()
        live.group.ready.pop(live.endpoint.key, None)
        self._left_window(dropped)
        return [message.order for _, message in dropped]

    def _left_window(self, taken: Sequence[tuple[Live, QueuedMessage]]) -> None:
        self._window -= len(taken)
        for _, message in taken:
            self._window_bytes -= MESSAGE_COST + len(message.body or b"")
        if self._beyond and self._window < self._options.window_messages // 4:
            self.refill()

    # Messages beyond the window.

    def refill(self) -> None:
        """Bring the next page in, unless that is under way."""
        if not self._paging and self.beyond and self._window < self._options.window_messages // 2:
            self._paging = True
            self._spawn(self._bring_in())

    def page_in(self) -> Blocked:
        """What a receive waits for when the window is empty and the store is not."""

        def register(resume: Resume) -> None:
            self._page_waiters.append(resume)
            self.refill()

        return Blocked("page", register)

    def complete(self, group: Group, limit: int) -> Blocked:
        """Bring in the messages beyond the window of one group, so that RECEIVE is whole (RCV-4)."""

        def register(resume: Resume) -> None:
            self._spawn(self._complete(group, limit, resume))

        return Blocked("page", register)

    async def _bring_in(self) -> None:
        try:
            for level in sorted(self._beyond, reverse=True):
                if self._beyond[level]:
                    rows = await self._page(
                        level,
                        self._cursor.get(level, 0),
                        self._options.page_messages,
                        self._options.page_bytes,
                    )
                    await self._enter(rows, in_turn=True)
                    if rows:
                        self._cursor[level] = last = rows[-1].queuing_order
                        self._ahead = {order for order in self._ahead if order > last}
                    break
        finally:
            self._paging = False
            waiters, self._page_waiters = self._page_waiters, []
            for resume in waiters:
                resume()

    async def _complete(self, group: Group, limit: int, resume: Resume) -> None:
        lives = [live for live in group.ready.values() if live.group is group]
        try:
            rows = await self._page_of(
                [live.endpoint.key for live in lives], limit, self._options.page_bytes
            )
            await self._enter(rows, in_turn=False)
        finally:
            resume()

    async def _enter(self, rows: Sequence[QueueRow], *, in_turn: bool) -> None:
        """Put paged rows into the window, each once, whoever brought them in first."""
        for live, row in await self._admit(rows):
            order, level = row.queuing_order, row.priority
            if order in self._ahead:
                if in_turn:
                    self._ahead.discard(order)
                continue
            if not in_turn:
                if order <= self._cursor.get(level, 0):
                    continue
                self._ahead.add(order)
            self._beyond[level] -= 1
            if live.gone or order < live.dropped_before:
                continue
            self.add(
                live,
                QueuedMessage(
                    order, row.sequence, row.message_type, row.enqueued_at, row.message_id, row.body
                ),
            )
            self.offer(live.group)


def _rank(group: Group) -> tuple[int, int]:
    """Level and oldest message of a group (GRP-15)."""
    lives = group.ready
    if len(lives) == 1:
        (live,) = lives.values()
        return live.endpoint.priority, live.ready[0].order
    return (
        max(live.endpoint.priority for live in lives.values()),
        min(live.ready[0].order for live in lives.values()),
    )


def _key(group: Group) -> tuple[int, int]:
    level, order = _rank(group)
    return -level, order


def _insert(ready: deque[QueuedMessage], message: QueuedMessage) -> None:
    """Put a message at its place by sequence: DialogTimer, then Error, then the rest (RCV-9)."""
    ordered = sorted([*ready, message], key=lambda one: (one.sequence, one.order))
    ready.clear()
    ready.extend(ordered)
