"""Drops: a dialog that ends with very many unread messages is noted; these are deleted later.

Reads:  nothing.      Calls: the writing connection, in steps that `sweeps.py` submits.
Never:  lets a message be read whose endpoint is noted, or deletes a note before the last message
        of its endpoint.

A dialog may end with ten million unread messages beyond the window of its queue. Deleting them in
the flush that ends it would take ten seconds, and all other commits would wait. So that flush notes
the key of the endpoint (one row, however many messages wait), and from then on no reader returns
these messages: no endpoint key is used twice, and an ended endpoint gets no further message. The
messages are deleted after that flush, some thousands at a time between other flushes, and the last
step deletes the note. After a crash or a stop, the next start continues the deletion.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final

from brokerd.clock import Clock
from brokerd.ids import EndpointKey
from brokerd.storage.changes import Owner
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.rows import bodies
from brokerd.storage.rows.sweeps import Step
from brokerd.storage.statements import Script
from brokerd.storage.stretches import BEFORE_ALL, among, first_of, table_at

_NOTE: Final = "INSERT INTO queue_drops (endpoint_key) VALUES (?) ON CONFLICT DO NOTHING"
_FORGET: Final = "DELETE FROM queue_drops WHERE endpoint_key = ?"
_ALL: Final = "SELECT endpoint_key FROM queue_drops ORDER BY endpoint_key"
DROPPED: Final = "SELECT endpoint_key FROM queue_drops"
"""Endpoints all of whose messages count as deleted."""


def note(script: Script, keys: Sequence[EndpointKey]) -> None:
    """Note endpoints: from this flush on, all their waiting messages count as deleted."""
    script.add(_NOTE, *[(key,) for key in keys])


def noted(connection: Connection) -> list[EndpointKey]:
    """Return the noted endpoints, the oldest first."""
    return [EndpointKey(row[0]) for row in connection.execute(_ALL)]


@cache
def _first_orders(place: int) -> str:
    return f"SELECT json_group_array(queuing_order) FROM ({first_of(place)}) AS first_"  # noqa: S608


@cache
def _delete(place: int) -> str:
    listed = "(SELECT value FROM json_each(?))"
    return f"DELETE FROM {table_at(place)} WHERE queuing_order IN {listed}"  # noqa: S608


@cache
def _count(place: int) -> str:
    """Return the statement of `counts`, which counts by index.

    All messages of an endpoint are in one queue and of one level, so the first message gives both.
    """
    table = table_at(place)
    counted = (
        f"SELECT count(*) AS count, min(queuing_order) AS first FROM {table} INDEXED BY {table}_of"  # noqa: S608
        f" WHERE {among(place)} AND endpoint_key IN ({DROPPED}) GROUP BY endpoint_key"
    )
    return (
        f"SELECT queue_key, priority, count FROM ({counted}) AS counted"  # noqa: S608
        f" JOIN {table} ON queuing_order = first"
    )


def counts(connection: Connection, place: int) -> list[tuple[int, int, int]]:
    """Return queue, level and number of messages for each noted endpoint at a place."""
    return connection.execute(_count(place)).fetchall()


class DropSweep:
    """A sweep that deletes the messages of one noted endpoint, and then the note."""

    def __init__(self, key: EndpointKey, finished: Callable[[EndpointKey], None]) -> None:
        """Create the sweep.

        `finished`: called when the note is deleted.
        """
        self.key = key
        self._finished = finished
        self.place = 0
        self.last = -1

    def step(
        self,
        connection: Connection,
        *,
        places: Sequence[int],
        limit: int,
        some_bodies: bool,
        clock: Clock,
    ) -> Step:
        """Delete the first `limit` messages, in a transaction of its own."""
        began = clock.monotonic()
        with transaction(connection):
            # At the place of the last step, no message should be left before the deleted ones; if
            # there is one, the search from the beginning that follows finds it.
            last_step = [(self.place, self.last)] if self.place in places else []
            for place, last in (*last_step, *((place, -1) for place in places)):
                found = self._find(connection, place, last, limit)
                if found:
                    self._delete(connection, place, found, some_bodies=some_bodies)
                    break
            else:
                connection.execute(_FORGET, (self.key,))
                place, found = 0, []
        return Step(place, max(found, default=-1), len(found), clock.monotonic() - began)

    def _find(self, connection: Connection, place: int, last: int, limit: int) -> list[int]:
        order, sequence = BEFORE_ALL
        values = {
            "key": self.key,
            "after_order": order,
            "after_sequence": sequence,
            "least": last,
            "limit": limit,
        }
        found: list[int] = json.loads(
            connection.execute(_first_orders(place), values).fetchone()[0]
        )
        return found

    def finish(self) -> None:
        """Report that all messages of the endpoint, and its note, are deleted."""
        self._finished(self.key)

    @staticmethod
    def _delete(
        connection: Connection, place: int, orders: list[int], *, some_bodies: bool
    ) -> None:
        script = Script()
        if some_bodies:
            bodies.leave(script, Owner.WAITING, orders)
        script.add(_delete(place), (json.dumps(orders),))
        script.run(connection)


class Drops:
    """The noted endpoints: no reader returns their messages, which may still be in the file."""

    def __init__(self, found: Iterable[EndpointKey]) -> None:
        """Create the set of noted endpoints.

        `found`: endpoints that the start found noted.
        """
        self.keys = frozenset(found)

    def joined(self, keys: Iterable[EndpointKey]) -> None:
        """Add endpoints of a changeset that has joined: readers skip their messages from now on."""
        self.keys = self.keys.union(keys)

    def sweeps(self, keys: Iterable[EndpointKey]) -> list[DropSweep]:
        """Return the sweeps that delete the messages of endpoints whose notes are written."""
        return [DropSweep(key, self._remove) for key in keys]

    def _remove(self, key: EndpointKey) -> None:
        self.keys = self.keys.difference([key])
