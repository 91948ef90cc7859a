"""What is in a queue: browse, and the columns of what is browsed or received (OBJ-47, RCV-27)."""

import asyncio
from pathlib import Path

import pytest

from brokerd.broker.window import WindowOptions
from brokerd.client.messages import FOREVER, Message
from brokerd.client.session import Session
from brokerd.errors import BadRequest, QueueNotFound
from brokerd.ids import GroupId
from brokerd.model import ERROR
from brokerd.storage.changes import BodyRow, Changes, Owner, PieceRow
from brokerd.storage.rows import stored_messages
from tests.integration.one_daemon import START, Daemon, live_of, play
from tests.integration.scenarios import scenario, with_limits
from tests.integration.shorthand import (
    bodies,
    fails,
    group_of,
    pair,
    raise_level,
    state,
    take,
    talk,
    types,
    undone,
)


async def browse(session: Session, queue: str, **options: bool) -> list[Message]:
    return [message async for message in session.browse(queue, **options)]


@pytest.mark.rule(
    "VIEW-5",
    "RCV-27",
    "RCV-28",
    "RCV-29",
    "RCV-30",
    "RCV-36",
    "RCV-37",
    "RCV-38",
    "RCV-39",
    "RCV-40",
    "RCV-41",
    "RCV-42",
    "RCV-43",
    "CLP-36",
    "CLP-115",
)
@scenario
async def test_all_columns_when_browsed_and_when_received(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"body")
    await session.send(handle, message_type="Nudge")
    async with undone(session) as tx:
        await tx.receive("shop")
    browsed = await browse(session, "shop")
    received = await take(session, "shop")
    for found, status in ((browsed, 1), (received, 0)):
        first, second = found
        yours = first.handle
        live = live_of(daemon, yours)
        assert yours != handle
        assert first.conversation_id == live.endpoint.conversation_id
        assert first.group_id == group_of(daemon, yours) != group_of(daemon, handle)
        assert [one.sequence for one in found] == [0, 1]
        assert [one.message_type for one in found] == ["Ask", "Nudge"]
        assert [one.body for one in found] == [b"body", None]
        assert [one.validation for one in found] == ["N", "E"]
        assert (first.service, first.contract) == ("urn:shop", "talk")
        assert first.queuing_order < second.queuing_order
        assert first.priority == live.endpoint.priority
        assert START <= first.enqueued_at <= daemon.clock.utc()
        assert len(first.message_id) == 16
        assert first.message_id != second.message_id
        assert [one.delivery_count for one in found] == [1, 1]
        assert [one.status for one in found] == [status, status]
        assert [one.timer_name for one in found] == [None, None]
    assert [one.message_id for one in browsed] == [one.message_id for one in received]
    again = await talk(session, b"later")
    assert (await browse(session, "shop"))[0].queuing_order > received[-1].queuing_order
    assert again


@pytest.mark.rule("RCV-29", "OBJ-20")
@scenario
async def test_the_letter_is_that_of_the_type_as_it_is_now(
    daemon: Daemon, session: Session
) -> None:
    """A message that was delivered under a weaker check is not checked again."""
    await talk(session, b"no JSON")
    await session.alter("message_type", "Ask", validation="well_formed_json")
    assert [one.validation for one in await browse(session, "shop")] == ["J"]
    assert [(one.validation, one.body) for one in await take(session, "shop")] == [
        ("J", b"no JSON")
    ]


