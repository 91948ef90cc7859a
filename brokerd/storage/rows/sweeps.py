"""Sweeps: very many rows are deleted some at a time, between flushes (REL-35, REL-36).

Reads:  the duration of the last step.      Calls: the writer, through the function it is given.
Never:  has two steps under way. After a step that took too long, the next one deletes half as many
        rows.
Wakes:  when rows are left to delete, after each step, and at each tick.
Fails:  a step that found no room is repeated at the next tick.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from brokerd.clock import Clock
from brokerd.storage.connections import Connection
from brokerd.storage.shelves import NO_SHELF
from brokerd.storage.writers import Job, Reported

FIRST: Final = 256
"""Number of messages that the first step deletes; its time shows how long larger steps take."""
LEAST: Final = 16
_LONG: Final = 0.005
"""Seconds above which a step took too long: the next step deletes half as many rows."""
_SHORT: Final = 0.002


class Step(NamedTuple):
    """The result of a step of a sweep."""

    place: int
    """The place where the step has deleted; 0 = no row was left, and the note is deleted."""
    last: int
    """The highest queuing order that the step has deleted at this place."""
    messages: int
    seconds: float


class Sweep(Protocol):
    """Rows that are deleted some at a time."""

    place: int
    last: int
    """`place` and `last` of the last step's result."""

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

    def finish(self) -> None:
        """Finish the sweep after a step has found no more rows; the sweep is not used again."""
        ...


class Sweeper:
    """The sweeps that are due, one after the other."""

    def __init__(
        self,
        *,
        most: int,
        clock: Clock,
        taken: Callable[[], Sequence[int]],
        some_bodies: Callable[[], bool],
        submit: Callable[[Job[Step], Reported[Step]], None],
        swept: Callable[[int], None],
    ) -> None:
        """Create the sweeper.

        `most`: most rows that a step deletes. `taken`: returns the shelves that may have messages.
        `some_bodies`: returns whether any body may be in pieces. `submit`: passes a step to the
        writer, unless the store is closed. `swept`: called with the number of rows that a step has
        deleted.
        """
        self._most = most = max(1, most)
        self._clock = clock
        self._taken = taken
        self._some_bodies = some_bodies
        self._submit = submit
        self._swept = swept
        self._limit = min(FIRST, most)
        self._due: deque[Sweep] = deque()
        self._is_sweeping = False

    @property
    def is_under_way(self) -> bool:
        """Whether rows are still to be deleted."""
        return bool(self._due)

    def add(self, sweeps: Iterable[Sweep]) -> None:
        """Run these sweeps as well, after the sweeps already due."""
        self._due += sweeps
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
            sweep.finish()
        elif step.seconds > _LONG:
            self._limit = max(min(LEAST, self._most), self._limit // 2)
        elif step.seconds < _SHORT:
            self._limit = min(self._most, 2 * self._limit)
        self._swept(step.messages)
        self.resume()
