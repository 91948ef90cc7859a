"""Load processes: none is left when a phase is over, and what they did is told as one."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from brokerd.bench.load import Load
from brokerd.bench.loads import Loads, summed, summed_lag
from brokerd.bench.measuring import BenchFailed
from brokerd.bench.tally import Outcome
from brokerd.clock import Instant, SystemClock
from brokerd.telemetry.metrics import Histogram

PROGRAM = """#!/bin/sh
read line
case "$line" in *'"role":"send"'*) exit 1;; esac
exec sleep 600
"""


async def test_what_still_runs_when_one_fails_is_ended_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "load"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    roles = [Load(role=role, address="", clients=1) for role in ("send", "take")]
    loads = Loads(roles, SystemClock())
    with pytest.raises(BenchFailed, match="ended with status 1 and without a word"):
        await loads.run(1.0)
    assert [one.returncode for one in loads._processes] == [1, -9]
    assert not caplog.messages


async def test_one_that_cannot_go_on_says_why() -> None:
    loads = Loads([Load(role="send", address="nowhere", clients=1)], SystemClock())
    with pytest.raises(BenchFailed, match=r"cannot go on: .*nowhere"):
        await loads.run(1.0)


@pytest.mark.parametrize("us", [2, 2359, 40_000])
def test_no_percentile_is_more_than_the_most(us: int) -> None:
    outcomes = []
    for most in (us - 1, us):
        times = Histogram()
        times.add_all([most])
        buckets = times.drain()
        outcomes.append(
            Outcome(latency=buckets, most_latency_us=most, lag=buckets, most_lag_us=most)
        )
    for told in (summed(outcomes, 1.0).latency_us, summed_lag(outcomes)):
        found = {name: us for name, us in told.items() if us is not None}
        assert found["most"] == us >= max(found.values())
        assert found["p50"] <= found["p95"] <= found["p99"] <= found["p999"]


WORKING = """#!/bin/sh
read line
echo ready
read times
{work}
"""
SAYS = """echo '{"counted":1}'"""


class Passing:
    """A clock that is as late as whoever sleeps wants; `asked` says when that was. With `stands`
    it does not get so far."""

    def __init__(self, *, stands: int = 0) -> None:
        self.now = 5.0
        self.asked: list[float] = []
        self._left = stands or 99

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> Instant:
        return Instant(0)

    async def sleep_until(self, due: float) -> None:
        self.asked.append(round(due - 5.2, 3))  # from the start, which is a little later
        self._left -= 1
        if not self._left:
            await asyncio.Event().wait()
        self.now = due


def working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    program = tmp_path / "load"
    program.write_text(WORKING.format(work=work))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.parametrize(
    ("role", "moments", "asked"), [("send", [1.0, 3.0], [1.0, 3.0]), ("take", [1.0, 1.0], [1.0])]
)
async def test_one_looks_when_counting_begins_and_when_it_ends(
    role: str,
    moments: list[float],
    asked: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe, clock, seen = tmp_path / "pipe", Passing(), []
    os.mkfifo(pipe)
    working(tmp_path, monkeypatch, f"read go < {pipe}; {SAYS}")

    async def look() -> None:
        seen.append(round(clock.now - 5.2, 3))
        if len(seen) == (2 if role == "send" else 1):
            pipe.write_text("go\n")  # the process has its own end, and it is later

    await Loads([Load(role=role, address="", clients=1)], clock).run(2.0, warm_up=1.0, sample=look)
    assert (seen, clock.asked) == (moments, asked)


async def test_who_is_done_before_is_looked_at_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = Passing(stands=2), []
    working(tmp_path, monkeypatch, SAYS)

    async def look() -> None:
        seen.append(clock.now)

    await Loads([Load(role="receive", address="", clients=1)], clock).run(9.0, sample=look)
    assert len(seen) == 2


async def test_nobody_looks_at_the_end_of_what_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    working(tmp_path, monkeypatch, "exit 1")

    async def look() -> None:
        seen.append(1)

    loads = Loads([Load(role="receive", address="", clients=1)], Passing(stands=2))
    with pytest.raises(BenchFailed, match="ended with status 1 and without a word"):
        await loads.run(9.0, sample=look)
    assert len(seen) < 2
