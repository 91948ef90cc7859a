"""Closed endpoints cost disk, not memory, and what leaves memory meets what reads it (PBT-5)."""

import asyncio
import gc
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from brokerd.admin.objects import terminate
from brokerd.broker.changeset import Changeset
from brokerd.broker.state import Live
from brokerd.client.session import Session
from brokerd.errors import ConversationNotFound
from brokerd.ids import ConversationId, Handle, show
from brokerd.maintenance import dialog_expiry
from brokerd.model import ERROR
from brokerd.protocol.frames import Fragment
from brokerd.storage.rows.dialogs import StoredEndpoints
from tests.integration.delivery.closed_endpoints import endpoints, fire_and_forget
from tests.integration.one_daemon import Daemon, play
from tests.integration.shorthand import fails, take
from tests.integration.two_brokers import Wire, between

FEW = 4
"""What of the latest dialogs may still be in memory."""


@pytest.mark.rule("PBT-5", "DLG-T25", "REL-14")
@between
async def test_a_tombstone_costs_disk_and_no_memory(
    wire: Wire, main: Session, east: Session
) -> None:
    conversations = [await fire_and_forget(main, east, wire) for _ in range(30)]
    assert len(wire.east.endpoints) <= FEW
    assert len(wire.east.groups) <= FEW
    assert len(wire.daemon.instance.parts.dispatcher._dialogs.known) <= FEW
    rows = await endpoints(east)
    assert {row["conversation_id"] for row in rows} == {show(one) for one in conversations}
    assert {row["state"] for row in rows} == {"CD"}
    assert wire.at_east(conversations[0]) is None
    first = next(one for one in wire.passed if isinstance(one, Fragment))
    assert (first.conversation_id, first.sequence) == (conversations[0], 0)
    before = len(wire.passed)
    wire.deliver([first])  # a repeat is known, whoever remembers it
    await wire.daemon.pass_time(1)
    assert await take(east, "harbour") == []
    assert len(wire.passed) > before, "it is acknowledged once more"
    assert len(await endpoints(east)) == 30


@pytest.mark.rule("PBT-5", "REL-25")
@between
async def test_what_has_left_memory_is_no_garbage_to_be_collected(
    wire: Wire, main: Session, east: Session
) -> None:
    """A daemon seldom looks for cycles; until then each dialog would cost some kilobytes."""
    wire.passed = deque(maxlen=0)  # type: ignore[assignment]
    await fire_and_forget(main, east, wire)
    gc.collect()
    gc.disable()
    try:
        before = _lives()
        for _ in range(30):
            await fire_and_forget(main, east, wire)
        await wire.daemon.pass_time(20)
        assert _lives() - before <= FEW
    finally:
        gc.enable()


def _lives() -> int:
    return sum(type(one) is Live for one in gc.get_objects())


@pytest.mark.rule("PBT-5", "DLG-T23")
@between
async def test_a_tombstone_keeps_no_text(wire: Wire, main: Session, east: Session) -> None:
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"1", "Ask")
    (got,) = await take(east, "harbour", wait=5)
    await main.end(mine, error=7, description="a long story")
    (told,) = await take(east, "harbour", wait=5)
    assert told.message_type == ERROR
    await east.end(got.handle)
    (row,) = await endpoints(east)
    assert (row["state"], row["error_code"], row["error_text"]) == ("CD", 7, None)


@pytest.mark.rule("DLG-1", "DLP-37")
@between
async def test_new_dialogs_are_looked_for_many_at_a_time(
    wire: Wire, main: Session, east: Session
) -> None:
    """A store that is larger than memory costs one read for all that come meanwhile."""
    for _ in range(5):
        await fire_and_forget(main, east, wire)
    assert not wire.east.endpoints.complete
    asked: list[tuple[int, int]] = []
    read = wire.east.endpoints._named

    async def named(handles: Any, conversations: Any) -> Any:
        asked.append((len(handles), len(conversations)))
        return await read(handles, conversations)

    wire.east.endpoints._named = named
    async with main.transaction() as tx:
        for _ in range(100):
            mine = await tx.begin_dialog("urn:desk", "urn:harbour", "talk")
            await tx.send(mine, b"x", "Ask")
    await wire.daemon.pass_time(1)
    assert sum(conversations for _, conversations in asked) == 100
    assert len(asked) <= 10
    async with east.transaction() as tx:  # the other way: handles that are new
        for _ in range(100):
            await tx.begin_dialog("urn:harbour", "urn:desk", "talk")
    assert sum(handles for handles, _ in asked) == 100


