"""Conversation groups: get_group, move, savepoints, and state under the lock (GRP)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from brokerd.broker.window import WindowOptions
from brokerd.client.messages import FOREVER
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.errors import (
    ConversationNotFound,
    GroupNotFound,
    GroupServiceMismatch,
    InvalidState,
    LockTimeout,
    NotInContract,
    QueueDisabled,
    QueueNotFound,
    TransactionAborted,
)
from brokerd.model import DIALOG_TIMER, END_DIALOG, ERROR
from brokerd.protocol.transitions import State
from tests.integration.one_daemon import Daemon, closing, live_of, play
from tests.integration.scenarios import scenario
from tests.integration.shorthand import (
    answered,
    bodies,
    fails,
    group_of,
    pair,
    state,
    take,
    talk,
    two_dialogs,
    types,
    undone,
)
from tests.integration.two_brokers import Wire, between

# get_group.


@pytest.mark.rule("GRP-14", "GRP-15", "GRP-5")
@scenario
async def test_get_group_locks_the_best_group_and_takes_nothing(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1", b"2")
    await talk(session, b"a")
    other = await daemon.session()
    async with undone(session) as tx:
        group = await tx.get_group("shop")
        assert group is not None
        assert bodies(await take(other, "shop")) == [b"a"]  # the best one is locked
        assert await take(other, "shop", group=group) == []
        assert daemon.broker.queues["shop"].ready_count == 2
        assert bodies(await tx.receive("shop", group=group)) == [b"1", b"2"]
        assert await tx.get_group("shop") is None
    assert bodies(await take(other, "shop", group=group)) == [b"1", b"2"]
    await other.close()


@pytest.mark.rule("GRP-16")
@scenario
async def test_each_get_group_locks_another_group_while_there_is_one(
    daemon: Daemon, session: Session
) -> None:
    for body in (b"1", b"2", b"3"):
        await talk(session, body)
    async with undone(session) as tx:
        found = [await tx.get_group("shop") for _ in range(3)]
        assert len(set(found)) == 3
        assert await tx.get_group("shop") == found[0]  # nothing else is available
        got = [bodies(await tx.receive("shop", group=one)) for one in found]
        assert got == [[b"1"], [b"2"], [b"3"]]
        await talk(session, b"4")
        fourth = await tx.get_group("shop")
        assert fourth not in found
    assert daemon.broker.queues["shop"].ready_count == 4


@pytest.mark.rule("GRP-17", "ERR-9617", "RCV-19")
@scenario
async def test_get_group_fails_at_once_when_its_queue_goes(
    daemon: Daemon, session: Session
) -> None:
    waiting = asyncio.create_task(wait_for_group(session, "spare"))
    await daemon.pass_time(1)
    await daemon.switch("spare", on=False)
    await fails(QueueDisabled, asyncio.wait_for(waiting, 1))
    await fails(QueueDisabled, wait_for_group(session, "spare"))
    await fails(QueueNotFound, wait_for_group(session, "none"))


async def wait_for_group(session: Session, queue: str, wait: float | None = None) -> object:
    async with session.transaction() as tx:
        return await tx.get_group(queue, FOREVER if wait is None else wait)


@pytest.mark.rule("GRP-14", "GRP-17", "RCV-18", "RCV-20", "RCV-23")
@scenario
async def test_get_group_waits_for_a_message_or_its_time(daemon: Daemon, session: Session) -> None:
    began = daemon.loop.time()
    assert await wait_for_group(session, "shop", 5) is None
    assert 5 <= daemon.loop.time() - began < 5.1
    waiting = asyncio.create_task(wait_for_group(session, "shop"))
    await daemon.pass_time(1000)
    assert not waiting.done()
    await talk(session, b"1")
    assert await asyncio.wait_for(waiting, 1) is not None
    assert bodies(await take(session, "shop")) == [b"1"]


@pytest.mark.rule("RCV-22", "CLP-111")
@scenario
async def test_a_cancelled_get_group_leaves_no_lock(daemon: Daemon, session: Session) -> None:
    tx = session.transaction()
    await tx.__aenter__()
    waiting = asyncio.create_task(tx.get_group("shop", FOREVER))
    await daemon.pass_time(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    await daemon.pass_time(1)
    assert not daemon.broker.queues["shop"].waiting
    await talk(session, b"1")
    assert bodies(await take(session, "shop")) == [b"1"]  # while that transaction is still open
    assert await tx.get_group("shop") is None
    await tx.commit()


# Verbs that lock.


VERBS: dict[str, Callable[[Transaction, bytes, bytes, bytes], Awaitable[object]]] = {
    "send": lambda tx, handle, group, home: tx.send(handle, b"x", "Ask"),
    "set_timer": lambda tx, handle, group, home: tx.set_timer(handle, 60),
    "begin_dialog, related conversation": lambda tx, handle, group, home: tx.begin_dialog(
        "urn:desk", "urn:shop", "talk", related_conversation=handle
    ),
    "begin_dialog, related group": lambda tx, handle, group, home: tx.begin_dialog(
        "urn:desk", "urn:shop", "talk", related_group=group
    ),
    "end": lambda tx, handle, group, home: tx.end(handle),
    "move from": lambda tx, handle, group, home: tx.move(handle, home),
    "get_state": lambda tx, handle, group, home: tx.state(group, take_lock=True),
    "receive": lambda tx, handle, group, home: tx.receive("desk", conversation=handle),
}
"""Verbs that name a conversation or its group, and lock that."""
PASSES_ON = {name for name in VERBS if name.startswith(("send", "set_timer", "begin_dialog"))}


@pytest.mark.rule("GRP-5", "GRP-9")
@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_locks_the_group_and_waits_for_its_lock(tmp_path: Path, verb: str) -> None:
    async def program(daemon: Daemon) -> None:
        session, other = await daemon.session(), await daemon.session()
        mine, home = await talk(session), group_of(daemon, await talk(session))
        theirs = await pair(session, mine, b"0")
        await session.send(theirs, b"answer", "Answer")
        group = group_of(daemon, mine)
        async with other.transaction() as blocker:
            await blocker.state(group, take_lock=True)
            tx = session.transaction()
            doing = asyncio.ensure_future(VERBS[verb](tx, mine, group, home))
            then = asyncio.ensure_future(tx.get_group("spare"))  # answered when that is done
            await daemon.pass_time(1)
            assert then.done() == (verb == "receive")  # which never waits for a lock (GRP-10)
            if verb == "receive":
                assert await doing == []
        await asyncio.gather(doing, then)
        if verb == "receive":
            assert bodies(await tx.receive("desk", conversation=mine)) == [b"answer"]
        assert await take(other, "desk") == []
        assert await take(other, "desk", group=group) == []
        tx.rollback()
        await session.status()
        assert bodies(await take(other, "desk")) == [b"answer"]
        await session.close()
        await other.close()

    play(program, tmp_path)


@pytest.mark.rule("GRP-4")
@pytest.mark.parametrize("verb", [*VERBS, "get_group", "set_state"])
def test_a_lock_is_passed_on_before_it_is_durable_where_nothing_can_be_seen(
    tmp_path: Path, verb: str
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        mine, home = await talk(session), group_of(daemon, await talk(session))
        theirs = await pair(session, mine, b"0")
        await session.send(theirs, b"answer", "Answer")
        group = live_of(daemon, mine).group
        held: list[bool] = []
        joined = daemon.broker.store.join

        def watch(changes: Any, done: Callable[[], None], *, urgent: bool = True) -> None:
            joined(changes, done, urgent=urgent)
            daemon.loop.call_soon(lambda: held.append(group.holder is not None))

        async with session.transaction() as tx:
            await tx.get_group("spare")  # from here on every verb is a request of its own
            if verb == "get_group":
                assert await tx.get_group("desk") == group.group_id
                await tx.send(mine, b"so that there is something to commit", "Ask")
            elif verb == "set_state":
                await tx.send(mine, b"which alone would pass it on", "Ask")
                await tx.set_state(group.group_id, b"kept")
            else:
                await VERBS[verb](tx, mine, group.group_id, home)
            if verb == "get_state":
                await tx.send(mine, b"so that there is something to commit", "Ask")
            daemon.broker.store.join = watch  # type: ignore[method-assign]  # to look on
        assert held[0] == (verb not in PASSES_ON)
        assert group.holder is None
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("GRP-7", "DLG-41")
@between
async def test_what_arrives_does_not_wait_for_the_lock(
    wire: Wire, main: Session, east: Session
) -> None:
    """Be it from another broker, from this one, a timer or an error."""
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"0", "Ask")
    (far,) = await take(east, "harbour", wait=5)
    here = await talk(main, related_conversation=mine)
    near = await pair(main, here, b"0")
    other = await wire.daemon.session()
    async with closing(other), undone(other) as blocker:
        await blocker.state(group_of(wire.daemon, mine), take_lock=True)
        await main.send(near, b"near", "Answer")
        await east.send(far.handle, b"far", "Answer")
        await wire.daemon.pass_time(1)
        await east.end(far.handle, 7, "enough")
        await main.end(near)
        await wire.daemon.pass_time(1)
        assert live_of(wire.daemon, mine).group.holder is not None
        found = [one.message_type async for one in main.browse("desk")]
        assert sorted(found) == sorted(["Answer", "Answer", ERROR, END_DIALOG])


@pytest.mark.rule("GRP-7", "DLG-37")
@scenario
async def test_a_timer_fires_while_its_group_is_locked(daemon: Daemon, session: Session) -> None:
    mine = await talk(session, b"0")
    await session.set_timer(mine, 5)
    other = await daemon.session()
    async with closing(other), undone(other) as blocker:
        await blocker.state(group_of(daemon, mine), take_lock=True)
        await daemon.pass_time(6)
        assert live_of(daemon, mine).group.holder is not None
        assert [one.message_type async for one in session.browse("desk")] == [DIALOG_TIMER]


# Groups and what is in them.


@pytest.mark.rule("GRP-3", "RCV-38")
@scenario
async def test_a_message_carries_the_group_of_its_endpoint(
    daemon: Daemon, session: Session
) -> None:
    first = await talk(session)
    second = await talk(session, related_conversation=first)
    other = await pair(session, second, b"0")
    await session.send(other, b"1", "Answer")
    (got,) = await take(session, "desk")
    assert got.handle == second
    assert got.group_id == group_of(daemon, first)


@pytest.mark.rule("GRP-6", "DLG-14", "SND-7")
@scenario
async def test_both_sides_of_a_dialog_are_locked_apart(daemon: Daemon, session: Session) -> None:
    mine, yours = await answered(session)
    other = await daemon.session()
    await session.send(mine, b"1", "Ask")
    await session.send(yours, b"2", "Answer")
    async with session.transaction() as tx:
        assert bodies(await tx.receive("shop")) == [b"1"]
        assert bodies(await take(other, "desk")) == [b"2"]
        await other.send(mine, b"3", "Ask")
    assert group_of(daemon, mine) != group_of(daemon, yours)
    await other.close()


@pytest.mark.rule("GRP-13")
@scenario
async def test_what_a_transaction_made_or_got_itself_never_waits(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1")
    others = [await daemon.session() for _ in range(3)]
    readers = [asyncio.create_task(wait_for_group(one, "shop", 100)) for one in others]
    await daemon.pass_time(1)
    began = daemon.loop.time()
    async with session.transaction() as tx:
        handle = await tx.begin_dialog("urn:desk", "urn:shop", "talk")
        await tx.send(handle, b"2", "Ask")
        for one in await tx.receive("shop"):
            await tx.send(one.handle, b"answer", "Answer")
            await tx.end(one.handle)
        await tx.end(handle)
        assert await tx.state(group_of(daemon, handle)) is None
    assert daemon.loop.time() - began < 1
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    for client in others:
        await client.close()


# move.


@pytest.mark.rule("GRP-18", "GRP-20", "GRP-3", "GRP-2", "RCV-2", "CLP-114")
@pytest.mark.parametrize("restart", [False, True])
def test_move_takes_the_messages_along_and_empties_the_group(tmp_path: Path, restart: bool) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        first, second, _, other = await two_dialogs(session)
        left, group = group_of(daemon, second), group_of(daemon, first)
        await session.move(second, group)
        await session.send(other, b"later", "Answer")
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        got = await take(session, "desk", group=group)
        assert bodies(got) == [b"0", b"1", b"later"]
        assert {one.group_id for one in got} == {group}
        assert [one.handle for one in got] == [first, second, second]
        await fails(GroupNotFound, take(session, "desk", group=left))
        await fails(GroupNotFound, session.move(first, left))
        assert left not in daemon.broker.groups
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("GRP-18", "GRP-21", "REL-3")
@scenario
async def test_a_move_that_is_rolled_back_has_never_been(daemon: Daemon, session: Session) -> None:
    first, second, _, other = await two_dialogs(session)
    left, group = group_of(daemon, second), group_of(daemon, first)
    async with undone(session) as tx:
        await tx.move(second, group)
        got = await tx.receive("desk", group=group)  # it sees what it did itself
        assert bodies(got) == [b"0", b"1"]
        assert {one.group_id for one in got} == {group}
        await tx.set_state(group, b"never kept")
        await session.send(other, b"arrives meanwhile", "Answer")
    assert group_of(daemon, second) == left
    assert bodies(await take(session, "desk", group=left)) == [b"1", b"arrives meanwhile"]
    assert bodies(await take(session, "desk", group=group)) == [b"0"]
    async with session.group(group) as held:
        assert held.state is None


@pytest.mark.rule("GRP-18", "GRP-9", "GRP-5")
@scenario
async def test_move_waits_for_the_locks_of_both_groups(daemon: Daemon, session: Session) -> None:
    first, second, *_ = await two_dialogs(session)
    group = group_of(daemon, first)
    other = await daemon.session()
    for locked in (first, second):
        async with undone(session) as tx:
            await tx.receive("desk", conversation=locked)
            moving = asyncio.create_task(other.move(second, group))
            await daemon.pass_time(1)
            assert not moving.done()
            moving.cancel()
            await asyncio.wait([moving])
        await daemon.pass_time(1)
    await other.close()


@pytest.mark.rule("GRP-18", "GRP-19", "ERR-8436", "ERR-9610")
@scenario
async def test_what_move_refuses(daemon: Daemon, session: Session) -> None:
    handle = await talk(session)
    spare = await session.begin_dialog("urn:spare", "urn:shop", "talk")
    error = await fails(GroupNotFound, session.move(handle, b"?" * 16))
    assert (error.ssb_code, error.retryable) == (8436, False)
    await fails(ConversationNotFound, session.move(b"?" * 16, group_of(daemon, handle)))
    await fails(GroupServiceMismatch, session.move(handle, group_of(daemon, spare)))
    await session.move(handle, group_of(daemon, handle))  # to where it is: nothing happens
    assert state(daemon, handle) is State.STARTED_OUTBOUND


@pytest.mark.rule("GRP-20", "ERR-8427")
@scenario
async def test_move_is_legal_until_this_side_has_ended(daemon: Daemon, session: Session) -> None:
    home = group_of(daemon, await talk(session))
    young = await talk(session)
    assert state(daemon, young) is State.STARTED_OUTBOUND
    await session.move(young, home)
    assert group_of(daemon, young) == home
    mine, yours = await answered(session)
    home = group_of(daemon, await talk(session))
    for expected, step in (
        (State.CONVERSING, None),
        (State.DISCONNECTED_INBOUND, session.end(yours)),
    ):
        if step is not None:
            await step
        assert state(daemon, mine) is expected
        await session.move(mine, home)
        assert group_of(daemon, mine) == home
        home = group_of(daemon, await talk(session))
    failed = await talk(session, lifetime=10)
    await daemon.pass_time(20)
    assert state(daemon, failed) is State.ERROR
    await session.move(failed, home)
    assert group_of(daemon, failed) == home

    await daemon.switch("shop", on=False)
    ended = await talk(session, b"waits")
    await session.end(ended)
    assert state(daemon, ended) is State.DISCONNECTED_OUTBOUND
    error = await fails(InvalidState, session.move(ended, home))
    assert error.ssb_code == 8438
    assert "DO" in error.message


@pytest.mark.rule("GRP-20", "DLG-46")
@scenario
async def test_a_move_holds_although_the_other_side_has_ended_meanwhile(
    daemon: Daemon, session: Session
) -> None:
    mine, yours = await answered(session)
    group = group_of(daemon, await talk(session))
    other = await daemon.session()
    async with session.transaction() as tx:
        await tx.move(mine, group)
        await tx.receive("desk")
        await other.end(yours)
    await session.close()
    await daemon.restart()
    session = await daemon.session()
    (told,) = await take(session, "desk", group=group)
    assert told.is_end
    assert told.handle == mine
    await session.close()
    await other.close()


TINY = WindowOptions(window_messages=3, window_bytes=4000, page_messages=2, locked_factor=1000)


@pytest.mark.rule("GRP-18")
def test_a_move_holds_for_messages_beyond_the_window(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        dialogs = [await talk(session) for _ in range(4)]
        for number in range(24):
            await session.send(dialogs[number % 4], b"%d" % number, "Ask")
        assert daemon.broker.queues["shop"].beyond > 15
        heads = [await peek(session, number) for number in range(2)]
        (_, source), (_, group) = heads
        await session.move(heads[0][0], group)
        for _ in range(2):
            async with undone(session) as tx:
                got = await tx.receive("shop", group=group)
                # each conversation whole, the one that was begun first before the other
                assert [int(one.body or b"") for one in got] == [*range(0, 24, 4), *range(1, 24, 4)]
            await fails(GroupNotFound, take(session, "shop", group=source))
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        left = [await take(session, "shop") for _ in range(3)]
        assert [len(messages) for messages in left] == [12, 6, 6]
        await session.close()

    play(program, tmp_path, window=TINY, endpoints=3)


async def peek(session: Session, number: int) -> tuple[bytes, bytes]:
    """Handle and group of the conversation with that place among the ready ones."""
    async with undone(session) as tx:
        groups = [await tx.get_group("shop") for _ in range(number + 1)]
        (first, *_) = await tx.receive("shop", 1, group=groups[-1])
        return first.handle, first.group_id


# Savepoints.


@pytest.mark.rule("GRP-21", "SND-3", "CLP-112")
@scenario
async def test_a_savepoint_undoes_what_came_after_it_and_keeps_the_locks(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1", b"2")
    other = await daemon.session()
    async with session.transaction() as tx:
        assert bodies(await tx.receive("shop", 1)) == [b"1"]
        await tx.send(handle, b"3", "Ask")
        with pytest.raises(KeyError):  # noqa: PT012  # the block is what fails
            async with tx.savepoint():
                assert bodies(await tx.receive("shop")) == [b"2"]
                await tx.send(handle, b"never", "Ask")
                gone = await tx.begin_dialog("urn:desk", "urn:shop", "talk")
                await tx.send(gone, b"never", "Ask")
                raise KeyError
        assert await take(other, "shop") == []  # the group is still locked
        assert bodies(await tx.receive("shop")) == [b"2"]
        await tx.send(handle, b"4", "Ask")
    got = await take(session, "shop")
    assert [(one.sequence, one.body) for one in got] == [(2, b"3"), (3, b"4")]
    await fails(ConversationNotFound, session.send(gone, b"x", "Ask"))
    assert await take(session, "shop") == []
    await other.close()


@pytest.mark.rule("GRP-21", "RCV-15", "RCV-30")
@scenario
async def test_what_a_savepoint_gives_back_is_there_for_others_after_the_commit(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1", b"2")
    before = daemon.broker.rollbacks
    async with session.transaction() as tx:
        await tx.receive("shop", 1)
        async with tx.savepoint() as point:
            (second,) = await tx.receive("shop")
            await point.undo()
    (again,) = await take(session, "shop")
    assert (again.body, again.queuing_order) == (b"2", second.queuing_order)
    assert again.delivery_count == 1
    assert daemon.broker.rollbacks == before


@pytest.mark.rule("GRP-21", "CLP-37", "CLP-112")
@scenario
async def test_an_error_in_a_savepoint_is_undone_with_it(daemon: Daemon, session: Session) -> None:
    handle = await talk(session)
    async with session.transaction() as tx:
        await tx.send(handle, b"1", "Ask")
        with pytest.raises(NotInContract):  # noqa: PT012  # the block is what fails
            async with tx.savepoint():
                await tx.send(handle, b"2", "Ask")
                await tx.send(handle, b"3", "Alone")  # nobody waits for its answer in here
                await tx.send(handle, b"4", "Ask")
        await tx.send(handle, b"5", "Ask")
    got = await take(session, "shop")
    assert [(one.sequence, one.body) for one in got] == [(0, b"1"), (1, b"5")]


@pytest.mark.rule("GRP-21", "GRP-18", "GRP-22")
@scenario
async def test_moves_and_states_are_undone_too_and_savepoints_nest(
    daemon: Daemon, session: Session
) -> None:
    first, second, *_ = await two_dialogs(session)
    group, left = group_of(daemon, first), group_of(daemon, second)
    async with session.transaction() as tx:
        await tx.state(group, take_lock=True)
        await tx.set_state(group, b"a")
        async with tx.savepoint():
            await tx.set_state(group, b"b")
            with pytest.raises(KeyError):  # noqa: PT012  # the block is what fails
                async with tx.savepoint():
                    await tx.set_state(group, b"c")
                    await tx.move(second, group)
                    raise KeyError
            assert await tx.state(group) == b"b"
            assert bodies(await tx.receive("desk", group=left)) == [b"1"]
            async with tx.savepoint() as inner:
                await tx.end(first)
                await inner.undo()
                await tx.send(first, b"it has not ended", "Ask")
    assert group_of(daemon, second) == left
    assert state(daemon, first) is State.CONVERSING
    async with session.group(group) as held:
        assert held.state == b"b"
    assert bodies(await take(session, "desk")) == [b"0"]
    assert bodies(await take(session, "shop")) == [b"it has not ended"]


@pytest.mark.rule("GRP-21", "REL-8")
@scenario
async def test_a_transaction_with_savepoints_is_as_durable_as_any(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1", b"2", b"3")
    async with session.transaction() as tx:
        await tx.receive("shop", 1)
        async with tx.savepoint():
            await tx.receive("shop", 1)
        async with tx.savepoint() as point:
            await tx.receive("shop", 1)
            await tx.send(handle, b"never", "Ask")
            await point.undo()
    await session.close()
    await daemon.restart()
    session = await daemon.session()
    assert bodies(await take(session, "shop")) == [b"3"]
    await session.send(handle, b"4", "Ask")
    assert [one.sequence for one in await take(session, "shop")] == [3]
    await session.close()


@pytest.mark.rule("GRP-21", "RCV-22")
@scenario
async def test_a_savepoint_that_is_cancelled_in_a_wait_is_undone_and_the_rest_goes_on(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1")
    await talk(session, b"2")
    async with session.transaction() as tx:
        assert bodies(await tx.receive("shop")) == [b"1"]
        with pytest.raises(TimeoutError):  # noqa: PT012  # the block is what fails
            async with asyncio.timeout(3), tx.savepoint():
                assert bodies(await tx.receive("shop")) == [b"2"]
                await tx.receive("spare", wait=FOREVER)
        await tx.send(handle, b"3", "Ask")
    assert not daemon.broker.queues["spare"].waiting
    got = [*await take(session, "shop"), *await take(session, "shop")]
    assert bodies(got) == [b"2", b"3"]


@pytest.mark.rule("GRP-11", "GRP-21")
@scenario
async def test_a_lock_that_is_not_to_be_had_costs_the_savepoint_only(
    daemon: Daemon, session: Session
) -> None:
    _, yours = await answered(session)
    handle = await talk(session)
    other = await daemon.session()
    async with undone(other) as blocker:
        await blocker.state(group_of(daemon, yours), take_lock=True)
        async with session.transaction() as tx:
            await tx.send(handle, b"1", "Ask")
            with pytest.raises(LockTimeout):
                async with tx.savepoint():
                    await tx.send(yours, b"x", "Answer")
            await tx.send(handle, b"2", "Ask")
    assert bodies(await take(session, "shop")) == [b"1", b"2"]
    assert await take(session, "desk") == []
    await other.close()


# State under the lock.


@pytest.mark.rule("GRP-22", "CLP-110")
@scenario
async def test_after_an_error_the_lock_is_taken_anew_before_state_is_touched(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1")
    group = b""
    with pytest.raises(KeyError):  # noqa: PT012  # the block is what fails
        async with session.transaction() as tx:
            (one,) = await tx.receive("shop")
            group = one.group_id
            await tx.set_state(group, b"half done")
            raise KeyError
    other = await daemon.session()
    async with undone(other) as quicker:  # somebody else is at that message by now
        assert len(await quicker.receive("shop")) == 1
        noting = asyncio.create_task(note(session, group, b"failed"))
        await daemon.pass_time(50)  # beyond the time limit of a lock
        assert not noting.done()
    await noting
    async with session.group(group) as held:
        assert held.state == b"failed: None before"
    await fails(GroupNotFound, note(session, b"?" * 16, b"x"))
    await other.close()


async def note(session: Session, group: bytes, text: bytes) -> None:
    async with session.group(group) as held:
        await held.set_state(b"%s: %s before" % (text, str(held.state).encode()))


@pytest.mark.rule("GRP-22")
@scenario
async def test_a_group_that_nobody_gives_up_is_asked_for_only_so_often(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session)
    other = await daemon.session()
    async with other.group(group_of(daemon, handle)) as held:
        waiting = asyncio.create_task(note(session, group_of(daemon, handle), b"x"))
        for _ in range(40):
            await daemon.pass_time(5)
            await held.tx.state(held.group_id)  # in use: it is not idle
        error = await fails(LockTimeout, waiting)
        assert "get_state" in error.message
    await other.close()


@pytest.mark.rule("GRP-22", "REL-3")
@scenario
async def test_a_block_under_the_lock_that_fails_leaves_nothing(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1")
    group = group_of(daemon, handle)
    with pytest.raises(KeyError):  # noqa: PT012  # the block is what fails
        async with session.group(group) as held:
            await held.set_state(b"x")
            assert held.state == b"x"
            await held.tx.send(handle, b"2", "Ask")
            raise KeyError
    async with session.group(group) as held:
        assert held.state is None
    assert types(await take(session, "shop")) == ["Ask"]


@pytest.mark.rule("CLP-113")
@scenario
async def test_a_rollback_does_not_wait_for_what_it_undoes(
    daemon: Daemon, session: Session
) -> None:
    _, yours = await answered(session)
    handle = await talk(session, b"1")
    other = await daemon.session()
    async with undone(other) as blocker:
        await blocker.state(group_of(daemon, yours), take_lock=True)
        tx = session.transaction()
        await tx.__aenter__()
        assert bodies(await tx.receive("shop")) == [b"1"]
        await tx.send(yours, b"waits for the lock", "Answer")
        await daemon.pass_time(1)
        tx.rollback()
        await daemon.pass_time(0.1)
        assert bodies(await take(session, "shop")) == [b"1"]
    assert await take(session, "desk") == []
    assert handle
    await other.close()


@pytest.mark.rule("CLP-113", "CLP-37")
@scenario
async def test_what_a_rollback_cut_short_has_failed(daemon: Daemon, session: Session) -> None:
    tx = session.transaction()
    await tx.__aenter__()
    waiting = asyncio.create_task(tx.receive("shop", wait=FOREVER))
    await daemon.pass_time(1)
    tx.rollback()
    await fails(TransactionAborted, waiting)
