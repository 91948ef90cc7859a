"""Messages waiting for local services, and pieces of incomplete ones: statements, row mapping.

Reads:  queue_messages, shelves, bodies, body_pieces.      Calls: the reader it is given.
Never:  decides what may be received; the broker does.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import cache, partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Executable,
    Select,
    bindparam,
    func,
    literal_column,
    select,
    text,
)

from brokerd.ids import BodyKey, EndpointKey, QueueKey
from brokerd.model import SYSTEM_TYPES
from brokerd.storage import bodies
from brokerd.storage.changes import Owner, QueueRow
from brokerd.storage.engine import Connection, PageOf, Reader, Values, transaction
from brokerd.storage.paging import Page, bounded, fetch
from brokerd.storage.shelves import NO_SHELF, PLACES, Place, Places
from brokerd.storage.statements import Deletes, Inserts, Script
from brokerd.storage.stretches import (
    BEFORE_ALL,
    STRETCH_ORDERS,
    among,
    first_of,
    found_at,
    table_at,
)
from brokerd.storage.tables import bodies as stored_bodies
from brokerd.storage.tables import body_pieces, messages_at, services
from brokerd.storage.tables import conversation_endpoints as endpoints
from brokerd.storage.tables import endpoint_progress as progress


class Skip(NamedTuple):
    """Messages that count as deleted."""

    noted: Callable[[int], Set[int]]
    """Queuing orders of such messages at a place."""
    ended: Callable[[], Set[EndpointKey]]
    """Endpoints all of whose messages count as deleted."""


_inserts = {place: Inserts(table) for place, table in messages_at.items()}
_deletes_of = {
    place: Deletes(table.c.endpoint_key, also=f" AND {among(place)}")
    for place, table in messages_at.items()
}


def remove_of(script: Script, keys: Sequence[EndpointKey], taken: Sequence[int]) -> None:
    """Delete the messages of endpoints that are found by index; `taken`: shelves that have some."""
    if keys:
        for place in (NO_SHELF, *taken):
            _deletes_of[place].add(script, keys)


def write(script: Script, enqueued: Sequence[QueueRow]) -> None:
    """Write messages, each to its place."""
    for place, rows in by_place(enqueued).items():
        _inserts[place or NO_SHELF].add(script, rows)


def by_place(enqueued: Sequence[QueueRow]) -> Mapping[int, Sequence[QueueRow]]:
    """Group messages by the number of their place, in their order; 0 = within a window."""
    if len(enqueued) == 1:
        return {enqueued[0][6]: enqueued}
    places = {row[6] for row in enqueued}
    if len(places) <= 1:
        return dict.fromkeys(places, enqueued)
    found: dict[int, list[QueueRow]] = {}
    for row in enqueued:
        found.setdefault(row[6], []).append(row)
    return found


def empty_shelves(numbers: Sequence[int], connection: Connection) -> list[int]:
    """Return the shelves, of those given, that have no row."""
    looks = [(number, f"SELECT 1 FROM {table_at(number)} LIMIT 1") for number in numbers]  # noqa: S608
    return [number for number, look in looks if connection.execute(look).fetchone() is None]


def replace_body(
    connection: Connection, order: int, body: bytes | None, stored: bytes | None
) -> None:
    """Replace the body and the hash of a message, in a transaction of its own (PBT-3)."""
    script = Script()
    for table in messages_at.values():
        script.add(
            f"UPDATE {table.name} SET body_hash = ?, body = ? WHERE queuing_order = ?",  # noqa: S608
            (stored, body, order),
        )
    bodies.leave(script, Owner.WAITING, [order])
    with transaction(connection):
        script.run(connection)


class _Statements(NamedTuple):
    """The statements that read one place."""

    page: PageOf
    page_of: PageOf
    browse: PageOf
    further: Executable
    many: Select[Any]


SPAN: Final = 20_000
"""Messages of all queues in one place that one read of `browse` scans."""
FEW: Final = 500
"""Messages of an endpoint up to which they are counted one by one."""
_FEW_TOGETHER: Final = 2000
"""Messages of all endpoints up to which one read counts them one by one."""


@cache
def statements(place: int) -> _Statements:
    """Return the statements for a place, made when it is first read."""
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
    of = (
        text(among(place, ":after", ":before")),
        table.c.endpoint_key == bindparam("key"),
        order > bindparam("after"),
        order < bindparam("before"),
    )
    # SQLite counts many messages itself: system messages have a sequence below 0, except EndDialog,
    # which is the last of the rest, so the type of the last one shows whether it is among them.
    many = (
        select(
            func.count().label("count"),
            func.count().filter(table.c.sequence >= 0).label("rest"),
            func.max(order).filter(table.c.sequence >= 0).label("last"),
        )
        .where(*of, order.not_in(text("(SELECT value FROM json_each(:but))")))
        .subquery()
    )
    last = select(table.c.message_type).where(order == many.c.last).scalar_subquery()
    return _Statements(
        page,
        page_of,
        browse,
        select(func.count(), func.max(next_.c.queuing_order)),
        select(many.c.count, many.c.rest, last),
    )


INCOMPLETE: Final = (
    select(stored_bodies.c.number, progress.c.receive_sequence)
    .select_from(
        stored_bodies.join(endpoints, endpoints.c.endpoint_key == stored_bodies.c.number)
        .join(progress, progress.c.endpoint_key == endpoints.c.endpoint_key)
        .join(services, services.c.name == endpoints.c.service)
    )
    .where(
        services.c.queue == bindparam("queue"),
        stored_bodies.c.owner == literal_column(str(int(Owner.ARRIVING))),
        stored_bodies.c.number > bindparam("after"),
    )
    .order_by(stored_bodies.c.number)
    .limit(bindparam("limit"))
)
PARTS: Final = (
    select(body_pieces.c.body_key, body_pieces.c.piece, body_pieces.c.hash, body_pieces.c.data)
    .join(stored_bodies, stored_bodies.c.body_key == body_pieces.c.body_key)
    .where(
        stored_bodies.c.owner == literal_column(str(int(Owner.ARRIVING))),
        stored_bodies.c.number == bindparam("endpoint"),
    )
    .order_by(body_pieces.c.piece)
)

PARTS_KNOWN: Final = (
    select(
        body_pieces.c.body_key,
        func.count(),
        func.coalesce(func.sum(func.length(body_pieces.c.data)), 0),
    )
    .join(stored_bodies, stored_bodies.c.body_key == body_pieces.c.body_key)
    .where(
        stored_bodies.c.owner == literal_column(str(int(Owner.ARRIVING))),
        stored_bodies.c.number == bindparam("endpoint"),
    )
    .group_by(body_pieces.c.body_key)
)

_message: Final[Callable[[Values], QueueRow]] = partial(tuple.__new__, QueueRow)
"""`QueueRow._make`, which costs as much again to call."""


async def page(
    reader: Reader,
    queue: QueueKey,
    priority: int,
    after: int,
    *,
    places: Places,
    limit: int,
    max_bytes: int,
    skip: Skip,
) -> Page[QueueRow]:
    """Return messages of one priority found by index, by queuing order."""
    values = {
        "queue": queue,
        "priority": priority,
        "after": after,
        "limit": limit,
        "max_bytes": max_bytes,
    }

    def read(place: int) -> Awaitable[Page[QueueRow]]:
        return _fetch(reader, statements(place).page, values, place, skip)

    found = await _of_all(places.each, read, limit, max_bytes, by=_by_order)
    return _below(places.before, found)


async def page_of(
    reader: Reader,
    key: EndpointKey,
    limit: int,
    max_bytes: int,
    after: tuple[int, int] | None,
    *,
    places: Places,
    skip: Skip,
) -> Page[QueueRow]:
    """Return messages of an endpoint found by index, by sequence, then queuing order."""
    order, sequence = after or BEFORE_ALL
    values = {
        "key": key,
        "after_order": order,
        "after_sequence": sequence,
        "least": order if sequence >= 0 else -1,
        "limit": limit,
        "max_bytes": max_bytes,
    }

    def read(place: int) -> Awaitable[Page[QueueRow]]:
        return _fetch(reader, statements(place).page_of, values, place, skip)

    found = await _of_all(places.each, read, limit, max_bytes, by=_by_sequence)
    return _below(places.before, found)


def _fetch(
    reader: Reader,
    statement: PageOf,
    values: Mapping[str, object],
    place: int,
    skip: Skip,
    *,
    aside: bool = False,
) -> Awaitable[Page[QueueRow]]:
    return fetch(
        reader,
        statement,
        values,
        _message,
        owner=Owner.WAITING,
        skip=skip.noted(place),
        ended=skip.ended,
        aside=aside,
    )


def _below(before: int, page: Page[QueueRow]) -> Page[QueueRow]:
    """Keep the messages of a page that existed when its places were listed.

    Places are read one after the other. A newer message may lie on a shelf that was not listed,
    while a still newer one lies on a shelf that was: returning the latter would skip the former.
    """
    if page.end is None or page.end[0] < before:
        return page
    rows = [row for row in page.rows if row.queuing_order < before]
    damaged = [row for row in page.damaged if row.queuing_order < before]
    ends = [(row.queuing_order, row.sequence) for row in (*rows[-1:], *damaged[-1:])]
    return Page(rows, damaged, max(ends, key=_by_sequence, default=None))


async def _of_all(
    places: Sequence[Place],
    read: Callable[[int], Awaitable[Page[QueueRow]]],
    limit: int,
    max_bytes: int,
    *,
    by: Callable[[tuple[int, int]], Any],
) -> Page[QueueRow]:
    """Read one page from several places, the place with the lowest orders first.

    Rows that a place has after the end of its page may precede rows of another place: nothing is
    returned after the lowest of these ends. Mostly the first place that has any rows fills the
    page.
    """
    found: list[Page[QueueRow]] = []
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
    pages: Sequence[Page[QueueRow]],
    most: tuple[int, int] | None,
    limit: int,
    max_bytes: int,
    *,
    by: Callable[[tuple[int, int]], Any],
) -> Page[QueueRow]:
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


async def browse(
    reader: Reader,
    queue: QueueKey,
    limit: int,
    max_bytes: int,
    after: int,
    *,
    places: Places,
    skip: Skip,
) -> Page[QueueRow]:
    """Return messages of a queue by queuing order, among the next `SPAN` messages of all queues.

    The next page continues at `end`; None = there are no further messages in any queue.
    """
    until = await _until(reader, places.each, after)
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

    def read(place: int) -> Awaitable[Page[QueueRow]]:
        return _fetch(reader, statements(place).browse, values, place, skip, aside=True)

    page = await _of_all(places.each, read, limit, max_bytes, by=_by_order)
    return page._replace(end=page.end or (until, 0))


async def _until(reader: Reader, places: Sequence[Place], after: int) -> int | None:
    """Return the queuing order up to which all places are scanned; None = no place has more."""
    whole: list[int] = []
    more: list[int] = []
    for place in places:
        if more and place.first > min(more):
            break
        values = {"after": after, "span": SPAN}
        ((count, last),) = await reader.rows(statements(place.number).further, values)
        if last is not None:
            (more if count >= SPAN else whole).append(last)
    return min(more, default=max(whole, default=None))


async def incomplete(
    reader: Reader, queue: str, limit: int, after: EndpointKey
) -> list[tuple[EndpointKey, int]]:
    """Return endpoint and sequence of messages of which a fragment is missing (status 2)."""
    rows = await reader.rows(INCOMPLETE, {"queue": queue, "limit": limit, "after": after})
    return [(EndpointKey(row[0]), row[1]) for row in rows]


class Tally(NamedTuple):
    """A count of messages of an endpoint."""

    messages: int
    application: int
    """Messages that an application sent."""


# One read for all places: it costs the hop to the reader's thread; places without rows cost little.
_OF_KEYS: Final = " UNION ALL ".join(
    f"SELECT endpoint_key, queuing_order, message_type FROM json_each(:keys)"  # noqa: S608
    f" CROSS JOIN {table_at(place)} INDEXED BY {table_at(place)}_of"
    f" ON {among(place, ':after', ':before')} AND endpoint_key = json_each.value"
    " AND queuing_order > :after AND queuing_order < :before"
    for place in PLACES
)
FEW_OF: Final = select(
    text(
        "json_group_array(json_array(endpoint_key, queuing_order, message_type))"  # noqa: S608
        f" FROM (SELECT * FROM ({_OF_KEYS}) LIMIT :limit)"
    )
)
"""Endpoint, queuing order and type of messages found by index; values `keys` (JSON), `after`,
`before`, `limit`."""
_SEEKS: Final = 4096
"""Most seeks of one read that counts ahead: some milliseconds of the reader's thread."""


