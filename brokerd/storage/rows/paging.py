"""Pages of messages: bounded by a number of rows and by the size of their bodies.

Reads:  nothing by itself.      Calls: the reader it is given.
Never:  returns a body that is not as it was written (REL-6), or loads a body past the limit.
"""

import operator
from collections.abc import Callable, Container, Mapping, Sequence, Set
from functools import partial, reduce
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    LargeBinary,
    Select,
    String,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
)

from brokerd.ids import ConversationId, EndpointKey
from brokerd.protocol.headers import Content
from brokerd.protocol.items import HEADERS
from brokerd.storage.changes import OutgoingRow, Owner, QueueRow
from brokerd.storage.hashes import is_large_sound, is_sound, not_surely_sound
from brokerd.storage.readers import PageOf, Reader, Values
from brokerd.storage.rows import bodies
from brokerd.storage.tables import conversation_endpoints as endpoints

T = TypeVar("T", QueueRow, OutgoingRow)


class Page(NamedTuple, Generic[T]):
    """A part of a queue, in order."""

    rows: list[T]
    damaged: list[T]
    """Rows whose body is not as it was written, or that have no endpoint (REL-6, BI-D3)."""
    end: tuple[int, int] | None
    """Number and sequence of the last row that was read, in any state; None = no row was read."""
    may_go_on: bool = True
    """Whether the page ends at its limits, so that more rows may follow."""


def bounded(
    table: Table,
    owner: Owner,
    where: Sequence[ColumnElement[Any]],
    order: Sequence[Column[int]],
    *,
    instead: Mapping[str, int] | None = None,
) -> PageOf:
    """Return the statement for a page of the table, for `fetch`; values `limit` and `max_bytes`.

    `instead`: constants to return for columns, in place of the values of a row. No body is read
    beyond the limit, and no body is sorted. The first row is returned however large it is.
    """
    (key,) = table.primary_key.columns
    given = instead or {}
    size = bodies.size_of(table, owner).label("size")
    # A damaged row may have any value in any column: each value is cast to the type of its column,
    # so that it can be decoded.
    columns = [
        literal_column(str(given[column.name])).label(column.name)
        if column.name in given
        else cast(column, column.type).label(column.name)
        if _is_cast(column)
        else column
        for column in (*table.c, endpoints.c.is_initiator, endpoints.c.conversation_id)
    ]
    of_row = endpoints.c.endpoint_key == table.c.endpoint_key
    first = (
        select(key, *(column for column in order if column is not key), size)
        .where(*where)
        .order_by(*order)
        .limit(bindparam("limit"))
        .subquery("first")
    )
    by = [first.c[column.name] for column in order]
    before = func.sum(first.c.size).over(order_by=by, rows=(None, 0)) - first.c.size
    summed = select(first, before.label("before")).subquery("summed")
    page = (
        select(*columns)
        .select_from(summed.join(table, key == summed.c[key.name]).outerjoin(endpoints, of_row))
        .where(summed.c.before < bindparam("max_bytes"))
        .order_by(*(summed.c[column.name] for column in order))
    )
    if list(order) != [key]:
        return PageOf(page.add_columns(literal_column("0").label("size")), _packed(page), _unpack)
    # In the order of the table itself nothing has to be sorted: the reader can stop when the page
    # is full.
    rows = (
        select(*columns, size)
        .select_from(table.outerjoin(endpoints, of_row))
        .where(*where)
        .order_by(key)
        .limit(bindparam("limit"))
    )
    return PageOf(rows, _packed(page), _unpack)


def _is_cast(column: Column[Any]) -> bool:
    return isinstance(column.type, LargeBinary | String)


def _packed(rows: Select[Any]) -> Select[Any]:
    """Return a statement that gives all rows as one row.

    The driver releases the interpreter lock for each row of a result, and a busy loop returns the
    lock half a millisecond later: a hundred messages would take 50 ms. So SQLite joins the numbers
    and names as JSON, and the binary values, one after the other, as one value.
    """
    page = rows.subquery("page")
    binary = [column for column in page.c if isinstance(column.type, LargeBinary)]
    plain = [column for column in page.c if not isinstance(column.type, LargeBinary)]
    assert [column.name for column in binary] == _BINARY
    assert [column.name for column in plain][-1] == "is_initiator"
    # CAST keeps the bytes as they are, between binary and text, zeros included.
    nothing: ColumnElement[str] = literal_column("''")
    joined = [func.coalesce(cast(column, Text), nothing) for column in binary]
    sizes = [func.length(column) for column in binary]
    return select(
        func.json_group_array(func.json_array(*plain, *sizes)),
        cast(func.group_concat(reduce(operator.add, joined), nothing), LargeBinary),
    )


