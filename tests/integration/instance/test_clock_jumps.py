"""UTC jumps under a daemon, and between two: nothing expires or fires by it (REL-24)."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from brokerd.client.session import Session
from brokerd.errors import InvalidArgument
from brokerd.telemetry.logs import CLOCK
from brokerd.telemetry.metrics import Row
from tests.integration.one_daemon import Daemon, play
from tests.integration.shorthand import take

DAYS = timedelta(days=3)
DIALOGS = 50
HOUR = 3600


async def fifty(session: Session) -> None:
    """Dialogs that live for a day, each with a timer of an hour."""
    for _ in range(DIALOGS):
        handle = await session.begin_dialog("urn:desk", "urn:shop", "talk", lifetime=24 * HOUR)
        await session.send(handle, b"x", "Ask")
        await session.set_timer(handle, HOUR)


async def over(session: Session) -> tuple[int, int]:
    """How many dialogs have ended with an error, and how many timers have fired."""
    errors = timers = 0
    while messages := await take(session, "desk"):
        errors += sum(one.is_error for one in messages)
        timers += sum(one.is_timer for one in messages)
    return errors, timers


def told(daemon: Daemon) -> list[tuple[object, object]]:
    lines = [fields for event, fields in daemon.log.lines if event == CLOCK]
    return [(one["subclass"], one["seconds"]) for one in lines]


@pytest.mark.rule("REL-24", "FC-1")
@pytest.mark.parametrize("by", [DAYS, -DAYS, timedelta(days=3650), -timedelta(days=3650)])
def test_a_clock_that_jumps_for_twelve_seconds_ends_nothing(tmp_path: Path, by: timedelta) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await fifty(session)
            daemon.clock.jump(by)
            await daemon.pass_time(12)
            status = await session.status()
            assert f"jumped {'3d' if abs(by) == DAYS else '3650d'}" in str(status["clock"])
            daemon.clock.jump(-by)
            await daemon.pass_time(12)
            assert (await session.status())["clock"] == ""
            assert await over(session) == (0, 0)
            seconds = round(by.total_seconds())
            assert told(daemon) == [("jumped", seconds), ("returned", seconds)]
            await daemon.pass_time(HOUR)
            assert await over(session) == (0, DIALOGS)

    play(program, tmp_path)


@pytest.mark.rule("REL-24")
def test_a_jump_that_stands_for_ten_minutes_is_followed(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await fifty(session)
            daemon.clock.jump(DAYS)
            await daemon.pass_time(590)
            assert await over(session) == (0, 0)
            await daemon.pass_time(30)
            errors, _ = await over(session)
            assert errors == DIALOGS
            assert [what for what, _ in told(daemon)] == ["jumped", "confirmed"]

    play(program, tmp_path)


@pytest.mark.rule("REL-24")
def test_the_metrics_log_has_a_jump_for_as_long_as_it_is_held(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        figures = daemon.instance.parts.figures
        assert not any(map(_jumps, figures.rows()))
        daemon.clock.jump(DAYS)
        (row,) = filter(_jumps, figures.rows())
        assert (row.scope, row.gauges["clock_jump_s"]) == ("instance", DAYS.total_seconds())
        daemon.clock.jump(-DAYS)
        assert not any(map(_jumps, figures.rows()))

    play(program, tmp_path)


def _jumps(row: Row) -> bool:
    return "clock_jump_s" in row.gauges


@pytest.mark.rule("REL-24", "CLP-133")
def test_an_administrator_confirms_a_jump(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await fifty(session)
            with pytest.raises(InvalidArgument, match="no jump"):
                await session.admin.confirm_clock()
            daemon.clock.jump(DAYS)
            assert await session.admin.confirm_clock() == DAYS
            await daemon.pass_time(6)
            errors, _ = await over(session)
            assert errors == DIALOGS
            daemon.clock.jump(-DAYS)
            assert await session.admin.confirm_clock() == -DAYS
            with pytest.raises(InvalidArgument, match="no jump"):
                await session.admin.confirm_clock()

    play(program, tmp_path)


@pytest.mark.rule("REL-24")
def test_a_jump_between_two_daemons_is_told_from_downtime(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await fifty(session)
        await daemon.stop()
        daemon.clock.jump(DAYS)
        await daemon.pass_time(600)
        await daemon.start()
        async with await daemon.session() as session:
            await daemon.pass_time(12)
            assert await over(session) == (0, 0)
            daemon.clock.jump(-DAYS)
        await daemon.stop()
        await daemon.pass_time(2 * HOUR)
        await daemon.start()
        async with await daemon.session() as session:
            await daemon.pass_time(6)
            assert await over(session) == (0, DIALOGS)

    play(program, tmp_path)
    kept = json.loads((tmp_path / "msdb.db-clock").read_text())
    assert kept["jump"] is None
    assert (tmp_path / "msdb.db-clock").stat().st_mode & 0o777 == 0o600


@pytest.mark.rule("REL-24")
def test_a_daemon_starts_without_what_was_kept_of_the_clock(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        (tmp_path / "msdb.db-clock").write_bytes(b"no state of a clock")
        await daemon.start()
        async with await daemon.session() as session:
            await fifty(session)

    play(program, tmp_path)
