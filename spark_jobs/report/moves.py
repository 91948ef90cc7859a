"""Moves: the largest changes of a day against the same weekday of the last four weeks. Pure.

Reads:  `Data`: the day's own figures, and those of the days it is compared with.
Never:  compares with days on which the instance has no logs, or alerts: a move need not be bad.

A figure is compared with the median of the days before; its move is the part of the difference that
lies beyond the spread of these days. Three rules keep small figures from outranking large ones: a
floor, below which a figure is negligible, is added to both sides of the ratio; a figure below the
floor on both sides is left out; and of two moves by the same factor that of the larger figure comes
first. So a rise from one message to three is not a move, and a fall from a million to half of that
is a large one.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import log, log10
from statistics import median

from spark_jobs.latency import SPAN_ALL
from spark_jobs.report.baseline import LEAST_COUNT, LEAST_US, MEASURES
from spark_jobs.report.compared import COMMIT
from spark_jobs.report.data import Data, Latency, Past, Total

SHOWN = 10
LEAST_FACTOR = 1.25
"""A figure beyond the spread of the days before by less than this factor has not moved."""

SPREAD = 0.1
"""Least spread assumed of the days before, as a natural logarithm, however few are known."""

COUNT, RATE, TIME, SIZE = "count", "rate", "time", "size"
"""Units of figures: a number, a number per second, microseconds, bytes."""

_BYTES = 16e6


@dataclass(frozen=True, slots=True)
class Move:
    """A figure that differs from its usual value."""

    what: str
    instance: str
    broker: str
    scope: str
    name: str
    unit: str
    usual: float
    now: float
    score: float


@dataclass(frozen=True, slots=True)
class _Kind:
    what: str
    unit: str
    floor: float
    """The amount below which a figure is negligible."""


_COUNTED = {
    ("pair", "sent"): _Kind("messages sent", RATE, 100),
    ("pair", "received"): _Kind("messages received", RATE, 100),
    ("queue", "received"): _Kind("messages received", RATE, 100),
    ("queue", "rolled_back"): _Kind("messages given back", RATE, 20),
    ("destination", "losses"): _Kind("connections lost", RATE, 5),
    ("instance", "duplicates"): _Kind("duplicates dropped", RATE, 100),
    ("instance", "retransmitted"): _Kind("fragments sent again", RATE, 100),
}
_STOOD = {
    ("queue", "ready"): _Kind("most messages waiting", COUNT, 100),
    ("queue", "parked"): _Kind("most messages parked", COUNT, 5),
    ("destination", "dialogs_waiting"): _Kind("most dialogs waiting", COUNT, 20),
    ("instance", "endpoints"): _Kind("dialog endpoints", COUNT, 100),
    ("instance", "store_bytes"): _Kind("store", SIZE, _BYTES),
    ("instance", "wal_bytes"): _Kind("write-ahead log, most", SIZE, _BYTES),
}
_TIMED = {
    "wait_us": "wait in the queue, p95",
    "wire_us": "way to acknowledged, p95",
    "outbox_us": "wait to leave, p95",
    "handler_us": "handling, p95",
    COMMIT: "commit with its sync, p95",
}
_FAILED = _Kind("failures", RATE, 10)
_ATTEMPTS = _Kind("connections failed", RATE, 5)
_DROPPED = _Kind("fragments dropped", RATE, 20)

Subject = tuple[str, str, str, str, str]
"""Instance, broker, scope, name, and the name of the figure."""


def moves(data: Data) -> list[Move]:
    """Return the largest moves, the largest first; none without days to compare with."""
    known = [past for past in data.past if past.covered]
    if not known:
        return []
    found = chain(_amounts(data.own, known), _times(data))
    ordered = sorted(found, key=lambda one: (-one.score, one.what, one.name, one.instance))
    return ordered[:SHOWN]


def _amounts(own: Past, known: list[Past]) -> Iterator[Move]:
    """Yield the moves of daily totals; earlier ones are scaled to the time of today's logs."""
    today, before = _by_subject(own), [_by_subject(past) for past in known]
    ours, theirs = dict(own.covered), [dict(past.covered) for past in known]
    sent = {(one[3], one[4]) for each in (today, *before) for one in each if one[2] == "pair"}
    for subject in sorted({*today, *chain.from_iterable(before)}):
        instance, _, scope, name, what = subject
        kind = _kind(scope, what)
        # What a pair received repeats what it sent, if the sender's side is in the logs.
        is_twice = scope == "pair" and what == "received" and (name, "sent") in sent
        length = ours.get(instance, 0)
        days = [n for n, covered in enumerate(theirs) if covered.get(instance)]
        if kind is None or is_twice or not length or not days:
            continue
        is_rate = kind.unit == RATE
        usual = [
            before[n].get(subject, 0.0) * (length / theirs[n][instance] if is_rate else 1.0)
            for n in days
        ]
        now = today.get(subject, 0.0)
        score = _score(now, usual, kind.floor)
        if score:
            per = length / 1e6 if is_rate else 1.0
            named = f"{name}: {what}" if kind is _FAILED else name
            said = what.replace("_", " ") if kind in {_ATTEMPTS, _DROPPED} else kind.what
            where = (instance, subject[1], scope, named)
            yield Move(said, *where, kind.unit, median(usual) / per, now / per, score)


def _by_subject(past: Past) -> dict[Subject, float]:
    found: dict[Subject, float] = defaultdict(float)
    for one in (*past.totals, *past.failures):
        found[_subject(one)] += one.value
    return dict(found)


def _subject(one: Total) -> Subject:
    return one.instance, one.broker, one.scope, one.name, one.what


def _kind(scope: str, what: str) -> _Kind | None:
    if scope.startswith("broker."):
        return _FAILED
    if what.startswith("failed_") and scope == "destination":
        return _ATTEMPTS
    if "dropped_" in what and scope == "instance":
        return _DROPPED
    return _COUNTED.get((scope, what)) or _STOOD.get((scope, what))


def _times(data: Data) -> Iterator[Move]:
    before: dict[Subject, list[float]] = defaultdict(list)
    for line in _whole_days(data.baseline):
        before[_timed(line)].append(float(line.p95_us))
    for line in _whole_days(data.latency):
        subject = _timed(line)
        usual, now = before.get(subject, []), float(line.p95_us)
        score = _score(now, usual, LEAST_US) if usual else 0.0
        if score:
            yield Move(_TIMED[line.measure], *subject[:4], TIME, median(usual), now, score)


def _whole_days(lines: Iterable[Latency]) -> Iterator[Latency]:
    for line in lines:
        is_enough = line.span == SPAN_ALL and line.count >= LEAST_COUNT
        if is_enough and line.measure in {*MEASURES, COMMIT}:
            yield line


def _timed(line: Latency) -> Subject:
    return line.instance, line.broker, line.scope, line.name, line.measure


def _score(now: float, usual: list[float], floor: float) -> float:
    """Return the size of the move; 0 if the figure has not moved."""
    middle = median(usual)
    if max(now, middle) < floor:
        return 0.0
    away = abs(log((now + floor) / (middle + floor)))
    logs = [log(value + floor) for value in usual]
    beyond = away - max((max(logs) - min(logs)) / 2, SPREAD)
    if beyond < log(LEAST_FACTOR):
        return 0.0
    return beyond * log10(1 + max(now, middle) / floor)
