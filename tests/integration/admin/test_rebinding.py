"""A service gets another queue while dialogs are open and messages wait (OBJ-35)."""

import asyncio
from pathlib import Path

import pytest

from brokerd.broker.window import WindowOptions
from brokerd.client.session import Session
from brokerd.errors import ConversationNotFound, InUse, ServiceMoved
from tests.integration.one_daemon import Daemon, live_of, play, rows
from tests.integration.scenarios import scenario
from tests.integration.shorthand import bodies, fails, take, talk, undone


async def drain(session: Session, queue: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    while got := await take(session, queue):
        found += bodies(got)
    return found


@pytest.mark.rule("OBJ-35")
@pytest.mark.parametrize("restart", ["never", "before", "after"])
def test_messages_move_with_their_service_in_order(tmp_path: Path, restart: str) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        dialogs = [await talk(session, b"a1"), await talk(session, b"b1")]
        stays = await session.begin_dialog("urn:desk", "urn:spare", "talk")
        await session.send(stays, b"s1", "Ask")
        for handle, body in zip(dialogs, (b"a2", b"b2"), strict=True):
            await session.send(handle, body, "Ask")

        async def again() -> None:
            nonlocal session
            await session.close()
            await daemon.stop()
            await daemon.start(declare=False)
            session = await daemon.session()

        if restart == "before":
            await again()
        await session.alter("service", "urn:shop", queue="spare")
        await session.send(dialogs[0], b"a3", "Ask")
        if restart == "after":
            await again()
        await fails(ConversationNotFound, take(session, "shop", conversation=dialogs[0]))
        assert await take(session, "shop") == []
        counts = {name: one.ready_count for name, one in daemon.broker.queues.items()}
        assert counts == {"desk": 0, "shop": 0, "spare": 6}
        found = await drain(session, "spare")
        assert sorted(found, key=str) == [b"a1", b"a2", b"a3", b"b1", b"b2", b"s1"]
        for one in (b"a", b"b"):
            of = [body for body in found if body and body.startswith(one)]
            assert of == sorted(of)
        assert await rows(daemon, "queue_messages") == 0
        await session.drop("queue", "shop")
        await session.send(dialogs[1], b"b3", "Ask")
        assert await drain(session, "spare") == [b"b3"]
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("OBJ-35")
@scenario
async def test_a_queue_that_is_made_in_the_same_file_takes_them(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1")
    services = [dict(one) for one in daemon.objects["service"]]
    for one in services:
        if one["name"] == "urn:shop":
            one["queue"] = "new"
    queues = [{"name": "new"}, {"name": "desk"}, {"name": "spare"}]
    await session.apply({**daemon.objects, "queue": queues, "service": services})
    await session.send(handle, b"2", "Ask")
    assert await drain(session, "new") == [b"1", b"2"]
    key = daemon.broker.queues["new"].queue.key
    assert daemon.broker.store.catalog.queues["new"].key == key


@pytest.mark.rule("OBJ-35", "ERR-B1")
@scenario
async def test_who_waits_for_a_conversation_that_moves_is_told(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1")
    (got,) = await take(session, "shop")
    waits = [
        asyncio.ensure_future(take(session, "shop", conversation=got.handle, wait=60)),
        asyncio.ensure_future(take(session, "shop", group=got.group_id, wait=60)),
        asyncio.ensure_future(take(session, "shop", wait=60)),
        asyncio.ensure_future(take(session, "spare", wait=60)),
    ]
    await daemon.pass_time(1)
    await session.alter("service", "urn:shop", queue="spare")
    for waiting in waits[:2]:
        error = await fails(ServiceMoved, waiting)
        assert "'spare'" in error.message
    assert not waits[2].done()
    await session.send(live_of(daemon, got.handle).peer.endpoint.handle, b"2", "Ask")  # type: ignore[union-attr]
    assert bodies(await waits[3]) == [b"2"]
    assert await waits[2] == []


@pytest.mark.rule("OBJ-35")
@scenario
async def test_what_is_being_received_or_sent_meanwhile_is_in_its_place_afterwards(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1", b"2")
    async with undone(session) as tx:
        assert bodies(await tx.receive("shop", 1)) == [b"1"]
        moving = asyncio.ensure_future(session.alter("service", "urn:shop", queue="spare"))
        await daemon.pass_time(1)
        assert not moving.done()
    sends = [session.submit_send(handle, b"%d" % number, "Ask") for number in range(3, 9)]
    await moving
    await asyncio.gather(*sends)
    assert await drain(session, "spare") == [b"%d" % number for number in range(1, 9)]
    assert daemon.broker.queues["shop"].ready_count == 0


@pytest.mark.rule("OBJ-35")
def test_more_than_memory_holds_is_not_moved(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handles = [await talk(session, b"1") for _ in range(12)]
        error = await fails(InUse, session.alter("service", "urn:shop", queue="spare"))
        assert "12 messages wait on queue shop" in error.message
        assert len(await drain(session, "shop")) == 12
        await session.send(handles[0], b"2", "Ask")
        await session.alter("service", "urn:shop", queue="spare")
        assert await drain(session, "spare") == [b"2"]
        await session.close()

    play(program, tmp_path, window=WindowOptions(window_messages=4, page_messages=2))


@pytest.mark.rule("OBJ-35")
def test_nothing_is_moved_behind_more_than_memory_holds(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        for _ in range(12):
            there = await session.begin_dialog("urn:desk", "urn:spare", "talk")
            await session.send(there, b"there", "Ask")
        await talk(session, b"moves")
        error = await fails(InUse, session.alter("service", "urn:shop", queue="spare"))
        assert "12 messages wait on queue spare" in error.message
        assert daemon.broker.queues["shop"].ready_count == 1
        assert await drain(session, "spare") == [b"there"] * 12
        await session.alter("service", "urn:shop", queue="spare")
        assert await drain(session, "spare") == [b"moves"]
        await session.close()

    play(program, tmp_path, window=WindowOptions(window_messages=4, page_messages=2))


@pytest.mark.rule("OBJ-35")
def test_a_service_is_moved_by_the_objects_of_a_start(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handle = await talk(session, b"1", b"2")
        await session.close()
        services = [dict(one) for one in daemon.objects["service"]]
        for one in services:
            if one["name"] == "urn:shop":
                one["queue"] = "new"
        queues = [{"name": "new"}, {"name": "desk"}, {"name": "spare"}]
        daemon.objects = {**daemon.objects, "queue": queues, "service": services}
        await daemon.restart()
        session = await daemon.session()
        await session.send(handle, b"3", "Ask")
        assert daemon.broker.queues["new"].ready_count == 3
        assert await drain(session, "new") == [b"1", b"2", b"3"]
        await session.close()

    play(program, tmp_path)
