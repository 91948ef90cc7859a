"""What waits to be sent stays in the store, beyond what memory may hold of it (design D4)."""

from pathlib import Path
from typing import Any

import pytest

from brokerd.broker.outgoing import FEW, ROW_COST, OutgoingOptions
from brokerd.client.session import Session
from brokerd.config.settings import Authentication, Encryption, Endpoint
from brokerd.protocol.frames import Item
from tests.integration.one_daemon import Daemon, closing, play
from tests.integration.two_brokers import EAST, Wire

LIMIT = 60_000
DIALOGS = 20
BODY = b"x" * 2000
SMALL = OutgoingOptions(memory=LIMIT, page_messages=8, page_bytes=8000)
LISTENS: dict[str, Any] = {
    "endpoint": Endpoint(encryption=Encryption.DISABLED, authentication=Authentication.NONE)
}


async def send(session: Session, to: str) -> None:
    """Dialogs with ten messages each: four times what memory may hold."""
    for _ in range(DIALOGS):
        handle = await session.begin_dialog("urn:desk", to, "talk")
        async with session.transaction() as tx:
            for number in range(10):
                await tx.send(handle, b"%d" % number + BODY, "Both")


@pytest.mark.rule("REL-25", "XMT-3")
def test_what_waits_for_a_destination_that_is_away_is_not_read(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        await daemon.stop()
        await daemon.start(**LISTENS)
        async with await daemon.session() as session:
            await session.create("route", "far", service="urn:far", address="TCP://far:4022")
            await send(session, "urn:far")
        await daemon.pass_time(5)
        # A transaction is not split: the last one that found room has brought all it has.
        assert daemon.broker.memory.used < LIMIT + 10 * (ROW_COST + len(BODY) + 10)
        await daemon.stop()
        await daemon.start(**LISTENS)
        await daemon.pass_time(120)
        assert daemon.broker.memory.used == 0
        waiting = [one.outgoing for one in daemon.broker.endpoints.all() if one.outgoing]
        assert sum(one.pending for one in waiting) == DIALOGS * 10

    play(scenario, tmp_path, outgoing=SMALL)


@pytest.mark.rule("REL-25", "REL-10")
def test_all_of_them_go_on_with_little_memory(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        session = await daemon.session()
        await send(session, "urn:harbour")
        await session.close()
        await daemon.restart()
        wire, peak = Wire(daemon), [0]

        def watch(_item: Item) -> bool:
            peak[0] = max(peak[0], daemon.broker.memory.used)
            return False

        wire.drops = watch
        session = await daemon.session()
        await session.apply(EAST)
        await daemon.pass_time(30)
        east = await daemon.session(broker="east")
        async with closing(session, east):
            for _ in range(DIALOGS):
                got = await east.receive("harbour", autocommit=True)
                assert [one.body for one in got] == [b"%d" % n + BODY for n in range(10)]
        assert daemon.broker.memory.used == 0
        assert 0 < peak[0] <= LIMIT + DIALOGS * FEW * (ROW_COST + len(BODY) + 10)

    play(scenario, tmp_path, outgoing=SMALL)