@pytest.mark.rule("OBJ-47")
@scenario
async def test_browse_sees_committed_messages_and_disturbs_nobody(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1", b"2")
    other = await daemon.session()
    waiting = asyncio.create_task(take(other, "desk", wait=FOREVER))
    async with undone(session) as tx:
        (mine,) = await tx.receive("shop", 1)
        await tx.send(handle, b"not committed", "Ask")
        await tx.move(handle, group_of(daemon, await talk(session)))
        began = daemon.loop.time()
        found = await browse(other, "shop")
        assert bodies(found) == [b"1", b"2"]
        assert {one.group_id for one in found} == {mine.group_id}
        assert [one.delivery_count for one in found] == [0, 0]
        assert daemon.loop.time() - began < 1
        assert daemon.broker.groups[GroupId(mine.group_id)].holder is not None
        assert bodies(await tx.receive("shop")) == [b"2", b"not committed"][:1]
    assert not waiting.done()
    assert daemon.broker.queues["desk"].line.wake_ups == 0
    assert [one.delivery_count for one in await browse(other, "shop")] == [1, 1]
    assert bodies(await take(session, "shop")) == [b"1", b"2"]
    assert await browse(other, "shop") == []
    waiting.cancel()
    await asyncio.wait([waiting])
    await other.close()


@pytest.mark.rule("OBJ-47", "RCV-28", "RCV-9")
@scenario
async def test_browse_goes_by_queuing_order_over_all_groups(
    daemon: Daemon, session: Session
) -> None:
    first, second = await talk(session, b"a"), await talk(session, b"x")
    await session.send(first, b"b", "Ask")
    await session.end(second, 7, "enough")
    found = await browse(session, "shop")
    assert [one.queuing_order for one in found] == sorted(one.queuing_order for one in found)
    assert types(found) == ["Ask", "Ask", "Ask", ERROR]
    assert [one.sequence for one in found] == [0, 0, 1, -1]
    assert [one.body for one in await browse(session, "shop", bodies=False)] == [None] * 4
    await daemon.switch("shop", on=False)  # off is no reason not to look
    assert len(await browse(session, "shop")) == 4
    await fails(QueueNotFound, session.browse_page("none"))
    for limit in (0, 1001):
        await fails(BadRequest, session.browse_page("shop", limit=limit))


@pytest.mark.rule("OBJ-47", "CLP-115")
@pytest.mark.parametrize("restart", [False, True])
def test_a_queue_of_any_length_is_walked_in_bounded_pages(
    tmp_path: Path, restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_messages, "SPAN", 7)  # messages of all queues that a read covers

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handles = [await talk(session) for _ in range(3)]
        for number in range(60):
            await session.send(handles[number % 3], b"%d" % number, "Ask")
        (first, *_) = await take(session, "shop", 1)
        for _ in range(60):  # what is in other queues lies between
            await session.send(first.handle, b"x", "Answer")
        await session.send(handles[0], b"last", "Ask")
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        found = await browse(session, "shop")
        assert bodies(found) == [*(b"%d" % number for number in range(1, 60)), b"last"]
        sizes, after = [], None
        while True:
            page = await session.browse_page("shop", after, 5)
            sizes.append(len(page.messages))
            after = page.after
            if after is None:
                break
        assert max(sizes) == 5
        assert sum(sizes) == 60
        assert 0 in sizes  # nothing of this queue in a whole page, and it goes on all the same
        await session.close()

    play(program, tmp_path, window=WindowOptions(window_messages=10, page_messages=5))


@pytest.mark.rule("OBJ-47")
@with_limits(max_bytes=2_000_000)
async def test_large_bodies_make_short_pages(daemon: Daemon, session: Session) -> None:
    handle = await talk(session)
    for _ in range(4):
        await session.send(handle, b"x" * 200_000, "Ask")
    page = await session.browse_page("shop")
    assert len(page.messages) == 2
    assert page.after is not None
    assert len(await browse(session, "shop")) == 4


@pytest.mark.rule("VIEW-5", "RCV-27", "RCV-13", "DLG-T4", "CLP-115")
@scenario
async def test_what_is_not_complete_has_status_two_and_is_not_received(
    daemon: Daemon, session: Session
) -> None:
    for _ in range(3):
        await talk(session, b"whole")
    firsts = [one for _ in range(3) for one in await take(session, "shop")]
    keys = [live_of(daemon, one.handle).endpoint.key for one in firsts]
    changes = Changes()
    for key in keys:  # as the dispatcher keeps fragments of a message that is not complete (DLP-11)
        body = daemon.broker.store.next_body_key()
        changes.bodies[body] = BodyRow(body, Owner.ARRIVING, key, 0)
        changes.pieces += [PieceRow(body, part, b"x") for part in range(2)]
    await daemon.broker.store.commit(changes)
    await talk(session, b"ready")
    found = await browse(session, "shop")
    assert [(one.status, one.sequence, one.body) for one in found] == [
        (1, 0, b"ready"),
        (2, 1, None),
        (2, 1, None),
        (2, 1, None),
    ]
    assert [one.handle for one in found[1:]] == [one.handle for one in firsts]
    assert {
        (one.message_type, one.contract, one.queuing_order, one.enqueued_at, one.delivery_count)
        for one in found[1:]
    } == {("", "talk", -1, 0, 0)}
    page = await session.browse_page("shop", (1, -1), 2)
    assert len(page.messages) == 2
    assert page.after is not None
    assert len((await session.browse_page("shop", page.after, 2)).messages) == 1
    assert bodies(await take(session, "shop")) == [b"ready"]
    assert await take(session, "shop") == []
    assert state(daemon, firsts[0].handle) is not None


@pytest.mark.rule("RCV-25", "RCV-14", "RCV-13")
@scenario
async def test_a_committed_message_is_never_received_again(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1", b"2", b"3")
    got: list[Message] = []
    for step in range(3):
        async with undone(session) as tx:
            assert len(await tx.receive("shop", 1)) == 1
        async with session.transaction() as tx:
            got += await tx.receive("shop", 1)
        if step == 1:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
    assert bodies(got) == [b"1", b"2", b"3"]
    assert await take(session, "shop") == []
    assert await browse(session, "shop") == []
    await session.close()


@pytest.mark.rule("RCV-11", "RCV-7", "RCV-36")
@scenario
async def test_a_long_run_of_a_low_level_blocks_the_high_one_of_its_group(
    daemon: Daemon, session: Session
) -> None:
    low = await talk(session)
    high = await talk(session, related_conversation=low)
    theirs = [await pair(session, one, b"0") for one in (low, high)]
    raise_level(daemon, high, 9)
    for number in range(4):
        await session.send(theirs[0], b"%d" % number, "Answer")
    other = await daemon.session()
    async with session.transaction() as tx:
        assert bodies(await tx.receive("desk", 2)) == [b"0", b"1"]
        await session.send(theirs[1], b"urgent", "Answer")
        assert await take(other, "desk") == []  # that of the same group has to wait
        (urgent,) = await tx.receive("desk", 1)  # but not longer than the call takes
        assert (urgent.body, urgent.priority) == (b"urgent", 9)
    assert bodies(await take(session, "desk")) == [b"2", b"3"]
    await other.close()
