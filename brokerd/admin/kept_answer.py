"""Kept answer: an answer that is dear to make, used again by all who ask while it is fresh.

Reads:  the clock.      Calls: the function that makes the answer, in a task of its own.
Never:  makes two at a time, or ends one because somebody who waits for it has left.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from brokerd.clock import Clock

T = TypeVar("T")


class KeptAnswer(Generic[T]):
    """The last answer, and the one that is being made."""

    def __init__(self, make: Callable[[], Awaitable[tuple[T, float]]], *, clock: Clock) -> None:
        """Keep no answer yet. `make`: returns an answer, and the seconds for which it is fresh."""
        self._make = make
        self._clock = clock
        self._last: T | None = None
        self._fresh_until = 0.0
        self._running: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the last answer while it is fresh, else a new one."""
        if self._last is not None and self._clock.monotonic() < self._fresh_until:
            return self._last
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())
        # One who stops looking must not end the answer of the others.
        return await asyncio.shield(self._running)

    def expire(self) -> None:
        """Make a new answer for the next who asks, because somebody has changed something."""
        self._fresh_until = 0.0

    async def _run(self) -> T:
        try:
            found, seconds = await self._make()
            self._last, self._fresh_until = found, self._clock.monotonic() + seconds
            return found
        finally:
            self._running = None
