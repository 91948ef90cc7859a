"""Instances that wrote nothing for a time, and starts after a crash. Pure.

Reads:  the boots of the day, and the last line of each instance on the days before.
Never:  calls an instance away while its boot went on: lines that its log lacks are a gap, which
        the verdict names.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from spark_jobs.coverage import Boot
from spark_jobs.report.data import Data
from spark_jobs.report.status import Point, Status, about
from spark_jobs.report.words import counted, day_and_time, time_of_day

AWAY_US = 900_000_000
"""Time between two boots, in microseconds, from which an instance was away."""

GONE_US = 3_600_000_000
"""Time by which the lines of an instance may end before those of the others."""

CRASHES = 5
"""Number of starts after a crash in a day from which they have status ACT."""

_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Last:
    """The last line of an instance so far."""

    at: int
    stopped: bool


@about("coverage")
def away(data: Data) -> Iterator[Point]:
    """Yield instances that were away or are gone, and those that crashed (BI-L13, BI-L14)."""
    by_instance: dict[str, list[Boot]] = defaultdict(list)
    for boot in data.boots:
        by_instance[boot.instance].append(boot)
    known = {one.instance: _Last(one.last_at, one.stopped) for one in data.seen}
    until = max(boot.last_at for boot in data.boots)
    for instance in sorted({*by_instance, *known}):
        boots = sorted(by_instance[instance], key=lambda boot: boot.first_at)
        last = known.get(instance)
        spans = []
        for boot in boots:
            has_begun = boot.started_at is not None
            if last is not None and has_begun and boot.first_at - last.at > AWAY_US:
                spans.append((last.at, boot.first_at))
            if last is None or boot.last_at > last.at:
                last = _Last(boot.last_at, boot.stopped)
        yield from _between(data, instance, spans)
        if last is not None and until - last.at > GONE_US and _is_known(data, instance, boots):
            yield _gone(data, instance, last)
        yield from _crashes(instance, sum(boot.after_crash for boot in boots))


def _is_known(data: Data, instance: str, boots: list[Boot]) -> bool:
    """Return whether the end of an instance's lines is the end of what it wrote.

    It is not if a segment of it was set aside, or if its clock went back: both are named by
    themselves.
    """
    set_aside = any(one.file.startswith(f"{instance}-") for one in data.unusable)
    return not set_aside and not any(boot.backwards for boot in boots)


def _between(data: Data, instance: str, spans: list[tuple[int, int]]) -> Iterator[Point]:
    if spans:
        named = ", ".join(f"{_at(data, one)} to {_at(data, end)}" for one, end in spans[:_NAMED])
        more = f" and {len(spans) - _NAMED} times more" if len(spans) > _NAMED else ""
        yield Point(
            Status.LOOK,
            f"{instance} did not run from {named}{more}.",
            "See among the changes of the day who stopped it, or what ended it.",
            "brokerd log tail",
        )


def _gone(data: Data, instance: str, last: _Last) -> Point:
    how = "it was stopped in order" if last.stopped else "it did not stop in order"
    when = f"since {_at(data, last.at)}" if last.at >= data.first_at else "on this day"
    ended = "" if last.at >= data.first_at else f", the last one is of {day_and_time(last.at)}"
    return Point(
        Status.LOOK if last.stopped else Status.ACT,
        f"{instance} wrote no line {when}{ended}; {how}.",
        "Start it if it is meant to run; if it runs, ship its segments and run the report again.",
        "brokerd ship LANDING" if data.date else "brokerd status",
    )


def _crashes(instance: str, times: int) -> Iterator[Point]:
    if times:
        yield Point(
            Status.ACT if times >= CRASHES else Status.LOOK,
            f"{instance} started {counted(times, 'time')} after a crash.",
            "Read the last lines before each end: what killed it, or which error ended it.",
            "brokerd log tail",
        )


def _at(data: Data, at: int) -> str:
    return time_of_day(max(at, data.first_at)) if data.date else day_and_time(at)
