"""The backlog of a queue: messages that are only in the store, and how they are loaded (design D4).

Reads: the store.      Calls: storage (through the functions it is given), the queue's window.
Never: dequeues messages or wakes waiters; `queues.py` does, with the loaded messages.

Each level has a cursor: everything published up to it has been in the window. Behind the cursor
is the backlog, except messages that were loaded out of turn because a receive needed its whole
group. A message whose commit is under way is never loaded, even if it can be read already.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final

import msgspec

from brokerd.broker.ageing import Ageing
from brokerd.broker.blocked import Resume
from brokerd.broker.messages import Counting
from brokerd.broker.state import Group, Live
from brokerd.broker.store_reads import Spawn
from brokerd.clock import Instant
from brokerd.errors import Busy
from brokerd.ids import EndpointKey, MessageId
from brokerd.model import SYSTEM_TYPES
from brokerd.protocol.transitions import State
from brokerd.storage.changes import QueueRow
from brokerd.storage.rows.message_counts import Tally
from brokerd.storage.store import QueuePage

LEAST = 32
"""The least number of messages of a conversation that are loaded together."""
AT_ONCE = 4
"""The number of conversations that are loaded ahead of their receives at a time."""
AHEAD = 256
"""The greatest number of messages of a conversation that are loaded ahead of a receive."""

Place = tuple[int, int]
"""Queuing order and sequence of a message of a conversation."""


Found = Sequence[tuple["Live", Sequence["QueueRow"]]]
"""Conversations, each with rows of its messages."""
Enter = Callable[[Found], Iterable["Group"]]
"""Adds the rows to the window; returns the groups that may have something new for a waiter."""


class Source(msgspec.Struct, frozen=True):
    """The functions that read one queue's backlog, and the endpoints and groups of its messages."""

    page: Callable[[int, int, int, int], Awaitable[QueuePage]]
    """Reads rows by queuing order: (priority, after order, limit, bytes)."""
    page_of: Callable[[EndpointKey, int, int, Place | None], Awaitable[QueuePage]]
    """Reads an endpoint's rows, in memory or not, by sequence: (endpoint, limit, bytes, after)."""
    tally: Callable[[EndpointKey, int, Set[int]], Awaitable[Tally]]
    """Counts an endpoint's rows, as of the call: (endpoint, after order, orders to exclude)."""
    tallies: Callable[[Mapping[EndpointKey, Set[int]], int], Awaitable[Mapping[EndpointKey, Tally]]]
    """Counts rows of endpoints: (endpoints with orders to exclude, after order). Counts that would
    be slow may be missing."""
    complete_groups: Callable[[Collection[Live]], Awaitable[None]]
    """Marks each group of these endpoints as whole if all its endpoints are in memory."""
    hold: Callable[[set[EndpointKey]], Awaitable[Mapping[EndpointKey, Live]]]
    """Loads and pins these endpoints, each once; returns those that exist."""
    damaged: Callable[[Live, int, MessageId], None]
    """Called with the order and id of a message in the window whose body fails its hash (REL-6)."""
    members: Callable[[Group], Awaitable[list[Live]]]
    """Loads and returns all endpoints of a locked group."""
    sample: Callable[[], Awaitable[tuple[int, int]]]
    """Returns number and bytes of bodies of the queue's rows, at most of the first ones."""
    spawn: Spawn


