"""A receive that was woken and found nothing still ends when its time is over (RCV-18)."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.one_daemon import Daemon, play


@pytest.mark.rule("RCV-18", "RCV-20")
def test_a_wait_ends_in_time_although_it_was_woken_before(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        asking, first, second = [await daemon.session() for _ in range(3)]
        handle = await asking.begin_dialog("urn:desk", "urn:shop", "talk")
        await asking.send(handle, b"1", "Ask")
        (asked,) = await first.receive("shop", autocommit=True)
        # Both wait for the same message; the other one is first.
        anything = asyncio.ensure_future(first.receive("shop", wait=60, autocommit=True))
        await daemon.pass_time(0.1)
        began = daemon.loop.time()
        selected = asyncio.ensure_future(
            second.receive("shop", conversation=asked.handle, wait=5, autocommit=True)
        )
        await daemon.pass_time(1)
        await asking.send(handle, b"2", "Ask")
        assert [one.body for one in await anything] == [b"2"]
        assert await asyncio.wait_for(selected, 30) == []
        assert 5 <= daemon.loop.time() - began < 6
        for session in (asking, first, second):
            await session.close()

    play(program, tmp_path)
