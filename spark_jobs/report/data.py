"""Report data: the results of the jobs as plain values, for the page, the figures and the verdict.

Reads:  collected rows.      Never: holds a frame, a session or a path.
Field names are those of the frames' columns. Times are UTC microseconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from spark_jobs.coverage import Boot
from spark_jobs.dates import DAY_US, midnight
from spark_jobs.places import Place
from spark_jobs.report.again import NOTHING, Made


@dataclass(frozen=True, slots=True)
class Segment:
    """The lines of one segment with one `fault` (None: usable)."""

    file: str
    fault: str | None
    lines: int
    sample: str | None


@dataclass(frozen=True, slots=True)
class Mark:
    """A start, stop or recovery, or an event that changed how an instance works."""

    at: int
    instance: str
    what: str
    about: str = ""


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
class Sides:
    """Contradictions of the two sides of dialogs of a service pair; see `conservation.sides`."""

    from_service: str
    to_service: str
    contract: str
    most_us: int | None
    ahead: str | None
    behind: str | None
    renamed: str | None
    renamed_dialogs: int


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
class Gauge:
    """A gauge of one subject in one hour; see `gauges.gauges`."""

    date: str
    instance: str
    broker: str
    scope: str
    name: str
    gauge: str
    hour_at: int
    most: float
    last: float
    last_at: int


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter's total in one hour; see `gauges.counters`."""

    instance: str
    broker: str
    scope: str
    name: str
    counter: str
    hour_at: int
    total: int


@dataclass(frozen=True, slots=True)
class Activation:
    """How busy the readers of a queue were in one hour; see `gauges.activation`."""

    instance: str
    broker: str
    name: str
    hour_at: int
    watched_us: int
    ceiling_us: int
    idle_us: int
    most_readers: float
    max_readers: float
    most_ready: float


@dataclass(frozen=True, slots=True)
class Failure:
    """One fingerprint of a failure; see `failures.failures`."""

    instance: str
    broker: str
    event: str
    subclass: str
    name: str
    fingerprint: str
    times: int
    first_at: int
    example: str
    conversation_id: str
    is_new: bool
    """Whether the failure was on none of the days before; False if there are no such days."""


@dataclass(frozen=True, slots=True)
class HotGroup:
    """The least number of messages of a queue that one group had; see `hot_groups`."""

    instance: str
    broker: str
    name: str
    group: str
    messages: int


@dataclass(frozen=True, slots=True)
class Held:
    """The lock of a group, held since `since_at` and seen last at `seen_at`; see `held`."""

    instance: str
    broker: str
    name: str
    group: str
    since_at: int
    seen_at: int
    by: str
    conversation_id: str


@dataclass(frozen=True, slots=True)
class Night:
    """The p99 of one duration of a store on one day; see `latency.percentiles`."""

    date: str
    instance: str
    broker: str
    measure: str
    count: int
    p99_us: int


@dataclass(frozen=True, slots=True)
class Total:
    """A counter's sum over a day, or a gauge's maximum on it."""

    instance: str
    broker: str
    scope: str
    name: str
    what: str
    value: float


@dataclass(frozen=True, slots=True)
class Past:
    """The figures of one day for a comparison."""

    covered: tuple[tuple[str, int], ...] = ()
    """Microseconds covered by the logs of each instance."""
    totals: tuple[Total, ...] = ()
    failures: tuple[Total, ...] = ()
    """Number of failures by fingerprint: `scope` is the event, `what` the fingerprint."""


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour of a day over all instances; see `hourly`."""

    date: str
    hour: int
    sent: int
    received: int
    waits: int
    p50_us: int | None
    """None: no message was received."""
    p95_us: int | None


@dataclass(frozen=True, slots=True)
class Objective:
    """A service level: the part of a pair's messages that must take no longer than a time."""

    from_service: str
    to_service: str
    scope: str
    """`queue` or `destination`; the measure is that of this scope."""
    name: str
    measure: str
    instance: str
    """The one instance whose figures count; "": all of them."""
    within_us: int
    part: float

    @property
    def pair(self) -> str:
        """The pair in words."""
        return f"{self.from_service} → {self.to_service}"


