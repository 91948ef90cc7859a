"""Pages of messages: so many rows, and no further one once their bodies are so large.

Reads:  nothing by itself.      Calls: the reader it is given.
Never:  hands out a body that is not the one written (REL-6), or loads one past the limit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Column, ColumnElement, Select, Table, bindparam, func, select

from brokerd.storage.changes import OutgoingRow, QueueRow
from brokerd.storage.engine import Reader, Values
from brokerd.storage.hashes import is_sound
from brokerd.storage.tables import conversation_endpoints as endpoints

T = TypeVar("T", QueueRow, OutgoingRow)


class Page(NamedTuple, Generic[T]):
    """Part of a queue, in order."""

    rows: list[T]
    damaged: list[T]
    """Rows whose body is not the one written, or that have no endpoint (REL-6, BI-D3)."""


def bounded(
    table: Table, where: Sequence[ColumnElement[Any]], order: Sequence[Column[int]]
) -> Select[Any]:
    """Rows of the table, then their conversation id and side; values `limit` and `max_bytes`.

    The sizes are summed before any body is read. The first row comes however large it is.
    """
    (key,) = table.primary_key.columns
    size = func.coalesce(func.length(table.c.body), 0).label("size")
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
    return (
        select(table, endpoints.c.conversation_id, endpoints.c.is_initiator)
        .select_from(
            summed.join(table, key == summed.c[key.name]).outerjoin(
                endpoints, endpoints.c.endpoint_key == table.c.endpoint_key
            )
        )
        .where(summed.c.before < bindparam("max_bytes"))
        .order_by(*(summed.c[column.name] for column in order))
    )


async def fetch(
    reader: Reader,
    statement: Select[Any],
    values: Mapping[str, object],
    make: Callable[[Values], T],
    *,
    outgoing: bool,
) -> Page[T]:
    """Run a statement of `bounded`, and set apart what is damaged."""
    page: Page[T] = Page([], [])
    for row in await reader.page(statement, values):
        message = make(row)
        conversation_id, is_initiator = row[-2:]
        from_initiator = bool(is_initiator) is outgoing
        place = (conversation_id, from_initiator, message.sequence)
        sound = is_sound(*place, message.body, message.body_hash)
        (page.rows if sound else page.damaged).append(message)
    return page
