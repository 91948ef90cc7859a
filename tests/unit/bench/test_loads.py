"""Load processes: none is left when a phase is over, and what they did is told as one."""

import sys
from pathlib import Path

import pytest

from brokerd.bench.load import Load
from brokerd.bench.loads import Loads, summed, summed_lag
from brokerd.bench.measuring import BenchFailed
from brokerd.bench.tally import Outcome
from brokerd.clock import SystemClock
from brokerd.metrics import Histogram

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
    with pytest.raises(BenchFailed, match="could not connect"):
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
        buckets = times.take()
        outcomes.append(
            Outcome(latency=buckets, most_latency_us=most, lag=buckets, most_lag_us=most)
        )
    for found in (summed(outcomes, 1.0).latency_us, summed_lag(outcomes)):
        assert found["most"] == us >= max(found.values())
        assert found["p50"] <= found["p95"] <= found["p99"] <= found["p999"]
