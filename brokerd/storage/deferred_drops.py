"""Deferred drops: unread messages of an ended dialog are noted first and deleted later.

Reads:  nothing.      Calls: the writing connection, in steps that `sweeps.py` submits.
Never:  lets a message be read whose endpoint is noted, or deletes a note before the last of the
        messages.

A dialog may end with ten million unread messages beyond the window of its queue. Deleting them in
the flush that ends it would take ten seconds, and all other commits would wait. So that flush notes
the key of the endpoint, one row however many messages wait, and from then on nobody reads them: no
endpoint key is used twice, and an ended endpoint gets no further message. They are deleted after
that flush, some thousands at a time between other flushes, and the last step deletes the note. The
next start continues with what a crash, or a stop, has left.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final

from brokerd.clock import Clock
from brokerd.ids import EndpointKey
from brokerd.storage import bodies
from brokerd.storage.changes import Owner
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.statements import Script
from brokerd.storage.stretches import BEFORE_ALL, among, first_of, table_at
from brokerd.storage.sweeps import Step

_NOTE: Final = "INSERT OR IGNORE INTO queue_drops (endpoint_key) VALUES (?)"
_FORGET: Final = "DELETE FROM queue_drops WHERE endpoint_key = ?"
_ALL: Final = "SELECT endpoint_key FROM queue_drops ORDER BY endpoint_key"
DROPPED: Final = "SELECT endpoint_key FROM queue_drops"
"""Endpoints all of whose messages count as deleted."""


def note(script: Script, keys: Sequence[EndpointKey]) -> None:
    """Note endpoints: all their waiting messages count as deleted from this flush on."""
    script.add(_NOTE, *[(key,) for key in keys])


def noted(connection: Connection) -> list[EndpointKey]:
    """Return the noted endpoints, the oldest first."""
    return [EndpointKey(row[0]) for row in connection.execute(_ALL)]


@cache
def _first_orders(place: int) -> str:
    return f"SELECT json_group_array(queuing_order) FROM ({first_of(place)})"  # noqa: S608


@cache
def _delete(place: int) -> str:
    listed = "(SELECT value FROM json_each(?))"
    return f"DELETE FROM {table_at(place)} WHERE queuing_order IN {listed}"  # noqa: S608


@cache
def _count(place: int) -> str:
    """Return the statement of `counts`, which counts by index.

    All messages of an endpoint are in one queue and of one level, so the first one tells both.
    """
    table = table_at(place)
    counted = (
        f"SELECT count(*) AS count, min(queuing_order) AS first FROM {table} INDEXED BY {table}_of"  # noqa: S608
        f" WHERE {among(place)} AND endpoint_key IN ({DROPPED}) GROUP BY endpoint_key"
    )
    return (
        f"SELECT queue_key, priority, count FROM ({counted}) JOIN {table} ON queuing_order = first"  # noqa: S608
    )


def counts(connection: Connection, place: int) -> list[tuple[int, int, int]]:
    """Return queue, level and number of the messages of noted endpoints at a place."""
    return connection.execute(_count(place)).fetchall()


class DropSweep:
    """Deletes the messages of one noted endpoint, and then the note."""

    def __init__(self, key: EndpointKey, finished: Callable[[EndpointKey], None]) -> None:
        """`finished`: called when the note is deleted."""
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
            # Where the last step was, nothing should be left before what it has deleted; should
            # there be, the search from the beginning that follows finds it.
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
        """Report that nothing is left."""
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
    """The noted endpoints: nobody reads their messages, though these may still be in the file."""

    def __init__(self, found: Iterable[EndpointKey]) -> None:
        """`found`: endpoints noted at the start."""
        self.keys = frozenset(found)

    def joined(self, keys: Iterable[EndpointKey]) -> None:
        """Add endpoints of a changeset that has joined: nobody reads their messages from now on."""
        self.keys = self.keys.union(keys)

    def sweeps(self, keys: Iterable[EndpointKey]) -> list[DropSweep]:
        """Return what deletes the messages of endpoints whose notes are written."""
        return [DropSweep(key, self._remove) for key in keys]

    def _remove(self, key: EndpointKey) -> None:
        self.keys = self.keys.difference([key])
