"""What daemons have done while something was measured, and nothing of before or after."""

from pathlib import Path
from typing import cast

import pytest

from brokerd.bench.daemons import Daemon
from brokerd.bench.watching import Watch
from brokerd.client.session import Session


class Known(Daemon):
    """One of which is known what it will have used."""

    def __init__(self, name: str, seconds: list[float]) -> None:
        super().__init__(Path(), name, port=0, objects="")
        self._seconds = seconds

    @property
    def processor_seconds(self) -> float:
        return self._seconds.pop(0)


class Counting:
    """A session with a daemon of which is known what it will have counted."""

    def __init__(self, *flushes: int) -> None:
        self._flushes = list(flushes)

    async def view(self, name: str) -> list[dict[str, object]]:
        assert name == "counters"
        flushes = self._flushes.pop(0)
        return [{"flushes": flushes, "peak_memory": 10 * flushes, "fragments_dropped": {}}]


async def test_counters_and_processor_time_are_those_between_two_looks() -> None:
    daemons = [Known("east", [1.0, 1.5]), Known("west", [7.0, 7.001])]
    sessions = [cast("Session", one) for one in (Counting(100, 150), Counting(3, 7))]
    watch = Watch(daemons, sessions)
    await watch.sample()
    await watch.sample()
    assert watch.counted() == {"east": {"flushes": 50}, "west": {"flushes": 4}}
    assert watch.processor_us(1_000) == {"east": pytest.approx(500), "west": pytest.approx(1)}
    assert watch.processor_us(0)["east"] == 500_000  # nothing is divided by nothing
    assert watch.peak_memory == 1500