class Backlog:
    """The backlog of one queue."""

    def __init__(
        self,
        source: Source,
        *,
        page_messages: int,
        page_bytes: int,
        enter: Enter,
        entered: Callable[[Group], None],
    ) -> None:
        self._source = source
        self._page_messages = page_messages
        self._page_bytes = page_bytes
        self._enter_window = enter
        self._entered = entered
        self.damaged = source.damaged
        self._counts: dict[int, int] = {}  # by level, never below 0
        self.total = 0
        """Number of messages in the backlog, of all levels."""
        self.size = 0
        """Bytes of their bodies (REL-42), estimated after a start and where some were dropped."""
        self._is_measured = True
        self._coming: dict[int, set[int]] = {}
        self._cursor: dict[int, int] = {}
        self._since: dict[int, int] = {}  # when its first message was enqueued, or before
        self.ageing: Ageing | None = None
        """The rise of levels with waiting time; None = the queue has no ageing (PBT-16)."""
        self._ahead: defaultdict[int, OutOfTurn] = defaultdict(OutOfTurn)
        self._paging = False
        self._filling: dict[EndpointKey, asyncio.Future[None]] = {}
        self._waiters: list[Resume] = []
        self.fired: set[EndpointKey] = set()
        """Conversations whose DialogTimer message, which comes first, is in the backlog (RCV-8)."""

    @property
    def is_empty(self) -> bool:
        """Whether the backlog is empty and no commit under way adds to it."""
        return not self.total and not any(self._coming.values())

    def _count_on(self, level: int, count: int) -> int:
        """Add `count` to the number of messages of a level; return the new number."""
        self.total += count
        if not self.total:
            self.size, self._is_measured = 0, True
        now = self._counts[level] = self._counts.get(level, 0) + count
        return now

    def came_in(self, live: Live, orders: Collection[int]) -> None:
        """Note messages that entered the window from another queue: do not read them again."""
        self._ahead[live.endpoint.priority].add(live.endpoint.key, orders)

    def holds(self, level: int) -> bool:
        """Return whether a new message of this level has to follow one that is not in memory."""
        if self.total and self._counts.get(level):
            return True
        return bool(self._coming) and bool(self._coming.get(level))

    def outranks(self, level: int, order: int) -> bool:
        """Return whether a message of the backlog may precede one with this level and order."""
        for other, count in self._counts.items():
            if count:
                risen = self._risen(other)
                if risen > level or (risen == level and order > self._cursor.get(other, 0)):
                    return True
        return False

    def _risen(self, level: int) -> int:
        """Return the level, raised by ageing for as long as its first message may have waited."""
        ageing = self.ageing
        return level if ageing is None else ageing.level(level, self._since.get(level, 0))

    # Changes of the backlog.

    def recovered(self, level: int, count: int, since: int) -> None:
        """Count messages stored at the start; `since`: when the first of them was enqueued."""
        self._count_on(level, count)
        self._since[level] = since
        self._is_measured = False

    def measure(self) -> None:
        """Find out the bytes of a backlog of which a start has only counted the messages."""
        if not self._is_measured:
            self._is_measured = True
            self._source.spawn(self._measure())

    async def _measure(self) -> None:
        messages, size = await self._source.sample()
        if messages:
            self.size = self.total * size // messages

    def since(self, *, besides: Collection[int]) -> list[Instant]:
        """Return when the first message of each level was enqueued, or a somewhat earlier time.

        `besides`: levels to leave out. Levels whose time is unknown are missing."""
        levels = (one for one, count in self._counts.items() if count and one not in besides)
        return [Instant(since) for since in map(self._since.get, levels) if since]

    def joining(self, row: QueueRow) -> None:
        """Note that a message of the backlog has joined the commit pipeline."""
        self._coming.setdefault(row.priority, set()).add(row.queuing_order)

    def published(self, live: Live, row: QueueRow) -> bool:
        """Count a message that has become durable.

        Return False if later messages have already been in the window: then this message belongs
        in the window, too."""
        level, order = row.priority, row.queuing_order
        self._coming[level].discard(order)
        if order <= self._cursor.get(level, 0):
            return False
        if self._count_on(level, 1) == 1:
            self._since[level] = row.enqueued_at
        self.size += len(row.body or b"")
        if live.counting is not None:
            live.counting.add(row.message_type, 1)
        elif live.beyond is not None:
            live.beyond += 1
            live.beyond_unread += row.message_type not in SYSTEM_TYPES
        return True

    def deleted(self, row: QueueRow) -> None:
        """Note that a message was dropped unread while its commit was under way."""
        self._coming[row.priority].discard(row.queuing_order)

    def passed(self, level: int, order: int) -> None:
        """Advance the cursor past a message that entered the window directly.

        Do nothing if an earlier message of its level is still missing in the window."""
        if not (self.total and self._counts.get(level)) and order > self._cursor.get(level, 0):
            self._cursor[level] = order

    def drop(self, live: Live) -> int | None:
        """Forget an endpoint's deleted messages; return their number, None = unknown."""
        count, live.beyond, live.beyond_unread, live.counting = live.beyond, 0, 0, None
        if count:
            level = live.endpoint.priority
            self.size -= self.size * count // max(count, self.total)
            self._count_on(level, -count)
            self._catch_up(level)
        return count

    def _catch_up(self, level: int) -> None:
        """Advance the cursor of a level whose backlog is empty.

        Everything published in the level has been in the window. Without this, the orders of
        messages loaded out of turn would be kept for ever behind a message that is never
        received."""
        ahead = self._ahead[level]
        if not ahead.orders or self._counts.get(level):
            return
        first = min(self._coming.get(level, ()), default=None)
        passed = [order for order in ahead.orders if first is None or order < first]
        if passed:
            last = max(passed)
            self._cursor[level] = max(self._cursor.get(level, 0), last)
            ahead.forget(last)

    # Loading.

    def fetch(self, resume: Resume | None = None) -> None:
        """Load the next page, unless one is being loaded already; then call `resume`."""
        if resume is not None:
            self._waiters.append(resume)
        if not self._paging:
            self._paging = True
            self._source.spawn(self._bring_in())

    def complete(
        self,
        group: Group,
        limit: int,
        size: int,
        only: Live | None,
        resume: Resume,
        *,
        but: Container[Live],
    ) -> None:
        """Load messages of a group for a receive of up to `limit` messages, `size` bytes (RCV-7).

        `only`: load from this conversation alone (RCV-5). `but`: skip these conversations. `resume`
        is called at the end."""
        self._source.spawn(self._complete(group, limit, size, only, resume, but=but))

    def load_ahead(self, lives: Sequence[Live], limit: int) -> None:
        """Load messages of these conversations ahead of receives of up to `limit` messages.

        Those receives then need not wait, and the store is read while other receives are under
        way."""
        limit, room = min(limit, AHEAD), AT_ONCE - len(self._filling)
        for live in lives:
            if room <= 0:
                return
            if live.endpoint.key not in self._filling and _is_worth_reading(live, limit):
                live.pin()
                self._source.spawn(self._read_ahead(live, limit))
                room -= 1

    def count(self, live: Live, resume: Resume) -> None:
        """Count the messages of an endpoint in the backlog (`Live.beyond`), then call `resume`."""
        self._source.spawn(self._count(live, resume))

    async def _bring_in(self) -> None:
        try:
            levels = [one for one, count in self._counts.items() if count]
            if levels:
                await self._next_page(max(levels, key=self._turn_of))
        finally:
            self._paging = False
            waiters, self._waiters = self._waiters, []
            for resume in waiters:
                resume()

    def _turn_of(self, level: int) -> tuple[int, int]:
        return self._risen(level), -self._cursor.get(level, 0)

    async def _next_page(self, level: int) -> None:
        before = self._counts[level]
        page = await self._source.page(
            level, self._cursor.get(level, 0), self._page_messages, self._page_bytes
        )
        if page.end is None:  # the counted messages are gone from the store
            self._count_on(level, -min(before, self._counts[level]))
            return
        read = _whole(page, _by_order)
        rows = self._durable(read)
        if len(rows) == len(read):
            end, _ = page.end
        elif rows:
            end = rows[-1].queuing_order
        else:
            return
        held = await self._source.hold({row.endpoint for row in rows})
        await self._prepare(level, held.values())
        # Only after the endpoints are loaded: meanwhile a receive may have loaded some rows.
        of_each: dict[EndpointKey, list[QueueRow]] = {}
        for row in self._not_here(level, rows):
            of_each.setdefault(row.endpoint, []).append(row)
        self._cursor[level] = last = max(self._cursor.get(level, 0), end)
        self._since[level] = rows[-1].enqueued_at if rows else self._since.get(level, 0)
        self._ahead[level].passed(last)
        found = [(held[key], its) for key, its in of_each.items() if key in held]
        self._enter(level, found, page.damaged)
        for live in held.values():
            live.unpin()

    async def _prepare(self, level: int, held: Collection[Live]) -> None:
        """Read the counts and groups that the receives of a whole page's messages will need.

        After a start no conversation is counted and no group is known to be whole. Without this
        method, each receive would wait for two reads of its own, which cost more than the rest of
        the receive."""
        await self._source.complete_groups(held)
        begun: list[tuple[Live, Counting]] = []
        for live in held:
            if live.beyond is None and live.counting is None and live.endpoint.priority == level:
                live.counting = Counting()
                begun.append((live, live.counting))
        if not begun:
            return
        but = {live.endpoint.key: self._not_beyond(live) for live, _ in begun}
        found = await self._source.tallies(but, self._cursor.get(level, 0))
        for live, counting in begun:
            if live.counting is counting:  # else a receive counts, or all were dropped
                live.counting = None
                if live.endpoint.key in found:
                    _settle(live, found[live.endpoint.key], counting)

    def _durable(self, rows: Sequence[QueueRow]) -> Sequence[QueueRow]:
        """Return the rows before the first unpublished one; all are of one level."""
        coming = self._coming.get(rows[0].priority) if rows else None
        if coming:
            for at, row in enumerate(rows):
                if row.queuing_order in coming:
                    return rows[:at]
        return rows

    def _not_here(self, level: int, rows: Sequence[QueueRow]) -> list[QueueRow]:
        """Return the rows that have not been in the window; all are published (`_durable`)."""
        passed, ahead = self._cursor.get(level, 0), self._ahead[level].orders
        return [
            row for row in rows if row.queuing_order > passed and row.queuing_order not in ahead
        ]

    def _enter(self, level: int, read: Found, damaged: Sequence[QueueRow]) -> None:
        """Add rows of a level to the window; the caller has noted that they are loaded.

        A damaged message keeps its place, so that nothing behind it comes first (REL-10); no
        program gets its body, and its group is set aside before it is offered."""
        found: list[tuple[Live, Sequence[QueueRow]]] = []
        count = size = 0
        for live, rows in read:
            if live.gone:
                continue
            left = _not_dropped(live, rows)
            if left:
                found.append((live, left))
                count += len(left)
                size += sum([len(row.body) for row in left if row.body])
                _count_in(live, left)
        self.size = max(0, self.size - size)
        self._count_on(level, -count)
        lost: list[tuple[Live, QueueRow]] = []
        if damaged:
            bad = {row.queuing_order for row in damaged}
            lost = [(live, row) for live, its in found for row in its if row.queuing_order in bad]
            found = [(live, [_without_body(row, bad) for row in its]) for live, its in found]
        groups = self._enter_window(found)
        for live, row in sorted(lost, key=lambda one: one[1].queuing_order):
            self.damaged(live, row.queuing_order, row.message_id)
        self._catch_up(level)
        for group in groups:
            self._entered(group)

    async def _complete(
        self,
        group: Group,
        limit: int,
        size: int,
        only: Live | None,
        resume: Resume,
        *,
        but: Container[Live],
    ) -> None:
        """Load one conversation after the other, in the order in which the receive takes them."""
        lives: list[Live] = []
        try:
            members = [only] if only is not None else await self._source.members(group)
            lives = [live for live in members if live not in but]
            for live in lives:
                live.pin()  # the receive may be cancelled meanwhile, and its pins with it
            for live in lives:
                if live.beyond is None:  # otherwise two receives that find nothing wake each other
                    await self._learn(live)
                # An Error or a DialogTimer in the backlog precedes the messages in memory (RCV-9).
                hidden = live.endpoint.state is State.ERROR or live.endpoint.key in self.fired
                if live.beyond != 0 and (not live.ready or hidden):
                    await self._fill(live, 1, 1, anew=True)  # its first message decides its turn
            for live in sorted((one for one in lives if one.ready), key=_turn):
                if limit <= 0 or size <= 0:
                    break
                if live.beyond != 0 and _lacks(live, limit, size):
                    await self._fill(live, limit, size)
                limit -= len(live.ready)
                size -= sum(len(message.body or b"") for message in live.ready)
        finally:
            for live in lives:
                live.unpin()
            resume()

    async def _read_ahead(self, live: Live, limit: int) -> None:
        try:
            with suppress(Busy):  # a receive that needs it will wait for it
                await self._fill(live, limit, self._page_bytes)
        finally:
            live.unpin()

    async def _fill(self, live: Live, limit: int, size: int, *, anew: bool = False) -> None:
        """Load messages of one conversation until `limit` or `size` is reached, or all are loaded.

        `anew`: load from its first message on, not only those behind the ones in memory."""
        key = live.endpoint.key
        while (other := self._filling.get(key)) is not None:
            await asyncio.shield(other)  # a read-ahead may be loading these messages
        if not anew and not (live.beyond and _lacks(live, limit, size)):
            return
        self.fired.discard(key)
        after = None
        if not anew and live.ready and live.ready[-1].sequence >= 0:
            after = (live.ready[-1].order, live.ready[-1].sequence)
        through = self._filling[key] = asyncio.get_running_loop().create_future()
        try:
            while True:
                # Load no more than the receive takes: the window of other groups must not grow.
                wanted = min(self._page_messages, max(LEAST, limit - len(live.ready)))
                page = await self._source.page_of(key, wanted, self._page_bytes, after)
                if page.end is None:
                    return
                read = _whole(page, _by_sequence)
                rows = self._durable(read)
                if rows:
                    level = rows[0].priority  # the level the conversation had when it began
                    new = self._not_here(level, rows)
                    self._ahead[level].add(key, [row.queuing_order for row in new])
                    self._enter(level, [(live, new)], page.damaged)
                # A message behind one that is not published yet must not overtake it.
                if len(rows) < len(read) or live.beyond == 0 or not _lacks(live, limit, size):
                    return
                after = page.end
        finally:
            del self._filling[key]
            through.set_result(None)

    async def _count(self, live: Live, resume: Resume) -> None:
        try:
            await self._learn(live)
        finally:
            resume()

    async def _learn(self, live: Live) -> None:
        """Count an endpoint's backlog; only one task does, as the caller holds its group's lock."""
        counting = live.counting = Counting()
        key, level = live.endpoint.key, live.endpoint.priority
        found = await self._source.tally(key, self._cursor.get(level, 0), self._not_beyond(live))
        if live.counting is counting:  # otherwise all were dropped meanwhile
            live.counting = None
            _settle(live, found, counting)

    def _not_beyond(self, live: Live) -> Set[int]:
        """Return the orders behind the cursor that a count of the backlog must leave out.

        Their messages are in memory already, or their commit is under way."""
        coming = {row.queuing_order for row in live.unpublished}
        return self._ahead[live.endpoint.priority].of_endpoint(live.endpoint.key) | coming


