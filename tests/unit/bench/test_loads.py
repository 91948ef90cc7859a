"""Load processes: none is left when a phase is over."""

import sys
from pathlib import Path

import pytest

from brokerd.bench.load import Load
from brokerd.bench.loads import Loads
from brokerd.bench.measuring import BenchFailed
from brokerd.clock import SystemClock

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
