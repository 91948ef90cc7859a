"""Deadlines of a broker: one timer for the earliest of all the instants it was given (PER-23).

Reads: the clock.      Calls: the function that checks what is due.
Never: knows what is due, or fires early. It may be given an instant that no longer matters: the
check then finds nothing, and sets the next instant. If it was not given an instant, the check is
at most one tick late, because each tick checks as well.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from brokerd.clock import SECOND, Clock, Instant
from brokerd.ids import EndpointKey

LONGEST: Final = 3600.0
"""Seconds after which the clock is read again, because it may have been set."""
SPACING: Final = 0.05
"""The least number of seconds between two checks, so that due items come in batches."""


class Deadline:
    """A timer that calls `due` at the earliest of the instants it was given."""

    __slots__ = ("_clock", "_due", "_handle", "_looked_at", "at")

    def __init__(self, clock: Clock, due: Callable[[], None]) -> None:
        self._clock = clock
        self._due = due
        self._handle: asyncio.TimerHandle | None = None
        self._looked_at = -SPACING
        self.at: Instant | None = None
        """The instant of the next call of `due`; None = no call is scheduled."""

    def at_latest(self, at: Instant) -> None:
        """Make sure that `due` is called at this instant at the latest."""
        if self.at is None or at < self.at:
            self.at = at
            self._arm()

    def close(self) -> None:
        """Stop the timer."""
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
    """The facts in memory about a broker's conversation timers; the timers are in the store."""

    __slots__ = ("_changed", "_durable", "_reading", "any", "any_crowded", "any_held", "deadline")

    def __init__(self, deadline: Deadline, durable_serial: Callable[[], int]) -> None:
        self.deadline = deadline
        self._durable = durable_serial
        self._changed: dict[tuple[EndpointKey, str], int] = {}  # the flush that carries it
        self._reading = False
        self.any = False
        """Whether any timer may exist; if not, ending a dialog need not delete timers."""
        self.any_held = False
        """Whether some timers are due and wait for their queue (DLG-41)."""
        self.any_crowded = False
        """Whether some held timers wait only until their queue's window has room."""

    def joined(self, timers: Iterable[tuple[EndpointKey, str]], serial: int) -> None:
        """Note timers that were set, cancelled or fired, and are being written to the store."""
        self._changed.update(dict.fromkeys(timers, serial))
        if len(self._changed) > _MANY and not self._reading:
            self._forget_durable()

    def published(self, timers: Mapping[tuple[EndpointKey, str], Instant | None]) -> None:
        """Note timers whose changes have become durable."""
        due = min((at for at in timers.values() if at is not None), default=None)
        if due is not None:
            self.deadline.at_latest(due)

    @contextmanager
    def reading(self) -> Iterator[Callable[[EndpointKey, str], bool]]:
        """Bracket a read of timers from the store and the decisions about them.

        Yields a function that returns whether a timer may have changed since it was read."""
        self._forget_durable()
        self._reading = True
        try:
            yield lambda key, name: (key, name) in self._changed
        finally:
            self._reading = False

    @property
    def is_reading(self) -> bool:
        """Whether a read of timers is under way; only one may be at a time."""
        return self._reading

    def _forget_durable(self) -> None:
        durable = self._durable()
        self._changed = {key: serial for key, serial in self._changed.items() if serial > durable}


_MANY: Final = 1000
