"""Mirrored routes with three real daemons: killed, restarted, stopped, cut off (issue 5)."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.acceptance.partners import Trio

pytestmark = pytest.mark.of_files("partners share the file of a broker")

LIMIT = 300.0


@pytest.mark.rule("RTE-53", "RTE-54", "RTE-55", "RTE-59")
async def test_nothing_is_lost_or_doubled_whatever_happens_to_the_principal(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    try:
        async with asyncio.timeout(LIMIT):
            await trio.start()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(trio.work())
                await trio.more()
                await _killed(trio)
                await _restarted(trio)
                await _stopped(trio)
                await _cut_off(trio)
                trio.finish()
    finally:
        await trio.stop()
    assert trio.judge() == []


async def _killed(trio: Trio) -> None:
    """The standby takes the lock, claims the role under a higher epoch, and traffic follows."""
    assert [await trio.left.role(), await trio.right.role()] == ["principal", "mirror"]
    trio.left.kill()
    await trio.right.becomes("principal")
    assert (await trio.right.row("brokers", name="app"))["epoch"] == 2
    await trio.more()


async def _restarted(trio: Trio) -> None:
    """The old principal finds itself mirror; nothing is sent to it, and it sends nothing."""
    await trio.left.start()
    await trio.left.becomes("mirror")
    assert (await trio.left.row("brokers", name="app"))["epoch"] == 2
    await trio.more()
    assert await trio.right.role() == "principal"


async def _stopped(trio: Trio) -> None:
    """It has the lock still: the standby does not claim the role, so nothing is sent to it."""
    before = await trio.left.received()
    trio.right.signal(signal.SIGSTOP)
    await trio.waits_with("mirror_error")
    assert await trio.left.role() == "mirror"
    assert await trio.left.received() == before
    trio.right.signal(signal.SIGCONT)
    await trio.more()
    assert await trio.left.received() == before


async def _cut_off(trio: Trio) -> None:
    """Cut off from the sender, it can still talk to its partner's lock: the same."""
    before = await trio.left.received()
    trio.right.relay.cut()
    trio.sender.relay.cut()
    await trio.waits_with("mirror_error")
    assert [await trio.left.role(), await trio.right.role()] == ["mirror", "principal"]
    assert await trio.left.received() == before
    trio.right.relay.heal()
    trio.sender.relay.heal()
    await trio.more()