async def tally(
    reader: Reader,
    key: EndpointKey,
    *,
    places: Places,
    after: int,
    before: int,
    but: Set[int],
    skip: Skip,
) -> Tally:
    """Count an endpoint's messages found by index, with queuing orders between two.

    Neither those in `but` nor those in `skip` count. However many there are, one row is read at a
    time.
    """
    if key in skip.ended():
        return Tally(0, 0)
    removed = [skip.noted(place.number) for place in places.each]
    few = await _few_of(reader, [key], after, before, FEW + 1)
    if len(few) <= FEW:
        return _counted(few, but, removed)
    found = [
        await _many_of(reader, key, after, before, place=place.number, but=(but, noted))
        for place, noted in zip(places.each, removed, strict=True)
        if place.first < before
    ]
    return Tally(sum(one.messages for one in found), sum(one.application for one in found))


async def tallies(
    reader: Reader,
    but: Mapping[EndpointKey, Set[int]],
    *,
    places: Places,
    after: int,
    before: int,
    skip: Skip,
) -> dict[EndpointKey, Tally]:
    """Count the messages of many endpoints as `tally` does; `but`: orders to leave out of each.

    Endpoints are left out that have many messages, or whose messages are spread over so many
    stretches that a read for each alone is cheaper.
    """
    found: dict[EndpointKey, Tally] = {}
    removed = [skip.noted(place.number) for place in places.each]
    stretches = 1 + max(0, before - after) // STRETCH_ORDERS
    ended = skip.ended()
    keys = sorted(key for key in but if key not in ended)
    at_once = _SEEKS // (stretches + len(PLACES))
    for at in range(0, len(keys) if at_once else 0, at_once or 1):
        part = keys[at : at + at_once]
        few = await _few_of(reader, part, after, before, _FEW_TOGETHER + 1)
        if len(few) > _FEW_TOGETHER:
            continue
        of_each: dict[EndpointKey, list[_Counted]] = {key: [] for key in part}
        for one in few:
            of_each[one[0]].append(one)
        found |= {key: _counted(of_each[key], but[key], removed) for key in part}
    return found


