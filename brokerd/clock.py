"""Clock: monotonic time for waiting, UTC for storing. The only module that reads time (CLK-4).

`Instant` is UTC in whole microseconds since 1970: what the store keeps and the wire carries.
Names ending in `_at` hold one. Durations are `timedelta` in settings, seconds as float inside.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import NewType, Protocol

Instant = NewType("Instant", int)

SECOND = 1_000_000
"""Microseconds in a second, for arithmetic on `Instant`."""


class Clock(Protocol):
    """Where a part gets its time; tests hand in one that they move (HK-1)."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back. For waiting."""
        ...

    def utc(self) -> Instant:
        """The present UTC instant. For storing; it may jump."""
        ...

    async def sleep_until(self, deadline: float) -> None:
        """Return once `monotonic()` has reached `deadline`."""
        ...


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)
    """Seconds of the operating system's monotonic clock; asked too often for a call of its own."""

    def utc(self) -> Instant:
        """The operating system's UTC."""
        return Instant(time.time_ns() // 1000)

    async def sleep_until(self, deadline: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(max(0.0, deadline - time.monotonic()))


def later(at: Instant, wait: timedelta) -> Instant:
    """The instant `wait` after `at`."""
    return Instant(at + wait // timedelta(microseconds=1))


def as_datetime(at: Instant) -> datetime:
    """The instant as an aware UTC datetime, for people."""
    return datetime.fromtimestamp(at // SECOND, UTC).replace(microsecond=at % SECOND)


def show_instant(at: Instant) -> str:
    """ISO 8601 text with microseconds and a Z."""
    return as_datetime(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
