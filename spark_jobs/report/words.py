"""Formatting of figures for people. Pure."""

import unicodedata
from collections.abc import Sequence
from datetime import UTC, date, datetime

_SECOND_US = 1_000_000
_WHOLE = 100
_THOUSAND = 1000
_ROUNDED_UP = 999.5
_MANY = 3
"""Factor from which on a change is given as a factor, not as a percentage."""


def number(value: int) -> str:
    """Format 20000 as 20,000."""
    return f"{value:,}"


def short_number(value: float) -> str:
    """Format 1234567 as 1.23M, where there is little room."""
    for unit in ("", "k", "M", "G"):
        if abs(value) < _ROUNDED_UP:
            return f"{value:.3g}{unit}"
        value /= _THOUSAND
    return f"{value:.3g}T"


def counted(value: int, noun: str) -> str:
    """Format a number with its noun: 1 message, 2 messages."""
    return f"{number(value)} {noun}" if value == 1 else f"{number(value)} {noun}s"


def duration(us: int) -> str:
    """Format microseconds with three significant figures and a unit."""
    for limit, unit, name in (
        (1_000, 1, "µs"),
        (_SECOND_US, 1_000, "ms"),
        (120 * _SECOND_US, _SECOND_US, "s"),
        (7_200 * _SECOND_US, 60 * _SECOND_US, "min"),
    ):
        if us < limit:
            return f"{us / unit:.3g} {name}" if us < 100 * unit else f"{us / unit:.0f} {name}"
    return f"{us / (3_600 * _SECOND_US):.3g} h"


def moment(us: int) -> datetime:
    """Return the instant as an aware datetime, to the second."""
    return datetime.fromtimestamp(us // _SECOND_US, UTC)


def day_and_time(us: int) -> str:
    """Format an instant as 2026-11-20 17:45:48."""
    return moment(us).strftime("%Y-%m-%d %H:%M:%S")


def short_day(day: str) -> str:
    """Format 2026-11-18 as Wed 18 Nov."""
    return date.fromisoformat(day).strftime("%a %d %b").replace(" 0", " ")


def time_of_day(us: int) -> str:
    """Format an instant as 17:45:48."""
    return moment(us).strftime("%H:%M:%S")


def span(first_at: int, last_at: int) -> str:
    """Format a span of time, with the day only once if both ends are on it."""
    same_day = moment(first_at).date() == moment(last_at).date()
    end = time_of_day(last_at) if same_day else day_and_time(last_at)
    return f"{day_and_time(first_at)} to {end} UTC"


def rate(per_second: float) -> str:
    """Format a rate per second, or per minute if it is below one per second."""
    if per_second >= 1 or per_second == 0:
        return f"{per_second:,.0f}/s" if per_second >= _WHOLE else f"{per_second:.3g}/s"
    return f"{per_second * 60:.2g}/min"


def signed(seconds: float) -> str:
    """Format a difference of clocks with its sign."""
    return f"{'-' if seconds < 0 else '+'}{duration(round(abs(seconds) * _SECOND_US))}"


def change(usual: float, now: float) -> str:
    """Format the change of a figure from its usual value."""
    if not usual or not now:
        return "gone" if usual else "new"
    factor = now / usual
    return f"{factor:.3g} times" if factor >= _MANY else f"{factor - 1:+.0%}"


def hours_of(hours: Sequence[int]) -> str:
    """Format hours of a day as 03:00 to 06:00, hours in a row as one span."""
    spans: list[list[int]] = []
    for hour in sorted(hours):
        if spans and spans[-1][1] == hour:
            spans[-1][1] = hour + 1
        else:
            spans.append([hour, hour + 1])
    return ", ".join(f"{first:02}:00 to {last:02}:00" for first, last in spans)


def shown(value: str) -> str:
    """Make control and formatting characters of the text visible."""
    return "".join(f"\\u{ord(c):04x}" if unicodedata.category(c)[0] == "C" else c for c in value)


def size(value: float) -> str:
    """Format bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < _ROUNDED_UP:
            return f"{value:.3g} {unit}"
        value /= _THOUSAND
    return f"{value:.3g} PB"
