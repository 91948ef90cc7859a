"""Baseline: compares each hour's latencies with the same hour of the same weekday before. Pure.

Reads:  hourly percentiles of the day and of the days it is compared with.
Never:  reports a subject as slow without earlier days, or an hour with few messages.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from spark_jobs.dates import DAY_US
from spark_jobs.latency import HOUR_US, SPAN_HOUR
from spark_jobs.report.data import Data, Latency

FACTOR = 2.0
"""An hour is out of the band if it takes this many times as long as the slowest week before."""

LEAST_US = 10_000
"""A p95 of at most this many microseconds is never out of the band."""

LEAST_COUNT = 20
HOURS = 3
"""Number of hours in a row out of the band from which a subject is reported."""

FAR = 10.0
LEAST_FAR_US = 100_000
"""One hour alone is reported if it takes `FAR` times as long as the slowest of this hour and its
neighbours before, and more than `LEAST_FAR_US` microseconds. The neighbours count because what
people start comes an hour earlier or later where clocks are set forward or back (BI-L17)."""

MEASURES = ("wait_us", "wire_us", "outbox_us", "handler_us")
Subject = tuple[str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class Slow:
    """A subject that was out of its band for hours in a row, or far out of it for one."""

    instance: str
    broker: str
    scope: str
    name: str
    measure: str
    hours: tuple[int, ...]
    """All hours of the day, 0 to 23, that were out of the band."""
    worst_us: int
    usual_us: int
    """The p95 of the worst hour, and the slowest of the same hour before."""


def slow(data: Data) -> list[Slow]:
    """Return the subjects out of their band for `HOURS` hours in a row, or far out of it for one.

    The worst come first (BI-L18).
    """
    usual = _bands(data.baseline)
    far: set[Subject] = set()
    out: dict[Subject, dict[int, tuple[int, int]]] = defaultdict(dict)
    for line in data.latency:
        hour = _hour(line)
        known = usual.get((_subject(line), hour)) if hour is not None else None
        if hour is None or known is None or line.count < LEAST_COUNT:
            continue
        if line.p95_us > max(known * FACTOR, LEAST_US):
            out[_subject(line)][hour] = (line.p95_us, known)
            around = (usual.get((_subject(line), (hour + one) % 24), 0) for one in (-1, 0, 1))
            if line.p95_us > max(max(around) * FAR, LEAST_FAR_US):
                far.add(_subject(line))
    found = [
        _slow(subject, hours)
        for subject, hours in out.items()
        if subject in far or has_run(hours, HOURS)
    ]
    return sorted(found, key=lambda one: (-one.worst_us / one.usual_us, one.name, one.measure))


def _bands(baseline: Iterable[Latency]) -> dict[tuple[Subject, int], int]:
    """Return the slowest p95 of each subject and hour of the day."""
    found: dict[tuple[Subject, int], int] = {}
    for line in baseline:
        hour = _hour(line)
        if hour is not None and line.count >= LEAST_COUNT:
            key = (_subject(line), hour)
            found[key] = max(found.get(key, 1), line.p95_us)
    return found


def _slow(subject: Subject, hours: dict[int, tuple[int, int]]) -> Slow:
    worst, usual = max(hours.values(), key=lambda pair: pair[0] / pair[1])
    return Slow(*subject, hours=tuple(sorted(hours)), worst_us=worst, usual_us=usual)


def has_run(hours: Iterable[int], length: int) -> bool:
    """Return whether at least `length` of the hours are in a row."""
    there = set(hours)
    return any(all(hour + one in there for one in range(length)) for hour in there)


def _subject(line: Latency) -> Subject:
    return line.instance, line.broker, line.scope, line.name, line.measure


def _hour(line: Latency) -> int | None:
    if line.span != SPAN_HOUR or line.span_at is None or line.measure not in MEASURES:
        return None
    return line.span_at % DAY_US // HOUR_US
