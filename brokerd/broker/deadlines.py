"""The next instant at which something of a broker is due: one timer, whatever waits (PER-23).

Reads: the clock.      Calls: whoever looks what is due.
Never: knows what waits, or fires early. It may be told of what is no longer due: whoever looks then
finds nothing and tells it of the next. A hint that is lost costs one tick, which looks as well.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from brokerd.clock import SECOND, Clock, Instant
from brokerd.ids import EndpointKey

LONGEST: Final = 3600.0
"""Seconds after which it looks at the clock again, which may have been set."""
SPACING: Final = 0.05
"""Seconds between two looks at least, so that what is due comes in batches."""


class Deadline:
    """Calls `due` when the earliest instant it was told of has come."""

    __slots__ = ("_clock", "_due", "_handle", "_looked_at", "at")

    def __init__(self, clock: Clock, due: Callable[[], None]) -> None:
        self._clock = clock
        self._due = due
        self._handle: asyncio.TimerHandle | None = None
        self._looked_at = -SPACING
        self.at: Instant | None = None
        """When it calls next; None = it waits for nothing."""

    def at_latest(self, at: Instant) -> None:
        """Something is due then."""
        if self.at is None or at < self.at:
            self.at = at
            self._arm()

    def close(self) -> None:
        """Call no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        assert self.at is not None, "armed for an instant"
        self.close()
        wait = (self.at - self._clock.utc()) / SECOND
        rest = self._looked_at + SPACING - self._clock.monotonic()
        wait = min(max(wait, rest, 0.0), LONGEST)
        self._handle = asyncio.get_running_loop().call_later(wait, self._over)

    def _over(self) -> None:
        self._handle = None
        if self.at is None:
            return
        if self._clock.utc() < self.at:
            self._arm()
            return
        self.at = None
        self._looked_at = self._clock.monotonic()
        self._due()


class PendingTimers:
    """What memory knows of a broker's conversation timers; which there are is in the store."""

    __slots__ = ("_changed", "_durable", "_reading", "any", "any_crowded", "any_held", "deadline")

    def __init__(self, deadline: Deadline, durable_serial: Callable[[], int]) -> None:
        self.deadline = deadline
        self._durable = durable_serial
        self._changed: dict[tuple[EndpointKey, str], int] = {}  # the flush that carries it
        self._reading = False
        self.any = False
        """Whether there may be a timer at all; without, ending a dialog costs nothing more."""
        self.any_held = False
        """Whether some are due and wait for their queue (DLG-41)."""
        self.any_crowded = False
        """Whether some of them wait only until there is room in its window."""

    def joined(self, timers: Iterable[tuple[EndpointKey, str]], serial: int) -> None:
        """These were set, cancelled or fired, and are on their way to the store."""
        self._changed.update(dict.fromkeys(timers, serial))
        if len(self._changed) > _MANY and not self._reading:
            self._forget_durable()

    def published(self, timers: Mapping[tuple[EndpointKey, str], Instant | None]) -> None:
        """They are durable."""
        due = min((at for at in timers.values() if at is not None), default=None)
        if due is not None:
            self.deadline.at_latest(due)

    @contextmanager
    def reading(self) -> Iterator[Callable[[EndpointKey, str], bool]]:
        """Read timers from the store and judge them in here.

        Gives a function that says whether one may have changed since it was read."""
        self._forget_durable()
        self._reading = True
        try:
            yield lambda key, name: (key, name) in self._changed
        finally:
            self._reading = False

    @property
    def is_reading(self) -> bool:
        """Whether somebody reads them: one at a time."""
        return self._reading

    def _forget_durable(self) -> None:
        durable = self._durable()
        self._changed = {key: serial for key, serial in self._changed.items() if serial > durable}


_MANY: Final = 1000
