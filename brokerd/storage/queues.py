"""Messages waiting for local services, and pieces of unfinished ones: statements, row mapping.

Reads:  queue_messages, bodies, body_pieces.      Calls: the reader it is given.
Never:  decides what may be received; that is the broker's.
"""

import json
from collections.abc import Callable, Container, Sequence, Set
from functools import partial
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import bindparam, func, literal_column, select, text, update

from brokerd.ids import BodyKey, EndpointKey, QueueKey
from brokerd.model import SYSTEM_TYPES
from brokerd.storage import bodies
from brokerd.storage.changes import Owner, QueueRow
from brokerd.storage.engine import Connection, Reader, Values, transaction
from brokerd.storage.paging import Page, bounded, fetch
from brokerd.storage.statements import Deletes, Inserts, Row, Script, sql
from brokerd.storage.stretches import FIRST_OF, among
from brokerd.storage.tables import PAGED, body_pieces, services
from brokerd.storage.tables import bodies as stored_bodies
from brokerd.storage.tables import conversation_endpoints as endpoints
from brokerd.storage.tables import endpoint_progress as progress
from brokerd.storage.tables import queue_messages as messages

_insert = Inserts(messages)
_delete_of = Deletes(messages.c.endpoint_key, also=f" AND {among()}")


def remove_of(script: Script, keys: Sequence[EndpointKey]) -> None:
    """Remove the messages of endpoints that are found by index."""
    _delete_of.add(script, keys)


def write(script: Script, enqueued: Sequence[Row]) -> None:
    """Write messages."""
    _insert.add(script, enqueued)


def replace_body(
    connection: Connection, order: int, body: bytes | None, stored: bytes | None
) -> None:
    """Give a message another body and its hash; a transaction of its own (PBT-3)."""
    script = Script()
    script.add(_replace_body, (stored, body, order))
    bodies.leave(script, Owner.WAITING, [order])
    with transaction(connection):
        script.run(connection)


