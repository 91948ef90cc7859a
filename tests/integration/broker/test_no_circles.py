"""What has ended leaves no circles: its objects are freed there and then (RCV-45)."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FunctionType

import pytest

from brokerd.client.messages import FOREVER
from brokerd.client.session import Session
from tests.integration.one_daemon import Daemon
from tests.integration.scenarios import scenario

Verb = Callable[[Daemon, Session, bytes], Awaitable[None]]
TIMES = 5
SEEN_TO = "brokerd.testing"
"""What stands in for the network and the clock here may leave circles."""


async def waits(daemon: Daemon, session: Session, handle: bytes) -> None:
    tx = session.transaction()
    waiting = asyncio.ensure_future(tx.receive("shop", 10, wait=FOREVER, groups=10))
    await daemon.pass_time(0.1)
    await session.send(handle, b"1", "Ask")
    assert await waiting
    await tx.commit()


async def waits_in_vain(_daemon: Daemon, session: Session, _handle: bytes) -> None:
    tx = session.transaction()
    assert not await tx.receive("shop", wait=0.5)
    tx.rollback()


async def gives_up(daemon: Daemon, session: Session, _handle: bytes) -> None:
    tx = session.transaction()
    waiting = asyncio.ensure_future(tx.receive("shop", wait=FOREVER))
    await daemon.pass_time(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    tx.rollback()


async def selects(daemon: Daemon, session: Session, handle: bytes) -> None:
    tx = session.transaction()
    waiting = asyncio.ensure_future(tx.get_group("shop", wait=5))
    await daemon.pass_time(0.1)
    await session.send(handle, b"1", "Ask")
    assert await tx.receive("shop", group=await waiting)
    await tx.commit()


async def rolls_back(daemon: Daemon, session: Session, handle: bytes) -> None:
    tx = session.transaction()
    waiting = asyncio.ensure_future(tx.receive("shop", wait=5))
    await daemon.pass_time(0.1)
    await session.send(handle, b"1", "Ask")
    await tx.send((await waiting)[0].handle, b"2", "Answer")
    tx.rollback()
    async with session.transaction() as again:
        assert await again.receive("shop")


async def waits_for_a_lock(daemon: Daemon, session: Session, handle: bytes) -> None:
    holds, wants = session.transaction(), session.transaction()
    await holds.send(handle, b"1", "Ask")
    waiting = asyncio.ensure_future(wants.send(handle, b"2", "Ask"))
    await daemon.pass_time(0.1)
    await holds.commit()
    await waiting
    await wants.commit()
    async with session.transaction() as tx:
        assert len(await tx.receive("shop")) == 2


async def has_a_dialog(_daemon: Daemon, session: Session, _handle: bytes) -> None:
    async with session.transaction() as tx:
        handle = await tx.begin_dialog("urn:desk", "urn:shop", "talk")
        await tx.send(handle, b"1", "Ask")
    for queue in ("shop", "desk"):
        async with session.transaction() as tx:
            (*_, last) = await tx.receive(queue, wait=5)
            await tx.end(last.handle)


@pytest.mark.rule("RCV-45")
@pytest.mark.parametrize(
    "verb",
    [
        waits,
        waits_in_vain,
        gives_up,
        selects,
        rolls_back,
        waits_for_a_lock,
        has_a_dialog,
    ],
)
def test_what_has_ended_is_not_left_to_the_collector(verb: Verb, tmp_path: Path) -> None:
    @scenario
    async def program(daemon: Daemon, session: Session) -> None:
        handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await verb(daemon, session, handle)  # what is made once and stays
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(TIMES):
                await verb(daemon, session, handle)
            gc.collect()
            left = sorted({_name(one) for one in gc.garbage if _is_ours(one)})
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert not left

    program(tmp_path)


def _is_ours(one: object) -> bool:
    module = one.__module__ if isinstance(one, FunctionType) else type(one).__module__
    return module.startswith("brokerd.") and not module.startswith(SEEN_TO)


def _name(one: object) -> str:
    return one.__qualname__ if isinstance(one, FunctionType) else type(one).__qualname__