_by_order = attrgetter("queuing_order")
_by_sequence = attrgetter("sequence", "queuing_order")


def _whole(page: QueuePage, order: Callable[[QueueRow], Any]) -> Sequence[QueueRow]:
    """Return all rows that were read, damaged or not, in order."""
    return sorted([*page.rows, *page.damaged], key=order) if page.damaged else page.rows


def _lacks(live: Live, limit: int, size: int) -> bool:
    """Return whether a receive could take more of the conversation than is in memory."""
    return len(live.ready) < limit and sum(len(one.body or b"") for one in live.ready) < size


def _is_worth_reading(live: Live, limit: int) -> bool:
    """Return whether the conversation is unlocked and its next receive will need the backlog."""
    free = live.group.holder is None and live.endpoint.state is not State.ERROR
    return free and bool(live.ready and live.beyond) and len(live.ready) < limit


def _not_dropped(live: Live, rows: Sequence[QueueRow]) -> Sequence[QueueRow]:
    """Return the rows of a conversation that were not dropped unread while they were read."""
    before = live.dropped_before
    return [row for row in rows if row.queuing_order >= before] if before else rows


def _without_body(row: QueueRow, orders: Container[int]) -> QueueRow:
    """Return the row, without its body if its order is in `orders`."""
    return row._replace(body=None) if row.queuing_order in orders else row


