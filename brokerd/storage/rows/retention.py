"""Messages retained until their conversations end: statements and row mapping (RCV-31, PBT-24).

Reads:  retained_messages.      Calls: the reader it is given.
Never:  passes a retained message to a receive; their table is only for browsing (RCV-32).
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from sqlalchemy import bindparam, func, select, text

from brokerd.clock import Instant
from brokerd.ids import ConversationId, EndpointKey, GroupId, Handle, MessageId, QueueKey
from brokerd.protocol.headers import content_of
from brokerd.storage.changes import Owner, Rare, RetainedRow, Trim
from brokerd.storage.readers import Reader, Values
from brokerd.storage.rows import bodies
from brokerd.storage.rows.ended_dialogs import FIND_RETAINED, RETAINED_LEFT
from brokerd.storage.shelves import NO_SHELF
from brokerd.storage.statements import Inserts, Script, sql
from brokerd.storage.tables import conversation_endpoints as endpoints
from brokerd.storage.tables import messages_at
from brokerd.storage.tables import retained_messages as retained

RECEIVED: Final = 0
SENT: Final = 3
"""Statuses of retained messages (RCV-27)."""


class Kept(NamedTuple):
    """The number and size of a conversation's retained messages."""

    rows: int
    bytes: int


_insert = Inserts(retained)


@cache
def _copy(place: int) -> str:
    messages = messages_at[place]
    return sql(
        retained.insert().from_select(
            [column.name for column in retained.columns],
            select(
                messages.c.queuing_order,
                messages.c.queue_key,
                messages.c.endpoint_key,
                endpoints.c.handle,
                endpoints.c.conversation_id,
                endpoints.c.group_id,
                endpoints.c.service,
                endpoints.c.contract,
                text(str(RECEIVED)),
                messages.c.sequence,
                messages.c.message_type,
                messages.c.priority,
                messages.c.enqueued_at,
                messages.c.message_id,
                messages.c.body,
                messages.c.flags,
            )
            .select_from(
                messages.join(endpoints, endpoints.c.endpoint_key == messages.c.endpoint_key)
            )
            .where(messages.c.queuing_order.in_(text("SELECT value FROM json_each(:orders)"))),
        )
    )


_SIZE: Final = sql(bodies.size_of(retained, Owner.RETAINED))
_NEWEST: Final = (
    "SELECT queuing_order FROM (SELECT queuing_order, row_number() OVER newest AS rows_,"  # noqa: S608
    f" sum({_SIZE}) OVER newest AS bytes_ FROM retained_messages"
    " WHERE endpoint_key = ? WINDOW newest AS (ORDER BY queuing_order DESC)) AS numbered"
    " WHERE (? > 0 AND rows_ > ?) OR (? > 0 AND bytes_ > ?)"
)
_leave_oldest = bodies.leaving(Owner.RETAINED, _NEWEST)
_drop_oldest = f"DELETE FROM retained_messages WHERE queuing_order IN ({_NEWEST})"  # noqa: S608
_archive_oldest = (
    "UPDATE retained_messages SET endpoint_key = NULL, queue_key = ?"  # noqa: S608
    f" WHERE queuing_order IN ({_NEWEST})"
)
_NEEDED: Final = text(f"NOT ({RETAINED_LEFT})")
KEPT: Final = select(
    func.count(), func.coalesce(func.sum(bodies.size_of(retained, Owner.RETAINED)), 0)
).where(retained.c.endpoint_key == bindparam("key"))
BROWSE: Final = (
    select(
        *(column for column in retained.columns if column.name != "body"),
        bodies.body_of(retained, Owner.RETAINED),
    )
    .where(
        retained.c.queue_key == bindparam("queue"),
        retained.c.queuing_order > bindparam("after"),
        _NEEDED,
    )
    .order_by(retained.c.queuing_order)
    .limit(bindparam("limit"))
)
COUNTS: Final = (
    select(retained.c.queue_key, func.count()).where(_NEEDED).group_by(retained.c.queue_key)
)


def retain(
    script: Script, orders: Sequence[int], taken: Sequence[int], *, some_bodies: bool
) -> None:
    """Copy received messages while they are still in their queue.

    A body in pieces moves to the copy. `taken`: shelves that may have messages.
    """
    if orders:
        for place in (NO_SHELF, *taken):
            script.add(_copy(place), (json.dumps(list(orders)),))
        if some_bodies:
            bodies.retain(script, orders)


def write(script: Script, rare: Rare, *, some_bodies: bool) -> None:
    """Add to a flush's script retained messages, then the removal of those above a limit."""
    _insert.add(script, rare.retained)
    for key, limit in rare.trim.items():
        _trim(script, key, limit, some_bodies=some_bodies)


def _trim(script: Script, key: EndpointKey, limit: Trim, *, some_bodies: bool) -> None:
    which = (key, limit.max_rows, limit.max_rows, limit.max_bytes, limit.max_bytes)
    if limit.archive is None:
        if some_bodies:
            script.add(_leave_oldest, which)
        script.add(_drop_oldest, which)
    else:
        script.add(_archive_oldest, (limit.archive, *which))


class RetainedMessages:
    """The stored retained messages, for browsing only."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def size(self, key: EndpointKey) -> Kept:
        """Return the number and the bytes of a conversation's retained messages."""
        ((rows, size),) = await self._reader.rows(KEPT, {"key": key})
        return Kept(rows, size)

    async def browse(self, queue: QueueKey, limit: int, after: int = -1) -> list[RetainedRow]:
        """Return retained messages of a queue by queuing order."""
        rows = await self._reader.rows(BROWSE, {"queue": queue, "limit": limit, "after": after})
        return [_row(row) for row in rows]

    async def counts(self) -> dict[QueueKey, int]:
        """Return the number of messages that each queue retains."""
        return {QueueKey(key): count for key, count in await self._reader.rows(COUNTS)}

    async def in_ended_conversations(self) -> list[EndpointKey]:
        """Return conversations that have ended and still have retained messages."""
        rows = await self._reader.rows(text(FIND_RETAINED))
        return [EndpointKey(row[0]) for row in rows]


def _row(row: Values) -> RetainedRow:
    order, queue, endpoint, handle, conversation, group, *middle, message_id, flags, body = row
    service, contract, status, sequence, message_type, priority, enqueued_at = middle
    return RetainedRow(
        order,
        QueueKey(queue),
        EndpointKey(-1 if endpoint is None else endpoint),
        Handle(handle),
        ConversationId(conversation),
        GroupId(group),
        service,
        contract,
        status,
        sequence,
        message_type,
        priority,
        Instant(enqueued_at),
        MessageId(message_id),
        None if body is None else content_of(body, flags),
        flags,
    )
