"""Input of pages: decides which pages are made again because their input changed (BI-L7). Pure.

Reads:  the summaries of reports, and the lake's records of its days.
Never:  reads a clock: a page names the newest day landed when it was made again, so the same input,
        ingested in the same order, gives the same bytes.

A page is made of its own day and of those that it looks back on; `made` in its summary names the
input of each of these days. Pages of versions that did not record it are made again if their own
day has more segments than they count.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_jobs.report.words import counted

DAYS_NAMED = 3
"""Maximum number of other days named in the reason; if there are more, it gives their number."""


@dataclass(frozen=True, slots=True)
class Input:
    """The input of a page from one day: a hash, and the number, of its segments."""

    made_of: str
    segments: int


@dataclass(frozen=True, slots=True)
class Again:
    """A renewal of a page, at a time when `as_of` was the newest day that had landed.

    `days` are those whose input had changed, each with the change in its number of segments, which
    is negative if segments are gone. `gone` counts the days that the lake no longer had.
    """

    as_of: str
    days: Mapping[str, int]
    gone: int = 0

    def because(self, date: str) -> str:
        """Return the reason in words, as the page of `date` shows it."""
        own = [_landed(count, "this day") for day, count in self.days.items() if day == date]
        others = {day: count for day, count in sorted(self.days.items()) if day != date}
        said = [_landed(count, day, ", which it looks back on,") for day, count in others.items()]
        if len(others) > DAYS_NAMED:
            said = [f"segments of {len(others)} days that it looks back on landed late"]
        if self.gone:
            verb = "is" if self.gone == 1 else "are"
            said.append(f"{counted(self.gone, 'day')} before it {verb} no longer in the lake")
        return "; ".join([*own, *said])


def _landed(count: int, day: str, about: str = "") -> str:
    if count < 0:
        verb = "is" if count == -1 else "are"
        return f"{counted(-count, 'segment')} of {day}{about} {verb} no longer there"
    if count == 0:
        return f"other segments of {day}{about} are set aside"
    return f"{counted(count, 'segment')} of {day}{about} landed late"


@dataclass(frozen=True, slots=True)
class Made:
    """The input of a page by day, and the reasons why it was made again, the latest last."""

    inputs: Mapping[str, Input] = field(default_factory=dict)
    again: tuple[Again, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """An existing report."""

    date: str
    before: str
    after: str
    segments: int
    made: Made | None
    """None: the report is of a version that did not record its input."""

    def changes(self, now: Mapping[str, Input]) -> dict[str, int]:
        """Return the days whose input has changed, with the change in their number of segments."""
        own = now[self.date]
        if self.made is None:
            more = own.segments - self.segments
            return {self.date: more} if more > 0 else {}
        then = self.made.inputs
        nothing = Input("", 0)
        return {
            date: one.segments - then.get(date, nothing).segments
            for date, one in now.items()
            if one.made_of != then.get(date, nothing).made_of
        }

    def lacks_days(self, now: Mapping[str, Input]) -> bool:
        """Return whether the lake no longer has all of the days that the page was made of."""
        return self.made is not None and not {*self.made.inputs} <= {*now}


def report_of(said: Mapping[str, Any]) -> Report:
    """Return the report with this summary."""
    made = said.get("made")
    return Report(
        date=said["date"],
        before=said["before"],
        after=said["after"],
        segments=said["coverage"]["segments"],
        made=None if made is None else _made(made),
    )


def inputs(said: Mapping[str, Mapping[str, Any]]) -> dict[str, Input]:
    """Return the input that each day has now, from the lake's records."""
    return {date: Input(one["made_of"], one["segments"]) for date, one in said.items()}


NOTHING = Made()


def made_now(report: Report | None, date: str, now: Mapping[str, Input], as_of: str) -> Made:
    """Return the input that the page of `date` has now, and the reasons why it was made again.

    No reason is added while `date` is the newest day, as with hourly reports: its input is not late
    yet.
    """
    if report is None:
        return Made(now)
    before = report.made.again if report.made is not None else ()
    days = report.changes(now)
    if not days or as_of <= date:
        return Made(now, before)
    gone = len({*report.made.inputs} - {*now}) if report.made is not None else 0
    # Several runs while the same day is the newest count as one: their changes are added up.
    if before and before[-1].as_of == as_of:
        *before_that, last = before
        days = {day: last.days.get(day, 0) + days.get(day, 0) for day in {*last.days, *days}}
        return Made(now, (*before_that, Again(as_of, days, last.gone + gone)))
    return Made(now, (*before, Again(as_of, days, gone)))


def as_said(made: Made) -> dict[str, object]:
    """Return the value in the form of `summary.json`."""
    return {
        "inputs": {date: asdict(one) for date, one in sorted(made.inputs.items())},
        "again": [asdict(one) for one in made.again],
    }


def _made(said: Mapping[str, Any]) -> Made:
    return Made(
        inputs={date: Input(**one) for date, one in said["inputs"].items()},
        again=tuple(Again(**one) for one in said["again"]),
    )
