"""The page of a year: a calendar of its days, its months, and its usual week. Pure.

Reads:  the days of the year.
Never:  lets a name act as markup (BI-L4): the environment of all pages escapes every value.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date as calendar
from statistics import median

from spark_jobs.report import drawings, page, several, words
from spark_jobs.report.days import Days, Links, days_of_week, days_of_year, week_of
from spark_jobs.report.drawings import Picture
from spark_jobs.report.glance import Day
from spark_jobs.report.hourly import HOURS

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class Cell:
    """A day in the calendar; `day` is None if it has no report."""

    date: str
    number: int
    day: Day | None


@dataclass(frozen=True, slots=True)
class Row:
    """A week in the calendar of a month; `link` is "" if it has no page."""

    week: str
    link: str
    cells: tuple[Cell | None, ...]
    """Seven, Monday first; None is a day of another month."""


@dataclass(frozen=True, slots=True)
class Month:
    """A month of the calendar, and the totals of its days with a report."""

    name: str
    rows: tuple[Row, ...]
    days: int
    looks: int
    acts: int
    total: several.Totals | None


def render(name: str, days: Days, links: Links, made_of: str) -> str:
    """Return the page of a year that has at least one day with a report."""
    dates = days_of_year(name)
    known = [day for date in dates if (day := days.get(date)) is not None]
    grave = [day for day in reversed(known) if day.status == "act"]
    context = {
        "name": name,
        "made_of": made_of,
        "links": links,
        "total": several.totals(known),
        "reports": len(known),
        "months": [
            month for number in range(1, 13) if (month := _month(name, number, days)) is not None
        ],
        "traffic": _traffic(dates, days),
        "season": _season(known),
        "grave": grave[: several.SHOWN],
        "graves": len(grave),
        "worst": several.worst(known),
        "failures": several.failures(known),
    }
    return page.environment().get_template("year.html.j2").render(context)


def _month(year: str, number: int, days: Days) -> Month | None:
    """Return a month; None if no day of it has a report."""
    prefix = f"{year}-{number:02}-"
    dates = [date for date in days_of_year(year) if date.startswith(prefix)]
    found = [day for date in dates if (day := days.get(date)) is not None]
    if not found:
        return None
    rows = []
    for week in sorted({week_of(date) for date in dates}, key=lambda week: days_of_week(week)[0]):
        own = days_of_week(week)
        is_there = any(days.get(date) is not None for date in own)
        cells = (_cell(date, days) if date.startswith(prefix) else None for date in own)
        rows.append(Row(week, f"week-{week}.html" if is_there else "", tuple(cells)))
    return Month(
        name=MONTHS[number - 1],
        rows=tuple(rows),
        days=len(found),
        looks=sum(day.status == "look" for day in found),
        acts=sum(day.status == "act" for day in found),
        total=several.totals(found),
    )


def _cell(date: str, days: Days) -> Cell:
    return Cell(date, calendar.fromisoformat(date).day, days.get(date))


def _traffic(dates: Sequence[str], days: Days) -> Picture | None:
    """Draw the messages of each day; None if there are fewer than two days."""
    found = {date: day.sent for date in dates if (day := days.get(date)) is not None}
    if len(found) < 2:  # noqa: PLR2004  # a curve has two ends
        return None
    shown = dates[dates.index(min(found)) : dates.index(max(found)) + 1]
    values = [found.get(date) for date in shown]
    step = max(len(shown) // 6, 1)
    ticks = [(at, words.short_day(shown[at])[4:]) for at in range(0, len(shown) - step // 2, step)]
    svg = drawings.banded(values, [None] * len(values), ticks, words.short_number)
    return Picture("Messages sent, by day", "", (), (), svg)


def _season(days: Sequence[Day]) -> Picture | None:
    """Draw the usual week: the median of each hour of a weekday over the year."""
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for day in days:
        weekday = calendar.fromisoformat(day.date).weekday()
        for hour, value in enumerate(day.sent_by_hour):
            if value is not None:
                found[weekday, hour].append(value)
    rows = {
        name: [
            float(median(found[weekday, hour])) if found[weekday, hour] else 0.0
            for hour in range(HOURS)
        ]
        for weekday, name in enumerate(WEEKDAYS)
    }
    if not any(any(row) for row in rows.values()):
        return None
    svg = drawings.heat_map(rows, words.short_number)
    return Picture("The usual week: messages sent by weekday and hour", "medians", (), (), svg)
