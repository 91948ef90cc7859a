"""The day at a glance: the few figures of a day that the pages of its week and year show. Pure.

Reads:  `Data` and `Verdict`, or the objects of `glance.json` and `summary.json`.
Never:  grows with instances, queues or failures: every list has a limit, so that a year of days can
        be read at once (BI-L50).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from spark_jobs.dates import DAY_US
from spark_jobs.report.baseline import MEASURES
from spark_jobs.report.data import Data, Failure
from spark_jobs.report.hourly import HOURS
from spark_jobs.report.verdict import Verdict

VERSION = 1
POINTS = 20
SLOWEST = 5
"""Maximum number of subjects listed for each measure."""

FAILURES = 20
LEAST = 10
"""Maximum number of instances that are named because their logs cover less of the day."""

SLACK_US = 300_000_000
"""The time of a day that may be missing before an instance is named."""

AGAIN = 5
TEXT = 300
"""Maximum length of a text; failures quote what programs wrote."""


@dataclass(frozen=True, slots=True)
class Found:
    """A finding of the day: its status in lower case, what it says, and the command."""

    status: str
    text: str
    command: str


@dataclass(frozen=True, slots=True)
class Slowest:
    """One of the day's longest durations of a measure."""

    measure: str
    instance: str
    name: str
    count: int
    p95_us: int


@dataclass(frozen=True, slots=True)
class New:
    """A failure that was new on the day."""

    instance: str
    name: str
    event: str
    fingerprint: str
    times: int


@dataclass(frozen=True, slots=True)
class Part:
    """The microseconds of a day that the logs of one instance cover."""

    instance: str
    covered_us: int


@dataclass(frozen=True, slots=True)
class Day:
    """The day as the pages of its week and year show it."""

    date: str
    status: str
    """`fine`, `look` or `act`."""
    sentence: str
    points: tuple[Found, ...]
    """The gravest first; findings of which nothing follows are left out."""
    points_in_all: int
    sent: int
    received: int
    unaccounted: int
    doubled: int
    sent_by_hour: tuple[int | None, ...]
    """24 numbers; None: the logs do not cover the hour. Empty: a version that did not say."""
    p95_by_hour: tuple[int | None, ...]
    """24 durations of the waits in all queues together; None: no message was received."""
    slowest: tuple[Slowest, ...]
    failures: tuple[New, ...]
    failures_in_all: int
    instances: int
    covered_us: int
    """The sum over all instances."""
    least: tuple[Part, ...]
    """The instances whose logs cover least of the day, other than all of it."""
    again: tuple[str, ...]
    """The reasons why the page was made again, each after the newest day of that time."""

    @property
    def longest(self) -> Slowest | None:
        """The longest wait in a queue, as p95; None if no message was received."""
        waits = [one for one in self.slowest if one.measure == MEASURES[0]]
        return max(waits, key=lambda one: one.p95_us, default=None)


def glance(data: Data, verdict: Verdict) -> Day:
    """Return the day of a report."""
    grave = [point for point in verdict.points if point.status]
    new = [one for one in data.failures if one.is_new]
    by_hour = {one.hour: one for one in data.hours}
    # Clocks that went back, and boots that overlap, cover more than there is.
    covered = {name: min(us, DAY_US) for name, us in data.own.covered}
    return Day(
        date=data.date,
        status=verdict.status.name.lower(),
        sentence=_short(verdict.sentence),
        points=tuple(
            Found(point.status.name.lower(), _short(point.text), _short(point.command))
            for point in grave[:POINTS]
        ),
        points_in_all=len(grave),
        sent=sum(pair.sent for pair in data.pairs),
        received=sum(pair.received for pair in data.pairs),
        unaccounted=sum(pair.unaccounted for pair in data.pairs),
        doubled=sum(pair.doubled for pair in data.pairs),
        sent_by_hour=tuple(
            by_hour[hour].sent if hour in by_hour else None for hour in range(HOURS)
        ),
        p95_by_hour=tuple(
            by_hour[hour].p95_us if hour in by_hour else None for hour in range(HOURS)
        ),
        slowest=_slowest(asdict(line) for line in data.latency),
        failures=tuple(_new(one) for one in new[:FAILURES]),
        failures_in_all=len(new),
        instances=len(covered),
        covered_us=sum(covered.values()),
        least=_least(covered),
        again=tuple(_short(f"{one.as_of}: {one.because(data.date)}") for one in data.made.again)[
            -AGAIN:
        ],
    )


def as_said(day: Day) -> dict[str, object]:
    """Return the value in the form of `glance.json`."""
    return {"v": VERSION, **asdict(day)}


def read(said: Mapping[str, Any]) -> Day | None:
    """Return the day of a `glance.json`; None if it is of another version."""
    if said.get("v") != VERSION:
        return None
    nested = {"points": Found, "slowest": Slowest, "failures": New, "least": Part}
    found: dict[str, Any] = {}
    for field in fields(Day):
        value = said[field.name]
        if field.name in nested:
            value = [nested[field.name](**row) for row in value]
        found[field.name] = tuple(value) if isinstance(value, list) else value
    return Day(**found)


def of_summary(said: Mapping[str, Any]) -> Day:
    """Return the day of a `summary.json`, for reports of versions without `glance.json`.

    Such a report says nothing of its hours, and of no instance how much of the day it covers.
    """
    grave = [one for one in said["points"] if one["status"] != "fine"]
    new = [one for one in said["failures"] if one["is_new"]]
    totals = said["totals"]
    return Day(
        date=said["date"],
        status=said["status"],
        sentence=_short(said["sentence"]),
        points=tuple(
            Found(one["status"], _short(one["text"]), _short(one["command"]))
            for one in grave[:POINTS]
        ),
        points_in_all=len(grave),
        sent=totals["sent"],
        received=totals["received"],
        unaccounted=totals["unaccounted"],
        doubled=totals["doubled"],
        sent_by_hour=(),
        p95_by_hour=(),
        slowest=_slowest(said["latency"]),
        failures=tuple(
            New(*(one[name] for name in ("instance", "name", "event", "fingerprint", "times")))
            for one in new[:FAILURES]
        ),
        failures_in_all=len(new),
        instances=len({one["instance"] for one in said["coverage"]["boots"]}),
        covered_us=0,
        least=(),
        again=(),
    )


def _new(one: Failure) -> New:
    return New(one.instance, one.name, one.event, _short(one.fingerprint), one.times)


def _slowest(lines: Iterable[Mapping[str, Any]]) -> tuple[Slowest, ...]:
    whole = [line for line in lines if line["span"] == "all" and line["measure"] in MEASURES]
    names = [field.name for field in fields(Slowest)]
    found: list[Slowest] = []
    for measure in MEASURES:
        lines = (line for line in whole if line["measure"] == measure)
        rows = [Slowest(*(line[name] for name in names)) for line in lines]
        rows.sort(key=lambda one: (-one.p95_us, one.instance, one.name))
        found += rows[:SLOWEST]
    return tuple(found)


def _least(covered: Mapping[str, int]) -> tuple[Part, ...]:
    parts = [Part(name, us) for name, us in covered.items() if us < DAY_US - SLACK_US]
    parts.sort(key=lambda one: (one.covered_us, one.instance))
    return tuple(parts[:LEAST])


def _short(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[: TEXT - 1]}…"
