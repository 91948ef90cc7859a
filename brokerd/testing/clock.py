"""SimClock: the clock of one simulated node, on virtual time.

Reads:  the loop's virtual time.
Never:  reads the machine's clocks.
"""

import asyncio
from datetime import timedelta

from brokerd.clock import SECOND, Instant, later


class SimClock:
    """A `brokerd.clock.Clock` whose UTC can be set wrong and can jump (HK-1, REL-24).

    `utc_start` is the true UTC at virtual time 0, so clocks made at different moments agree;
    `skew` is how far this node is off.
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
        """The machine on which all nodes of a loop run, which is never booted anew."""
        self._time = self.monotonic = loop.time
        self._skew = skew
        self._utc_at_zero = later(utc_start, skew)

    @property
    def skew(self) -> timedelta:
        """How far this node's UTC is ahead of the true one."""
        return self._skew

    def utc(self) -> Instant:
        """UTC as this node believes it to be."""
        return Instant(self._utc_at_zero + round(self._time() * SECOND))

    def elapsed_ns(self) -> int:
        """Virtual time, which is that of a machine that never stops."""
        return round(self._time() * 1_000_000_000)

    def jump(self, delta: timedelta) -> None:
        """Move this node's UTC; monotonic time does not notice."""
        self._skew += delta
        self._utc_at_zero = later(self._utc_at_zero, delta)

    async def sleep_until(self, deadline: float) -> None:
        """Return once `monotonic()` has reached `deadline`; always gives way once."""
        done = self._loop.create_future()
        timer = self._loop.call_at(max(deadline, self._loop.time()), _finish, done)
        try:
            await done
        finally:
            timer.cancel()


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
