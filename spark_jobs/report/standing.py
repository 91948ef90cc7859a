"""Standing of queues at the end of the day, and the gauges of a subject by the hour. Pure.

Reads:  `Data`.      Never: takes an absent gauge for anything but zero.
"""

from collections import defaultdict
from dataclasses import dataclass

from spark_jobs.latency import HOUR_US
from spark_jobs.report.data import Data, Gauge


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a queue at the end of the day."""

    instance: str
    broker: str
    name: str
    verdict: str
    """`OK`, `WARN`, `STALLED` or `STOPPED`."""
    waiting: int
    parked: int
    oldest_s: float
    worst_oldest_s: float
    since: int | None
    """The hour since which a stalled queue has received nothing; None: not stalled, or unknown."""


def queues(data: Data) -> list[Standing]:
    """Return the state of every queue in the last hour that has a line, the worst first (A5)."""
    received: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for counter in data.counters:
        if counter.scope == "queue" and counter.counter == "received":
            received[counter.instance, counter.broker, counter.name].add(counter.hour_at)
    found = []
    for (instance, broker, scope, name), hours in by_subject(data).items():
        if scope == "queue":
            taken = received[instance, broker, name]
            found.append(_standing((instance, broker, name), hours, taken))
    return sorted(found, key=lambda one: (_RANK[one.verdict], one.instance, one.broker, one.name))


_RANK = {"STOPPED": 0, "STALLED": 1, "WARN": 2, "OK": 3}
_OLD_S = 3600.0
Hours = dict[int, dict[str, Gauge]]


def _standing(subject: tuple[str, str, str], hours: Hours, taken: set[int]) -> Standing:
    last = max(hours)
    now = hours[last]
    ready, oldest = last_of(now, "ready"), last_of(now, "oldest_s")
    still = [hour for hour in hours if hour > max(taken, default=0)]
    stalled = ready > 0 and last not in taken and last - HOUR_US not in taken
    verdict = "OK"
    if last_of(now, "off"):
        verdict = "STOPPED"
    elif stalled:
        verdict = "STALLED"
    elif ready > 0 and oldest > _OLD_S:
        verdict = "WARN"
    return Standing(
        *subject,
        verdict=verdict,
        waiting=round(ready),
        parked=round(last_of(now, "parked")),
        oldest_s=oldest,
        worst_oldest_s=max(most_of(one, "oldest_s") for one in hours.values()),
        since=min(still) if stalled and still else None,
    )


def by_subject(data: Data) -> dict[tuple[str, str, str, str], Hours]:
    found: dict[tuple[str, str, str, str], Hours] = defaultdict(lambda: defaultdict(dict))
    for one in data.gauges:
        found[one.instance, one.broker, one.scope, one.name][one.hour_at][one.gauge] = one
    return found


def last_of(gauges: dict[str, Gauge], name: str) -> float:
    """Return the last value of a gauge in the hour, zero if later lines leave the gauge out."""
    gauge = gauges.get(name)
    newest = max(one.last_at for one in gauges.values())
    return gauge.last if gauge is not None and gauge.last_at == newest else 0.0


def most_of(gauges: dict[str, Gauge], name: str) -> float:
    gauge = gauges.get(name)
    return gauge.most if gauge is not None else 0.0
