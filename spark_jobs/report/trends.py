"""Trends of disks over the last nights: durations of commits, and sizes of write-ahead logs. Pure.

Reads:  `Data`.      Calls: figures.
Never:  makes up a night that is not in the lake, or draws a line for a single night.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from spark_jobs.dates import DAY_US, midnight
from spark_jobs.report import figures, words
from spark_jobs.report.data import Data

CURVES = 3
LEAST_NIGHTS = 2
Store = tuple[str, str]
"""Instance and broker."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The figures of one store on this day, and on the first day known."""

    instance: str
    broker: str
    p99_us: int | None
    first_p99_us: int | None
    """None: no night before this one is known."""
    wal_bytes: float
    """The maximum of the day."""
    first_wal_bytes: float | None
    nights: int


@dataclass(frozen=True, slots=True)
class Trend:
    """A chart over nights of the stores with the largest values."""

    title: str
    note: str
    legend: tuple[str, ...]
    signs: tuple[tuple[str, str], ...]
    svg: Markup


def disks(data: Data) -> list[Disk]:
    """Return every store that has a figure on this day."""
    times, logs = _times(data), _logs(data)
    found = []
    for store in sorted({*times, *logs}):
        commits, sizes = times.get(store, {}), logs.get(store, {})
        if data.date not in commits and data.date not in sizes:
            continue
        p99, first_p99 = commits.get(data.date), _before(commits, data.date)
        found.append(
            Disk(
                *store,
                p99_us=None if p99 is None else round(p99),
                first_p99_us=None if first_p99 is None else round(first_p99),
                wal_bytes=sizes.get(data.date, 0.0),
                first_wal_bytes=_before(sizes, data.date),
                nights=len({*commits, *sizes}),
            )
        )
    return found


def _before(known: dict[str, float], date: str) -> float | None:
    """Return the value of the first night known; None if that is this one."""
    first = min(known, default=date)
    return None if first == date else known[first]


def trends(data: Data) -> list[Trend]:
    """Return a chart of commits and one of logs, each if it has enough nights."""
    if not data.date:
        return []
    drawn = [
        _trend("Commit with its sync, p99", _times(data), lambda us: words.duration(round(us))),
        _trend("Write-ahead log, most of a day", _logs(data), words.size),
    ]
    return [one for one in drawn if one is not None]


def _times(data: Data) -> dict[Store, dict[str, float]]:
    found: dict[Store, dict[str, float]] = defaultdict(dict)
    for one in data.commits:
        found[one.instance, one.broker][one.date] = float(one.p99_us)
    if not data.commits:  # there is only this day: see `collect.Frames.commits`
        for line in data.latency:
            if (line.measure, line.scope, line.span) == ("commit_us", "instance", "all"):
                found[line.instance, line.broker][data.date] = float(line.p99_us)
    return found


def _logs(data: Data) -> dict[Store, dict[str, float]]:
    found: dict[Store, dict[str, float]] = defaultdict(dict)
    for gauge in data.nights:
        if gauge.gauge == "wal_bytes":
            found[gauge.instance, gauge.broker][gauge.date] = gauge.most
    return found


def _trend(
    title: str, stores: dict[Store, dict[str, float]], wording: Callable[[float], str]
) -> Trend | None:
    nights = {date for known in stores.values() for date in known}
    if len(nights) < LEAST_NIGHTS:
        return None
    largest = sorted(stores, key=lambda one: (-max(stores[one].values()), one))[:CURVES]
    instants = [midnight(date) + DAY_US for one in largest for date in stores[one]]
    svg = figures.chart(
        [
            [(midnight(date) + DAY_US, value) for date, value in sorted(stores[one].items())]
            for one in largest
        ],
        frame=figures.Frame(min(instants), max(instants)),
        marks=(),
        wording=wording,
    )
    legend = tuple(f"{instance}/{broker}" for instance, broker in largest)
    return Trend(title, f"{len(nights)} nights", legend, (), Markup(svg))  # noqa: S704  # no names in it
