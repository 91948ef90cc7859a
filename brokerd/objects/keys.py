"""Values of single keys in a table that declares an object: numbers, durations, off. PURE.

Reads:  decoded TOML.      Calls:  units.
Never:  raises: a problem is reported, and reading continues with a usable value, so that one
        reading of a file finds all problems of the file (BI-C3).
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from brokerd.units import parse_duration, parse_size, show_duration

MAX_NAME: Final = 128
"""Largest number of characters of an object's name (OBJ-8)."""
MAX_REMOTE_NAME: Final = 256
"""Largest number of characters of the name of a service in another broker."""
DAY: Final = timedelta(days=1)
MAX_LIMIT: Final = 2**62 - 1
"""Largest limit of a number of messages or bytes."""
_MICROSECOND: Final = timedelta(microseconds=1)
Report = Callable[[str], object]
"""Function that is called with the description of a problem of the value."""


def read_number(
    value: object, report: Report, *, least: int, most: int, usual: int, problem: str
) -> int:
    """Return the number; if a problem was reported, return `usual`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        report(problem)
        return usual
    return value


def read_duration(
    value: object, report: Report, *, least: timedelta, rule: str = "", or_off: bool = False
) -> int | None:
    """Return a duration, which is at most a day, in microseconds.

    Return None if the value is missing or was reported as a problem, or if it is off and `or_off`
    allows that.
    `rule`: the id of the rule that sets the limits.
    """
    if value is None or (or_off and is_off(value)):
        return None
    off = "off, or " if or_off else ""
    try:
        duration = parse_duration(value)
    except ValueError as error:
        report(f"{off}a duration: {error}")
        return None
    if not least <= duration <= DAY:
        cited = f" ({rule})" if rule else ""
        report(f"{off}{show_duration(least)} to {show_duration(DAY)}{cited}")
        return None
    return duration // _MICROSECOND


def read_limit_or_off(value: object, report: Report, *, or_size: bool) -> int | None:
    """Return a limit above 0; None if it is off, missing, or was reported as a problem.

    `or_size`: a text such as 64MiB is a limit, too.
    """
    if value is None or is_off(value):
        return None
    size = ', or a size such as "64MiB"' if or_size else ""
    try:
        number = parse_size(value) if or_size else value
    except ValueError as error:
        report(f"off, or a number above 0{size}: {error}")
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MAX_LIMIT:
        report(f"off, or a number above 0{size}")
        return None
    return number


def is_off(value: object) -> bool:
    """Return whether a value means off, as `false` or as the word."""
    return value is False or (isinstance(value, str) and value.lower() == "off")
