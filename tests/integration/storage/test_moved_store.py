"""A file that is moved, replaced or removed under a daemon that has it open (FD-9)."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.errors import BAD_FILE, StoreFault
from tests.integration.one_daemon import Daemon, play
from tests.integration.shorthand import talk

pytestmark = pytest.mark.of_files("store files are moved")


def move(store: Path) -> None:
    store.rename(store.with_suffix(".old"))


def replace(store: Path) -> None:
    copy = store.with_suffix(".copy")
    shutil.copy(store, copy)
    copy.rename(store)


@pytest.mark.rule("FD-9", "FO-8", "REL-16", "REL-37", "REL-30")
@pytest.mark.parametrize("what", [move, replace, Path.unlink])
def test_the_daemon_stops_and_is_not_started_again(
    tmp_path: Path, what: Callable[[Path], object]
) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await talk(session, b"x")
            await daemon.pass_time(11)
            daemon.check()
            what(tmp_path / "main.db")
            await talk(session, b"y")
            await daemon.pass_time(6)

    with pytest.raises(StoreFault, match="moved, replaced or removed") as caught:
        play(scenario, tmp_path)
    assert caught.value.exit_status == BAD_FILE
    assert str(tmp_path / "main.db") in caught.value.message
    assert "put that one back" in caught.value.hint


def life(daemon: Daemon) -> list[object]:
    """What the log says of the start and the end of the daemon."""
    words = ("starting", "ready", "draining", "stopped", "failed")
    found = [one["subclass"] for event, one in daemon.log.lines if event == "broker.daemon"]
    return [one for one in found if one in words]


@pytest.mark.rule("MON-16")
def test_the_log_tells_of_a_start_and_a_stop(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        (ready,) = [one for _, one in daemon.log.lines if one.get("subclass") == "ready"]
        assert ready["sqlite"] == sqlite3.sqlite_version
        (starting,) = [one for _, one in daemon.log.lines if one.get("subclass") == "starting"]
        assert starting["data_dir"] == str(tmp_path)
        assert life(daemon) == ["starting", "ready"]
        await daemon.stop()
        assert life(daemon) == ["starting", "ready", "draining", "stopped"]
        daemon.instance.log_failure(StoreFault("planted"))
        assert life(daemon)[-1] == "failed"
        await daemon.start()

    play(scenario, tmp_path)
