"""Browse: a page of the messages of a queue, every status, all columns (OBJ-47, VIEW-5).

Reads: the store, on a connection of its own.      Calls: nothing that changes anything.
Never: takes a lock, makes a receive wait, or shows uncommitted messages. From memory it reads only
the number of times that a message was rolled back, which the store does not have (RCV-30).

A page is bounded in messages, in bytes and in rows read for it, so a queue of any length is read
page by page. The messages come in stages, by status, one stage after the other; a cursor is the
number of a stage and a position in the stage.
"""

from collections.abc import Awaitable, Callable, Iterable
from itertools import takewhile
from typing import Final

from brokerd.broker.broker import Broker
from brokerd.broker.queues import QueueState
from brokerd.broker.transaction import Transaction
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import QueueNotFound
from brokerd.ids import EndpointKey
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.headers import body_of, headers_of
from brokerd.storage.changes import QueueRow

READY: Final = 1
INCOMPLETE: Final = 2
"""The status of a message that lacks fragments (RCV-27)."""
PAGE_BYTES: Final = 256 * 1024
"""Bytes of bodies after which a page is full."""
READS: Final = 4
"""Most reads of the store for a page; each covers a span of messages, other queues' included."""
TIMER: Final = -2
"""Sequence of a DialogTimer; its row has the timer's name in place of a body (RCV-9)."""

_Values = list[object]
_Part = tuple[list[_Values], int | None]
"""Messages, and the position at which they end; None = the stage has no more messages."""
_Stage = Callable[[Broker, QueueState, wire.Browse, int], Awaitable[_Part]]


async def browse(broker: Broker, asked: wire.Browse) -> list[object]:
    """Return the messages of a page, as in CLP-36 and with their status, and the next cursor."""
    queue = broker.queues.get(asked.queue)
    if queue is None:
        near = did_you_mean(asked.queue, broker.queues)
        raise QueueNotFound(f"queue {asked.queue!r} is not in broker {broker.name!r}{near}")
    number, after = asked.after or (0, -1)
    while number < len(_STAGES):
        found, end = await _STAGES[number](broker, queue, asked, after)
        if end is not None:
            return [found, [number, end]]
        number, after = number + 1, -1
        if found and number < len(_STAGES):
            return [found, [number, after]]
        if found:
            return [found, None]
    return [[], None]


async def _ready(broker: Broker, queue: QueueState, asked: wire.Browse, after: int) -> _Part:
    """Return a page of waiting messages, including those that open transactions have received."""
    page = await broker.store.messages.browse(
        queue.queue.key, asked.limit, PAGE_BYTES, after, reads=READS
    )
    damaged = {row.queuing_order for row in page.damaged}
    rows = sorted([*page.rows, *page.damaged], key=lambda row: row.queuing_order)
    endpoints = await broker.store.endpoints.by_keys({row.endpoint for row in rows})
    deliveries = _deliveries(broker, endpoints)
    found = [
        _message(
            broker,
            endpoints[row.endpoint],
            row,
            deliveries.get(row.queuing_order, 0),
            # never served if damaged (REL-6)
            bodies=asked.bodies and row.queuing_order not in damaged,
        )
        for row in rows
        if row.endpoint in endpoints  # else its conversation has just ended
    ]
    return found, None if page.end is None else page.end[0]


def _message(
    broker: Broker, endpoint: DialogEndpoint, row: QueueRow, deliveries: int, *, bodies: bool
) -> _Values:
    is_timer = row.sequence == TIMER
    return [
        endpoint.handle,
        endpoint.conversation_id,
        endpoint.group_id,
        row.sequence,
        row.message_type,
        body_of(row.body) if bodies and not is_timer else None,
        endpoint.service,
        endpoint.contract,
        row.queuing_order,
        row.priority,
        row.enqueued_at,
        deliveries,
        row.message_id,
        broker.validation_code(row.message_type),
        (row.body or b"").decode() or None if is_timer else None,
        READY,
        headers_of(row.body) if bodies else {},
    ]


async def _incomplete(broker: Broker, queue: QueueState, asked: wire.Browse, after: int) -> _Part:
    """Return messages that lack a fragment; only their sequence is known yet (DLP-11)."""
    rows = await broker.store.incomplete.endpoints(queue.name, asked.limit, EndpointKey(after))
    endpoints = await broker.store.endpoints.by_keys({key for key, _ in rows})
    found: list[_Values] = []
    for key, sequence in rows:
        endpoint = endpoints.get(key)
        if endpoint is not None:
            conversation = [endpoint.handle, endpoint.conversation_id, endpoint.group_id]
            of_dialog = [endpoint.service, endpoint.contract, -1, endpoint.priority]
            rest = [0, 0, bytes(16), "N", None, INCOMPLETE]
            found.append([*conversation, sequence, "", None, *of_dialog, *rest])
    return found, rows[-1][0] if len(rows) == asked.limit else None


async def _retained(broker: Broker, queue: QueueState, asked: wire.Browse, after: int) -> _Part:
    """Return messages retained until their conversations end, and archived messages (RCV-32)."""
    found: list[_Values] = []
    size = 0
    while len(found) < asked.limit and size < PAGE_BYTES:
        count = min(_FEW, asked.limit - len(found))
        rows = await broker.store.retained.browse(queue.queue.key, count, after)
        endpoints = await broker.store.endpoints.by_keys({row.endpoint for row in rows})
        for row in rows:
            endpoint = endpoints.get(row.endpoint)
            is_timer = row.sequence == TIMER
            size += len(row.body or b"")
            after = row.queuing_order
            found.append(
                [
                    row.handle,
                    row.conversation_id,
                    row.group_id if endpoint is None else endpoint.group_id,
                    row.sequence,
                    row.message_type,
                    body_of(row.body) if asked.bodies and not is_timer else None,
                    row.service,
                    row.contract,
                    row.queuing_order,
                    row.priority,
                    row.enqueued_at,
                    0,
                    row.message_id,
                    broker.validation_code(row.message_type),
                    (row.body or b"").decode() or None if is_timer else None,
                    row.status,
                    headers_of(row.body) if asked.bodies else {},
                ]
            )
        if len(rows) < count:
            return found, None
    return found, after


_FEW: Final = 16
"""Number of retained messages read together; small, as their sizes are not known before."""


def _deliveries(broker: Broker, keys: Iterable[EndpointKey]) -> dict[int, int]:
    """Return the number of rollbacks of each message of these endpoints; an absent one had none."""
    counts: dict[int, int] = {}
    for key in keys:
        live = broker.endpoints.get(key)
        if live is None:
            continue
        # Messages given back stand in front; only a message of the broker may come before them.
        back = takewhile(lambda one: one.deliveries or one.sequence < 0, live.ready)
        counts.update((one.order, one.deliveries) for one in back)
        holder = live.group.holder
        if isinstance(holder, Transaction):
            counts.update((one.order, one.deliveries) for one in holder.has_received)
    return counts


_STAGES: Final[tuple[_Stage, ...]] = (_ready, _incomplete, _retained)