def _count_in(live: Live, rows: Sequence[QueueRow]) -> None:
    """Count messages of the endpoint as loaded."""
    if live.counting is not None:
        for row in rows:
            live.counting.add(row.message_type, -1)
    elif live.beyond is not None:
        live.beyond -= len(rows)
        live.beyond_unread -= sum([row.message_type not in SYSTEM_TYPES for row in rows])


def _settle(live: Live, found: Tally, meanwhile: Counting) -> None:
    """Set the counts of an endpoint: the rows found, and the changes made during the count."""
    live.beyond = found.messages + meanwhile.messages
    live.beyond_unread = found.application + meanwhile.application


def _turn(live: Live) -> tuple[int, int]:
    return -live.endpoint.priority, live.ready[0].order


_LEAST: Final = 4096
"""The least number of orders at which those that the cursor has passed are dropped."""
_NONE: Final[Set[int]] = frozenset()


class OutOfTurn:
    """Queuing orders of messages loaded out of turn, all together and by conversation.

    The cursor may have passed some of them."""

    __slots__ = ("_of", "_room", "orders")

    def __init__(self) -> None:
        self.orders: set[int] = set()
        self._of: dict[EndpointKey, set[int]] = {}
        self._room = _LEAST

    def add(self, key: EndpointKey, orders: Collection[int]) -> None:
        """Note the orders of loaded messages of a conversation."""
        self.orders.update(orders)
        self._of.setdefault(key, set()).update(orders)

    def of_endpoint(self, key: EndpointKey) -> Set[int]:
        """Return the orders of one conversation; the set is not a copy."""
        return self._of.get(key, _NONE)

    def passed(self, cursor: int) -> None:
        """Drop the orders up to the cursor, if enough orders have gathered.

        The messages up to the cursor have all been in the window. The number needed is twice
        the number left by the last drop, so that each order is examined only a few times, however
        many pages are loaded."""
        if len(self.orders) >= self._room:
            self.forget(cursor)

    def forget(self, cursor: int) -> None:
        """Keep only the orders behind the cursor."""
        self.orders = _behind(cursor, self.orders)
        behind = {key: _behind(cursor, orders) for key, orders in self._of.items()}
        self._of = {key: orders for key, orders in behind.items() if orders}
        self._room = max(_LEAST, 2 * len(self.orders))


def _behind(cursor: int, orders: Set[int]) -> set[int]:
    return {order for order in orders if order > cursor}
