"""The page of a week: its days side by side, and each hour beside what is usual. Pure.

Reads:  the days of the week, and of the four weeks before.
Never:  lets a name act as markup (BI-L4): the environment of all pages escapes every value.
"""

from collections.abc import Callable, Sequence

from spark_jobs.dates import weekdays_before
from spark_jobs.report import bands, drawings, page, several, usual, words
from spark_jobs.report.bands import Band
from spark_jobs.report.days import Days, Links, days_of_week, year_of
from spark_jobs.report.glance import Day
from spark_jobs.report.hourly import HOURS
from spark_jobs.report.usual import Series

POINTS_SHOWN = 8
"""Maximum number of findings shown of one day; its own page has all."""

Figures = Callable[[Day], Sequence[int | None]]
Banding = Callable[[Sequence[float]], Band | None]


def render(name: str, days: Days, links: Links, made_of: str) -> str:
    """Return the page of a week that has at least one day with a report."""
    dates = days_of_week(name)
    found = [(date, days.get(date)) for date in dates]
    known = [day for _, day in found if day is not None]
    sent = series(days, dates, lambda day: day.sent_by_hour, bands.counts)
    waits = series(days, dates, lambda day: day.p95_by_hour, bands.durations)
    years = sorted({year_of(day.date) for day in known})
    context = {
        "name": name,
        "span": f"{words.short_day(dates[0])} to {words.short_day(dates[-1])}",
        "made_of": made_of,
        "links": links,
        "years": years,
        "days": found,
        "points_shown": POINTS_SHOWN,
        "total": several.totals(known),
        "traffic": usual.chart(
            "Messages sent, by hour", sent, words.short_number, legend="this week"
        ),
        "waiting": usual.chart(
            "Waits in all queues, p95, by hour", waits, _time, legend="this week", logarithmic=True
        ),
        "seasons": _seasons(known),
        "busy": sent.unusual()[: several.SHOWN],
        "slow": waits.unusual()[: several.SHOWN],
        "weeks_known": sent.has_bands or waits.has_bands,
        "worst": several.worst(known),
        "failures": several.failures(known),
        "again": [(day.date, text) for day in known for text in day.again],
    }
    return page.environment().get_template("week.html.j2").render(context)


def series(days: Days, dates: Sequence[str], figures: Figures, banding: Banding) -> Series:
    """Return a figure of each hour of these days, with the bands from the weeks before."""
    values: list[float | None] = []
    found: list[Band | None] = []
    for date in dates:
        before = [day for one in weekdays_before(date) if (day := days.get(one)) is not None]
        own = days.get(date)
        for hour in range(HOURS):
            values.append(_at(own, figures, hour))
            past = [_at(day, figures, hour) for day in before]
            found.append(banding([value for value in past if value is not None]))
    return Series(tuple(dates), tuple(values), tuple(found))


def _at(day: Day | None, figures: Figures, hour: int) -> float | None:
    known = figures(day) if day is not None else ()
    return known[hour] if known else None


def _seasons(days: Sequence[Day]) -> drawings.Picture | None:
    rows = {
        words.short_day(day.date): [float(value or 0) for value in day.sent_by_hour]
        for day in days
        if day.sent_by_hour
    }
    if not any(any(row) for row in rows.values()):
        return None
    svg = drawings.heat_map(rows, words.short_number)
    return drawings.Picture("Messages sent by day and hour", "stronger is more", (), (), svg)


def _time(value: float) -> str:
    return words.duration(round(value))