_BINARY: Final = ["message_id", "body_hash", "body", "conversation_id"]
_PLAIN: Final = 8
"""Number of columns before `message_id`, in the tables of both kinds of messages."""
_HASH, _BODY = 9, 10
"""Positions of `body_hash` and `body`, in the tables of both kinds of messages."""


def _unpack(packed: Values) -> list[Values]:
    text, data = packed
    rows: list[Values] = []
    at = 0
    for *plain, is_initiator, a, b, c, d in msgspec.json.decode(text):
        start, id_end = at, at + a
        hash_end = id_end + (b or 0)
        body_end = hash_end + (c or 0)
        at = body_end + (d or 0)
        digest = None if b is None else data[id_end:hash_end]
        body = None if c is None else data[hash_end:body_end]
        place = None if d is None else data[body_end:at]
        binary = data[start:id_end], digest, body
        rows.append((*plain[:_PLAIN], *binary, *plain[_PLAIN:], is_initiator, place))
    return rows


async def fetch(
    reader: Reader,
    statement: PageOf,
    values: Mapping[str, object],
    make: Callable[[Values], T],
    *,
    owner: Owner,
    skip: Container[int] = (),
    ended: Callable[[], Set[EndpointKey]] = frozenset,
    aside: bool = False,
) -> Page[T]:
    """Run a statement of `bounded`, and separate the damaged rows.

    `make` gets the values of a row of the table, in the order of the columns. `skip`: numbers of
    rows that count as deleted. `ended`: returns the endpoints all of whose rows count as deleted.
    `aside`: read on a connection for which no receive waits.
    """
    over = ended()
    read = await reader.page(statement, values, aside=aside)
    outgoing = owner is Owner.OUTGOING
    sequence_at = 2 if outgoing else 3
    # `end` is taken before rows are left out: the next page begins after the last row that was
    # read, or skipped rows would be read again and again.
    end = (read[-1][0], read[-1][sequence_at]) if read else None
    may_go_on = _is_full(read, values)
    read = [row for row in read if row[0] not in skip]
    # Endpoints that had ended before the read may no longer be in `ended()` now.
    if over := over | ended():
        read = [row for row in read if row[2] not in over]
    rows = [make(row[:-2]) for row in read]
    damaged: list[T] = []
    gone: list[int] = []
    large: list[tuple[int, tuple[ConversationId, bool, int]]] = []
    for at in not_surely_sound(read, sequence_at, is_outgoing=outgoing):
        sequence = read[at][sequence_at]
        digest, body = read[at][_HASH], read[at][_BODY]
        is_initiator, place = read[at][-2:]
        from_initiator = bool(is_initiator) is outgoing
        if body is None and digest is not None and place is not None:
            # The body is in pieces, which are read after all other bodies are checked.
            large.append((at, (place, from_initiator, sequence)))
        elif not is_sound(place, from_initiator, sequence, body, digest):
            damaged.append(rows[at])
            gone.append(at)
    for at, whose in large:
        message = rows[at]
        # The body is read by another job than the page: its message may have been received, or its
        # body swept, in between. Such a message (`GONE`, or in `skip` by now) is left out, not
        # damaged.
        found = await reader.job(partial(bodies.read, owner=owner, number=message[0]))
        whole = _whole(message, whose, found)
        if whole is not None and message[0] not in skip:
            rows[at] = whole
            continue
        gone.append(at)
        if found is not bodies.Missing.GONE and message[0] not in skip:
            damaged.append(message)
    for at in sorted(gone, reverse=True):
        del rows[at]
    _mark_headers(rows, 3 if outgoing else 11)
    return Page(rows, damaged, end, may_go_on)


def _mark_headers(rows: list[T], flags_at: int) -> None:
    """Make the bodies of messages with headers a `Content`; few rows have any."""
    for at in [at for at, row in enumerate(rows) if row[flags_at] == HEADERS]:
        row = rows[at]
        if row.body is not None:
            rows[at] = row._replace(body=Content(row.body))


def _is_full(read: Sequence[Values], values: Mapping[str, Any]) -> bool:
    """Return whether the page may end at its limits; a body in pieces counts as a full page."""
    if len(read) >= values["limit"]:
        return True
    most = int(values["max_bytes"])
    return (
        sum([most if row[_BODY] is None and row[_HASH] else len(row[_BODY] or b"") for row in read])
        >= most
    )


def _whole(
    message: T, whose: tuple[ConversationId, bool, int], found: bodies.Body | bodies.Missing
) -> T | None:
    """Return the message with its body; None = the body is not as it was written (REL-6)."""
    if isinstance(found, bodies.Missing):
        return None
    if not is_large_sound(whose, found.key, len(found.data), message.body_hash):
        return None
    return message._replace(body=found.data)
