"""The counts of a load process, and the form in which it prints them.

Reads: a clock.      Calls: nothing.      Never: sends or receives.
"""

import mmap
from typing import Final

import msgspec

from brokerd.clock import Clock
from brokerd.telemetry.metrics import Histogram

MOST_PROCESSES: Final = 32
"""Most load processes of one side, for which the file of both sides' counters has room."""


class Times(msgspec.Struct, frozen=True):
    """Times to start, to begin counting, and to stop, in seconds of the monotonic clock."""

    start: float
    count: float
    stop: float


class Outcome(msgspec.Struct, kw_only=True):
    """The counts of one load process between `count` and `stop`."""

    counted: int = 0
    total: int = 0
    began: float = 0.0
    """Time when counting began, on the machine's monotonic clock, like the next two fields."""
    first: float = 0.0
    last: float = 0.0
    latency: dict[str, int] = {}
    most_latency_us: int = 0
    lag: dict[str, int] = {}
    """Histogram of the delays of sends after their recorded times, if times are recorded."""
    most_lag_us: int = 0
    cpu: float = 0.0
    """Processor seconds of this process from `start` to its last commit."""


class Counters:
    """The numbers of messages sent and received by all load processes, in a shared file."""

    SLOTS = 2 * MOST_PROCESSES

    def __init__(self, path: str, slot: int) -> None:
        self._slot = slot
        self._map: mmap.mmap | None = None
        if path:
            with open(path, "r+b") as file:  # only the map stays open
                self._map = mmap.mmap(file.fileno(), 0)

    def sent(self, count: int) -> None:
        """Count messages that this process sent."""
        self._add(self._slot, count)

    def received(self, count: int) -> None:
        """Count messages that this process received."""
        self._add(self.SLOTS + self._slot, count)

    @property
    def under_way(self) -> int:
        """Number of messages sent and not yet received, over all processes."""
        if self._map is None:
            return 0
        numbers = memoryview(self._map).cast("Q")
        try:
            return sum(numbers[: self.SLOTS]) - sum(numbers[self.SLOTS :])
        finally:
            numbers.release()

    def _add(self, place: int, count: int) -> None:
        if self._map is not None:
            numbers = memoryview(self._map).cast("Q")
            numbers[place] += count
            numbers.release()


class Tally:
    """The counts of one load process so far."""

    def __init__(self, times: Times, clock: Clock, counters: Counters) -> None:
        self.times = times
        self.counters = counters
        self.clock = clock
        self.counted = self.total = 0
        self.first = self.last = 0.0
        self.latency = Histogram()
        self.lag = Histogram()
        self.most_latency_us = self.most_lag_us = 0

    def add(self, count: int, began: float) -> None:
        """Count messages that began at `began` and are done now."""
        now = self.clock.monotonic()
        self.total += count
        if self.times.count <= now < self.times.stop:
            self.counted += count
            self.first = self.first or now
            self.last = now
            us = int((now - began) * 1e6)
            self.latency.add_all([us] * count)
            self.most_latency_us = max(self.most_latency_us, us)

    def add_each(self, count: int, began: list[float]) -> None:
        """Count messages that are done now; `began`: the time when each began, where it is known.

        Messages under way at `stop` count too, because the time of the phase lasts until `last`.
        """
        now = self.clock.monotonic()
        self.total += count
        self.counted += count
        self.first = self.first or now
        self.last = now
        times = [int((now - one) * 1e6) for one in began]
        self.latency.add_all(times)
        self.most_latency_us = max((self.most_latency_us, *times))

    def late(self, lag: float) -> None:
        """Count a send that came `lag` seconds after it was due."""
        us = int(lag * 1e6)
        self.lag.add(us)
        self.most_lag_us = max(self.most_lag_us, us)

    def outcome(self, cpu: float) -> Outcome:
        """Return all counts, and clear the histograms."""
        return Outcome(
            counted=self.counted,
            total=self.total,
            began=self.times.count,
            first=self.first,
            last=self.last,
            latency=self.latency.drain(),
            most_latency_us=self.most_latency_us,
            lag=self.lag.drain(),
            most_lag_us=self.most_lag_us,
            cpu=cpu,
        )