_replace_body: Final = sql(
    update(messages)
    .where(messages.c.queuing_order == bindparam("order"))
    .values(body_hash=bindparam("stored"), body=bindparam("text"))
)
# The condition is that of the partial indexes, word for word, or SQLite does not use them.
PAGE: Final = bounded(
    messages,
    Owner.WAITING,
    [
        literal_column(PAGED),
        messages.c.queue_key == bindparam("queue"),
        messages.c.priority == bindparam("priority"),
        messages.c.queuing_order > bindparam("after"),
    ],
    [messages.c.queuing_order],
)
PAGE_OF: Final = bounded(
    messages,
    Owner.WAITING,
    [
        messages.c.queuing_order.in_(text(FIRST_OF)),
    ],
    [messages.c.sequence, messages.c.queuing_order],
)
BROWSE: Final = bounded(
    messages,
    Owner.WAITING,
    [
        messages.c.queue_key == bindparam("queue"),
        messages.c.queuing_order > bindparam("after"),
        messages.c.queuing_order <= bindparam("until"),
    ],
    [messages.c.queuing_order],
)
SPAN: Final = 20_000
"""Messages of all queues that one read of `browse` looks through."""
_next = (
    select(messages.c.queuing_order)
    .where(messages.c.queuing_order > bindparam("after"))
    .order_by(messages.c.queuing_order)
    .limit(bindparam("span"))
    .subquery()
)
_UNTIL: Final = select(func.max(_next.c.queuing_order))
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
_OF: Final = (
    text(among(":after", ":before")),
    messages.c.endpoint_key == bindparam("key"),
    messages.c.queuing_order > bindparam("after"),
    messages.c.queuing_order < bindparam("before"),
)
FEW: Final = 500
"""Messages of an endpoint up to which they are counted one by one."""
_few = (
    select(messages.c.queuing_order, messages.c.message_type)
    .where(*_OF)
    .limit(bindparam("limit"))
    .subquery()
)
_FEW: Final = select(
    func.json_group_array(func.json_array(_few.c.queuing_order, _few.c.message_type))
)
# Many are counted where they are: what is no application message has a sequence below 0, but for
# EndDialog, which is the last of the others.
_many = (
    select(
        func.count().label("count"),
        func.count().filter(messages.c.sequence >= 0).label("rest"),
        func.max(messages.c.queuing_order).filter(messages.c.sequence >= 0).label("last"),
    )
    .where(
        *_OF,
        messages.c.queuing_order.not_in(text("(SELECT value FROM json_each(:but))")),
    )
    .subquery()
)
_COUNT: Final = select(
    _many.c.count,
    _many.c.rest,
    select(messages.c.message_type)
    .where(messages.c.queuing_order == _many.c.last)
    .scalar_subquery(),
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

_BEFORE_ALL = (-1, -(1 << 62))
"""A place before that of every message."""


_message: Final[Callable[[Values], QueueRow]] = partial(tuple.__new__, QueueRow)
"""`QueueRow._make`, which costs as much again to call."""


async def page(
    reader: Reader,
    queue: QueueKey,
    priority: int,
    after: int,
    *,
    limit: int,
    max_bytes: int,
    skip: Container[int],
) -> Page[QueueRow]:
    """Messages of one priority found by index, by queuing order."""
    values = {
        "queue": queue,
        "priority": priority,
        "after": after,
        "limit": limit,
        "max_bytes": max_bytes,
    }
    return await fetch(reader, PAGE, values, _message, owner=Owner.WAITING, skip=skip)


async def page_of(
    reader: Reader,
    key: EndpointKey,
    limit: int,
    max_bytes: int,
    after: tuple[int, int] | None,
    *,
    skip: Container[int],
) -> Page[QueueRow]:
    """Messages of an endpoint found by index, by sequence, then queuing order."""
    order, sequence = after or _BEFORE_ALL
    values = {
        "key": key,
        "after_order": order,
        "after_sequence": sequence,
        "least": order if sequence >= 0 else -1,
        "limit": limit,
        "max_bytes": max_bytes,
    }
    return await fetch(reader, PAGE_OF, values, _message, owner=Owner.WAITING, skip=skip)


async def browse(
    reader: Reader,
    queue: QueueKey,
    limit: int,
    max_bytes: int,
    after: int,
    *,
    skip: Container[int],
) -> Page[QueueRow]:
    """Messages of a queue by queuing order, of the next `SPAN` of all queues.

    Where it ends, the next one goes on; None = there are no further messages in any queue."""
    ((until,),) = await reader.rows(_UNTIL, {"after": after, "span": SPAN})
    if until is None:
        return Page([], [], None)
    values = {
        "queue": queue,
        "after": after,
        "until": until,
        "limit": limit,
        "max_bytes": max_bytes,
    }
    page = await fetch(reader, BROWSE, values, _message, owner=Owner.WAITING, skip=skip, aside=True)
    return page._replace(end=page.end or (until, 0))


async def incomplete(
    reader: Reader, queue: str, limit: int, after: EndpointKey
) -> list[tuple[EndpointKey, int]]:
    """Endpoint and sequence of messages of which a fragment is missing (status 2)."""
    rows = await reader.rows(INCOMPLETE, {"queue": queue, "limit": limit, "after": after})
    return [(EndpointKey(row[0]), row[1]) for row in rows]


class Tally(NamedTuple):
    """Messages of an endpoint."""

    messages: int
    application: int
    """Of them, those that an application sent."""


async def tally(
    reader: Reader,
    key: EndpointKey,
    *,
    after: int,
    before: int,
    but: Set[int],
    skip: Set[int],
) -> Tally:
    """Count an endpoint's messages found by index, with queuing orders between two.

    Neither those in `but` nor those in `skip`. One row is read at a time, however many they are."""
    span = {"key": key, "after": after, "before": before}
    ((found,),) = await reader.rows(_FEW, {**span, "limit": FEW + 1})
    few = msgspec.json.decode(found, type=list[tuple[int, str]])
    if len(few) <= FEW:
        kinds = [kind for order, kind in few if order not in but and order not in skip]
        return Tally(len(kinds), sum(kind not in SYSTEM_TYPES for kind in kinds))
    without = [order for order in but | skip if after < order < before]
    ((count, rest, last),) = await reader.rows(_COUNT, {**span, "but": json.dumps(without)})
    return Tally(count, rest - (last in SYSTEM_TYPES))


class StoredParts(NamedTuple):
    """What is stored of a message that is not complete."""

    key: BodyKey | None
    """What it is stored under; None = nothing is."""
    bodies: list[bytes] | None
    """Its fragments from the first on; None = one is not the one that was written (REL-6)."""


async def parts(reader: Reader, endpoint: EndpointKey) -> StoredParts:
    """What is stored of the message of an endpoint that is not complete."""
    rows = await reader.rows(PARTS, {"endpoint": endpoint})
    if not rows:
        return StoredParts(None, [])
    key = BodyKey(rows[0][0])
    try:
        return StoredParts(key, list(bodies.sound(key, (row[1:] for row in rows))))
    except bodies.DamagedPieceError:
        return StoredParts(key, None)
