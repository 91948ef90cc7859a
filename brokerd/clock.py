"""Clock: monotonic time for waiting, UTC for storing. The only module that reads time (CLK-4).

`Instant` is UTC in whole microseconds since 1970: what the store keeps and the wire carries.
Names ending in `_at` hold one. Durations are `timedelta` in settings, seconds as float inside.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal, NewType, Protocol, runtime_checkable

import msgspec

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


@runtime_checkable
class MachineClock(Clock, Protocol):
    """A clock that outlives this process: what it said before a start can be held against it."""

    @property
    def machine_boot(self) -> str:
        """Names the boot of the machine since which `elapsed_ns` counts; "" = unknown."""
        ...

    def elapsed_ns(self) -> int:
        """Nanoseconds since the machine was booted, with those in which it was suspended."""
        ...


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)
    """Seconds of the operating system's monotonic clock; asked too often for a call of its own."""

    def utc(self) -> Instant:
        """The operating system's UTC."""
        return Instant(time.time_ns() // 1000)

    if hasattr(time, "CLOCK_BOOTTIME"):
        elapsed_ns = staticmethod(partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME))
    else:
        elapsed_ns = staticmethod(time.monotonic_ns)
    """Nanoseconds since the machine was booted; where the system has no such clock it may leave out
    those in which the machine was suspended."""

    @cached_property
    def machine_boot(self) -> str:
        """As Linux names it; elsewhere unknown."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        except OSError:
            return ""

    async def sleep_until(self, deadline: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(max(0.0, deadline - time.monotonic()))


LEAP: Final = timedelta(hours=1)
"""The most by which UTC may move against the time that passes and be followed at once."""
HOLD: Final = timedelta(minutes=10)
"""How long a UTC that has moved further has to stay so until it is followed."""
_NANO: Final = 1_000_000_000
_LOOK_EVERY: Final = _NANO // 20
"""Between two looks at the machine's UTC."""
_LEAP: Final = LEAP // timedelta(seconds=1) * _NANO
_HOLD: Final = HOLD // timedelta(seconds=1) * _NANO

ClockEvent = Literal["jumped", "returned", "confirmed"]


class Jump(msgspec.Struct, frozen=True):
    """UTC has moved by more than `LEAP` against the time that passes, and is not followed yet."""

    offset: int
    """UTC as the machine has it, less the time that has passed; nanoseconds."""
    since: int
    """When it was seen first; nanoseconds since the machine was booted."""


class ClockState(msgspec.Struct, frozen=True):
    """What is kept of a clock for the next start."""

    machine_boot: str
    offset: int
    """UTC as it is followed, less the time that has passed since that boot; nanoseconds."""
    utc: Instant
    """The UTC that it gave last."""
    jump: Jump | None = None


class SteadyClock:
    """A clock whose UTC does not follow a jump before it is confirmed (REL-24).

    While a jump is held, UTC goes on from where it was, by the time that passes: so nothing
    expires, fires or is put off by it. The jump is confirmed when it has stood for `HOLD`, or by
    an administrator; it is over when UTC comes back before. Steps of up to `LEAP` are followed.
    """

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self.sleep_until = clock.sleep_until
        self._utc = clock.utc
        if isinstance(clock, MachineClock):
            self._elapsed_ns, self._machine_boot = clock.elapsed_ns, clock.machine_boot
        else:
            self._elapsed_ns = lambda: int(clock.monotonic() * _NANO)
            self._machine_boot = ""
        self._look_at = 0
        self._offset: Any = self._utc() * 1000 - self._elapsed_ns()
        self._jump: Jump | None = None
        self._events: list[tuple[ClockEvent, timedelta]] = []

    def utc(self) -> Instant:
        """UTC, or what it would be without the jump that is held.

        It is asked for several times a message, and a `NewType` is called as a function of
        Python's: that would take as long as all the rest."""
        elapsed = self._elapsed_ns()
        if elapsed >= self._look_at:
            self.look()
        utc: Instant = (self._offset + elapsed) // 1000
        return utc

    def look(self) -> None:
        """Hold the machine's UTC against the time that has passed; `utc` does so by itself."""
        elapsed = self._elapsed_ns()
        self._look_at = elapsed + _LOOK_EVERY
        offset = self._utc() * 1000 - elapsed
        jump = self._jump
        if abs(offset - self._offset) <= _LEAP:
            if jump is not None:
                self._events.append(("returned", self._ahead(jump)))
            self._follow(offset)
        elif jump is None or abs(offset - jump.offset) > _LEAP:
            self._jump = Jump(offset, elapsed)
            self._events.append(("jumped", self._ahead(self._jump)))
        elif elapsed - jump.since >= _HOLD:
            self._confirmed(jump, offset)

    def _follow(self, offset: int) -> None:
        self._offset = offset
        self._jump = None

    def _confirmed(self, jump: Jump, offset: int) -> None:
        self._events.append(("confirmed", self._ahead(jump)))
        self._follow(offset)

    def _ahead(self, jump: Jump) -> timedelta:
        return timedelta(microseconds=(jump.offset - self._offset) // 1000)

    @property
    def jump(self) -> timedelta | None:
        """How far the machine's UTC is ahead of the one that is given; None = it is not held."""
        self.look()
        return None if self._jump is None else self._ahead(self._jump)

    @property
    def held_for(self) -> float:
        """Seconds for which a jump has been held; 0.0 = none is."""
        return 0.0 if self._jump is None else (self._elapsed_ns() - self._jump.since) / _NANO

    def confirm(self) -> timedelta | None:
        """Follow the machine's UTC from now on; by how much it leaps, None = no jump is held."""
        ahead, jump = self.jump, self._jump
        if jump is not None:
            self._confirmed(jump, jump.offset)
        return ahead

    def events(self) -> list[tuple[ClockEvent, timedelta]]:
        """What has happened since this was asked last, with how far UTC was ahead."""
        self.look()
        found, self._events = self._events, []
        return found

    def state(self) -> ClockState | None:
        """What the next start is to know; None = it could not make use of it."""
        if not self._machine_boot:
            return None
        self.look()
        return ClockState(self._machine_boot, self._offset, self.utc(), self._jump)

    def resume(self, before: ClockState) -> None:
        """Go on as a process before this one did, on the same machine.

        Within one boot of the machine the time since then is known, so that a jump is told from
        the time in which no daemon ran. Else UTC that is ahead is taken for such time; UTC that is
        behind what was given before has jumped."""
        self._look_at = 0
        if self._machine_boot and before.machine_boot == self._machine_boot:
            self._offset, self._jump = before.offset, before.jump
        elif self._utc() * 1000 < before.utc * 1000 - _LEAP:
            self._follow(before.utc * 1000 - self._elapsed_ns())


def later(at: Instant, wait: timedelta) -> Instant:
    """The instant `wait` after `at`."""
    return Instant(at + wait // timedelta(microseconds=1))


def as_datetime(at: Instant) -> datetime:
    """The instant as an aware UTC datetime, for people."""
    return datetime.fromtimestamp(at // SECOND, UTC).replace(microsecond=at % SECOND)


def show_instant(at: Instant) -> str:
    """ISO 8601 text with microseconds and a Z."""
    return as_datetime(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
