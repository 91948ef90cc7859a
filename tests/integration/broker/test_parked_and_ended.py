"""A group that was parked holds nothing once its dialogs are over, tombstones or not (PBT-3)."""

from pathlib import Path

import pytest

from tests.integration.one_daemon import Daemon, play
from tests.integration.shorthand import take
from tests.integration.two_brokers import EAST, Wire


@pytest.mark.rule("PBT-3", "PBT-5", "REL-36")
@pytest.mark.parametrize("restart", [False, True])
def test_the_end_of_its_last_dialog_releases_a_parked_group(tmp_path: Path, restart: bool) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as admin:
            await admin.apply(EAST)
        main, east = await daemon.session(), await daemon.session(broker="east")
        await east.alter("queue", "harbour", poison_mode="park")
        mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
        await main.send(mine, b"question", "Ask")
        (asked,) = await take(east, "harbour", wait=5)
        await main.send(mine, b"poison", "Ask")
        while not await parked(daemon):
            tx = east.transaction()
            await tx.receive("harbour", wait=60)
            tx.rollback()
            await daemon.pass_time(30)
        if restart:
            await main.close()
            await east.close()
            await daemon.restart()
            main, east = await daemon.session(), await daemon.session(broker="east")
        await east.end(asked.handle)
        await daemon.pass_time(5)
        assert Wire(daemon).at_east(asked.conversation_id) is not None  # a tombstone is there
        assert await parked(daemon) == 0
        assert not daemon.instance.brokers["east"].held.by_id
        await main.close()
        await east.close()

    play(program, tmp_path)


async def parked(daemon: Daemon) -> int:
    """Rows of held groups that wait for an administrator."""
    found: int = await daemon.instance.brokers["east"].store.run(
        lambda connection: connection.execute(
            "SELECT count(*) FROM held_groups WHERE parked_at IS NOT NULL"
        ).fetchone()[0]
    )
    return found
