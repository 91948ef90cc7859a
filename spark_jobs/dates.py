"""Dates of days, all in UTC: their beginnings, and the days that they look back on. Pure.

Reads:  texts such as 2026-11-18.      Never: reads a clock.
"""

from datetime import date as calendar
from datetime import datetime, timedelta

DAY_US = 86_400_000_000
WEEKS = 4
"""Number of weeks before a day whose same weekday it is compared with."""


def midnight(date: str) -> int:
    """Return the beginning of a day in UTC microseconds."""
    return int(datetime.fromisoformat(f"{date}T00:00:00+00:00").timestamp()) * 1_000_000


def days_before(date: str, days: int) -> str:
    """Return the date that is `days` days before this one."""
    return (calendar.fromisoformat(date) - timedelta(days)).isoformat()


def weekdays_before(date: str) -> list[str]:
    """Return the same weekday of the last four weeks, the latest first."""
    return [days_before(date, 7 * week) for week in range(1, WEEKS + 1)]
