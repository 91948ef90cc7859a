"""Stored messages: pages of the messages that wait for local services, from all their places.

Reads:  queue_messages and the shelves, merged in order.      Calls: the reader it is given.
Never:  decides which messages may be received, or returns a message that counts as deleted.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Executable,
    bindparam,
    func,
    literal_column,
    select,
    text,
)

from brokerd.ids import EndpointKey, QueueKey
from brokerd.storage.changes import Owner, QueueRow
from brokerd.storage.readers import PageOf, Reader, Values
from brokerd.storage.rows.paging import Page, bounded, fetch
from brokerd.storage.rows.queues import Skip
from brokerd.storage.shelves import Place, Shelves
from brokerd.storage.stretches import (
    BEFORE_ALL,
    first_of,
    found_at,
)
from brokerd.storage.tables import messages_at


class _Statements(NamedTuple):
    """The statements that read one place."""

    page: PageOf
    page_of: PageOf
    browse: PageOf
    further: Executable


SPAN: Final = 20_000
"""Most messages, of all queues in one place, that one read of `browse` scans."""


@cache
def statements(place: int) -> _Statements:
    """Return the statements for a place; they are made when the place is first read."""
    table = messages_at[place]
    order = table.c.queuing_order
    # The condition is that of the partial indexes, word for word, or SQLite does not use them.
    paged: ColumnElement[Any] = literal_column(found_at(place))
    page = bounded(
        table,
        Owner.WAITING,
        [
            paged,
            table.c.queue_key == bindparam("queue"),
            table.c.priority == bindparam("priority"),
            order > bindparam("after"),
        ],
        [order],
        instead={"paged": place},
    )
    page_of = bounded(
        table,
        Owner.WAITING,
        [order.in_(text(first_of(place)))],
        [table.c.sequence, order],
        instead={"paged": place},
    )
    browse = bounded(
        table,
        Owner.WAITING,
        [
            table.c.queue_key == bindparam("queue"),
            order > bindparam("after"),
            order <= bindparam("until"),
        ],
        [order],
    )
    next_ = (
        select(order)
        .where(order > bindparam("after"))
        .order_by(order)
        .limit(bindparam("span"))
        .subquery()
    )
    return _Statements(
        page,
        page_of,
        browse,
        select(func.count(), func.max(next_.c.queuing_order)),
    )


_message: Final[Callable[[Values], QueueRow]] = partial(tuple.__new__, QueueRow)
"""Equivalent of `QueueRow._make`, without the cost of calling it, which would double the time."""


QueuePage = Page[QueueRow]


class StoredMessages:
    """The stored messages that wait for local services, read in pages."""

    def __init__(self, reader: Reader, *, shelves: Shelves, skip: Skip) -> None:
        """Create the queries for messages.

        `skip`: messages that count as deleted.
        """
        self._reader = reader
        self._shelves = shelves
        self._skip = skip

    async def page(
        self,
        queue: QueueKey,
        priority: int,
        after: int,
        limit: int,
        max_bytes: int,
    ) -> QueuePage:
        """Return messages of one priority that were written beyond the window, oldest first.

        The page has at most `limit` messages, and ends when their bodies reach `max_bytes`. A row
        whose body is not as it was written is in `damaged`, not in `rows` (REL-6).
        """
        places = self._shelves.places_for(queue)
        values = {
            "queue": queue,
            "priority": priority,
            "after": after,
            "limit": limit,
            "max_bytes": max_bytes,
        }

        def read(place: int) -> Awaitable[QueuePage]:
            return self._fetch(statements(place).page, values, place)

        found = await _of_all(places.each, read, limit, max_bytes, by=_by_order)
        return _below(places.before, found)

    async def page_for(
        self,
        key: EndpointKey,
        limit: int,
        max_bytes: int,
        after: tuple[int, int] | None = None,
        queue: QueueKey | None = None,
    ) -> QueuePage:
        """Return paged messages of an endpoint, by sequence, then queuing order.

        `after`: queuing order and sequence of the message after which the page begins. `queue`:
        only messages in this queue.
        """
        places = self._shelves.places_for(queue)
        order, sequence = after or BEFORE_ALL
        values = {
            "key": key,
            "after_order": order,
            "after_sequence": sequence,
            "least": order if sequence >= 0 else -1,
            "limit": limit,
            "max_bytes": max_bytes,
        }

        def read(place: int) -> Awaitable[QueuePage]:
            return self._fetch(statements(place).page_of, values, place)

        found = await _of_all(places.each, read, limit, max_bytes, by=_by_sequence)
        return _below(places.before, found)

    async def browse(
        self,
        queue: QueueKey,
        limit: int,
        max_bytes: int,
        after: int = -1,
        *,
        reads: int | None = None,
    ) -> QueuePage:
        """Return messages of a queue by queuing order, inside its window or not; change nothing.

        After `reads` reads the page is returned even if it is empty, since messages of other queues
        may lie in between; the next page continues at `end`. `end` None = no more messages.
        """
        while True:
            page = await self._browse(queue, limit, max_bytes, after)
            reads = None if reads is None else reads - 1
            if page.rows or page.damaged or page.end is None or reads == 0:
                return page
            after, _ = page.end

    async def _browse(self, queue: QueueKey, limit: int, max_bytes: int, after: int) -> QueuePage:
        """Return messages of a queue among the next `SPAN` messages of all queues.

        The next page continues at `end`; None = no further messages in any queue.
        """
        places = self._shelves.all_places()
        until = await self._until(places.each, after)
        if until is None or places.before <= after + 1:
            return Page([], [], None)
        until = min(until, places.before - 1)
        values = {
            "queue": queue,
            "after": after,
            "until": until,
            "limit": limit,
            "max_bytes": max_bytes,
        }

        def read(place: int) -> Awaitable[QueuePage]:
            return self._fetch(statements(place).browse, values, place, aside=True)

        page = await _of_all(places.each, read, limit, max_bytes, by=_by_order)
        return page._replace(end=page.end or (until, 0))

    def _fetch(
        self,
        statement: PageOf,
        values: Mapping[str, object],
        place: int,
        *,
        aside: bool = False,
    ) -> Awaitable[QueuePage]:
        return fetch(
            self._reader,
            statement,
            values,
            _message,
            owner=Owner.WAITING,
            skip=self._skip.noted(place),
            ended=self._skip.ended,
            aside=aside,
        )

    async def _until(self, places: Sequence[Place], after: int) -> int | None:
        """Return the queuing order up to which to scan all places; None = no place has more."""
        whole: list[int] = []
        more: list[int] = []
        for place in places:
            if more and place.first > min(more):
                break
            values = {"after": after, "span": SPAN}
            ((count, last),) = await self._reader.rows(statements(place.number).further, values)
            if last is not None:
                (more if count >= SPAN else whole).append(last)
        return min(more, default=max(whole, default=None))


def _below(before: int, page: QueuePage) -> QueuePage:
    """Return the page with only the messages that existed when its places were listed.

    Places are read one after the other. A new message may lie on a shelf that was not listed,
    while a still newer message lies on a listed shelf: returning the latter would skip the former.
    """
    if page.end is None or page.end[0] < before:
        return page
    rows = [row for row in page.rows if row.queuing_order < before]
    damaged = [row for row in page.damaged if row.queuing_order < before]
    ends = [(row.queuing_order, row.sequence) for row in (*rows[-1:], *damaged[-1:])]
    return Page(rows, damaged, max(ends, key=_by_sequence, default=None))


async def _of_all(
    places: Sequence[Place],
    read: Callable[[int], Awaitable[QueuePage]],
    limit: int,
    max_bytes: int,
    *,
    by: Callable[[tuple[int, int]], Any],
) -> QueuePage:
    """Read one page from several places, the place with the lowest orders first.

    Rows that a place has after the end of its page may precede rows of another place: no row is
    returned after the lowest of these ends. Usually the first place that has any rows fills the
    page.
    """
    found: list[QueuePage] = []
    most: tuple[int, int] | None = None
    for place in places:
        # Skip places whose rows all come after the end found so far. By sequence, only the first
        # place has sequences below 0, so an end below 0 precedes everything on shelves.
        if most is not None and (place.first > most[0] or (by is _by_sequence and most[1] < 0)):
            break
        page = await read(place.number)
        if page.end is None:
            continue
        found.append(page)
        if page.may_go_on:
            most = page.end if most is None else min(most, page.end, key=by)
    if len(found) <= 1:
        return found[0] if found else Page([], [], None, may_go_on=False)
    return _merged(found, most, limit, max_bytes, by=by)


def _merged(
    pages: Sequence[QueuePage],
    most: tuple[int, int] | None,
    limit: int,
    max_bytes: int,
    *,
    by: Callable[[tuple[int, int]], Any],
) -> QueuePage:
    """Merge the rows of all pages in order, up to `most` and to the limits of one page."""
    end = most or max([page.end for page in pages if page.end is not None], key=by)
    last, until = end, by(end)
    rows = [
        (by((row[0], row[3])), is_damaged, row)
        for page in pages
        for is_damaged, part in enumerate((page.rows, page.damaged))
        for row in part
    ]
    kept: tuple[list[QueueRow], list[QueueRow]] = [], []
    size = 0
    # The first row is returned however large it is, as in the page of one place.
    for at, (place, is_damaged, row) in enumerate(sorted(rows, key=itemgetter(0))):
        if place > until:
            break
        if at and (at >= limit or size >= max_bytes):
            return Page(*kept, last)
        kept[is_damaged].append(row)
        last = row[0], row[3]
        size += len(row.body or b"")
    return Page(*kept, end, may_go_on=most is not None)


def _by_order(place: tuple[int, int]) -> int:
    return place[0]


def _by_sequence(place: tuple[int, int]) -> tuple[int, int]:
    return place[1], place[0]
