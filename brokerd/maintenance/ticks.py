"""Ticks: the single table of periodic work (CLK, PER, design D7).

Reads: the clock.      Calls: the passes in its table.
Never: replays a missed tick (PER-2), or runs a pass twice at the same time (CLK-3).
Fails: a pass fails alone; the failure is logged with its name, and the pass runs again (PER-21).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import msgspec

from brokerd.clock import SECOND, Clock, Instant
from brokerd.errors import StoreFault
from brokerd.telemetry.log import Log


class Pass(msgspec.Struct, frozen=True):
    """One piece of periodic work; the order in the table is the order of execution (CLK-3)."""

    name: str
    every: int
    """Number of ticks between two runs: 1, 2 or 5 by default (CLK-1)."""
    run: Callable[[], int | Awaitable[int]]
    """Function that does the bounded and idempotent work; returns the count of items processed, or
    an awaitable of the count.

    Most runs find nothing to do, and return without waiting."""
    apart: bool = False
    """Whether the pass may take long, so that later passes do not wait for it (PER-22)."""


class PassState:
    """The state of a pass: its row in `periodic_tasks` (VIEW-13)."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.running = False
        self.runs = self.skips = self.done = 0
        self.started = 0.0
        """Monotonic time of the last start."""
        self.last_started_at: Instant | None = None
        self.last_seconds = 0.0
        self.last_error = ""

    def ended(self, done: int, now: float) -> None:
        """Record the end of a run and its count."""
        self.done += done
        self.runs += 1
        self.last_error = ""
        self.last_seconds = now - self.started


class Ticker:
    """The timer of all passes: runs each pass at its multiple of one tick (CLK-1, PER-1)."""

    def __init__(
        self,
        *,
        passes: list[Pass],
        clock: Clock,
        seconds: float,
        log: Log,
        spawn: Callable[[Coroutine[object, object, None]], object] = asyncio.ensure_future,
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._log = log
        self._spawn = spawn
        self._next_at = 0.0
        self.states = {one.name: PassState(one.every) for one in passes}
        self._passes = [(one, self.states[one.name]) for one in passes]
        self.ticks = 0
        self.overruns = 0
        """Number of runs skipped because the pass was still running (`tick_overruns`)."""

    async def run(self) -> None:
        """Tick until cancelled. A late tick delays the next ones; missed ticks are not replayed."""
        due = self._clock.monotonic() + self._seconds
        while True:
            self._next_at = due
            await self._clock.sleep_until(due)
            due = max(due + self._seconds, self._clock.monotonic())
            self.ticks += 1
            await self.tick(self.ticks)

    def failing(self) -> dict[str, str]:
        """Return the passes whose latest run failed, with their errors."""
        return {name: one.last_error for name, one in self.states.items() if one.last_error}

    def next_run_of(self, name: str) -> Instant:
        """Return the approximate time of the next run of a pass."""
        every = self.states[name].every
        ticks = every - 1 - self.ticks % every
        wait = self._next_at + ticks * self._seconds - self._clock.monotonic()
        return Instant(self._clock.utc() + round(max(0.0, wait) * SECOND))

    async def tick(self, number: int) -> None:
        """Run the passes due on tick `number`, one after the other (PER-20)."""
        clock = self._clock
        now, utc = clock.monotonic(), clock.utc()
        for one, state in self._passes:
            if number % one.every:
                continue
            if state.running:
                state.skips += 1
                self.overruns += 1
                self._log.warning("broker.tick", subclass="overrun", pass_name=one.name)
                continue
            state.last_started_at, state.started = utc, now
            try:
                done = one.run()
                if isinstance(done, int):
                    later = clock.monotonic()
                    state.ended(done, later)
                else:
                    await self._finish(one, state, done)
                    later = clock.monotonic()
            except Exception as error:  # noqa: BLE001  # per pass
                later = clock.monotonic()
                self._fail(one, state, error)
            if later != now:
                now, utc = later, clock.utc()

    async def _finish(self, one: Pass, state: PassState, rest: Awaitable[int]) -> None:
        """Finish a pass that has to wait; the tick waits for it, unless the pass runs apart."""
        state.running = True
        work = self._wait(one, state, rest)
        if one.apart:
            self._spawn(work)
        else:
            await work

    async def _wait(self, one: Pass, state: PassState, rest: Awaitable[int]) -> None:
        try:
            done = await rest
            state.ended(done, self._clock.monotonic())
        except Exception as error:  # noqa: BLE001  # per pass
            self._fail(one, state, error)
        finally:
            state.running = False

    def _fail(self, one: Pass, state: PassState, error: Exception) -> None:
        state.runs += 1
        state.last_seconds = self._clock.monotonic() - state.started
        if isinstance(error, StoreFault):  # logged by the store; the instance stops (REL-5)
            state.last_error = error.message
            return
        state.last_error = f"{type(error).__name__}: {error}"
        self._log.error("broker.tick", subclass="pass_failed", pass_name=one.name, exc_info=error)
