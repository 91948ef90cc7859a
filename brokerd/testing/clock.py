"""SimClock: the clock of one simulated node, on virtual time.

Reads:  the loop's virtual time.
Never:  reads the machine's clocks.
"""

import asyncio
from datetime import timedelta

from brokerd.clock import SECOND, Instant, later


class SimClock:
    """A `brokerd.clock.Clock` whose UTC can be set wrong and can jump (HK-1, REL-24).

    `utc_start`: the true UTC at virtual time 0, so that clocks created at different moments agree.
    `skew`: how far this node's UTC is ahead of the true UTC.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        utc_start: Instant,
        skew: timedelta = timedelta(),
    ) -> None:
        self._loop = loop
        self.machine_boot = "virtual"
        """Id of the boot of the one machine that all nodes share; it never reboots."""
        self._time = self.monotonic = loop.time
        self._skew = skew
        self._utc_at_zero = later(utc_start, skew)

    @property
    def skew(self) -> timedelta:
        """How far this node's UTC is ahead of the true UTC."""
        return self._skew

    def utc(self) -> Instant:
        """Return this node's UTC, which is wrong by its skew."""
        return Instant(self._utc_at_zero + round(self._time() * SECOND))

    def elapsed_ns(self) -> int:
        """Return virtual time in nanoseconds; the simulated machine is never suspended."""
        return round(self._time() * 1_000_000_000)

    def jump(self, delta: timedelta) -> None:
        """Move this node's UTC by `delta`; monotonic time is not affected."""
        self._skew += delta
        self._utc_at_zero = later(self._utc_at_zero, delta)

    async def sleep_until(self, deadline: float) -> None:
        """Return once `monotonic()` has reached `deadline`; yield to other tasks at least once."""
        done = self._loop.create_future()
        timer = self._loop.call_at(max(deadline, self._loop.time()), _finish, done)
        try:
            await done
        finally:
            timer.cancel()


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
