"""The one table of periodic work (CLK, PER, design D7).

Reads: the clock.      Calls: the passes it is given.
Never: replays a tick that was late (PER-2), or runs a pass twice at once (CLK-3).
Fails: a pass fails alone; it is logged with its name and comes again (PER-21).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol

import msgspec

from brokerd.clock import SECOND, Clock, Instant
from brokerd.errors import StoreFault


class Log(Protocol):
    """Where events go."""

    def error(self, event: str, **fields: object) -> object:
        """Something failed."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Something is wrong."""
        ...


class Pass(msgspec.Struct, frozen=True):
    """One piece of periodic work; the order in the table is the order of execution (CLK-3)."""

    name: str
    every: int
    """In ticks: 1, 2 or 5 by default (CLK-1)."""
    run: Callable[[], int | Awaitable[int]]
    """Bounded and idempotent; returns how much it did."""
    apart: bool = False
    """It may take long: it runs beside the others, which do not wait for it (PER-22)."""


class PassState:
    """What `periodic_tasks` shows of a pass (VIEW-13)."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.running = False
        self.runs = self.skips = self.done = 0
        self.last_started_at: Instant | None = None
        self.last_seconds = 0.0
        self.last_error = ""


class Ticker:
    """Notifies every pass at its multiple of one timer (CLK-1, PER-1)."""

    def __init__(
        self,
        *,
        passes: list[Pass],
        clock: Clock,
        seconds: float,
        log: Log,
        spawn: Callable[[Coroutine[object, object, None]], object] = asyncio.ensure_future,
    ) -> None:
        self._passes = passes
        self._clock = clock
        self._seconds = seconds
        self._log = log
        self._spawn = spawn
        self._next_at = 0.0
        self.states = {one.name: PassState(one.every) for one in passes}
        self.ticks = 0
        self.overruns = 0
        """Passes skipped because they still ran (`tick_overruns`)."""

    async def run(self) -> None:
        """Tick until cancelled. A late tick moves the following ones; none is made up for."""
        due = self._clock.monotonic() + self._seconds
        while True:
            self._next_at = due
            await self._clock.sleep_until(due)
            due = max(due + self._seconds, self._clock.monotonic())
            self.ticks += 1
            await self.tick(self.ticks)

    def next_run_of(self, name: str) -> Instant:
        """About when a pass runs next."""
        every = self.states[name].every
        ticks = every - 1 - self.ticks % every
        wait = self._next_at + ticks * self._seconds - self._clock.monotonic()
        return Instant(self._clock.utc() + round(max(0.0, wait) * SECOND))

    async def tick(self, number: int) -> None:
        """Run the passes due on this notification, each after the one before (PER-20)."""
        for one in self._passes:
            if number % one.every:
                continue
            state = self.states[one.name]
            if state.running:
                state.skips += 1
                self.overruns += 1
                self._log.warning("broker.tick", subclass="overrun", pass_name=one.name)
                continue
            state.running = True
            if one.apart:
                self._spawn(self._run(one, state))
            else:
                await self._run(one, state)

    async def _run(self, one: Pass, state: PassState) -> None:
        state.last_started_at = self._clock.utc()
        started = self._clock.monotonic()
        try:
            done = one.run()
            if not isinstance(done, int):
                done = await done
            state.done += done
            state.last_error = ""
        except StoreFault as fault:  # the store has said so, and the instance stops (REL-5)
            state.last_error = fault.message
        except Exception as error:  # noqa: BLE001  # one of the four homes: per pass
            state.last_error = f"{type(error).__name__}: {error}"
            self._log.error(
                "broker.tick", subclass="pass_failed", pass_name=one.name, exc_info=error
            )
        finally:
            state.runs += 1
            state.running = False
            state.last_seconds = self._clock.monotonic() - started
