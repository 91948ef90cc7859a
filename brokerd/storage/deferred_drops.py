"""Drops: a dialog that ends with very many unread messages is noted; they are deleted later.

Reads:  nothing.      Calls: the writer, through the functions it is given.
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
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final, NamedTuple, Protocol

from brokerd.clock import Clock
from brokerd.ids import EndpointKey
from brokerd.storage import bodies
from brokerd.storage.changes import Owner
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.shelves import NO_SHELF
from brokerd.storage.statements import Script
from brokerd.storage.stretches import BEFORE_ALL, among, first_of, table_at
from brokerd.storage.writers import Job, Reported

FIRST: Final = 256
"""Messages that the first step deletes: its time shows how long large ones take."""
LEAST: Final = 16
_LONG: Final = 0.005
"""Seconds above which a step was long: the next one deletes half as many."""
_SHORT: Final = 0.002

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


class Step(NamedTuple):
    """The result of a step of a sweep."""

    place: int
    """The place where it has deleted; 0 = nothing was left, and the note is deleted."""
    last: int
    """The highest queuing order that it has deleted there."""
    messages: int
    seconds: float


class Sweep(Protocol):
    """Rows that are deleted some at a time."""

    place: int
    last: int
    """The place and order of the last step, as in its result."""

    def step(
        self,
        connection: Connection,
        *,
        places: Sequence[int],
        limit: int,
        some_bodies: bool,
        clock: Clock,
    ) -> Step:
        """Delete the next `limit` rows, in a transaction of its own."""
        ...


class _Sweep:
    """The progress of deleting the messages of one endpoint."""

    def __init__(self, key: EndpointKey) -> None:
        self.key = key
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
    """The noted endpoints, and the progress of the sweeps."""

    def __init__(
        self,
        *,
        most: int,
        found: Sequence[EndpointKey],
        clock: Clock,
        taken: Callable[[], Sequence[int]],
        some_bodies: Callable[[], bool],
        submit: Callable[[Job[Step], Reported[Step]], None],
        swept: Callable[[int], None],
    ) -> None:
        """`most`: messages that a step of the sweep deletes. `found`: endpoints noted at the start.
        `taken`: shelves that may have messages. `submit`: passes a step to the writer, unless the
        store is closed. `swept`: called with the number of messages that a step has deleted."""
        self._most = most = max(1, most)
        self._clock = clock
        self._taken = taken
        self._some_bodies = some_bodies
        self._submit = submit
        self._swept = swept
        self._limit = min(FIRST, most)
        self._due: deque[Sweep] = deque(_Sweep(key) for key in found)
        self._is_sweeping = False
        self.keys = frozenset(found)
        """Endpoints whose messages count as deleted, and may still be in the file."""

    @property
    def is_under_way(self) -> bool:
        """Whether rows are still to be deleted."""
        return bool(self._due)

    def joined(self, keys: Iterable[EndpointKey]) -> None:
        """Add endpoints of a changeset that has joined: nobody reads their messages from now on."""
        self.keys = self.keys.union(keys)

    def durable(self, keys: Iterable[EndpointKey]) -> None:
        """Begin to delete the messages of endpoints whose notes are written."""
        self.sweep([_Sweep(key) for key in keys])

    def sweep(self, more: Iterable[Sweep]) -> None:
        """Delete these rows as well, after those already due."""
        self._due += more
        self.resume()

    def resume(self) -> None:
        """Submit the next step, unless one is under way.

        This is also called at each tick: a step that found no room is repeated then.
        """
        if not self._due or self._is_sweeping:
            return
        self._is_sweeping = True
        sweep, places, limit = self._due[0], (NO_SHELF, *self._taken()), self._limit
        some_bodies, clock = self._some_bodies(), self._clock

        def step(connection: Connection) -> Step:
            return sweep.step(
                connection, places=places, limit=limit, some_bodies=some_bodies, clock=clock
            )

        self._submit(step, self._stepped)

    def _stepped(self, step: Step | None, error: BaseException | None) -> None:
        self._is_sweeping = False
        if step is None:
            return  # the store is closed, or there was no room
        sweep = self._due[0]
        sweep.place, sweep.last = step.place, step.last
        if not step.place:
            self._due.popleft()
            if isinstance(sweep, _Sweep):
                self.keys = self.keys.difference([sweep.key])
        elif step.seconds > _LONG:
            self._limit = max(min(LEAST, self._most), self._limit // 2)
        elif step.seconds < _SHORT:
            self._limit = min(self._most, 2 * self._limit)
        self._swept(step.messages)
        self.resume()
