"""Handlers of the tests beside this file."""

import asyncio
from typing import Any

from brokerd.client.messages import FOREVER

seen: list[int] = []
"""Open transactions of each session, as its handler began."""


async def waits(session: Any) -> None:
    """Never receives."""
    seen.append(session.open_transactions)
    await asyncio.Event().wait()


waits_seen: list[float] = []
taken: list[bytes] = []


async def tells_its_wait(session: Any) -> None:
    """Says how long it is to wait for more."""
    waits_seen.append(session.drain_wait)
    await session.receive("shop", autocommit=True)


async def receives_and_waits(session: Any) -> None:
    """Takes a message and never ends."""
    async with session.transaction() as tx:
        await tx.receive("shop", 1)
        await asyncio.Event().wait()


async def first_is_busy(session: Any) -> None:
    """The first of them never ends; the others wait for messages until there are none."""
    seen.append(0)
    is_first = len(seen) == 1
    while True:
        async with session.transaction() as tx:
            messages = await tx.receive("shop", 1, wait=600)
            if is_first:
                await asyncio.Event().wait()
        if not messages:
            return


async def waits_for_ever(session: Any) -> None:
    """As a loop does that means to run as long as the daemon."""
    while await session.receive("shop", autocommit=True, wait=FOREVER):
        pass


async def takes_all(session: Any) -> None:
    """One message every tenth of a second, until there are none."""
    while messages := await session.receive("shop", 1, autocommit=True):
        taken.extend(one.body for one in messages)
        await session.clock.sleep_until(session.clock.monotonic() + 0.1)


async def returns_at_once(session: Any) -> None:
    """Never receives, and does not wait either."""
    seen.append(session.open_transactions)


async def leaves_open(session: Any) -> None:
    """Receives, and ends without a commit."""
    await session.transaction().receive("shop")
