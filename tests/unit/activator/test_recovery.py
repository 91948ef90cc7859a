"""The recovery log: who lives is known by a lock, not by a number (ACT-45)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.activator.recovery import RecoveryLog
from brokerd.errors import StoreLocked, UnsafeFile


@pytest.mark.rule("ACT-45")
def test_a_slot_is_held_by_whoever_was_given_its_lock(tmp_path: Path) -> None:
    log = RecoveryLog(tmp_path)
    log.open()
    first, second = log.slots("packer", 2)
    descriptor = first.lock()
    assert descriptor is not None
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], pass_fds=(descriptor,), stdin=subprocess.PIPE
    ) as program:
        first.release(descriptor)
        first.write(pid=program.pid)
        log.close()
        later = RecoveryLog(tmp_path)
        later.open()
        assert [slot.is_held() for slot in later.slots("packer", 2)] == [True, False]
        assert later.slots("packer", 1)[0].read() == {"pid": program.pid}
        assert later.slots("packer", 1)[0].lock() is None
        program.communicate(b"\n")
    assert not first.is_held()
    assert not second.is_held()


@pytest.mark.rule("ACT-45")
def test_one_activator_at_a_time_has_it(tmp_path: Path) -> None:
    log = RecoveryLog(tmp_path / "state")
    log.open()
    with pytest.raises(StoreLocked, match="another activator"):
        RecoveryLog(tmp_path / "state").open()
    log.close()
    RecoveryLog(tmp_path / "state").open()


@pytest.mark.rule("ACT-45")
def test_a_shorter_list_still_knows_of_those_beyond_it(tmp_path: Path) -> None:
    log = RecoveryLog(tmp_path)
    for slot in log.slots("packer", 3):
        descriptor = slot.lock()
        assert descriptor is not None
        os.close(descriptor)
    (tmp_path / "packer.other.0.slot").touch()
    assert [slot.number for slot in log.slots("packer", 1)] == [0, 1, 2]


@pytest.mark.rule("SX-24", "ACT-45")
def test_no_lock_of_an_activator_is_taken_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("what somebody else wrote")
    state = tmp_path / "state"
    log = RecoveryLog(state)
    (slot,) = log.slots("packer", 1)
    state.mkdir()
    slot.path.symlink_to(other)
    (state / "activator.lock").symlink_to(other)
    with pytest.raises(UnsafeFile, match=r"packer\.0\.slot is a symbolic link"):
        slot.lock()
    with pytest.raises(UnsafeFile, match=r"activator\.lock is a symbolic link"):
        log.open()
    assert other.read_text() == "what somebody else wrote"
