"""Daemons of a benchmark: none is left behind, whatever becomes of the others."""

import os
import time
from pathlib import Path

import pytest

from brokerd.bench.daemons import Daemon, processor_seconds_of, running
from brokerd.bench.measuring import BenchFailed


class Told(Daemon):
    """One that only tells what is asked of it."""

    def __init__(self, name: str, told: list[str], *, starts: bool = True) -> None:
        super().__init__(Path(), name, port=0, objects="")
        self._told = told
        self._starts = starts

    async def start(self) -> None:
        if not self._starts:
            raise OSError(self.name)
        self._told.append(f"start {self.name}")

    async def stop(self) -> None:
        self._told.append(f"stop {self.name}")


async def test_all_are_stopped_where_one_cannot_start() -> None:
    told: list[str] = []
    with pytest.raises(OSError, match="east"):
        async with running(Told("east", told, starts=False), Told("west", told)):
            told.append("in it")
    assert told == ["start west", "stop east", "stop west"]


async def test_all_are_stopped_where_the_measuring_fails() -> None:
    told: list[str] = []
    with pytest.raises(ZeroDivisionError):
        async with running(Told("one", told)):
            raise ZeroDivisionError
    assert told == ["start one", "stop one"]


class Ending(Daemon):
    """One that ends at once, and says why."""

    def command(self, settings: Path) -> tuple[str, ...]:
        return ("-c", "print('there is no room')")


async def test_one_that_does_not_start_is_told_with_its_own_words(
    tmp_path: Path,
) -> None:
    daemon = Ending(tmp_path, "east", port=0, objects="")
    with pytest.raises(BenchFailed, match=r"east did not start: there is no room"):
        async with running(daemon):
            raise AssertionError


def test_processor_time_is_finer_than_ticks() -> None:
    before = time.process_time()
    told = processor_seconds_of(os.getpid())
    assert before < told < time.process_time()


def test_who_has_ended_has_no_processor_time() -> None:
    assert processor_seconds_of(2**22 + 1) == 0.0
