"""Daemons of a benchmark: none is left behind, whatever becomes of the others."""

from pathlib import Path

import pytest

from brokerd.bench.daemons import Daemon, running


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
