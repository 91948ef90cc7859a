"""Daemons of a benchmark: none is left behind, whatever becomes of them, and their end is told."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from brokerd.bench.daemons import Daemon, processor_seconds_of, running
from brokerd.bench.measuring import BenchFailed
from brokerd.errors import ConnectionLost, ProcessEnded, UsageError
from brokerd.process.exit_statuses import exit_status


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

    async def ended(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self._told.append(f"stop {self.name}")

    async def kill(self) -> None:
        self._told.append(f"kill {self.name}")


async def test_all_are_ended_where_one_cannot_start() -> None:
    told: list[str] = []
    with pytest.raises(OSError, match="east"):
        async with running(Told("east", told, starts=False), Told("west", told)):
            told.append("in it")
    assert told == ["start west", "kill east", "kill west"]


@pytest.mark.parametrize(("kept", "how"), [(False, "kill"), (True, "stop")])
async def test_where_the_measuring_fails_only_what_is_kept_is_stopped_in_an_orderly_way(
    kept: bool, how: str
) -> None:
    told: list[str] = []
    with pytest.raises(ZeroDivisionError):
        async with running(Told("one", told), kept=kept):
            raise ZeroDivisionError
    assert told == ["start one", f"{how} one"]


async def test_after_the_measuring_all_are_stopped_in_an_orderly_way() -> None:
    told: list[str] = []
    async with running(Told("one", told)):
        pass
    assert told == ["start one", "stop one"]


class Other(Daemon):
    """Another program in its place, which is there at once."""

    program = ""

    def command(self, settings: Path) -> tuple[str, ...]:
        return ("-c", self.program)


class Ending(Other):
    """One that ends at once, and says why."""

    async def _answers(self) -> None:
        await asyncio.Event().wait()


OWN = """
import sys
print('{"event":"broker.daemon"}')
print("brokerd: the store is in use\\n  by process 7\\n  fix: stop it\\n")
sys.exit(73)
"""


@pytest.mark.parametrize(
    ("program", "message", "hint", "status"),
    [
        (
            OWN,
            "daemon east did not start: it ended with status 73: the store is in use\n"
            "  by process 7",
            "stop it",
            73,
        ),
        ("print('x'); exit(3)", "daemon east did not start: it ended with status 3: x", "", 1),
        (
            "print('{}'); import os; os.abort()",
            "daemon east did not start: it ended by SIGABRT",
            "",
            1,
        ),
        (
            "exit('MemoryError')",
            "daemon east did not start: it ended with status 1: MemoryError",
            "its limits are those of this shell: see `ulimit -a`",
            1,
        ),
    ],
)
async def test_one_that_does_not_start_is_told_with_its_own_words_and_status(
    tmp_path: Path, program: str, message: str, hint: str, status: int
) -> None:
    daemon = Ending(tmp_path, "east", port=0, objects="")
    daemon.program = program
    with pytest.raises(ProcessEnded) as told:
        async with running(daemon):
            raise AssertionError
    assert (told.value.message, told.value.hint) == (message, hint)
    assert exit_status(told.value) == status


class There(Other):
    """One that is there until it is ended."""

    program = "import time; time.sleep(600)"

    async def _answers(self) -> None:
        """At once."""


async def test_one_that_ends_interrupts_the_measuring_and_is_named(tmp_path: Path) -> None:
    east, west = (There(tmp_path, name, port=0, objects="") for name in ("east", "west"))

    async def measure() -> None:
        async with running(east, west):
            os.kill(west.pid, signal.SIGKILL)
            await asyncio.Event().wait()

    with pytest.raises(ProcessEnded, match=r"(?m)^daemon west ended by SIGKILL$"):
        await measure()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_what_others_meet_because_of_it_is_not_told_in_place_of_it(tmp_path: Path) -> None:
    east = There(tmp_path, "east", port=0, objects="")

    async def measure() -> None:
        async with running(east):
            os.kill(east.pid, signal.SIGKILL)
            raise ConnectionLost

    with pytest.raises(ProcessEnded, match=r"(?m)^daemon east ended by SIGKILL$"):
        await measure()


async def test_what_fails_while_all_run_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd.bench.daemons._NOTICE_LIMIT", 0.0)
    with pytest.raises(BenchFailed, match=r"(?m)^nothing came$"):
        async with running(There(tmp_path, "east", port=0, objects="")):
            raise BenchFailed("nothing came")


async def test_the_memory_of_one_that_is_gone_is_not_told(tmp_path: Path) -> None:
    east = There(tmp_path, "east", port=0, objects="")
    await east.start()
    assert east.memory
    await east.kill()
    with pytest.raises(ProcessEnded):
        _ = east.memory


async def test_a_directory_too_long_for_a_socket_is_named_and_nothing_is_made(
    tmp_path: Path,
) -> None:
    long = tmp_path / ("x" * 100)
    with pytest.raises(UsageError, match="the system takes 107"):
        async with running(There(long, "east", port=0, objects="")):
            raise AssertionError
    assert not long.exists()


async def test_a_relative_directory_is_that_of_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert There(Path("rel"), "east", port=0, objects="").directory == tmp_path / "rel" / "east"


def test_processor_time_is_finer_than_ticks() -> None:
    before = time.process_time()
    told = processor_seconds_of(os.getpid())
    assert before < told < time.process_time()


def test_who_has_ended_has_no_processor_time() -> None:
    assert processor_seconds_of(2**22 + 1) == 0.0
