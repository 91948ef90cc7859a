"""Clock: monotonic time for waiting, UTC for storing. The only module that reads time (CLK-4).

An `Instant` is UTC in whole microseconds since 1970, also in the store and on the wire. A variable
whose name ends in `_at` holds one. Durations are `timedelta` in settings, float seconds elsewhere.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal, NewType, Protocol, runtime_checkable

import msgspec

Instant = NewType("Instant", int)

SECOND = 1_000_000
"""Microseconds in a second, for arithmetic on `Instant`."""


class Clock(Protocol):
    """The source of time of a component; tests pass one that they advance (HK-1)."""

    def monotonic(self) -> float:
        """Return the seconds since a fixed moment, for waiting; the value never decreases."""
        ...

    def utc(self) -> Instant:
        """Return the current UTC instant, for storing; the value may jump."""
        ...

    async def sleep_until(self, deadline: float) -> None:
        """Return once `monotonic()` has reached `deadline`."""
        ...


@runtime_checkable
class MachineClock(Clock, Protocol):
    """A clock whose readings can be compared with those of a process that ran before."""

    @property
    def machine_boot(self) -> str:
        """Identity of the machine boot since which `elapsed_ns` counts; "" = unknown."""
        ...

    def elapsed_ns(self) -> int:
        """Return the nanoseconds since the machine was booted, including time suspended."""
        ...


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)
    """Seconds of the operating system's monotonic clock; read too often to pay for a wrapper."""

    def utc(self) -> Instant:
        """Return the operating system's UTC."""
        return Instant(time.time_ns() // 1000)

    if hasattr(time, "CLOCK_BOOTTIME"):
        elapsed_ns = staticmethod(partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME))
    else:
        elapsed_ns = staticmethod(time.monotonic_ns)
    """Nanoseconds since the machine was booted; without CLOCK_BOOTTIME, time suspended may be left
    out."""

    @cached_property
    def machine_boot(self) -> str:
        """The boot id of Linux; "" on other systems."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        except OSError:
            return ""

    async def sleep_until(self, deadline: float) -> None:
        """Sleep on the running loop until `monotonic()` has reached `deadline`."""
        await asyncio.sleep(max(0.0, deadline - time.monotonic()))


def elapsed_by(clock: Clock) -> Callable[[], int]:
    """Return a function that reads elapsed nanoseconds, including time suspended, from the clock.

    For a clock that is not a `MachineClock`, it reads `monotonic`.
    """
    if isinstance(clock, MachineClock):
        return clock.elapsed_ns
    return lambda: int(clock.monotonic() * _NANO)


LEAP: Final = timedelta(hours=1)
"""Largest jump of the machine's UTC that the clock follows immediately."""
HOLD: Final = timedelta(minutes=10)
"""Time that a larger jump has to last before the clock follows it."""
_NANO: Final = 1_000_000_000
_COMPARE_EVERY: Final = _NANO // 20
"""Nanoseconds between two comparisons with the machine's UTC."""
_LEAP: Final = LEAP // timedelta(seconds=1) * _NANO
_HOLD: Final = HOLD // timedelta(seconds=1) * _NANO

ClockEvent = Literal["jumped", "returned", "confirmed"]


class Jump(msgspec.Struct, frozen=True):
    """A step of UTC of more than `LEAP`, relative to elapsed time, that is not followed yet."""

    offset: int
    """The machine's UTC minus the time since its boot; nanoseconds."""
    since: int
    """Time at which the step was first noticed; nanoseconds since the machine was booted."""


class ClockState(msgspec.Struct, frozen=True):
    """The part of a clock's state that is kept for the next start."""

    machine_boot: str
    offset: int
    """The clock's UTC minus the time since the machine boot; nanoseconds."""
    utc: Instant
    """The last UTC that the clock returned."""
    jump: Jump | None = None


