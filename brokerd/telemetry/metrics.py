"""Metrics of a running daemon: histograms, and differences of counters.

Components count in plain integer attributes (31 ns); a pass takes the differences and gives them as
`Row`s to the metrics log (design D12).

Reads:  numbers.      Calls: nothing.      Never:  writes a file (`metrics_log` does).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import log
from typing import Final

import msgspec

GROWTH: Final = 1.02
"""Ratio of the bounds of a bucket: each bucket is 2 % wider than the one below it."""
MAX_MICROSECONDS: Final = 1e15
"""Largest value (31 years); larger values count as this one."""

_PER_LOG: Final = 1 / log(GROWTH)
MAX_BUCKET: Final = int(log(MAX_MICROSECONDS) * _PER_LOG)
_SHORT: Final = 32_768
_BUCKET_OF: Final = [0, *(int(log(us) * _PER_LOG) for us in range(1, _SHORT))]
"""Bucket of each whole number of microseconds below 33 ms; a look-up takes half the time of a
logarithm."""
_ABOVE: Final = 1 + 1e-9
"""Distance from the edge of a bucket, as a factor, beyond which rounding cannot cross the edge."""


BOUNDS: Final = (
    *(100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000),
    *(1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000, 300_000_000, 1_000_000_000),
    *(3_600_000_000, 21_600_000_000, 86_400_000_000),
)
"""Upper bounds, in microseconds, of the buckets of `HistogramTotals`: 100 µs to a day, each about
three times the one before."""


class HistogramTotals(msgspec.Struct, frozen=True):
    """The values that a histogram has counted since the start, in few buckets."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    """Number of values of each bucket, not of those below it; the last is above every bound."""
    microseconds: float = 0.0
    """Sum of the values, within 1 %."""

    def plus(self, other: "HistogramTotals", sign: int = 1) -> "HistogramTotals":
        """Return the sum with another; `sign` -1: the difference."""
        counts = tuple(a + sign * b for a, b in zip(self.counts, other.counts, strict=True))
        return HistogramTotals(counts, self.microseconds + sign * other.microseconds)


class Histogram:
    """Counts of values in 2 % logarithmic buckets; histograms are merged by adding their buckets.

    Bucket i holds the values v, in microseconds, with i = floor(log v / log 1.02); a value that is
    below 1 or not a number falls into bucket 0.
    """

    __slots__ = ("_buckets", "_drained")

    def __init__(self) -> None:
        self._buckets: defaultdict[int, int] = defaultdict(int)
        self._drained = HistogramTotals()

    def add(self, us: float) -> None:
        """Count one value in microseconds; short whole numbers are the fast case."""
        if 0 <= us < _SHORT and type(us) is int:
            self._buckets[_BUCKET_OF[us]] += 1
        else:
            self.add_all((us,))

    def add_all(self, values: Iterable[float]) -> None:
        """Count many values in microseconds.

        Successive long values are often alike, so the edges of a repeated bucket are kept, and a
        value between them needs no logarithm."""
        buckets = self._buckets
        bucket, least, less_than = 0, 1.0, 1.0  # of the last long value; edges if repeated
        for us in values:
            if 0 <= us < _SHORT and type(us) is int:
                buckets[_BUCKET_OF[us]] += 1
            elif least <= us < less_than:
                buckets[bucket] += 1
            elif 1.0 <= us < MAX_MICROSECONDS:
                before, bucket = bucket, int(log(us) * _PER_LOG)
                buckets[bucket] += 1
                least = less_than = 1.0
                if bucket == before:
                    least, less_than = GROWTH**bucket * _ABOVE, GROWTH ** (bucket + 1) / _ABOVE
            else:
                buckets[MAX_BUCKET if us >= MAX_MICROSECONDS else 0] += 1

    @property
    def count(self) -> int:
        """Number of values counted since the last `drain`."""
        return sum(self._buckets.values())

    def quantile(self, part: float) -> float | None:
        """Return the value below which `part` of all values lie, within 1 %; None if empty."""
        rest = part * self.count
        for bucket in sorted(self._buckets):
            rest -= self._buckets[bucket]
            if rest <= 0:
                return bucket_value(bucket)
        return None

    def drain(self) -> dict[str, int]:
        """Return the counts since the last call, by bucket index as text, and reset them."""
        taken = {str(bucket): self._buckets[bucket] for bucket in sorted(self._buckets)}
        self._drained = self.totals()
        self._buckets.clear()
        return taken

    def totals(self) -> HistogramTotals:
        """Return all values counted since the start, whether drained or not."""
        if not self._buckets:
            return self._drained
        counts, microseconds = list(self._drained.counts), self._drained.microseconds
        for bucket, count in self._buckets.items():
            value = bucket_value(bucket)
            counts[bisect_left(BOUNDS, value)] += count
            microseconds += value * count
        return HistogramTotals(tuple(counts), microseconds)


def bucket_value(bucket: int) -> float:
    """Return the value, in microseconds, that represents all values in a bucket."""
    return float(GROWTH ** (bucket + 0.5))


class Deltas:
    """The latest values of rising totals, from which their increases are computed.

    A total that has fallen counts from zero, as its owner was created again.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def since(self, totals: Mapping[str, int]) -> dict[str, int]:
        """Return the increase of each total since the last call; leave out unchanged totals."""
        gained: dict[str, int] = {}
        for name, total in totals.items():
            last = self._last.get(name, 0)
            gain = total - last if total >= last else total
            self._last[name] = total
            if gain:
                gained[name] = gain
        return gained


class HeldLock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock on a conversation group that a transaction has held for some time."""

    group: str
    conversation_id: str
    """Conversation of the group, if it has only one; else ""."""
    by: str
    """Owner of the transaction, and its last verb."""
    since_at: int
    """Start of the lock in UTC microseconds, which identifies the lock across several lines."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Metrics of one scope in one interval; `scope` determines which key fields are set."""

    scope: str
    """`queue`, `pair`, `destination` or `instance`."""
    broker: str = ""
    queue: str = ""
    from_service: str = ""
    to_service: str = ""
    contract: str = ""
    destination: str = ""
    counters: dict[str, int] = {}
    gauges: dict[str, float] = {}
    histograms: dict[str, dict[str, int]] = {}
    groups: dict[str, int] = {}
    """In a queue row: the groups with the most received messages, over some minutes."""
    groups_within: int = 0
    """Upper bound of the undercount of each listed group, and of the count of any other group
    (`broker.hot_groups`)."""
    held: list[HeldLock] = []
    """In a queue row: the current group locks that have been held longest."""

    @property
    def is_empty(self) -> bool:
        """Whether the row has only zeros, so that its line may be left out."""
        said = self.counters or self.histograms or self.groups or self.groups_within or self.held
        return not (said or any(self.gauges.values()))


class DialogLine(msgspec.Struct, frozen=True, kw_only=True):
    """State or outcome of one dialog endpoint, to compare both sides (design D16)."""

    broker: str
    state: str
    """`open` or `closed`; of several lines of one endpoint, the closed one is valid."""
    conversation_id: str
    is_initiator: bool
    service: str
    far_service: str
    contract: str
    sent: int
    acknowledged: int
    received: int
    discarded_unread: int
    undelivered: int
    outcome: str
    """`ended`, `error:<code>`, `expired` or `open`."""
    began_at: int
    ended_at: int | None
