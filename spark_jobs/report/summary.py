"""`summary.json`: the figures of the page for programs. Pure.

Keys are stable; the same data give the same object.
"""

from dataclasses import asdict

from spark_jobs.latency import SPAN_STEP
from spark_jobs.report.data import Data
from spark_jobs.report.verdict import Verdict

VERSION = 1


def summary(data: Data, verdict: Verdict) -> dict[str, object]:
    """The report without its pictures. Times are UTC microseconds."""
    spans = [asdict(line) for line in data.latency if line.span != SPAN_STEP]
    return {
        "v": VERSION,
        "status": verdict.status.name.lower(),
        "sentence": verdict.sentence,
        "points": [
            {"status": point.status.name.lower(), "text": point.text, "advice": point.advice}
            for point in verdict.points
        ],
        "first_at": data.first_at,
        "last_at": data.last_at,
        "totals": _totals(data),
        "pairs": [asdict(pair) for pair in data.pairs],
        "findings": [asdict(finding) for finding in data.findings],
        "findings_in_all": data.findings_in_all,
        "latency": spans,
        "coverage": {
            "segments": len({part.file for part in data.segments}),
            "lines": sum(part.lines for part in data.segments),
            "set_aside": [asdict(part) for part in data.segments if part.fault],
            "places": [asdict(place) for place in data.places],
            "boots": [asdict(boot) for boot in data.boots],
            "marks": [asdict(mark) for mark in data.marks],
        },
    }


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
