"""Recorded traffic is sent when it is due, at the pace that was asked for."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from brokerd.bench.play import Player
from brokerd.bench.schedule import Schedule, Sending

SENDINGS = [Sending(due, 0, ((0, 10),)) for due in (0.0, 1.0, 1.5)]


class Watch:
    """A clock that whoever sleeps sets on."""

    def __init__(self) -> None:
        self.now = 5.0

    def monotonic(self) -> float:
        return self.now

    async def sleep_until(self, due: float) -> None:
        self.now = due


async def sent_at(player: Player, watch: Watch) -> list[float]:
    tally: Any = SimpleNamespace(clock=watch, times=SimpleNamespace(start=5.0))
    times = []
    for one in SENDINGS:
        await player._due(one, tally)
        times.append(watch.now)
    return times


@pytest.mark.parametrize(
    ("speed", "times"),
    [(1.0, [5.0, 6.0, 6.5]), (2.0, [5.0, 5.5, 5.75]), (0.0, [5.0, 5.0, 5.0])],
)
def test_each_is_sent_when_it_is_due(tmp_path: Path, speed: float, times: list[float]) -> None:
    file = tmp_path / "schedule"
    file.write_bytes(msgspec.msgpack.encode(Schedule(1, 1, SENDINGS)))
    player = Player([], str(file), speed, outstanding=1)
    assert asyncio.run(sent_at(player, Watch())) == times
