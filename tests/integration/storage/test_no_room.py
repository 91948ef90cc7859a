"""A daemon on a disk without room: what is refused, what goes on, and how it ends (REL-26)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.errors import StoreFull
from brokerd.maintenance.disk_space import SystemDisk
from brokerd.telemetry.logs import STORE
from tests.full_disk import Ballast, mounted
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import given
from tests.integration.shorthand import bodies, take, talk, types
from tests.integration.storage.disks import MIB, SMALL, SaidDisk
from tests.integration.two_brokers import EAST


@asynccontextmanager
async def on_a_small_disk(
    daemon: Daemon, _folder: Path
) -> AsyncIterator[tuple[Daemon, SaidDisk, Session]]:
    """The daemon, started again on a disk that can be full, and a client."""
    await daemon.stop()
    daemon.disk = disk = SaidDisk()
    await daemon.start(store=SMALL)
    async with await daemon.session() as session:
        yield daemon, disk, session


scenario = given(on_a_small_disk)


def told(daemon: Daemon) -> list[object]:
    return [
        fields["subclass"]
        for event, fields in daemon.log.lines
        if event == STORE and fields["subclass"] in ("full", "room_again")
    ]


@pytest.mark.rule("REL-28", "REL-26")
@scenario
async def test_a_stop_does_not_wait_for_ever_for_what_waits_for_room(
    daemon: Daemon, disk: SaidDisk, session: Session
) -> None:
    instance = daemon.instance
    parts: list[Any] = [*instance.parts.events._notifiers.values(), instance.parts.route_requester]
    for part in parts:
        part._working = instance.parts.tasks.spawn(clogged())
    await session.close()
    began = daemon.loop.time()
    await daemon.stop()
    assert daemon.loop.time() - began < 60
    await daemon.start(declare=False)


async def clogged() -> None:
    """A commit that waits for room on a disk that is full."""
    await asyncio.get_running_loop().create_future()


@pytest.mark.rule("REL-26")
@scenario
async def test_new_work_is_refused_and_old_work_ends(
    daemon: Daemon, disk: SaidDisk, session: Session
) -> None:
    assert disk.held == 6 * MIB
    handle = await talk(session, b"before")
    expiring = await session.begin_dialog("urn:desk", "urn:spare", "talk", lifetime=20)
    await session.send(expiring, b"too late", "Ask")
    disk.left = 9 * MIB
    await daemon.pass_time(6)
    for asked in (
        session.send(handle, b"more", "Ask"),
        session.begin_dialog("urn:desk", "urn:shop", "talk"),
    ):
        with pytest.raises(StoreFull) as caught:
            await asked
        assert caught.value.retryable
    status: Any = await session.status()
    assert {one["state"] for one in status["stores"]} == {"full"}
    (got,) = await take(session, "shop")
    assert got.body == b"before"
    await session.end(got.handle)
    assert types(await take(session, "desk")) == ["urn:brokerd:EndDialog"]
    await session.end(handle)
    await daemon.pass_time(20)
    for queue in ("desk", "spare"):  # its lifetime is over, and both sides are told
        found = [*await take(session, queue), *await take(session, queue)]
        assert "urn:brokerd:Error" in types(found)
    (over,) = await session.view("conversation_endpoints", where={"is_initiator": True})
    await session.end(expiring)
    (other,) = await session.view("conversation_endpoints")
    await session.end(bytes.fromhex(str(other["conversation_handle"]).replace("-", "")))
    assert over["state"] == "ER"
    assert await session.view("conversation_endpoints") == []
    assert told(daemon) == ["full"]
    disk.left = 100 * MIB
    await daemon.pass_time(6)
    assert told(daemon) == ["full", "room_again"]
    await talk(session, b"after")
    assert bodies(await take(session, "shop")) == [b"after"]


@pytest.mark.rule("REL-26", "XMT-19")
@scenario
async def test_arrivals_wait_at_their_sender_who_is_told_why(
    daemon: Daemon, disk: SaidDisk, session: Session
) -> None:
    await session.apply(EAST)
    handle = await session.begin_dialog("urn:desk", "urn:harbour", "talk")
    await session.send(handle, b"1", "Ask")
    await daemon.pass_time(1)
    async with await daemon.session(broker="east") as east:
        assert bodies(await take(east, "harbour")) == [b"1"]
        daemon.instance.brokers["east"].is_full = True
        await session.send(handle, b"2", "Ask")
        await daemon.pass_time(1)
        assert await take(east, "harbour") == []
        (row,) = await session.view("transmission_queue")
        assert row["status_key"] == "peer_store_full"
        await daemon.pass_time(80)  # the pass has found that there is room
        assert bodies(await take(east, "harbour")) == [b"2"]


@pytest.mark.of_files("the disk of the daemon is full")
@pytest.mark.rule("REL-26", "FD-5")
def test_a_small_disk_is_filled_and_drained_again_and_again(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        folder = daemon._folder
        await daemon.stop()
        daemon.disk = SystemDisk(folder)
        await daemon.start(store=SMALL)
        ballast = Ballast(folder)
        for changeset in range(5):
            async with await daemon.session() as session:
                sent = await fill(daemon, session, ballast, changeset)
                got = []
                while messages := await take(session, "shop"):
                    got += bodies(messages)
                assert got == sent
                ballast.drop()
                await daemon.pass_time(60)
                assert not daemon.broker.is_full
        # Once a round, or more often where what is left lies within a page of the limit.
        turns = told(daemon)
        assert turns == ["full", "room_again"] * (len(turns) // 2)
        assert 5 <= len(turns) // 2 <= 10
        daemon.check()

    with mounted(tmp_path / "disk") as folder:
        play(program, folder)


@pytest.mark.of_files("the disk of the daemon is full")
@pytest.mark.rule("REL-26", "FD-5")
def test_a_broker_that_finds_no_room_is_not_made_and_is_made_once_there_is_some(
    tmp_path: Path,
) -> None:
    async def program(daemon: Daemon) -> None:
        folder = daemon._folder
        ballast = Ballast(folder)
        async with await daemon.session() as session:
            wanted, refused = EAST, 0
            for left in range(0, MIB, 12 * 1024):  # from not even a lock to all it takes
                name = f"b{left}"
                wanted = {**EAST, "broker": {**EAST["broker"], "name": name}}
                ballast.take(leaving=left)
                try:
                    await session.apply(wanted)
                except StoreFull:
                    refused += 1
                else:
                    break
                ballast.drop()
                assert [one.name for one in folder.glob(f"{name}*")] == [f"{name}.db.lock"]
                assert await session.view("brokers", where={"name": name}) == []
                changes: Any = await session.apply(wanted)
                assert changes[0]["name"] == name
                assert await session.apply(wanted) == []
            ballast.drop()
            assert await session.apply(wanted) == []  # what was made at last is whole
            assert refused > 30

    with mounted(tmp_path / "disk", size="48m") as folder:
        play(program, folder)


async def fill(
    daemon: Daemon, session: Session, ballast: Ballast, changeset: int
) -> list[bytes | None]:
    """Send until it is refused; every other time the disk is suddenly full to the last byte."""
    sent: list[bytes | None] = []
    handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    for count in range(400):
        body = b"%d/%d " % (changeset, count) + bytes(60_000)
        try:
            await session.send(handle, body, "Ask")
        except StoreFull:
            return sent
        sent.append(body)
        if changeset % 2 and count == 20:
            ballast.take()
        if not count % 10 and not changeset % 2:
            await daemon.pass_time(5)
    raise AssertionError("the disk was never full")