@dataclass(frozen=True, slots=True)
class KeptHour:
    """The messages of an hour, and those of them that took longer than the objective allows."""

    hour_at: int
    total: int
    late: int


@dataclass(frozen=True, slots=True)
class Kept:
    """An objective, and what was kept of it in each hour of the last 30 days."""

    objective: Objective
    hours: tuple[KeptHour, ...]


@dataclass(frozen=True, slots=True)
class SetAside:
    """A segment that was set aside whole."""

    file: str
    fault: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The last line of an instance on the days before."""

    instance: str
    last_at: int
    stopped: bool
    """Whether the instance stopped in order after it."""


@dataclass(frozen=True, slots=True)
class Data:
    """All values of a report."""

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
    date: str = ""
    """The day; "" for one report of all segments in a directory."""
    before: str = ""
    after: str = ""
    """The nearest days before and after that have a report; "" if there is none."""
    gauges: tuple[Gauge, ...] = ()
    nights: tuple[Gauge, ...] = ()
    """The last gauges of each of the last days, including this one."""
    counters: tuple[Counter, ...] = ()
    activation: tuple[Activation, ...] = ()
    failures: tuple[Failure, ...] = ()
    baseline: tuple[Latency, ...] = ()
    """Latencies of the same weekday of the last four weeks; `span_at` is on that day."""
    spread: tuple[tuple[int, int], ...] = ()
    """Histogram of the waits of all messages: (bucket, count)."""
    spread_before: tuple[tuple[int, int], ...] = ()
    """Histogram of the waits on the days of the baseline."""
    unusable: tuple[SetAside, ...] = ()
    groups: tuple[HotGroup, ...] = ()
    held: tuple[Held, ...] = ()
    commits: tuple[Night, ...] = ()
    """Durations of commits on each of the last days, including this one."""
    own: Past = Past()
    past: tuple[Past, ...] = ()
    """The figures of the same weekday of the last four weeks, as far as the lake has them."""
    hours: tuple[Hour, ...] = ()
    """The hours of this day that the logs cover, over all instances."""
    hours_before: tuple[Hour, ...] = ()
    """The hours of the same weekday of the last four weeks."""
    kept: tuple[Kept, ...] = ()
    """The service levels, with what was kept of each in the last 30 days."""
    sides: tuple[Sides, ...] = ()
    enqueued_before: tuple[tuple[Counter, ...], ...] = ()
    """Messages enqueued by the hour, a tuple for each same weekday of the last four weeks; if the
    lake has none of these days, for the day before."""
    seen: tuple[Seen, ...] = ()
    """Instances with a line on one of the last days before this one."""
    made: Made = NOTHING
    """The input of the page, and the reasons for which it was made again."""

    @property
    def first_at(self) -> int:
        """The beginning of the first line's interval; for the report of a day, its midnight."""
        if self.date:
            return midnight(self.date)
        return min(boot.first_at for boot in self.boots)

    @property
    def last_at(self) -> int:
        """The instant of the last line; for the report of a day, its end."""
        if self.date:
            return midnight(self.date) + DAY_US
        return max(boot.last_at for boot in self.boots)

    def faulty(self, *faults: str) -> int:
        """Return the number of lines set aside for one of these faults."""
        return sum(part.lines for part in self.segments if part.fault in faults)


Value = TypeVar("Value")


def values(kind: type[Value], rows: Iterable[Mapping[str, object]]) -> tuple[Value, ...]:
    """Convert rows to values of `kind` without the other columns; lists become tuples."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # all are dataclasses
    return tuple(kind(**{name: _frozen(row[name]) for name in names}) for row in rows)


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
