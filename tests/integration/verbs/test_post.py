"""One-way messages that need no looking after, and what is said of those nobody looks after."""

from pathlib import Path

import pytest

from brokerd.client.session import Session
from brokerd.errors import InvalidArgument, QueueNotFound
from brokerd.model import END_DIALOG, ERROR
from brokerd.protocol.transitions import State
from tests.integration.one_daemon import Daemon, play, rows
from tests.integration.scenarios import scenario
from tests.integration.shorthand import fails, state, take
from tests.integration.two_brokers import Wire, between


async def endpoints(session: Session) -> list[object]:
    return await session.view("conversation_endpoints")


@pytest.mark.rule("PBT-4")
@scenario
async def test_the_broker_ends_this_side_when_the_receiver_has_ended(
    daemon: Daemon, session: Session
) -> None:
    mine = await session.post_one(
        "urn:desk", "urn:shop", b"news", "Ask", contract="talk", error_queue="spare"
    )
    (got,) = await take(session, "shop")
    assert got.body == b"news"
    assert state(daemon, mine) is State.CONVERSING
    await session.end(got.handle)
    assert await rows(daemon, "conversation_endpoints") == 0
    for queue in ("desk", "spare"):
        assert await take(session, queue) == []


@pytest.mark.rule("PBT-4", "DLG-44")
@pytest.mark.parametrize("restart", [False, True])
def test_a_refusal_is_one_entry_in_the_error_queue(tmp_path: Path, restart: bool) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        mine = await session.post_one(
            "urn:desk", "urn:shop", b"x", "Both", contract="other", error_queue="spare"
        )
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        assert await take(session, "desk") == []
        tx = session.transaction()
        assert len(await tx.receive("spare")) == 1
        tx.rollback()
        await session.status()
        (told,) = await take(session, "spare")
        assert told.error is not None
        assert (told.handle, told.error.number) == (mine, -8408)
        assert await rows(daemon, "conversation_endpoints") == 0
        assert await take(session, "spare") == []
        assert await rows(daemon, "queue_messages") == 0
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("PBT-4")
@between
async def test_it_is_the_same_between_brokers(wire: Wire, main: Session, east: Session) -> None:
    await main.post_one("urn:desk", "urn:harbour", b"far", "Ask", contract="talk")
    (got,) = await take(east, "harbour", wait=5)
    await east.end(got.handle)
    await wire.daemon.pass_time(5)
    assert await endpoints(main) == []
    await wire.daemon.pass_time(31 * 60)
    assert await endpoints(east) == []
    await main.post_one("urn:desk", "urn:harbour", b"x", "Both", contract="other")
    (told,) = await take(main, "desk", wait=5)
    assert told.error is not None
    assert told.error.number == -8408
    assert await endpoints(main) == await endpoints(east) == []


@pytest.mark.rule("PBT-4", "DLG-T14", "ERR-8489")
@scenario
async def test_a_lifetime_that_ends_is_told_to_the_error_queue(
    daemon: Daemon, session: Session
) -> None:
    await session.post_one("urn:desk", "urn:shop", b"x", "Ask", contract="talk", lifetime=30)
    (told,) = await take(session, "desk", wait=40)
    assert told.error is not None
    assert told.error.number == -8489
    (asked,) = await take(session, "shop", 1)
    await session.end(asked.handle)
    assert await rows(daemon, "conversation_endpoints") == 0


@pytest.mark.rule("PBT-4", "CLP-33")
@scenario
async def test_what_post_refuses(daemon: Daemon, session: Session) -> None:
    post = session.post_one
    await fails(QueueNotFound, post("urn:desk", "urn:shop", b"", contract="talk", error_queue="x"))
    await fails(InvalidArgument, post("urn:desk", "urn:shop", b"", error_queue=None))  # type: ignore[arg-type]
    verb = ("begin_dialog", (b"h" * 16, "urn:desk", "urn:shop", {"error_queue": "", **GROUPED}))
    await fails(InvalidArgument, session._link.transact((verb,)).future)


GROUPED = {"related_group": b"g" * 16}


@pytest.mark.rule("PBT-4", "DLG-T20", "DLG-44")
@between
async def test_an_error_that_nobody_will_see_is_in_the_log(
    wire: Wire, main: Session, east: Session
) -> None:
    async with main.transaction() as tx:
        mine = await tx.begin_dialog("urn:desk", "urn:harbour", "other")
        for body in (b"1", b"2"):
            await tx.send(mine, body, "Both")
        await tx.end(mine)
    await wire.daemon.pass_time(5)
    assert await endpoints(main) == await endpoints(east) == []
    assert [one.message_type for one in await take(main, "desk")] not in ([ERROR], [END_DIALOG])
    (line,) = [f for event, f in wire.daemon.log.lines if event == "broker.lost_messages"]
    assert (line["code"], line["count"], line["message_types"]) == (-8408, 2, ["Both"])
    assert line["far_service"] == "urn:harbour"


@pytest.mark.rule("PBT-4", "OBJ-35")
@scenario
async def test_a_posted_dialog_stays_with_its_error_queue_when_its_service_moves(
    daemon: Daemon, session: Session
) -> None:
    await session.post_one(
        "urn:desk", "urn:shop", b"x", "Both", contract="other", error_queue="spare"
    )
    await session.create("queue", "new_desk")
    await session.alter("service", "urn:desk", queue="new_desk")
    assert await take(session, "new_desk") == []
    (told,) = await take(session, "spare")
    assert told.error is not None
    assert told.error.number == -8408
    assert await rows(daemon, "conversation_endpoints") == 0