@pytest.mark.rule("SND-2", "REL-25")
def test_many_are_looked_for_at_once_where_memory_holds_few(tmp_path: Path) -> None:
    """Each stays until whoever asked for it has seen it."""

    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            begin = partial(session.begin_dialog, "urn:desk", "urn:shop", "talk")
            handles = [await begin() for _ in range(30)]
            await asyncio.gather(*(session.set_timer(handle, 5000) for handle in handles))
            assert len(daemon.broker.endpoints) <= 2 * FEW

    play(program, tmp_path, endpoints=FEW)


@pytest.mark.rule("DLG-7", "GRP-2")
@between
async def test_a_group_of_closed_endpoints_in_the_store_is_begun_anew(
    wire: Wire, main: Session, east: Session
) -> None:
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"1", "Ask")
    (got,) = await take(east, "harbour", wait=5)
    async with east.transaction() as tx:
        await tx.state(got.group_id, take_lock=True)
        await tx.set_state(got.group_id, b"old")
    await main.end(mine)
    await take(east, "harbour", wait=5)
    await east.end(got.handle)
    for _ in range(4):
        await fire_and_forget(main, east, wire)
    assert wire.at_east(got.conversation_id) is None, "it is still in memory"
    assert got.group_id not in wire.east.groups
    begun = east.begin_dialog("urn:harbour", "urn:desk", "talk", related_conversation=got.handle)
    assert "is open" in (await fails(ConversationNotFound, begun)).message
    again = await east.begin_dialog("urn:harbour", "urn:desk", "talk", related_group=got.group_id)
    async with east.transaction() as tx:
        assert await tx.state(got.group_id, take_lock=True) is None
    assert wire.east.groups[got.group_id].members.keys() >= {
        wire.east.endpoints.find(Handle(again)).endpoint.key
    }
    second = await east.begin_dialog("urn:harbour", "urn:desk", "talk", related_conversation=again)
    live = wire.east.endpoints.find(Handle(second))
    assert live.group.group_id == got.group_id


# What is read while it changes.


Job = Callable[[], Awaitable[None]]


def meanwhile(monkeypatch: pytest.MonkeyPatch, name: str, job: Job) -> None:
    """Do something once, when that read of endpoints has its rows and nobody has seen them."""
    read = getattr(StoredEndpoints, name)
    done = False

    async def late(*args: Any) -> object:
        nonlocal done
        found = await read(*args)
        if not done:
            done = True
            await job()
        return found

    monkeypatch.setattr(StoredEndpoints, name, late)


