"""Recovery: pages every message at a start, and finds the rows that wait (design D4).

Reads:  the waiting messages, the transmission queue, timers, held groups.
Calls:  the writing connection, inside the transaction of the start.
Never:  loads a message into memory: memory is empty at a start, and each window loads the messages
        that it needs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import msgspec
from sqlalchemy import exists, func, literal_column, select, text

from brokerd.ids import EndpointKey, QueueKey
from brokerd.storage import tables
from brokerd.storage.changes import Owner
from brokerd.storage.connections import Connection
from brokerd.storage.rows import bodies, deferred_drops, held_groups
from brokerd.storage.rows.held_groups import RecoveredGroup
from brokerd.storage.shelves import NO_SHELF, PLACES, SHELVES
from brokerd.storage.statements import sql
from brokerd.storage.stretches import found_at, table_at
from brokerd.storage.tables import AHEAD, PAGED


class Recovered(msgspec.Struct, frozen=True):
    """The waiting rows that a start finds: all of them are paged, because memory holds none."""

    waiting: list[tuple[QueueKey, int, int, int]]
    """Queue, priority, number of messages, time when the first one was enqueued; 0 = unknown."""
    outgoing: list[tuple[EndpointKey, int, int, int]]
    """Endpoint, number of messages in the transmission queue, lowest sequence, bytes of bodies."""
    timers_fired: list[tuple[QueueKey, EndpointKey]] = []
    """Queues and endpoints with a DialogTimer message, which comes before all others (RCV-8)."""
    has_timers: bool = False
    has_retained: bool = False
    has_states: bool = False
    shelves: list[tuple[int, QueueKey | None, int, int]] = []
    """The arguments of each `Shelf`."""
    has_others: bool = False
    """Whether any waiting message is on no shelf."""
    held: list[RecoveredGroup] = []
    """Groups whose transactions were rolled back (PBT-3)."""
    dropped: list[EndpointKey] = []
    """Ended endpoints whose messages still have to be deleted; these messages no longer wait."""


def page_all(connection: Connection) -> None:
    """Page every message: memory is empty, so each must be found by index (design D4)."""
    for statement in _page:
        connection.execute(statement, (1, 0))


def read_recovered(connection: Connection) -> Recovered:
    """Return the waiting rows of the file."""
    timers, retained, states = connection.execute(_any).fetchone()
    levels = {place: connection.execute(each).fetchall() for place, each in _by_level.items()}
    waiting: Counter[tuple[QueueKey, int]] = Counter()
    since: dict[tuple[QueueKey, int], int] = {}
    for place, rows in levels.items():
        for queue, level, count, first in rows:
            key = QueueKey(queue), level
            waiting[key] += count
            at = connection.execute(_enqueued_at[place], (first,)).fetchone()[0]
            since[key] = min(since.get(key, at), at)
    # Counting by level includes the messages of dropped endpoints; subtract those, which are found
    # by their own index.
    dropped = deferred_drops.noted(connection)
    if dropped:
        since = _first_of_others(connection, levels)  # the first messages may be dropped ones
        for queue, level, count in chain.from_iterable(
            deferred_drops.counts(connection, one) for one in PLACES
        ):
            waiting[QueueKey(queue), level] -= count
    return Recovered(
        waiting=[(*key, count, since.get(key, 0)) for key, count in waiting.items() if count > 0],
        shelves=[_shelf(place, levels[place]) for place in SHELVES if levels[place]],
        has_others=bool(levels[NO_SHELF]),
        outgoing=[
            (EndpointKey(row[0]), row[1], row[2], row[3] or 0)
            for row in connection.execute(_by_endpoint)
        ],
        timers_fired=[
            (QueueKey(row[0]), EndpointKey(row[1])) for row in connection.execute(_fired)
        ],
        has_timers=bool(timers),
        has_retained=bool(retained),
        has_states=bool(states),
        held=held_groups.recovered(connection),
        dropped=dropped,
    )


def _first_of_others(
    connection: Connection, levels: Mapping[int, Sequence[tuple[QueueKey, int, int, int]]]
) -> dict[tuple[QueueKey, int], int]:
    """Return when the first message that is not of a dropped endpoint was enqueued.

    By queue and level; a level with none is missing."""
    found: dict[tuple[QueueKey, int], int] = {}
    for place, rows in levels.items():
        for queue, level, _, first in rows:
            row = connection.execute(_first_kept[place], (queue, level, first)).fetchone()
            if row is not None:
                key = QueueKey(queue), level
                found[key] = min(found.get(key, row[0]), row[0])
    return found


def _shelf(
    number: int, levels: Sequence[tuple[QueueKey, int, int, int]]
) -> tuple[int, QueueKey | None, int, int]:
    queue, *others = {row[0] for row in levels}
    first, count = min(row[3] for row in levels), sum(row[2] for row in levels)
    return number, None if others else queue, first, count


_waiting, _outgoing = tables.queue_messages.c, tables.transmission_queue.c
_page = [
    sql(table.update().where(table.c.paged == 0).values(paged=1))
    for table in (tables.queue_messages, tables.transmission_queue)
]
_by_level = {
    place: "SELECT queue_key, priority, count(*), min(queuing_order)"  # noqa: S608
    f" FROM {table_at(place)} WHERE {found_at(place)} GROUP BY queue_key, priority"
    for place in PLACES
}
_enqueued_at = {
    place: f"SELECT enqueued_at FROM {table_at(place)} WHERE queuing_order = ?"  # noqa: S608
    for place in PLACES
}
_LOOKED_AT = 10_000
"""Messages of a level that a start looks at to find the first that still waits."""
_first_kept = {
    place: "SELECT enqueued_at FROM (SELECT enqueued_at, endpoint_key, queuing_order"  # noqa: S608
    f" FROM {table_at(place)} WHERE {found_at(place)} AND queue_key = ? AND priority = ?"
    f" AND queuing_order >= ? ORDER BY queuing_order LIMIT {_LOOKED_AT}) AS first_"
    f" WHERE endpoint_key NOT IN ({deferred_drops.DROPPED}) ORDER BY queuing_order LIMIT 1"
    for place in PLACES
}
# The index has exactly these rows; without the hint, SQLite reads the whole table.
_fired = (
    "SELECT DISTINCT queue_key, endpoint_key FROM queue_messages INDEXED BY queue_messages_ahead"  # noqa: S608
    f" WHERE {AHEAD} AND sequence = -2 AND endpoint_key NOT IN ({deferred_drops.DROPPED})"
)
_any = sql(
    select(
        *(
            exists(select(literal_column("1")).select_from(table))
            for table in (tables.conversation_timers, tables.retained_messages, tables.group_states)
        )
    )
)
_by_endpoint = sql(
    select(
        _outgoing.endpoint_key,
        func.count(),
        func.min(_outgoing.sequence),
        func.sum(bodies.size_of(tables.transmission_queue, Owner.OUTGOING)),
    )
    .where(text(PAGED))
    .group_by(_outgoing.endpoint_key)
)
