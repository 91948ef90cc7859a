"""Numbers of a running daemon: histograms, and counters seen as differences.

Parts count in plain integer attributes (31 ns); a pass takes the differences and hands them as
`Row`s to the metrics log (design D12).  Never:  writes a file (metrics_log.py does).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import log
from typing import Final

import msgspec

GROWTH: Final = 1.02
"""Each bucket is 2 % wider than the one below it."""
MAX_MICROSECONDS: Final = 1e15
"""Values above (31 years) count as this one."""

_PER_LOG: Final = 1 / log(GROWTH)
MAX_BUCKET: Final = int(log(MAX_MICROSECONDS) * _PER_LOG)
_SHORT: Final = 32_768
_BUCKET_OF: Final = [0, *(int(log(us) * _PER_LOG) for us in range(1, _SHORT))]
"""Buckets of the whole microseconds below 33 ms: looking up is twice as fast as a logarithm."""
_ABOVE: Final = 1 + 1e-9
"""So much away from the edge of a bucket nothing is rounded across it."""


class Histogram:
    """Counts of values in 2 % logarithmic buckets; two are merged by adding their buckets.

    Bucket i holds the values v, in microseconds, with i = floor(log v / log 1.02); what is below
    1, negative or not a number falls into bucket 0.
    """

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: defaultdict[int, int] = defaultdict(int)

    def add(self, us: float) -> None:
        """Count one value in microseconds; whole ones are the quick case."""
        if 0 <= us < _SHORT and type(us) is int:
            self._buckets[_BUCKET_OF[us]] += 1
        else:
            self.add_all((us,))

    def add_all(self, values: Iterable[float]) -> None:
        """Count many, in microseconds; long ones that follow each other are often alike."""
        buckets = self._buckets
        bucket, least, less_than = 0, 1.0, 1.0  # of the long value before; edges of a second one
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
        """How many values were counted since the last `take`."""
        return sum(self._buckets.values())

    def quantile(self, part: float) -> float | None:
        """The value below which `part` of all lie, within 1 %; None if there are none."""
        rest = part * self.count
        for bucket in sorted(self._buckets):
            rest -= self._buckets[bucket]
            if rest <= 0:
                return bucket_value(bucket)
        return None

    def take(self) -> dict[str, int]:
        """The buckets counted since the last call, by index as text; counting starts anew."""
        taken = {str(bucket): self._buckets[bucket] for bucket in sorted(self._buckets)}
        self._buckets.clear()
        return taken


def bucket_value(bucket: int) -> float:
    """The value, in microseconds, that stands for all in a bucket."""
    return float(GROWTH ** (bucket + 0.5))


class Deltas:
    """Turns totals that only rise into what was added since the last call.

    A total that fell (its owner was made anew) counts from zero.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def since(self, totals: Mapping[str, int]) -> dict[str, int]:
        """What each total has gained since the last call; names without gain are left out."""
        gained: dict[str, int] = {}
        for name, total in totals.items():
            last = self._last.get(name, 0)
            gain = total - last if total >= last else total
            self._last[name] = total
            if gain:
                gained[name] = gain
        return gained


class HeldLock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock of a conversation group that a transaction has held for a while."""

    group: str
    conversation_id: str
    """The one conversation of the group; "" if it has several."""
    by: str
    """Whose transaction it is, and what that did last."""
    since_at: int
    """UTC microseconds; with it a reader of several lines knows that they say the same."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One scope's numbers for one interval; `scope` says which of the keys are set."""

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
    """Of a queue: the groups that had most of what was received, over some minutes."""
    groups_within: int = 0
    """So many more a group may have had, one that is not named in all (`broker.hot_groups`)."""
    held: list[HeldLock] = []
    """Of a queue: locks of groups that are held longest now."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened, so that the line may be left out."""
        said = self.counters or self.histograms or self.groups or self.groups_within or self.held
        return not (said or any(self.gauges.values()))


class DialogLine(msgspec.Struct, frozen=True, kw_only=True):
    """How one dialog endpoint stands or ended, for balancing both sides (design D16)."""

    broker: str
    state: str
    """`open` or `closed`; of several lines of one endpoint the closed one holds."""
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
