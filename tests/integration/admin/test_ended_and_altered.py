"""What closed endpoints no longer keep alive, and what an altered queue does at once."""

from pathlib import Path

import pytest

from brokerd.client.session import Session
from brokerd.errors import GroupNotFound, QueueDisabled
from brokerd.ids import show
from brokerd.protocol.transitions import State
from tests.integration.one_daemon import Daemon, play
from tests.integration.two_brokers import Wire, between

HANDLER = "tests.integration.handlers:idle"


@pytest.mark.rule("GRP-2", "VIEW-2")
@between
async def test_a_closed_endpoint_does_not_keep_its_group(
    wire: Wire, main: Session, east: Session
) -> None:
    handle = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(handle, b"1", "Ask")
    (came,) = await east.receive("harbour", wait=60, autocommit=True)
    async with east.transaction() as tx:
        await tx.state(came.group_id, take_lock=True)
        await tx.set_state(came.group_id, b"kept")
    await main.end(handle)
    (over,) = await east.receive("harbour", wait=60, autocommit=True)
    assert over.is_end
    assert [row["conversation_group_id"] for row in await east.view("conversation_groups")] == [
        show(came.group_id)
    ]
    await east.end(came.handle)
    closed = wire.at_east(came.conversation_id)
    assert closed is not None
    assert closed.endpoint.state is State.CLOSED
    assert await east.view("conversation_groups") == []
    with pytest.raises(GroupNotFound):
        await east.receive("harbour", group=came.group_id, autocommit=True)
    with pytest.raises(GroupNotFound):
        async with east.group(came.group_id):
            pass
    again = await east.begin_dialog(
        "urn:harbour", "urn:nowhere", "talk", related_group=came.group_id
    )
    async with east.transaction() as tx:
        assert await tx.state(came.group_id, take_lock=True) is None
    await east.end(again)


async def why_unmonitored(session: Session) -> object:
    (row,) = await session.view("service_queues", where={"name": "shop"})
    return row["monitor_absent_reason"]


@pytest.mark.rule("OBJ-44", "ACT-6", "ACT-7")
def test_an_altered_queue_is_looked_at_without_a_tick(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"1", "Ask")
            assert await why_unmonitored(session) == "the queue has no activation"
            now = daemon.clock.utc()
            await session.alter("queue", "shop", activation={"handler": HANDLER, "status": "on"})
            await daemon.pass_time(0.001)
            assert await why_unmonitored(session) is None
            (row,) = await session.view("queue_monitors", where={"queue_id": "shop"})
            assert row["last_activated_time"] - now < 1_000_000
            await session.alter("queue", "shop", activation="drop")
            await daemon.pass_time(0.001)
            assert await why_unmonitored(session) == "the queue has no activation"

    play(program, tmp_path)


@pytest.mark.rule("OBJ-44", "OBJ-40")
def test_an_option_holds_for_the_next_verb(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.alter("queue", "shop", status="off")
            with pytest.raises(QueueDisabled):
                await session.receive("shop", autocommit=True)
            await session.alter("queue", "shop", status="on", retention="on")
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"1", "Ask")
            (came,) = await session.receive("shop", autocommit=True)
            assert [one.status for one in [m async for m in session.browse("shop")]] == [0]
            assert came.body == b"1"

    play(program, tmp_path)