_Counted = tuple[EndpointKey, int, str]
"""Endpoint, queuing order and type of a message."""


async def _few_of(
    reader: Reader, keys: Sequence[EndpointKey], after: int, before: int, limit: int
) -> list[_Counted]:
    values = {"keys": json.dumps(keys), "after": after, "before": before, "limit": limit}
    ((found,),) = await reader.hot(FEW_OF, values)
    return msgspec.json.decode(found, type=list[_Counted])


def _counted(found: Sequence[_Counted], but: Set[int], removed: Sequence[Set[int]]) -> Tally:
    kinds = [
        kind
        for _, order, kind in found
        if order not in but and not any(order in noted for noted in removed)
    ]
    return Tally(len(kinds), sum(kind not in SYSTEM_TYPES for kind in kinds))


async def _many_of(
    reader: Reader,
    key: EndpointKey,
    after: int,
    before: int,
    *,
    place: int,
    but: Sequence[Set[int]],
) -> Tally:
    without = [order for order in set().union(*but) if after < order < before]
    values = {"key": key, "after": after, "before": before, "but": json.dumps(without)}
    ((count, rest, last),) = await reader.rows(statements(place).many, values)
    return Tally(count, rest - (last in SYSTEM_TYPES))


class StoredParts(NamedTuple):
    """The stored fragments of an incomplete message."""

    key: BodyKey | None
    """The key of its body; None = nothing is stored."""
    bodies: list[bytes] | None
    """The fragments from the first on; None = one is not as it was written (REL-6)."""


class KnownParts(NamedTuple):
    """The amount stored of an incomplete message."""

    key: BodyKey | None
    """The key of its body; None = nothing is stored."""
    fragments: int
    """Number of fragments."""
    size: int
    """Bytes of their bodies."""


async def parts_known(reader: Reader, endpoint: EndpointKey) -> KnownParts:
    """Return the amount stored of the endpoint's incomplete message, without reading the bodies."""
    rows = await reader.rows(PARTS_KNOWN, {"endpoint": endpoint})
    if not rows:
        return KnownParts(None, 0, 0)
    key, count, size = rows[0]
    return KnownParts(BodyKey(key), int(count), int(size))


async def parts(reader: Reader, endpoint: EndpointKey) -> StoredParts:
    """Return the stored fragments of the endpoint's incomplete message."""
    rows = await reader.rows(PARTS, {"endpoint": endpoint})
    if not rows:
        return StoredParts(None, [])
    key = BodyKey(rows[0][0])
    try:
        return StoredParts(key, list(bodies.sound(key, (row[1:] for row in rows))))
    except bodies.DamagedPieceError:
        return StoredParts(key, None)
