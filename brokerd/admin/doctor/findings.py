"""What the doctor says: findings, their levels and classes, and which of them count (MON-21). PURE.

Reads:  nothing.      Calls: nothing.      Never: asks anybody; `cli.doctor` does.
"""

import enum
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

Row = dict[str, Any]
"""A row of a view."""


class Level(enum.StrEnum):
    """How bad it is."""

    INFO = "info"
    WARNING = "warning"
    """It works, and will not for long, or not for all."""
    ERROR = "error"
    """Something does not work."""


class Sort(enum.StrEnum):
    """What a finding is about."""

    DIAGNOSIS = "diagnosis"
    EVENT = "event"
    PROBLEM = "problem"
    """It could not be looked at."""


ORDER: Final = (Level.INFO, Level.WARNING, Level.ERROR)


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    code: str
    """Of the table of MON-22; it never changes its meaning."""
    level: Level
    about: str
    """The object: `queue orders of broker main`."""
    text: str
    """What is wrong with it."""
    mend: str = ""
    """The command that mends it, or the setting to change."""
    sort: Sort = Sort.DIAGNOSIS


def error(code: str, about: str, text: str, mend: str = "") -> Finding:
    """Something does not work."""
    return Finding(code, Level.ERROR, about, text, mend)


def warning(code: str, about: str, text: str, mend: str = "") -> Finding:
    """Something will not work for long, or not for all."""
    return Finding(code, Level.WARNING, about, text, mend)


def info(code: str, about: str, text: str, mend: str = "") -> Finding:
    """It is over, or may be meant."""
    return Finding(code, Level.INFO, about, text, mend)


def problem(code: str, about: str, text: str, mend: str = "") -> Finding:
    """Something could not be looked at."""
    return Finding(code, Level.ERROR, about, text, mend, Sort.PROBLEM)


def chosen(found: Iterable[Finding], *, least: Level, ignored: Collection[str]) -> list[Finding]:
    """Those to show, each once: problems and the worst first."""
    unlike = dict.fromkeys(found)
    shown = [
        one
        for one in unlike
        if one.code not in ignored and ORDER.index(one.level) >= ORDER.index(least)
    ]
    return sorted(shown, key=lambda one: (one.sort is not Sort.PROBLEM, -ORDER.index(one.level)))


def status_of(found: Iterable[Finding]) -> int:
    """0 nothing, 1 warnings, 2 errors, 3 something could not be looked at (MON-21)."""
    worst = 0
    for one in found:
        if one.sort is Sort.PROBLEM:
            return 3
        if one.level is not Level.INFO:
            worst = max(worst, ORDER.index(one.level))
    return worst
