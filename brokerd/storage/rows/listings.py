"""Listings: rows for views, a page at a time, filtered by the store, however many rows there are.

Reads:  the tables a message passes through.      Calls: the reader it is given.
Never:  reads more than `SCAN` rows of a table for one page, or a body that was not requested.

A page begins after a key and ends with the last key that was scanned, so that a filter that matches
few of millions of rows gives short pages rather than long reads.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    bindparam,
    func,
    literal_column,
    select,
    text,
)

from brokerd.clock import Instant
from brokerd.ids import BrokerId, ConversationId, EndpointKey, GroupId, Handle, MessageId, Span
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State
from brokerd.storage.changes import Owner
from brokerd.storage.readers import Reader
from brokerd.storage.rows import bodies
from brokerd.storage.rows.deferred_removals import noted_at
from brokerd.storage.rows.dialogs import WHOLE, as_endpoint
from brokerd.storage.rows.ended_dialogs import OUTGOING_LEFT, RETAINED_LEFT
from brokerd.storage.shelves import NO_SHELF
from brokerd.storage.stretches import among
from brokerd.storage.tables import bodies as stored_bodies
from brokerd.storage.tables import conversation_endpoints as endpoints
from brokerd.storage.tables import conversation_timers as timers
from brokerd.storage.tables import idle_dialogs as idle
from brokerd.storage.tables import messages_at
from brokerd.storage.tables import queues as catalog
from brokerd.storage.tables import retained_messages as kept
from brokerd.storage.tables import transmission_queue as outgoing

SCAN: Final = 100_000
"""Most rows of a table that one page scans."""

T = TypeVar("T")
Filter = Mapping[str, Sequence[object]]
"""Allowed values by column name (the tables of columns are below); or one `Span` of ids."""
MOST_ALIKE: Final = 1_000
"""Most endpoints that one beginning of an id names."""


class Listed(NamedTuple, Generic[T]):
    """A page of rows."""

    rows: list[T]
    next: int | None
    """Key after which the next page begins; None = there are no more rows."""


class ListedMessage(NamedTuple):
    """A message in the transmission queue, with properties of its dialog."""

    transmission_order: int
    endpoint: EndpointKey
    sequence: int
    flags: int
    message_type: str
    fragment_size: int
    enqueued_at: Instant
    message_id: MessageId
    size: int
    handle: Handle
    service: str
    far_service: str
    contract: str
    far_broker: BrokerId | None
    priority: int
    body: bytes | None


class ListedRetained(NamedTuple):
    """A message kept until its conversation ends (RCV-31)."""

    queuing_order: int
    queue: str
    status: int
    handle: Handle
    conversation_id: ConversationId
    group_id: GroupId
    service: str
    contract: str
    sequence: int
    message_type: str
    priority: int
    flags: int
    enqueued_at: Instant
    message_id: MessageId
    endpoint: EndpointKey | None
    """None = the message was moved to an archive (PBT-24)."""
    size: int
    body: bytes | None


class ListedGroup(NamedTuple):
    """A conversation group with an open endpoint."""

    group_id: GroupId
    service: str


ENDPOINT_COLUMNS: Final[dict[str, Column[Any]]] = {
    "conversation_handle": endpoints.c.handle,
    "conversation_id": endpoints.c.conversation_id,
    "is_initiator": endpoints.c.is_initiator,
    "service_contract_id": endpoints.c.contract,
    "service_id": endpoints.c.service,
    "conversation_group_id": endpoints.c.group_id,
    "state": endpoints.c.state,
    "far_service": endpoints.c.far_service,
    "far_broker_instance": endpoints.c.far_broker,
    "priority": endpoints.c.priority,
    "error_code": endpoints.c.error_code,
}
"""Columns by which `conversation_endpoints` can be filtered (VIEW-1)."""
OUTGOING_COLUMNS: Final[dict[str, Column[Any]]] = {
    "conversation_handle": endpoints.c.handle,
    "to_service_name": endpoints.c.far_service,
    "to_broker_instance": endpoints.c.far_broker,
    "from_service_name": endpoints.c.service,
    "service_contract_name": endpoints.c.contract,
    "message_type_name": outgoing.c.message_type,
    "message_sequence_number": outgoing.c.sequence,
    "priority": endpoints.c.priority,
}
"""Columns by which `transmission_queue` can be filtered (VIEW-3)."""
RETAINED_COLUMNS: Final[dict[str, Column[Any]]] = {
    "queue": catalog.c.name,
    "status": kept.c.status,
    "conversation_handle": kept.c.handle,
    "conversation_id": kept.c.conversation_id,
    "conversation_group_id": kept.c.group_id,
    "service_name": kept.c.service,
    "service_contract_name": kept.c.contract,
    "message_type_name": kept.c.message_type,
    "priority": kept.c.priority,
}
"""Columns by which `retained_messages` can be filtered (RCV-32)."""
GROUP_COLUMNS: Final[dict[str, Column[Any]]] = {
    "conversation_group_id": endpoints.c.group_id,
    "service_id": endpoints.c.service,
}
"""Columns by which `conversation_groups` can be filtered (VIEW-2)."""
_INDEXED = {
    endpoints.c.endpoint_key,
    endpoints.c.handle,
    endpoints.c.conversation_id,
    endpoints.c.group_id,
}


# Messages of a queue that memory does not hold are found by index; those noted as removed count as
# deleted (`deferred_removals.py`).
@cache
def _unread(place: int) -> Select[Any]:
    messages = messages_at[place]
    return (
        select(messages.c.endpoint_key, func.count(), func.max(messages.c.enqueued_at))
        .where(
            text(among(place)),
            messages.c.endpoint_key.in_(text("SELECT value FROM json_each(:keys)")),
            messages.c.queuing_order.not_in(text(f"({noted_at(place)})")),
        )
        .group_by(messages.c.endpoint_key)
    )


_INCOMPLETE = (
    select(endpoints.c.endpoint_key, endpoints.c.service)
    .select_from(stored_bodies.join(endpoints, endpoints.c.endpoint_key == stored_bodies.c.number))
    .where(stored_bodies.c.owner == literal_column(str(int(Owner.ARRIVING))))
)

_ENDPOINTS = (
    WHOLE.where(endpoints.c.endpoint_key > bindparam("after"))
    .order_by(endpoints.c.endpoint_key)
    .limit(bindparam("limit"))
)
_OUTGOING = {
    with_bodies: (
        select(
            outgoing.c.transmission_order,
            outgoing.c.endpoint_key,
            outgoing.c.sequence,
            outgoing.c.flags,
            outgoing.c.message_type,
            outgoing.c.fragment_size,
            outgoing.c.enqueued_at,
            outgoing.c.message_id,
            bodies.size_of(outgoing, Owner.OUTGOING),
            endpoints.c.handle,
            endpoints.c.service,
            endpoints.c.far_service,
            endpoints.c.contract,
            endpoints.c.far_broker,
            endpoints.c.priority,
            bodies.body_of(outgoing, Owner.OUTGOING) if with_bodies else text("NULL"),
        )
        .join(endpoints, endpoints.c.endpoint_key == outgoing.c.endpoint_key)
        .where(outgoing.c.transmission_order > bindparam("after"), text(f"NOT ({OUTGOING_LEFT})"))
        .order_by(outgoing.c.transmission_order)
        .limit(bindparam("limit"))
    )
    for with_bodies in (False, True)
}
_RETAINED = {
    with_bodies: (
        select(
            kept.c.queuing_order,
            catalog.c.name,
            kept.c.status,
            kept.c.handle,
            kept.c.conversation_id,
            kept.c.group_id,
            kept.c.service,
            kept.c.contract,
            kept.c.sequence,
            kept.c.message_type,
            kept.c.priority,
            kept.c.flags,
            kept.c.enqueued_at,
            kept.c.message_id,
            kept.c.endpoint_key,
            bodies.size_of(kept, Owner.RETAINED),
            bodies.body_of(kept, Owner.RETAINED) if with_bodies else text("NULL"),
        )
        .join(catalog, catalog.c.queue_key == kept.c.queue_key)
        .where(kept.c.queuing_order > bindparam("after"), text(f"NOT ({RETAINED_LEFT})"))
        .order_by(kept.c.queuing_order)
        .limit(bindparam("limit"))
    )
    for with_bodies in (False, True)
}


class Listings:
    """The views of one store."""

    def __init__(
        self,
        reader: Reader,
        *,
        taken: Callable[[], Sequence[int]],
        ended: Callable[[], Set[EndpointKey]],
    ) -> None:
        """Create the views.

        `taken`: returns the shelves that may have messages. `ended`: returns the endpoints whose
        messages count as deleted.
        """
        self._reader = reader
        self._taken = taken
        self._ended = ended

    async def endpoints(
        self, after: int, limit: int, where: Filter, since: Instant | None
    ) -> Listed[DialogEndpoint]:
        """Return endpoints by key. `since`: only endpoints in their state since then or before."""
        key = endpoints.c.endpoint_key
        conditions = _conditions(ENDPOINT_COLUMNS, where)
        if since is not None:
            conditions.append(endpoints.c.state_since <= since)
        page = _ENDPOINTS.where(*conditions) if conditions else _ENDPOINTS
        rows, last = await _page(
            self._reader, page, key, after=after, limit=limit, conditions=conditions
        )
        return Listed([as_endpoint(row) for row in rows], last)

    async def outgoing(
        self,
        after: int,
        limit: int,
        where: Filter,
        since: Instant | None,
        *,
        bodies: bool,
    ) -> Listed[ListedMessage]:
        """Return the transmission queue by order. `since`: only messages enqueued by then."""
        key = outgoing.c.transmission_order
        conditions = _conditions(OUTGOING_COLUMNS, where)
        if since is not None:
            conditions.append(outgoing.c.enqueued_at <= since)
        every = _OUTGOING[bodies]
        page = every.where(*conditions) if conditions else every
        rows, last = await _page(
            self._reader, page, key, after=after, limit=limit, conditions=conditions
        )
        return Listed([ListedMessage._make(row) for row in rows], last)

    async def retained(
        self, after: int, limit: int, where: Filter, since: Instant | None, *, bodies: bool
    ) -> Listed[ListedRetained]:
        """Return retained messages by queuing order. `since`: only messages enqueued by then."""
        key = kept.c.queuing_order
        conditions = _conditions(RETAINED_COLUMNS, where)
        if since is not None:
            conditions.append(kept.c.enqueued_at <= since)
        every = _RETAINED[bodies]
        page = every.where(*conditions) if conditions else every
        rows, last = await _page(
            self._reader, page, key, after=after, limit=limit, conditions=conditions
        )
        return Listed([ListedRetained._make(row) for row in rows], last)

    async def timers(self, keys: Iterable[EndpointKey]) -> dict[EndpointKey, Instant]:
        """Return when the unnamed timer of each of these endpoints is due (DLG-35)."""
        found = select(timers.c.endpoint_key, timers.c.due_at).where(
            timers.c.endpoint_key.in_(list(keys)), timers.c.name == ""
        )
        return {EndpointKey(row[0]): Instant(row[1]) for row in await self._reader.rows(found)}

    async def announced(
        self, keys: Iterable[EndpointKey]
    ) -> dict[EndpointKey, tuple[Instant, Instant]]:
        """Return since when those of these endpoints that were announced as idle have been so, and
        when they were announced (REL-44)."""
        found = select(idle.c.endpoint_key, idle.c.since, idle.c.announced_at).where(
            idle.c.endpoint_key.in_(list(keys)), idle.c.announced_at.is_not(None)
        )
        return {
            EndpointKey(key): (Instant(since), Instant(at))
            for key, since, at in await self._reader.rows(found)
        }

    async def groups(self, after: bytes, limit: int, where: Filter) -> list[ListedGroup]:
        """Return conversation groups with an endpoint that is not closed, by group id."""
        group = endpoints.c.group_id
        statement = (
            select(group, func.min(endpoints.c.service))
            .where(
                group > after,
                endpoints.c.state != State.CLOSED.value,
                *_conditions(GROUP_COLUMNS, where),
            )
            .group_by(group)
            .order_by(group)
            .limit(limit)
        )
        return [ListedGroup._make(row) for row in await self._reader.rows(statement)]

    async def levels_of_groups(
        self, groups: Iterable[GroupId]
    ) -> dict[GroupId, dict[EndpointKey, int]]:
        """Return the endpoints of groups, each with its priority level."""
        statement = select(
            endpoints.c.group_id, endpoints.c.endpoint_key, endpoints.c.priority
        ).where(endpoints.c.group_id.in_(list(groups)))
        found: dict[GroupId, dict[EndpointKey, int]] = {}
        for group, key, level in await self._reader.rows(statement):
            found.setdefault(GroupId(group), {})[EndpointKey(key)] = level
        return found

    async def unread(self, keys: Iterable[EndpointKey]) -> dict[EndpointKey, tuple[int, Instant]]:
        """Return number and latest arrival of messages found by index, for each endpoint."""
        values = {"keys": json.dumps(sorted(set(keys) - self._ended()))}
        found: dict[EndpointKey, tuple[int, Instant]] = {}
        for place in (NO_SHELF, *self._taken()):
            for key, count, at in await self._reader.rows(_unread(place), values):
                before, youngest = found.get(EndpointKey(key), (0, at))
                found[EndpointKey(key)] = before + count, Instant(max(youngest, at))
        return found

    async def incomplete(self) -> list[tuple[EndpointKey, str]]:
        """Return endpoints with an incomplete message, and their services (DLP-11)."""
        rows = await self._reader.rows(_INCOMPLETE)
        return [(EndpointKey(row[0]), row[1]) for row in rows]


def _conditions(columns: Mapping[str, Column[Any]], where: Filter) -> list[ColumnElement[bool]]:
    return [_condition(columns[name], list(values)) for name, values in where.items()]


def _condition(column: Column[Any], values: list[object]) -> ColumnElement[bool]:
    match values:
        case [Span(low, high)] if column.table is endpoints:
            # A range alone might be searched for in the order of the keys, through the whole table.
            key = endpoints.c.endpoint_key
            return key.in_(select(key).where(column.between(low, high)).limit(MOST_ALIKE))
        case [Span(low, high)]:
            return column.between(low, high)
        case _:
            return column.in_(values)


async def _page(
    reader: Reader,
    page: Select[Any],
    key: Column[int],
    *,
    after: int,
    limit: int,
    conditions: Sequence[ColumnElement[bool]],
) -> tuple[Sequence[tuple[Any, ...]], int | None]:
    """Return the rows, and the last key that was scanned; None = no rows follow.

    Without a filter, or with a filter that an index serves, only `limit` bounds the read.
    """
    if not conditions or any(_names_few(one) for one in conditions):
        rows = await reader.rows(page, {"after": after, "limit": limit})
        return rows, rows[-1][0] if len(rows) == limit else None
    looked_at = select(key).where(key > after).order_by(key).limit(SCAN).subquery()
    ((last, count),) = await reader.rows(
        select(func.max(looked_at.c[key.name]), func.count()).select_from(looked_at)
    )
    if last is None:
        return [], None
    rows = await reader.rows(
        page.where(key <= bindparam("last")), {"after": after, "limit": limit, "last": last}
    )
    if len(rows) == limit:
        return rows, rows[-1][0]
    return rows, last if count == SCAN else None


def _names_few(condition: ColumnElement[bool]) -> bool:
    left = getattr(condition, "left", None)
    return any(left is column for column in _INDEXED)
