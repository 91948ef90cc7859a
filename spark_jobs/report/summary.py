"""`summary.json`: the figures of the page for programs. Pure.

Keys are stable; equal data give equal objects.
"""

from collections.abc import Iterator
from dataclasses import asdict

from spark_jobs.latency import SPAN_ALL, SPAN_HOUR
from spark_jobs.report.again import as_said
from spark_jobs.report.alerts import disk_days
from spark_jobs.report.baseline import slow
from spark_jobs.report.data import Data, Latency
from spark_jobs.report.groups import kept, skew
from spark_jobs.report.moves import moves
from spark_jobs.report.sections import peers
from spark_jobs.report.slo import Level, levels
from spark_jobs.report.standing import queues
from spark_jobs.report.trends import disks
from spark_jobs.report.verdict import Verdict

VERSION = 2
HOURLY = 100
"""Maximum number of durations given for each hour; latency.parquet has all."""


def summary(data: Data, verdict: Verdict) -> dict[str, object]:
    """Return the report without its pictures. Times are UTC microseconds."""
    spans = [asdict(line) for line in _durations(data)]
    return {
        "v": VERSION,
        "status": verdict.status.name.lower(),
        "sentence": verdict.sentence,
        "points": [
            {**asdict(point), "status": point.status.name.lower()} for point in verdict.points
        ],
        "date": data.date,
        "before": data.before,
        "after": data.after,
        "made": as_said(data.made),
        "first_at": data.first_at,
        "last_at": data.last_at,
        "totals": _totals(data),
        "pairs": [asdict(pair) for pair in data.pairs],
        "findings": [asdict(finding) for finding in data.findings],
        "findings_in_all": data.findings_in_all,
        "latency": spans,
        "queues": [asdict(one) for one in queues(data)],
        "service_levels": [_level(one) for one in levels(data.date, data.kept)],
        "slow": [asdict(one) for one in slow(data)],
        "failures": [asdict(one) for one in data.failures],
        "nights": [asdict(one) for one in data.nights],
        "disk_days": disk_days(data),
        "moves": [asdict(one) for one in moves(data)],
        "hot_groups": [asdict(one) for one in skew(data)],
        "held": [asdict(one) for one in kept(data)],
        "disks": [asdict(one) for one in disks(data)],
        "clocks": [
            {"instance": one.instance, "peer": one.name, "ahead_s": one.clock_s}
            | {"worst_s": one.worst_clock_s}
            for one in peers(data)
            if one.clock_s is not None
        ],
        "coverage": {
            "segments": len({part.file for part in data.segments}),
            "lines": sum(part.lines for part in data.segments),
            "unusable": [asdict(part) for part in data.unusable],
            "set_aside": [asdict(part) for part in data.segments if part.fault],
            "places": [asdict(place) for place in data.places],
            "boots": [asdict(boot) for boot in data.boots],
            "marks": [asdict(mark) for mark in data.marks],
        },
    }


def _durations(data: Data) -> Iterator[Latency]:
    """Yield the durations of the day, and of each hour for the subjects counted most often."""
    whole = [line for line in data.latency if line.span == SPAN_ALL]
    busiest = sorted(whole, key=lambda line: (-line.count, *_subject(line)))
    chosen = {_subject(line) for line in busiest[:HOURLY]}
    for line in data.latency:
        if line.span == SPAN_ALL or (line.span == SPAN_HOUR and _subject(line) in chosen):
            yield line


def _subject(line: Latency) -> tuple[str, ...]:
    return line.instance, line.broker, line.scope, line.name, line.measure


def _level(level: Level) -> dict[str, object]:
    burns = {f"burn_{one.hours}h": round(one.rate, 3) for one in level.burns}
    numbers = {"total": level.total, "late": level.late, "met": level.met, "left": level.left}
    return {**asdict(level.objective), **numbers, **burns}


def _totals(data: Data) -> dict[str, int]:
    names = (
        "sent",
        "received",
        "undelivered",
        "waiting",
        "later",
        "ahead",
        "unaccounted",
        "doubled",
        "elsewhere",
        "discarded_unread",
    )
    return {name: sum(getattr(pair, name) for pair in data.pairs) for name in names}
