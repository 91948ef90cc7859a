"""What a transaction sees of what it did itself, and nobody else before its commit (SND-4)."""

import asyncio
from pathlib import Path

import pytest

from brokerd.broker.window import WindowOptions
from brokerd.client.session import Session
from brokerd.errors import ConversationNotFound, GroupNotFound
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import scenario
from tests.integration.shorthand import (
    bodies,
    fails,
    group_of,
    pair,
    take,
    talk,
    two_dialogs,
    undone,
)

TINY = WindowOptions(window_messages=2, page_messages=1, locked_factor=1000)
WINDOWS = pytest.mark.parametrize("window", [WindowOptions(), TINY], ids=["whole", "tiny"])


@WINDOWS
@pytest.mark.rule("DLG-T10", "RCV-5", "SND-4", "DLG-46", "GRP-21")
def test_what_a_transaction_has_ended_gives_it_no_more_messages(
    tmp_path: Path, window: WindowOptions
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        first, second, _, other = await two_dialogs(session)
        for number in range(3):
            await session.send(other, b"more %d" % number, "Answer")
        await session.move(second, group_of(daemon, first))
        group = group_of(daemon, first)
        async with undone(session) as tx:
            async with tx.savepoint() as point:
                await tx.end(second)
                await fails(ConversationNotFound, tx.receive("desk", conversation=second))
                await point.undo()
            async with tx.savepoint() as point:
                await tx.end(second)
                assert bodies(await tx.receive("desk", 2)) == [b"0"]
                assert await tx.receive("desk") == []
                assert await tx.receive("desk", group=group) == []
                assert await tx.get_group("desk") is None
                await tx.set_state(group, b"still locked")
                await point.undo()
            everything = [b"0", b"1", b"more 0", b"more 1", b"more 2"]
            assert bodies(await tx.receive("desk", group=group)) == everything
        async with session.transaction() as tx:
            await tx.end(second)
        assert bodies(await take(session, "desk")) == [b"0"]
        await session.close()

    play(program, tmp_path, window=window)


@pytest.mark.rule("GRP-18", "GRP-9", "GRP-10", "GRP-20")
@scenario
async def test_others_see_a_group_that_is_being_emptied_as_a_locked_one(
    daemon: Daemon, session: Session
) -> None:
    first, second, *_ = await two_dialogs(session)
    left, home = group_of(daemon, second), group_of(daemon, first)
    another = await talk(session)
    other = await daemon.session()
    async with undone(session) as tx:
        await tx.move(second, home)
        await fails(GroupNotFound, _receive_group(tx, left))  # it is gone for who has emptied it
    for commits in (False, True):
        tx = session.transaction()
        await tx.__aenter__()
        await tx.move(second, home)
        await tx.get_group("desk")  # answered, so the move is done
        assert await take(other, "desk", group=left) == []
        assert await take(other, "desk", conversation=second) == []
        moving = asyncio.create_task(other.move(another, left))
        sending = asyncio.create_task(other.send(second, b"waits", "Ask"))
        await daemon.pass_time(1)
        assert not moving.done()
        assert not sending.done()
        if commits:
            await tx.commit()
            await fails(GroupNotFound, moving)
        else:
            tx.rollback()
            await moving
            assert group_of(daemon, another) == left
            await session.move(another, home)
        await sending
    assert bodies(await take(session, "shop")) == [b"waits", b"waits"]
    await other.close()


async def _receive_group(tx, group):
    async with tx.savepoint():
        return await tx.receive("desk", group=group)


@pytest.mark.rule("GRP-18", "GRP-4", "GRP-9")
@scenario
async def test_who_waits_for_a_moved_conversation_locks_the_group_it_is_in_for_others(
    daemon: Daemon, session: Session
) -> None:
    first, second, *_ = await two_dialogs(session)
    left, home = group_of(daemon, second), group_of(daemon, first)
    other, third = await daemon.session(), await daemon.session()
    tx = session.transaction()
    await tx.__aenter__()
    await tx.move(second, home)
    await tx.get_group("desk")
    async with undone(other) as waiting:
        sending = asyncio.create_task(waiting.send(second, b"x", "Ask"))
        await daemon.pass_time(1)
        tx.rollback()
        await sending
        await waiting.get_group("spare")  # answered, so the send is done
        assert await take(third, "desk", group=left) == []
        assert bodies(await take(third, "desk", group=home)) == [b"0"]
    await other.close()
    await third.close()


@pytest.mark.rule("GRP-9", "GRP-10", "DLG-7", "GRP-2")
@pytest.mark.parametrize("begins", [False, True])
def test_an_empty_group_that_somebody_has_locked_is_waited_for(
    tmp_path: Path, *, begins: bool
) -> None:
    """The holder may be about to begin a dialog in it."""

    async def program(daemon: Daemon) -> None:
        session, other, third = [await daemon.session() for _ in range(3)]
        first, second, *_ = await two_dialogs(session)
        left = group_of(daemon, second)
        moving = session.transaction()
        await moving.__aenter__()
        await moving.move(second, group_of(daemon, first))
        await moving.get_group("spare")  # answered, so the move is done
        holding = other.transaction()
        await holding.__aenter__()
        await holding.send(second, b"x", "Ask")
        sending = asyncio.create_task(holding.get_group("spare"))
        await daemon.pass_time(1)
        assert not sending.done()
        await moving.commit()  # who waited has the lock of the group that is empty now
        await sending
        assert await take(third, "desk", group=left) == []
        locking = asyncio.create_task(_state_of(third, left))
        await daemon.pass_time(1)
        assert not locking.done()
        if begins:
            await holding.begin_dialog("urn:desk", "urn:shop", "talk", related_group=left)
            await holding.commit()
            assert await locking is None
        else:
            await holding.commit()
            await fails(GroupNotFound, locking)
        for one in (session, other, third):
            await one.close()

    play(program, tmp_path)


async def _state_of(session: Session, group: bytes) -> bytes | None:
    async with session.transaction() as tx:
        return await tx.state(group, take_lock=True)


@WINDOWS
@pytest.mark.rule("GRP-15", "RCV-3")
def test_of_two_groups_of_one_level_the_oldest_message_of_that_level_decides(
    tmp_path: Path, window: WindowOptions
) -> None:
    """An older one of a lower level does not, be it in memory or in the store only."""

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        low = await talk(session)
        await session.create("priority", "high", level=9, local_service="urn:desk")
        high = await talk(session, related_conversation=low)
        alone = await talk(session)
        far = {one: await pair(session, one, b"?") for one in (low, high, alone)}
        for handle, body in ((low, b"oldest"), (alone, b"old"), (high, b"young")):
            await session.send(far[handle], body, "Answer")
        assert bodies(await take(session, "desk")) == [b"old"]
        assert bodies(await take(session, "desk")) == [b"young", b"oldest"]
        await session.close()

    play(program, tmp_path, window=window)
