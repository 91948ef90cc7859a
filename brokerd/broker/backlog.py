"""Messages of a queue that are in the store only, and how they come into memory (design D4).

Reads: the store.      Calls: storage (through the functions it is given), the queue's window.
Never: takes messages or wakes anybody; `queues.py` does, with what enters here.

For each level there is a cursor: what was published up to it has been in the window. Beyond it
are the messages counted here, save those that came in out of turn because a receive needed the
whole of their group. A message whose commit is under way is never taken from the store, however
early it can be read there.
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
from typing import TYPE_CHECKING, Any

import msgspec

from brokerd.broker.ageing import Ageing
from brokerd.broker.blocked import Resume
from brokerd.broker.endpoints import Counting, Spawn
from brokerd.broker.out_of_turn import OutOfTurn
from brokerd.clock import Instant
from brokerd.errors import Busy
from brokerd.ids import EndpointKey, MessageId
from brokerd.model import SYSTEM_TYPES
from brokerd.protocol.transitions import State
from brokerd.storage.changes import QueueRow

if TYPE_CHECKING:
    from brokerd.broker.endpoints import Live
    from brokerd.broker.groups import Group
    from brokerd.storage.queues import Tally
    from brokerd.storage.store import QueuePage

LEAST = 32
"""Messages of a conversation that are brought in together at least."""
AT_ONCE = 4
"""Conversations that are read at a time before a receive asks for them."""
AHEAD = 256
"""Messages of a conversation that are brought in at most before a receive asks for them."""

Place = tuple[int, int]
"""Queuing order and sequence of a message of a conversation."""


Found = Sequence[tuple["Live", Sequence["QueueRow"]]]
"""Conversations with rows of theirs."""
Enter = Callable[[Found], Iterable["Group"]]
"""Puts all of the rows into the window; the groups that may have more for somebody now."""


class Source(msgspec.Struct, frozen=True):
    """Where one queue's messages beyond the window are read, and what they are tied to."""

    page: Callable[[int, int, int, int], Awaitable[QueuePage]]
    """(priority, after order, limit, bytes) to rows, by queuing order."""
    page_of: Callable[[EndpointKey, int, int, Place | None], Awaitable[QueuePage]]
    """(endpoint, limit, bytes, after) to its rows, by sequence; some may be in memory already."""
    tally: Callable[[EndpointKey, int, Set[int]], Awaitable[Tally]]
    """(endpoint, after order, but) to how many rows it has; none that comes after the call."""
    tallies: Callable[[Mapping[EndpointKey, Set[int]], int], Awaitable[Mapping[EndpointKey, Tally]]]
    """(endpoints with orders that do not count, after order) to how many rows most of them have."""
    complete_groups: Callable[[Collection[Live]], Awaitable[None]]
    """Learn of which of the groups of these every endpoint is in memory (`Group.whole`)."""
    hold: Callable[[set[EndpointKey]], Awaitable[Mapping[EndpointKey, Live]]]
    """Those of the endpoints that exist, in memory and pinned once each."""
    damaged: Callable[[Live, int, MessageId], None]
    """Told order and id of a message in the window whose body is not the one written (REL-6)."""
    members: Callable[[Group], Awaitable[list[Live]]]
    """All endpoints of a locked group, in memory."""
    spawn: Spawn


