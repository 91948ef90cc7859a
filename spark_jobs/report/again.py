"""Which input a page was made of, and which pages are made again as there is more (BI-L7). Pure.

Reads:  what the summary of a report says, and what the lake says of its days.
Never:  looks at a clock: a page says which day had landed last when it was made again, so the same
        input, taken in in the same order, gives the same bytes.

A page is made of its own day and of those that it looks back on; `made` in its summary says which
segments of each these were. Pages of versions that did not say so are made again if their own day
has more segments than they count.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_jobs.report.words import counted

DAYS_NAMED = 3
"""So many other days are named as the reason; of more it is said how many they are."""


@dataclass(frozen=True, slots=True)
class Input:
    """What a page had of one day: a hash of its segments and of what was set aside."""

    made_of: str
    segments: int


@dataclass(frozen=True, slots=True)
class Again:
    """That a page was made again when `as_of` was the newest day that had landed.

    `days` are those of which there was other input, each with the number of segments that came;
    less than none where some are no longer there. `gone` counts the days that the lake no longer
    had.
    """

    as_of: str
    days: Mapping[str, int]
    gone: int = 0

    def because(self, date: str) -> str:
        """The reason, in words, on the page of `date`."""
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
    """What a page was made of, by day, and what it was made again for, the latest last."""

    inputs: Mapping[str, Input] = field(default_factory=dict)
    again: tuple[Again, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """A report that is there."""

    date: str
    before: str
    after: str
    segments: int
    made: Made | None
    """None = a version made it that did not say."""

    def changes(self, now: Mapping[str, Input]) -> dict[str, int]:
        """The days of which there is other input now, and how many segments more."""
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
        """Whether the lake no longer has some of the days that the page was made of."""
        return self.made is not None and not {*self.made.inputs} <= {*now}


def report_of(said: Mapping[str, Any]) -> Report:
    """The report that has this summary."""
    made = said.get("made")
    return Report(
        date=said["date"],
        before=said["before"],
        after=said["after"],
        segments=said["coverage"]["segments"],
        made=None if made is None else _made(made),
    )


def inputs(said: Mapping[str, Mapping[str, Any]]) -> dict[str, Input]:
    """What there is of days, by what the lake says of them."""
    return {date: Input(one["made_of"], one["segments"]) for date, one in said.items()}


NOTHING = Made()


def made_now(report: Report | None, date: str, now: Mapping[str, Input], as_of: str) -> Made:
    """What the page of `date` is to say that it is made of, and what it was made again for.

    A day that is still the newest, as when it is looked at every hour, is not late.
    """
    if report is None:
        return Made(now)
    before = report.made.again if report.made is not None else ()
    days = report.changes(now)
    if not days or as_of <= date:
        return Made(now, before)
    gone = len({*report.made.inputs} - {*now}) if report.made is not None else 0
    if before and before[-1].as_of == as_of:
        *before_that, last = before
        days = {day: last.days.get(day, 0) + days.get(day, 0) for day in {*last.days, *days}}
        return Made(now, (*before_that, Again(as_of, days, last.gone + gone)))
    return Made(now, (*before, Again(as_of, days, gone)))


def as_said(made: Made) -> dict[str, object]:
    """The same for `summary.json`."""
    return {
        "inputs": {date: asdict(one) for date, one in sorted(made.inputs.items())},
        "again": [asdict(one) for one in made.again],
    }


def _made(said: Mapping[str, Any]) -> Made:
    return Made(
        inputs={date: Input(**one) for date, one in said["inputs"].items()},
        again=tuple(Again(**one) for one in said["again"]),
    )
