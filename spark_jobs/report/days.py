"""Days that have a report in a directory, and the weeks and years that they are in.

Reads:  `glance.json` of a day, or its `summary.json` where an older version wrote nothing else.
Never:  reads a day twice, or one that nobody asked for.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import date as calendar
from datetime import timedelta
from pathlib import Path

from spark_jobs.report import glance
from spark_jobs.report.glance import Day

GLANCE = "glance.json"
SUMMARY = "summary.json"
PAGE = "report.html"


@dataclass(frozen=True, slots=True)
class Links:
    """The nearest pages of the same kind before and after, "" = none."""

    before: str
    after: str


class Days:
    """The days that have a report below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        homes = (home for home in root.glob("????-??-??") if has_report(home))
        self.dates = sorted(home.name for home in homes)
        self._known = frozenset(self.dates)
        self._read: dict[str, tuple[Day, str]] = {}

    def get(self, date: str) -> Day | None:
        """Return the day; None if it has no report."""
        return self._find(date)[0] if date in self._known else None

    def hash_of(self, date: str) -> str:
        """Return a hash of what is known of the day; "" if it has no report."""
        return self._find(date)[1] if date in self._known else ""

    def _find(self, date: str) -> tuple[Day, str]:
        if date not in self._read:
            self._read[date] = _read(self._root / date)
        return self._read[date]


def has_report(home: Path) -> bool:
    """Return whether a day's directory has a whole report; its summary is placed last."""
    return (home / PAGE).exists() and (home / SUMMARY).exists()


def week_of(date: str) -> str:
    """Return the name of the week of a day: 2026-W47."""
    year, week, _ = calendar.fromisoformat(date).isocalendar()
    return f"{year}-W{week:02}"


def year_of(date: str) -> str:
    """Return the year of a day."""
    return date[:4]


def days_of_week(week: str) -> list[str]:
    """Return the seven days of a week, Monday first."""
    monday = calendar.fromisoformat(f"{week}-1")
    return [(monday + timedelta(days)).isoformat() for days in range(7)]


def days_of_year(year: str) -> list[str]:
    """Return all days of a year."""
    first = calendar(int(year), 1, 1)
    length = (calendar(int(year), 12, 31) - first).days + 1
    return [(first + timedelta(days)).isoformat() for days in range(length)]


def _read(home: Path) -> tuple[Day, str]:
    file = home / GLANCE
    if file.exists():
        raw = file.read_bytes()
        if (day := glance.read(json.loads(raw))) is not None:
            return day, hashlib.sha256(raw).hexdigest()
    raw = (home / SUMMARY).read_bytes()
    return glance.of_summary(json.loads(raw)), hashlib.sha256(raw).hexdigest()
