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
        self._expiries = 0
        """How often the answer has expired."""
        self._expiries_before = 0
        """How often it had when the running task began."""

    async def get(self) -> T:
        """Return the last answer while it is fresh, else a new one.

        It was begun after the last call of `expire` before this one."""
        asked = self._expiries
        while self._running is not None and self._expiries_before < asked:
            await asyncio.wait({self._running})  # its error is for those who have asked for it
        if self._last is not None and self._clock.monotonic() < self._fresh_until:
            return self._last
        if self._running is None:
            self._expiries_before = self._expiries
            self._running = asyncio.get_running_loop().create_task(self._run())
        # One who stops looking must not end the answer of the others.
        return await asyncio.shield(self._running)

    def expire(self) -> None:
        """Make a new answer for the next who asks, because somebody has changed something.

        An answer that is being made may have been read before the change, so it counts no more."""
        self._expiries += 1
        self._fresh_until = 0.0

    async def _run(self) -> T:
        try:
            found, seconds = await self._make()
            if self._expiries_before == self._expiries:
                self._last, self._fresh_until = found, self._clock.monotonic() + seconds
            return found
        finally:
            self._running = None
