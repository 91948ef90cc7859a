"""Dialogs that nobody finishes are told of (PBT-5)."""

from datetime import timedelta
from pathlib import Path

import pytest

from brokerd.client.session import Session
from brokerd.clock import SECOND, show_instant
from brokerd.config.settings import Dialog
from brokerd.telemetry.logs import LINGERING
from tests.integration.one_daemon import Daemon, live_of, play
from tests.integration.shorthand import take

HOUR = 3600


async def half_ended(session: Session) -> None:
    handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    await session.send(handle, b"x", "Ask")
    await session.end(handle)


def told(daemon: Daemon) -> list[dict[str, object]]:
    return [fields for event, fields in daemon.log.lines if event == LINGERING]


@pytest.mark.rule("PBT-5", "MON-16")
def test_dialogs_that_nobody_finishes_are_told_of(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            since = daemon.clock.utc()
            for _ in range(3):
                await half_ended(session)
            refused = await session.begin_dialog("urn:desk", "urn:shop", "other")
            await session.send(refused, b"x", "Both")
            await session.begin_dialog("urn:desk", "urn:shop", "talk")  # open, which is no fault
            await session.alter("queue", "spare", status="off")
            ended = await session.begin_dialog("urn:desk", "urn:spare", "talk")
            await session.send(ended, b"x", "Ask")
            await session.end(ended)
            await daemon.pass_time(HOUR - 60)
            assert told(daemon) == []
            await daemon.pass_time(HOUR)
            await half_ended(session)  # too young to be told of
            await daemon.pass_time(120)
            lines = told(daemon)
            assert {(line["service"], line["state"], line["endpoints"]) for line in lines} == {
                ("urn:shop", "DI", 3),
                ("urn:desk", "ER", 1),
                ("urn:desk", "DO", 1),
            }
            assert {line["broker"] for line in lines} == {"main"}
            assert min(str(line["since"]) for line in lines)[:19] == show_instant(since)[:19]
            for _ in range(8):
                for message in await take(session, "shop"):
                    if message.is_end:
                        await session.end(message.handle)
            await session.end(refused)
            await session.admin.clean_up(ended, "nobody takes it")
            await daemon.pass_time(HOUR)
            assert len(told(daemon)) == len(lines), "nothing lingers any more"

    play(program, tmp_path)


@pytest.mark.rule("PBT-5")
def test_at_most_twenty_lines_are_written_each_time(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await daemon.restart(dialog=Dialog(lingering_after=timedelta(minutes=10)))
        async with await daemon.session() as session:
            for number in range(22):
                name = f"urn:many{number:02}"
                await session.create("service", name, queue="spare", contracts=["talk"])
                handle = await session.begin_dialog("urn:desk", name, "talk")
                await session.send(handle, b"x", "Ask")
                await session.end(handle)
                await daemon.pass_time(0.1)
            await daemon.pass_time(21 * 60)
            lines = told(daemon)
            longest = [f"urn:many{number:02}" for number in range(20)]
            assert [line["service"] for line in lines] == longest
            await daemon.pass_time(5 * 60)
            assert len(told(daemon)) == 20  # once in ten minutes
            await daemon.pass_time(6 * 60)
            assert len(told(daemon)) == 40

    play(program, tmp_path)


@pytest.mark.rule("PBT-5", "DLG-11", "REL-43")
def test_the_lifetime_of_who_says_none_is_settable(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async def lives(session: Session, lifetime: float | None = None) -> int:
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk", lifetime)
            endpoint = live_of(daemon, handle).endpoint
            return round((endpoint.expires_at - endpoint.began_at) / SECOND)

        async with await daemon.session() as session:
            assert await lives(session) == 365 * 24 * HOUR
        await daemon.restart(dialog=Dialog(default_lifetime=timedelta(days=7)))
        async with await daemon.session() as session:
            assert await lives(session) == 7 * 24 * HOUR
            assert await lives(session, 60) == 60
            assert await lives(session, 2**31 - 1) == 2**31 - 1

    play(program, tmp_path)
