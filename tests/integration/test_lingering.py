"""Dialogs that nobody finishes are told of (PBT-5)."""

from pathlib import Path

import pytest

from brokerd.client.session import Session
from brokerd.clock import show_instant
from brokerd.telemetry.logs import LINGERING
from tests.integration.one_daemon import Daemon, play
from tests.integration.test_one_broker import take

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
            await daemon.pass_time(HOUR - 60)
            assert told(daemon) == []
            await daemon.pass_time(HOUR)
            await half_ended(session)  # too young to be told of
            await daemon.pass_time(120)
            lines = told(daemon)
            assert {(line["service"], line["state"], line["endpoints"]) for line in lines} == {
                ("urn:shop", "DI", 3),
                ("urn:desk", "ER", 1),
            }
            assert {line["broker"] for line in lines} == {"main"}
            assert min(str(line["since"]) for line in lines)[:19] == show_instant(since)[:19]
            for _ in range(8):
                for message in await take(session, "shop"):
                    if message.is_end:
                        await session.end(message.handle)
            await session.end(refused)
            await daemon.pass_time(HOUR)
            assert len(told(daemon)) == len(lines), "nothing lingers any more"

    play(program, tmp_path)