class Beyond:
    """What is beyond the window of one queue."""

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
        self._counts: dict[int, int] = {}  # of each level, never below 0
        self.total = 0
        """How many messages are here, of all levels."""
        self._coming: dict[int, set[int]] = {}
        self._cursor: dict[int, int] = {}
        self._since: dict[int, int] = {}  # when the first of a level was enqueued, or before
        self.ageing: Ageing | None = None
        """How the levels rise with time, if they do (PBT-16)."""
        self._ahead: defaultdict[int, OutOfTurn] = defaultdict(OutOfTurn)
        self._paging = False
        self._filling: dict[EndpointKey, asyncio.Future[None]] = {}
        self._waiters: list[Resume] = []
        self.fired: set[EndpointKey] = set()
        """Conversations with a DialogTimer message here, which comes before all (RCV-8)."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is here, nor on its way here."""
        return not self.total and not any(self._coming.values())

    def _count_on(self, level: int, count: int) -> int:
        """So many messages of a level more, or fewer, are here; how many these are now."""
        self.total += count
        now = self._counts[level] = self._counts.get(level, 0) + count
        return now

    def came_in(self, live: Live, orders: Collection[int]) -> None:
        """Messages of another queue went straight into the window: none is to be read again."""
        self._ahead[live.endpoint.priority].add(live.endpoint.key, orders)

    def holds(self, level: int) -> bool:
        """Whether a new message of this level has to follow one that is not in memory."""
        if self.total and self._counts.get(level):
            return True
        return bool(self._coming) and bool(self._coming.get(level))

    def outranks(self, level: int, order: int) -> bool:
        """Whether something here may have to be received before a message of that rank."""
        for other, count in self._counts.items():
            if count:
                risen = self._risen(other)
                if risen > level or (risen == level and order > self._cursor.get(other, 0)):
                    return True
        return False

    def _risen(self, level: int) -> int:
        """What a level counts for choosing, by how long its first message here may have waited."""
        ageing = self.ageing
        return level if ageing is None else ageing.level(level, self._since.get(level, 0))

    # What happens to messages.

    def recovered(self, level: int, count: int, since: int) -> None:
        """After opening the store: that many messages of a level, the first enqueued then."""
        self._count_on(level, count)
        self._since[level] = since

    @property
    def since(self) -> Instant | None:
        """When the oldest message here was enqueued, or somewhat before; None = not known."""
        known = [self._since.get(level, 0) for level, count in self._counts.items() if count]
        return Instant(min(known)) if known and all(known) else None

    def joining(self, row: QueueRow) -> None:
        """A message that stays beyond the window has joined the commit pipeline."""
        self._coming.setdefault(row.priority, set()).add(row.queuing_order)

    def published(self, live: Live, row: QueueRow) -> bool:
        """It is durable. False: those behind it are in memory, so it belongs there too."""
        level, order = row.priority, row.queuing_order
        self._coming[level].discard(order)
        if order <= self._cursor.get(level, 0):
            return False
        if self._count_on(level, 1) == 1:
            self._since[level] = row.enqueued_at
        if live.counting is not None:
            live.counting.add(row.message_type, 1)
        elif live.beyond is not None:
            live.beyond += 1
            live.beyond_unread += row.message_type not in SYSTEM_TYPES
        return True

    def deleted(self, row: QueueRow) -> None:
        """It was deleted unread while its commit was under way."""
        self._coming[row.priority].discard(row.queuing_order)

    def passed(self, level: int, order: int) -> None:
        """A message went into the window directly: nothing of its level is missing before it."""
        if not (self.total and self._counts.get(level)) and order > self._cursor.get(level, 0):
            self._cursor[level] = order

    def drop(self, live: Live) -> int | None:
        """Forget an endpoint's messages, which are deleted; how many, None = nobody has counted."""
        count, live.beyond, live.beyond_unread, live.counting = live.beyond, 0, 0, None
        if count:
            level = live.endpoint.priority
            self._count_on(level, -count)
            self._catch_up(level)
        return count

    def _catch_up(self, level: int) -> None:
        """Where nothing of a level is here, all of it that was published has been in the window.

        Else each message that overtakes those which nobody receives would be known for ever."""
        ahead = self._ahead[level]
        if not ahead.orders or self._counts.get(level):
            return
        first = min(self._coming.get(level, ()), default=None)
        passed = [order for order in ahead.orders if first is None or order < first]
        if passed:
            last = max(passed)
            self._cursor[level] = max(self._cursor.get(level, 0), last)
            ahead.forget(last)

    # Into memory.

    def fetch(self, resume: Resume | None = None) -> None:
        """Bring the next page in, unless that is under way; then call `resume`."""
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
        """Bring in what a receive of so many messages and bytes of a group takes (RCV-7).

        `only`: of one conversation of it (RCV-5). `but`: not of these."""
        self._source.spawn(self._complete(group, limit, size, only, resume, but=but))

    def look_ahead(self, lives: Sequence[Live], limit: int) -> None:
        """Bring in what receives of so many messages will take of these conversations next.

        Those receives then find it here, and the store is read while others are under way."""
        limit, room = min(limit, AHEAD), AT_ONCE - len(self._filling)
        for live in lives:
            if room <= 0:
                return
            if live.endpoint.key not in self._filling and _is_worth_reading(live, limit):
                live.pins += 1
                self._source.spawn(self._read_ahead(live, limit))
                room -= 1

    def count(self, live: Live, resume: Resume) -> None:
        """Learn how many messages of an endpoint are here (`Live.beyond`)."""
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
        if page.end is None:  # what was counted cannot be read: it is gone
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
        of_each: dict[EndpointKey, list[QueueRow]] = {}
        for row in self._not_here(level, rows):
            of_each.setdefault(row.endpoint, []).append(row)
        self._cursor[level] = last = max(self._cursor.get(level, 0), end)
        self._since[level] = rows[-1].enqueued_at if rows else self._since.get(level, 0)
        self._ahead[level].passed(last)
        found = [(held[key], its) for key, its in of_each.items() if key in held]
        self._enter(level, found, page.damaged)
        for live in held.values():
            live.pins -= 1

    async def _prepare(self, level: int, held: Collection[Live]) -> None:
        """Learn for a whole page what the receives of its messages would ask for one by one.

        After a start no conversation is counted and no group known to be whole. Each receive would
        wait for two reads of its own, which cost more than all the rest of it."""
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
            if live.counting is counting:  # else a receive counts by itself, or all were deleted
                live.counting = None
                if live.endpoint.key in found:
                    _settle(live, found[live.endpoint.key], counting)

    def _durable(self, rows: Sequence[QueueRow]) -> Sequence[QueueRow]:
        """The rows before the first that is not published yet; all are of one level."""
        coming = self._coming.get(rows[0].priority) if rows else None
        if coming:
            for at, row in enumerate(rows):
                if row.queuing_order in coming:
                    return rows[:at]
        return rows

    def _not_here(self, level: int, rows: Sequence[QueueRow]) -> list[QueueRow]:
        """Those of a level that have not been in the window; all are published (`_durable`)."""
        passed, ahead = self._cursor.get(level, 0), self._ahead[level].orders
        return [
            row for row in rows if row.queuing_order > passed and row.queuing_order not in ahead
        ]

    def _enter(self, level: int, read: Found, damaged: Sequence[QueueRow]) -> None:
        """Put rows of a level into the window that are not there, and that are noted as passed, so
        that nobody brings them in again.

        One that is damaged keeps its place, so that nothing behind it comes first (REL-10); its
        body is nobody's, and its group is set aside before it is offered."""
        found: list[tuple[Live, Sequence[QueueRow]]] = []
        count = 0
        for live, rows in read:
            if live.gone:
                continue
            left = _not_dropped(live, rows)
            if left:
                found.append((live, left))
                count += len(left)
                _count_in(live, left)
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
        """Conversation after conversation, in the order in which the receive takes them."""
        lives: list[Live] = []
        try:
            members = [only] if only is not None else await self._source.members(group)
            lives = [live for live in members if live not in but]
            for live in lives:
                live.pins += 1  # the receive may be given up meanwhile, and its pins with it
            for live in lives:
                if live.beyond is None:  # else two receives that find nothing wake each other
                    await self._learn(live)
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
                live.pins -= 1
            resume()

    async def _read_ahead(self, live: Live, limit: int) -> None:
        try:
            with suppress(Busy):  # whoever asks for it will wait for it
                await self._fill(live, limit, self._page_bytes)
        finally:
            live.pins -= 1

    async def _fill(self, live: Live, limit: int, size: int, *, anew: bool = False) -> None:
        """Bring in messages of one conversation until it has so many, or all of them.

        `anew`: from its first one on, else those behind what is in memory."""
        key = live.endpoint.key
        while (other := self._filling.get(key)) is not None:
            await asyncio.shield(other)  # who looks ahead may be bringing in the very same
        if not anew and not (live.beyond and _lacks(live, limit, size)):
            return
        self.fired.discard(key)
        after = None
        if not anew and live.ready and live.ready[-1].sequence >= 0:
            after = (live.ready[-1].order, live.ready[-1].sequence)
        through = self._filling[key] = asyncio.get_running_loop().create_future()
        try:
            while True:
                # No more than the receive takes: the window of the other groups is not to grow.
                wanted = min(self._page_messages, max(LEAST, limit - len(live.ready)))
                page = await self._source.page_of(key, wanted, self._page_bytes, after)
                if page.end is None:
                    return
                read = _whole(page, _by_sequence)
                rows = self._durable(read)
                if rows:
                    level = rows[0].priority  # which the conversation had when it began
                    new = self._not_here(level, rows)
                    self._ahead[level].add(key, [row.queuing_order for row in new])
                    self._enter(level, [(live, new)], page.damaged)
                # What is behind a message that is not published yet must not overtake it.
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
        """Count what is here of an endpoint whose group is locked, so that one counts at a time."""
        counting = live.counting = Counting()
        key, level = live.endpoint.key, live.endpoint.priority
        found = await self._source.tally(key, self._cursor.get(level, 0), self._not_beyond(live))
        if live.counting is counting:  # else all were deleted meanwhile
            live.counting = None
            _settle(live, found, counting)

    def _not_beyond(self, live: Live) -> Set[int]:
        """Orders behind the cursor that are not here now, whatever happens while it is counted.

        They are in memory already, or their commit is under way."""
        coming = {row.queuing_order for row in live.unpublished}
        return self._ahead[live.endpoint.priority].of(live.endpoint.key) | coming


