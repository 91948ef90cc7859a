"""Queues: the rows of messages that wait for local services are written, deleted, replaced.

Reads:  nothing.      Calls: the script of a flush, or the connection it is given.
Never:  decides which messages may be received; the broker does.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from brokerd.ids import EndpointKey
from brokerd.protocol.headers import flags_of
from brokerd.storage.changes import Owner, QueueRow
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.rows import bodies
from brokerd.storage.shelves import NO_SHELF
from brokerd.storage.statements import Deletes, Inserts, Script
from brokerd.storage.stretches import (
    among,
    table_at,
)
from brokerd.storage.tables import messages_at


class Skip(NamedTuple):
    """Messages that count as deleted."""

    noted: Callable[[int], Set[int]]
    """Function that returns the queuing orders of the messages at a place that count as deleted."""
    ended: Callable[[], Set[EndpointKey]]
    """Function that returns the endpoints all of whose messages count as deleted."""


_inserts = {place: Inserts(table) for place, table in messages_at.items()}
_deletes_of = {
    place: Deletes(table.c.endpoint_key, also=f" AND {among(place)}")
    for place, table in messages_at.items()
}


def remove_of(script: Script, keys: Sequence[EndpointKey], taken: Sequence[int]) -> None:
    """Delete the messages of endpoints by index; `taken`: shelves that may have messages."""
    if keys:
        for place in (NO_SHELF, *taken):
            _deletes_of[place].add(script, keys)


def write(script: Script, enqueued: Sequence[QueueRow]) -> None:
    """Add to a flush's script the new messages, each at its place."""
    for place, rows in by_place(enqueued).items():
        _inserts[place or NO_SHELF].add(script, rows)


def by_place(enqueued: Sequence[QueueRow]) -> Mapping[int, Sequence[QueueRow]]:
    """Group messages by the number of their place and keep their order; 0 = within a window."""
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
    """Return the shelves, among those with these numbers, that have no row."""
    looks = [(number, f"SELECT 1 FROM {table_at(number)} LIMIT 1") for number in numbers]  # noqa: S608
    return [number for number, look in looks if connection.execute(look).fetchone() is None]


def replace_body(
    connection: Connection, order: int, body: bytes | None, stored: bytes | None
) -> None:
    """Replace the content and the hash of a message, in a transaction of its own (PBT-3)."""
    script = Script()
    for table in messages_at.values():
        script.add(
            f"UPDATE {table.name} SET flags = ?, body_hash = ?, body = ?"  # noqa: S608
            " WHERE queuing_order = ?",
            (flags_of(body), stored, body, order),
        )
    bodies.leave(script, Owner.WAITING, [order])
    with transaction(connection):
        script.run(connection)