class SteadyClock:
    """A clock whose UTC follows a jump only once the jump is confirmed (REL-24).

    While a jump is held, UTC continues from its old value with elapsed time, so the jump expires,
    fires or delays nothing. A jump is confirmed once it has lasted for `HOLD`, or by an
    administrator; it is dropped if UTC returns earlier. Steps of up to `LEAP` are followed.
    """

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self.sleep_until = clock.sleep_until
        self._utc = clock.utc
        self._elapsed_ns = elapsed_by(clock)
        self._machine_boot = clock.machine_boot if isinstance(clock, MachineClock) else ""
        self._compare_at = 0
        self._offset: Any = self._utc() * 1000 - self._elapsed_ns()
        self._jump: Jump | None = None
        self._events: list[tuple[ClockEvent, timedelta]] = []

    def utc(self) -> Instant:
        """Return UTC, or what it would be without the jump that is held.

        This runs several times per message. Calling the `NewType` would double its cost, so the
        result is annotated instead."""
        elapsed = self._elapsed_ns()
        if elapsed >= self._compare_at:
            self.compare_with_utc()
        utc: Instant = (self._offset + elapsed) // 1000
        return utc

    def compare_with_utc(self) -> None:
        """Compare the machine's UTC with elapsed time; `utc` does this when it is due."""
        # A larger step is compared with the jump that is held, not only with the UTC followed: a
        # second jump to another place starts its own hold time.
        elapsed = self._elapsed_ns()
        self._compare_at = elapsed + _COMPARE_EVERY
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
        """How far the machine's UTC is ahead of the UTC that this clock returns; None = no jump."""
        self.compare_with_utc()
        return None if self._jump is None else self._ahead(self._jump)

    @property
    def held_for(self) -> float:
        """Seconds for which a jump has been held; 0.0 = no jump is held."""
        return 0.0 if self._jump is None else (self._elapsed_ns() - self._jump.since) / _NANO

    def confirm(self) -> timedelta | None:
        """Follow the machine's UTC from now on; return the size of the step.

        None means that no jump was held, and nothing changed."""
        ahead, jump = self.jump, self._jump
        if jump is not None:
            self._confirmed(jump, jump.offset)
        return ahead

    def events(self) -> list[tuple[ClockEvent, timedelta]]:
        """Return the events since the last call, each with how far the machine's UTC was ahead."""
        self.compare_with_utc()
        found, self._events = self._events, []
        return found

    def state(self) -> ClockState | None:
        """Return the state to keep for the next start.

        None means that the machine boot is unknown, so the next start could not use the state."""
        if not self._machine_boot:
            return None
        self.compare_with_utc()
        return ClockState(self._machine_boot, self._offset, self.utc(), self._jump)

    def resume(self, before: ClockState) -> None:
        """Continue from the state of an earlier process on the same machine.

        Within one boot of the machine the elapsed time is known, so time in which no daemon ran is
        not mistaken for a jump. After another boot, UTC that is ahead of the last value returned is
        attributed to such time; UTC that is more than `LEAP` behind it has jumped."""
        self._compare_at = 0
        if self._machine_boot and before.machine_boot == self._machine_boot:
            self._offset, self._jump = before.offset, before.jump
        elif self._utc() * 1000 < before.utc * 1000 - _LEAP:
            self._follow(before.utc * 1000 - self._elapsed_ns())


def later(at: Instant, wait: timedelta) -> Instant:
    """Return the instant `wait` after `at`."""
    return Instant(at + wait // timedelta(microseconds=1))


def as_datetime(at: Instant) -> datetime:
    """Return the instant as an aware UTC datetime, for display."""
    return datetime.fromtimestamp(at // SECOND, UTC).replace(microsecond=at % SECOND)


def show_instant(at: Instant) -> str:
    """Return the instant as ISO 8601 text with microseconds and a Z."""
    return as_datetime(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def is_instant(name: str) -> bool:
    """Return whether a field of this name is an instant, in microseconds since 1970."""
    return name.endswith(_ENDINGS) or name in _INSTANTS


_ENDINGS: Final = ("_at", "_date", "_time", "_since", "_until", "_timestamp")
_INSTANTS: Final = frozenset(
    {"dialog_timer", "last_start", "lifetime", "next_start_attempt", "now", "since"}
)


def dated(value: Any) -> Any:  # noqa: ANN401  # any JSON value
    """Return a value for JSON with its instants as text: 2026-01-31T09:00:00.250000Z."""
    if isinstance(value, dict):
        return {
            key: show_instant(Instant(one)) if type(one) is int and is_instant(key) else dated(one)
            for key, one in value.items()
        }
    return [dated(one) for one in value] if isinstance(value, list) else value