_by_order = attrgetter("queuing_order")
_by_sequence = attrgetter("sequence", "queuing_order")


def _whole(page: QueuePage, order: Callable[[QueueRow], Any]) -> Sequence[QueueRow]:
    """All that was read, in its order, damaged or not."""
    return sorted([*page.rows, *page.damaged], key=order) if page.damaged else page.rows


def _lacks(live: Live, limit: int, size: int) -> bool:
    """Whether a receive of so many messages and bytes could take more of it than is in memory."""
    return len(live.ready) < limit and sum(len(one.body or b"") for one in live.ready) < size


def _is_worth_reading(live: Live, limit: int) -> bool:
    """Whether the next receive of the conversation, whose group nobody has, will need more."""
    free = live.group.holder is None and live.endpoint.state is not State.ERROR
    return free and bool(live.ready and live.beyond) and len(live.ready) < limit


def _not_dropped(live: Live, rows: Sequence[QueueRow]) -> Sequence[QueueRow]:
    """Those of a conversation's that were not deleted unread while they were read."""
    before = live.dropped_before
    return [row for row in rows if row.queuing_order >= before] if before else rows


def _without_body(row: QueueRow, orders: Container[int]) -> QueueRow:
    """The row without its body, if it is one of these."""
    return row._replace(body=None) if row.queuing_order in orders else row


def _count_in(live: Live, rows: Sequence[QueueRow]) -> None:
    """Messages of the endpoint have come in."""
    if live.counting is not None:
        for row in rows:
            live.counting.add(row.message_type, -1)
    elif live.beyond is not None:
        live.beyond -= len(rows)
        live.beyond_unread -= sum([row.message_type not in SYSTEM_TYPES for row in rows])


def _settle(live: Live, found: Tally, meanwhile: Counting) -> None:
    """The messages of an endpoint are counted: those found, and what came and went meanwhile."""
    live.beyond = found.messages + meanwhile.messages
    live.beyond_unread = found.application + meanwhile.application


def _turn(live: Live) -> tuple[int, int]:
    return -live.endpoint.priority, live.ready[0].order
