"""What the jobs found, as plain values: everything the page, the figures and the verdict read.

Reads:  collected rows.      Never: holds a frame, a session or a path.
Field names are those of the frames' columns. Times are UTC microseconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Segment:
    """Lines of one segment with one `fault` (None: usable)."""

    file: str
    fault: str | None
    lines: int
    sample: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where one line that was set aside stands; see `places`."""

    file: str
    line: int
    offset: int
    fault: str
    sample: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers of a boot that are in none of the segments."""

    first_seq: int
    last_seq: int
    after_at: int


@dataclass(frozen=True, slots=True)
class Boot:
    """What was read of one boot of an instance; see `coverage.boots`."""

    instance: str
    boot_id: str
    lines: int
    repeated: int
    first_seq: int
    last_seq: int
    missing: int
    gaps: tuple[Gap, ...]
    first_at: int
    last_at: int
    intervals: int
    interval_us: int
    backwards: int
    started_at: int | None
    stopped: bool
    after_crash: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """A start, stop or recovery."""

    at: int
    instance: str
    what: str


@dataclass(frozen=True, slots=True)
class Pair:
    """The balance of one service pair and contract; see `conservation`."""

    from_service: str
    to_service: str
    contract: str
    dialogs: int
    open: int
    sent: int
    received: int
    discarded_unread: int
    undelivered: int
    waiting: int
    later: int
    ahead: int
    unaccounted: int
    doubled: int
    elsewhere: int
    undelivered_by: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A direction of a dialog that does not balance."""

    finding: str
    messages: int
    conversation_id: str
    from_service: str
    to_service: str
    sender_at: str
    receiver_at: str
    sent: int
    acknowledged: int
    received: int
    outcome: str


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of one histogram over one span; see `latency.latency`."""

    instance: str
    broker: str
    scope: str
    name: str
    measure: str
    span: str
    span_at: int | None
    count: int
    p50_us: int
    p95_us: int
    p99_us: int


@dataclass(frozen=True, slots=True)
class Rate:
    """One step of one counter; see `throughput.throughput`."""

    instance: str
    broker: str
    scope: str
    name: str
    counter: str
    step_at: int
    thousandths: int


@dataclass(frozen=True, slots=True)
class Data:
    """All of a report."""

    segments: tuple[Segment, ...]
    places: tuple[Place, ...]
    boots: tuple[Boot, ...]
    marks: tuple[Mark, ...]
    pairs: tuple[Pair, ...]
    findings: tuple[Finding, ...]
    findings_in_all: int
    latency: tuple[Latency, ...]
    rates: tuple[Rate, ...]
    step_us: int

    @property
    def first_at(self) -> int:
        """When the first line's interval began."""
        return min(boot.first_at for boot in self.boots)

    @property
    def last_at(self) -> int:
        """When the last line was written."""
        return max(boot.last_at for boot in self.boots)

    def faulty(self, *faults: str) -> int:
        """How many lines were set aside for one of these faults."""
        return sum(part.lines for part in self.segments if part.fault in faults)


Value = TypeVar("Value")


def values(kind: type[Value], rows: Iterable[Mapping[str, object]]) -> tuple[Value, ...]:
    """Rows as values of `kind`, other columns left out. Lists become tuples."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # all are dataclasses
    return tuple(kind(**{name: _frozen(row[name]) for name in names}) for row in rows)


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
