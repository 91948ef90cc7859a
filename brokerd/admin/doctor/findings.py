"""Findings of the doctor: levels, sorts, the choice to show, exit status (MON-21). PURE.

Reads:  nothing.      Calls: nothing.      Never: queries an instance; `cli.doctor` does.
"""

import enum
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any, Final

import msgspec

from brokerd.clock import SECOND, Instant, show_instant
from brokerd.units import show_duration

Row = dict[str, Any]
"""A row of a view."""
RECENT: Final = 3600 * SECOND
"""Age below which an incident is reported as a warning; an older one is reported as information."""


class Level(enum.StrEnum):
    """The severity of a finding."""

    INFO = "info"
    WARNING = "warning"
    """Something works, but not for much longer, or not in all cases."""
    ERROR = "error"
    """Something does not work."""


class Sort(enum.StrEnum):
    """The sort of a finding: a fact, an event, or a failed check."""

    DIAGNOSIS = "diagnosis"
    EVENT = "event"
    PROBLEM = "problem"
    """Something could not be checked."""


_SHOWN_IN_SECONDS: Final = 120
ORDER: Final = (Level.INFO, Level.WARNING, Level.ERROR)


class Finding(msgspec.Struct, frozen=True):
    """One fault or event that the doctor reports."""

    code: str
    """A code of the table of MON-22; its meaning never changes."""
    level: Level
    about: str
    """The object: `queue orders of broker main`."""
    text: str
    """The fault."""
    mend: str = ""
    """The remedy in words; empty = the commands say it."""
    sort: Sort = Sort.DIAGNOSIS
    commands: tuple[str, ...] = ()
    """Commands that show more or repair the fault, in this order, without placeholders (MON-74)."""


def error(code: str, about: str, text: str, mend: str = "", *commands: str) -> Finding:
    """Return an error: something does not work."""
    return Finding(code, Level.ERROR, about, text, mend, commands=commands)


def warning(code: str, about: str, text: str, mend: str = "", *commands: str) -> Finding:
    """Return a warning: something will stop working, or does not work in all cases."""
    return Finding(code, Level.WARNING, about, text, mend, commands=commands)


def info(code: str, about: str, text: str, mend: str = "", *commands: str) -> Finding:
    """Return information: something is over, or may be intended."""
    return Finding(code, Level.INFO, about, text, mend, commands=commands)


def problem(code: str, about: str, text: str, mend: str = "", *commands: str) -> Finding:
    """Return a problem: something could not be checked."""
    return Finding(code, Level.ERROR, about, text, mend, Sort.PROBLEM, commands)


def chosen(found: Iterable[Finding], *, least: Level, ignored: Collection[str]) -> list[Finding]:
    """Return the findings to show, each once: problems first, then the most severe."""
    unlike = dict.fromkeys(found)
    shown = [
        one
        for one in unlike
        if one.code not in ignored and ORDER.index(one.level) >= ORDER.index(least)
    ]
    return sorted(shown, key=lambda one: (one.sort is not Sort.PROBLEM, -ORDER.index(one.level)))


def status_of(found: Iterable[Finding]) -> int:
    """Return the exit status: 0 no findings, 1 warnings, 2 errors, 3 a failed check (MON-21)."""
    worst = 0
    for one in found:
        if one.sort is Sort.PROBLEM:
            return 3
        if one.level is not Level.INFO:
            worst = max(worst, ORDER.index(one.level))
    return worst


def clock_time(at: object) -> str:
    """Return an instant as text; "soon" if it is unknown."""
    return show_instant(Instant(at)) if isinstance(at, int) else "soon"


def age(at: Instant, now: Instant) -> str:
    """Return how long ago an instant was, in seconds or in whole minutes."""
    seconds = max(0, now - at) // SECOND
    if seconds < _SHOWN_IN_SECONDS:
        return f"{seconds} s ago"
    return f"{show_duration(timedelta(minutes=seconds // 60))} ago"