@pytest.mark.rule("DLG-T14", "PER-23", "DLG-46")
@pytest.mark.parametrize("ends", [True, False])
def test_what_happens_to_a_dialog_while_its_expiry_is_read_counts(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not brought back where it has ended, and not as it was where it has gone on."""

    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk", lifetime=3600)
            await session.send(handle, b"0", "Ask")
            (got,) = await take(session, "shop")
            begin = partial(session.begin_dialog, "urn:desk", "urn:shop", "talk")
            others = [await begin() for _ in range(8)]
            daemon.instance._tick_task.cancel()
            daemon.broker.lifetimes.close()
            await daemon.pass_time(3601)
            assert daemon.broker.endpoints.find(Handle(handle)) is None, "it is in memory"

            async def change() -> None:
                if ends:
                    await session.end(handle)
                    await session.end(got.handle)
                    return
                await session.send(handle, b"1", "Ask")
                assert len(await take(session, "shop")) == 1
                for other in others:  # it leaves memory again, with a row that says more
                    await session.set_timer(other, 5000)
                    await session.set_timer(other, 5000)
                assert daemon.broker.endpoints.find(Handle(handle)) is None, "it is in memory"

            meanwhile(monkeypatch, "expired", change)
            await dialog_expiry.expire(daemon.broker)
            left = await mine(session, others)
            if ends:
                assert left == []
            else:
                assert [row["state"] for row in left] == ["ER", "ER"]
                (initiator,) = [row for row in left if row["is_initiator"]]
                assert initiator["send_sequence"] == 2

    play(program, tmp_path, endpoints=FEW)


async def mine(session: Session, others: Sequence[bytes]) -> list[dict[str, Any]]:
    skip = {show(one) for one in others}
    return [row for row in await endpoints(session) if row["conversation_handle"] not in skip]


@pytest.mark.rule("DLG-T14", "REL-8")
def test_more_dialogs_expire_at_once_than_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stays in memory until its expiry is stored, however many come after it."""

    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handles = [
                await session.begin_dialog("urn:desk", "urn:nowhere", "talk", lifetime=60)
                for _ in range(40)
            ]
            stepped: list[bool] = []
            endpoints_of = daemon.broker.endpoints
            step = Changeset.step

            def noting(self: Any, live: Any, *event: Any) -> Any:
                stepped.append(endpoints_of.get(live.endpoint.key) is live)
                return step(self, live, *event)

            with monkeypatch.context() as watched:
                watched.setattr(Changeset, "step", noting)
                await daemon.pass_time(70)
            assert len(stepped) == len(handles)
            assert all(stepped), "one was stepped that memory had forgotten"
            got = [message for _ in handles for message in await take(session, "desk")]
            assert len(got) == len(handles)

    play(program, tmp_path, endpoints=FEW)


@pytest.mark.rule("MAN-14", "OBJ-37")
def test_a_dialog_that_goes_while_all_are_ended_is_not_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as admin:
            handles = [
                await session.begin_dialog("urn:spare", "urn:shop", "talk") for _ in range(12)
            ]
            for handle in handles:
                await session.send(handle, b"x", "Ask")
            gone = next(one for one in handles if daemon.broker.endpoints.find(Handle(one)) is None)

            async def end() -> None:
                await session.end(gone, error=9, description="meanwhile")

            ended: list[bytes] = []
            end_one = terminate._Work._end

            async def noting(work: Any, live: Any) -> None:
                ended.append(live.endpoint.handle)
                await end_one(work, live)

            monkeypatch.setattr(terminate._Work, "_end", noting)
            meanwhile(monkeypatch, "page", end)
            await admin.drop("service", "urn:spare", terminate_existing=True)
            assert gone not in ended
            left = {row["service_id"] for row in await endpoints(session)}
            assert left == {"urn:shop"}
            told = [one for _ in handles for one in await take(session, "shop")]
            errors = [one.error.number for one in told if one.error is not None]
            assert sorted(errors) == [-8470] * (len(handles) - 1) + [9]

    assert terminate.BATCH > FEW
    play(program, tmp_path, endpoints=FEW)


@pytest.mark.rule("DLG-T26", "DLP-54")
@between
async def test_a_tombstone_that_is_being_purged_is_not_brought_back(
    wire: Wire, main: Session, east: Session
) -> None:
    """A late item that names it is for a dialog that is gone, while its row is still there."""
    conversations = [await fire_and_forget(main, east, wire) for _ in range(8)]
    await wire.daemon.pass_time(30 * 60 - 60)
    wire.daemon.instance._tick_task.cancel()
    await wire.daemon.pass_time(120)
    first = ConversationId(conversations[0])
    assert wire.at_east(first) is None
    store, known = wire.east.store, wire.east.endpoints
    commit = store.commit

    async def committing(changes: Any) -> None:
        found = known.look_up_conversation(first, False)
        found.then(lambda: late.append(known.look_up_conversation(first, False)))
        assert await store.endpoints.by_conversation(first, False) is not None
        await commit(changes)

    late: list[object] = []
    store.commit = committing
    assert await dialog_expiry.purge(wire.east) == 8
    await wire.daemon.pass_time(1)
    assert late == [None]
    assert len(known) == 0
