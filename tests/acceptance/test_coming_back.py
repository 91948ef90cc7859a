"""A peer that was away, with real daemons: found again before its suppression is over."""

import asyncio
from pathlib import Path

import pytest

from brokerd.bench.daemons import OBJECTS, Daemon, free_ports, route
from brokerd.client.session import Session, connect

MUCH_LESS = 20.0
"""Seconds; a failed attempt is repeated after 60 (TRN-16)."""


async def _suppressed(session: Session) -> None:
    while True:
        rows = await session.view("destinations")
        if rows and rows[0]["state"] == "suppressed":
            return


@pytest.mark.rule("NBT-8", "TRN-16", "REL-21")
def test_a_retry_reaches_a_peer_that_is_back(tmp_path: Path) -> None:
    here, there = free_ports(2)
    east = Daemon(tmp_path, "east", port=here, objects=OBJECTS + route("bench_sink", there))
    west = Daemon(tmp_path, "west", port=there, objects=OBJECTS + route("bench_source", here))

    async def program() -> None:
        await east.start()
        async with await connect(east.address, broker="main") as session:
            handle = await session.begin_dialog("bench_source", "bench_sink", "bench/v1")
            await session.send(handle, b"has waited", "Item")
            await asyncio.wait_for(_suppressed(session), 30)
            await west.start()
            assert await session.admin.retry_destination() == 1
            async with await connect(west.address, broker="main") as other:
                messages = await other.receive("bench_q", wait=MUCH_LESS, autocommit=True)
            assert [one.body for one in messages] == [b"has waited"]
            (row,) = await session.view("destinations")
            assert (row["state"], row["connect_attempts"]) == ("online", 2)

    async def stopped() -> None:
        try:
            await program()
        finally:
            await asyncio.gather(east.stop(), west.stop())

    asyncio.run(stopped())
