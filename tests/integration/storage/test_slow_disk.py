"""A daemon whose disk keeps a commit: who is told, who waits, and who does not (REL-34)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.maintenance.slow_commits import SlowCommits
from brokerd.process.daemon import give_sign_of_life
from brokerd.process.supervisor import Supervisor
from brokerd.storage.executors import Inline
from brokerd.telemetry.logs import STORE
from tests.integration.one_daemon import Daemon
from tests.integration.scenarios import given
from tests.integration.shorthand import bodies, take, talk
from tests.integration.storage.disks import MIB, SMALL, Platter, SaidDisk


class Signs(Supervisor):
    """Counts the signs of life."""

    given = 0

    def turned(self) -> None:
        self.given += 1


@asynccontextmanager
async def on_a_platter(
    daemon: Daemon, _folder: Path
) -> AsyncIterator[tuple[Daemon, Platter, Session]]:
    """The daemon, started again on a disk that can be made slow, and a client."""
    await daemon.stop()
    platter = Platter()
    daemon.executor, daemon.disk = Inline(platter), SaidDisk()
    await daemon.start(store=SMALL)
    async with await daemon.session() as session:
        yield daemon, platter, session


scenario = given(on_a_platter)


def told(daemon: Daemon) -> list[tuple[object, ...]]:
    return [
        (fields["subclass"], fields["broker"])
        for event, fields in daemon.log.lines
        if event == STORE and fields["subclass"] in ("slow", "quick_again")
    ]


async def state(session: Session) -> dict[str, str]:
    status: Any = await session.status()
    return {one["broker"]: one["state"] for one in status["stores"]}


@pytest.mark.rule("REL-34", "FD-7")
@scenario
async def test_a_commit_that_waits_for_the_disk_is_told_once_and_so_is_its_end(
    daemon: Daemon, platter: Platter, session: Session
) -> None:
    handle = await talk(session, b"before")
    async with await daemon.session() as looker:
        platter.hold()
        sending = daemon.instance.parts.tasks.spawn(session.send(handle, b"late", "Ask"))
        await daemon.pass_time(4)
        assert (await state(looker))["main"] == "ok"
        await daemon.pass_time(11)
        assert told(daemon) == [("slow", "main")]
        assert await state(looker) == {"main": "slow", "msdb": "ok"}
        await daemon.pass_time(10)
        began = daemon.loop.time()
        assert len(await looker.view("brokers")) == 2
        assert daemon.loop.time() - began < 1  # asked again, and not held back
        assert not sending.done()
        platter.let_go()
        await sending
        await daemon.pass_time(6)
        assert await state(looker) == {"main": "ok", "msdb": "ok"}
    assert told(daemon) == [("slow", "main"), ("quick_again", "main")]
    assert bodies(await take(session, "shop")) == [b"before", b"late"]
    seconds: dict[object, Any] = {
        one["subclass"]: one["seconds"]
        for event, one in daemon.log.lines
        if event == STORE and "seconds" in one
    }
    assert seconds["slow"] > 5
    assert seconds["quick_again"] > 20


@pytest.mark.rule("REL-34")
@scenario
async def test_what_only_one_look_finds_late_is_not_told(
    daemon: Daemon, platter: Platter, session: Session
) -> None:
    handle = await talk(session, b"before")
    await daemon.pass_time(6)
    platter.hold()
    sending = daemon.instance.parts.tasks.spawn(session.send(handle, b"late", "Ask"))
    await daemon.pass_time(9)
    platter.let_go()
    await sending
    await daemon.pass_time(10)
    assert told(daemon) == []


@pytest.mark.rule("REL-34", "REL-26")
@scenario
async def test_a_full_disk_is_not_slow(daemon: Daemon, platter: Platter, session: Session) -> None:
    await talk(session, b"before")
    assert isinstance(daemon.disk, SaidDisk)
    daemon.disk.left = 9 * MIB
    await daemon.pass_time(6)
    (got,) = await take(session, "shop")
    platter.hold()
    ending = daemon.instance.parts.tasks.spawn(session.end(got.handle))
    await daemon.pass_time(40)
    async with await daemon.session() as looker:
        assert (await state(looker))["main"] == "full"
    assert not daemon.instance.parts.slow_commits.is_stuck
    platter.let_go()
    await ending
    assert told(daemon) == []


@pytest.mark.rule("REL-34", "REL-89")
@scenario
async def test_a_commit_that_waits_for_a_standby_does_not_end_the_daemon(
    daemon: Daemon, platter: Platter, session: Session
) -> None:
    handle = await talk(session, b"before")
    standby: set[str] = set()
    slow = SlowCommits(
        brokers=daemon.instance.brokers,
        after=5,
        log=daemon.log,
        waits_for_standby=standby.__contains__,
    )
    platter.hold()
    sending = daemon.instance.parts.tasks.spawn(session.send(handle, b"late", "Ask"))
    await daemon.pass_time(40)
    assert slow.is_stuck
    standby.add("main")
    assert not slow.is_stuck
    platter.let_go()
    await sending


@pytest.mark.rule("REL-34", "FP-8")
@scenario
async def test_the_supervisor_gets_no_sign_of_life_while_a_commit_waits_for_very_long(
    daemon: Daemon, platter: Platter, session: Session
) -> None:
    handle = await talk(session, b"before")
    supervisor = Signs()
    platter.hold()
    sending = daemon.instance.parts.tasks.spawn(session.send(handle, b"late", "Ask"))
    for seconds, signs in ((29, 1), (2, 1), (9, 1)):
        await daemon.pass_time(seconds)
        give_sign_of_life(daemon.instance.parts.slow_commits, supervisor)
        assert supervisor.given == signs
    platter.let_go()
    await sending
    give_sign_of_life(daemon.instance.parts.slow_commits, supervisor)
    assert supervisor.given == 2
