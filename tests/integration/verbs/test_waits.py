"""Who waits, for a lock or for a message, and who is woken, refused or chosen as a victim."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokerd.broker import ready_groups
from brokerd.broker.window import WindowOptions
from brokerd.client.messages import FOREVER, Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.errors import (
    BrokerError,
    ConversationNotFound,
    DeadlockVictim,
    GroupNotFound,
    LockTimeout,
    TransactionAborted,
)
from brokerd.ids import Handle, show
from tests.integration.one_daemon import Daemon, closing, live_of, play
from tests.integration.scenarios import scenario, with_limits
from tests.integration.shorthand import (
    answered,
    bodies,
    fails,
    group_of,
    pair,
    take,
    talk,
    undone,
)

# Messages.


async def slow_and_fast(session: Session) -> tuple[Handle, Handle]:
    """Two dialogs with the shop; what is sent on the second is received first."""
    await session.create("priority", "fast", contract="DEFAULT", level=9)
    slow = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    return slow, await session.begin_dialog("urn:desk", "urn:shop")


@pytest.mark.rule("RCV-3", "GRP-15", "RCV-20")
@scenario
async def test_who_waits_chooses_among_all_that_was_committed_together(
    daemon: Daemon, session: Session
) -> None:
    slow, fast = await slow_and_fast(session)
    reader = await daemon.session()
    async with closing(reader):
        waits = asyncio.create_task(reader.receive("shop", wait=FOREVER, autocommit=True))
        await daemon.pass_time(0.1)
        async with session.transaction() as tx:
            await tx.send(slow, b"slow", "Ask")
            await tx.send(fast, b"fast")
        assert bodies(await waits) == [b"fast"]
    assert bodies(await take(session, "shop")) == [b"slow"]


@pytest.mark.rule("RCV-20", "RCV-21", "GRP-15")
@scenario
async def test_what_the_first_that_was_woken_leaves_is_for_the_next(
    daemon: Daemon, session: Session
) -> None:
    """It chooses the best, which is not what it was woken for: that is still there to be told."""
    slow, fast = await slow_and_fast(session)
    readers = [await daemon.session() for _ in range(2)]
    line = daemon.broker.queues["shop"].line
    async with closing(*readers):
        waiting = []
        for reader in readers:
            waiting.append(
                asyncio.create_task(reader.receive("shop", wait=FOREVER, autocommit=True))
            )
            await daemon.pass_time(0.1)
        async with session.transaction() as tx:
            await tx.send(slow, b"slow", "Ask")
            await tx.send(fast, b"fast")
        got = await asyncio.wait_for(asyncio.gather(*waiting), 1)
    assert [bodies(one) for one in got] == [[b"fast"], [b"slow"]]
    assert line.wake_ups == len(readers)


@pytest.mark.rule("RCV-20", "RCV-21")
@with_limits(
    window=WindowOptions(window_messages=3, window_bytes=4000, page_messages=2, locked_factor=1000)
)
async def test_what_lies_behind_a_page_of_a_locked_group_wakes_who_waits(
    daemon: Daemon, session: Session
) -> None:
    """The window is full of it, and so is the page that is brought in for who waits."""
    slow, fast = await slow_and_fast(session)
    for _ in range(3):
        await session.send(fast, b"first")
    holder, reader = await daemon.session(), await daemon.session()
    async with closing(holder, reader):
        holding = holder.transaction()
        await holding.get_group("shop")
        waits = asyncio.create_task(reader.receive("shop", wait=FOREVER, autocommit=True))
        await daemon.pass_time(0.1)
        async with session.transaction() as tx:
            for handle in (*[fast] * 3, slow, *[fast] * 3):
                await tx.send(handle, b"next", "Ask" if handle == slow else None)
        assert bodies(await asyncio.wait_for(waits, 1)) == [b"next"]
        holding.rollback()


@pytest.mark.rule("GRP-15", "RCV-20", "RCV-21", "RCV-44", "REL-4")
@scenario
async def test_who_waits_chooses_among_all_that_became_durable_together(
    daemon: Daemon, session: Session
) -> None:
    """Transactions of several clients that one sync makes durable are there in one moment."""
    slow, fast = await slow_and_fast(session)
    other = await session.begin_dialog("urn:desk", "urn:spare", "talk")
    reader, second, sender = [await daemon.session() for _ in range(3)]
    async with closing(reader, second, sender):

        async def read(client: Session) -> list[bytes | None]:
            async with client.transaction() as tx:
                return bodies(await tx.receive("shop", wait=FOREVER, groups=9))

        first = asyncio.create_task(read(reader))
        await daemon.pass_time(0.1)
        last = asyncio.create_task(read(second))
        await daemon.pass_time(0.1)
        ahead = session.submit_send(other, b"so that a flush is out", "Ask")
        sends = [session.submit_send(slow, b"slow", "Ask"), sender.submit_send(fast, b"fast")]
        for one in (ahead, *sends):
            await one
        assert await first == [b"fast", b"slow"]
        assert not last.done()
        await session.send(slow, b"next", "Ask")
        assert await last == [b"next"]


@pytest.mark.rule("RCV-21", "RCV-20")
@scenario
async def test_each_new_group_wakes_one_of_a_hundred_in_order_of_arrival(
    daemon: Daemon, session: Session
) -> None:
    clients = [await daemon.session() for _ in range(8)]

    async def read(number: int) -> int:
        async with clients[number % 8].transaction() as tx:
            (one,) = await tx.receive("shop", wait=FOREVER)
            return one.queuing_order

    async with closing(*clients):
        readers = []
        for number in range(100):
            readers.append(asyncio.create_task(read(number)))
            await daemon.pass_time(0.01)
        line = daemon.broker.queues["shop"].line
        before = line.wake_ups
        for _ in range(40):
            await talk(session, b"x")
        await daemon.pass_time(0.1)
        assert line.wake_ups - before == 40
        handles = [await talk(session) for _ in range(60)]
        await session.send(handles, b"x", "Ask")  # sixty groups in one commit
        orders = await asyncio.wait_for(asyncio.gather(*readers), 5)
        assert line.wake_ups - before == 100
        assert orders == sorted(orders)  # who came first has the oldest message


@pytest.mark.rule("RCV-21", "GRP-10")
@scenario
async def test_who_selects_a_group_is_not_woken_by_others(daemon: Daemon, session: Session) -> None:
    first, second = await talk(session), await talk(session)
    theirs = await pair(session, first, b"0")
    line = daemon.broker.queues["desk"].line
    waiting = [
        asyncio.create_task(take(session, "desk", conversation=one, wait=FOREVER))
        for one in (first, second)
    ]
    await daemon.pass_time(1)
    other = await pair(session, await talk(session), b"0")
    for number in range(5):
        await session.send(other, b"%d" % number, "Answer")
    await daemon.pass_time(1)
    assert line.wake_ups == 0
    await session.send(theirs, b"mine", "Answer")
    assert bodies(await asyncio.wait_for(waiting[0], 1)) == [b"mine"]
    assert line.wake_ups == 1
    assert not waiting[1].done()
    waiting[1].cancel()
    await asyncio.wait([waiting[1]])


@pytest.mark.rule("RCV-18", "RCV-21")
@scenario
async def test_who_was_woken_in_vain_still_waits_only_so_long(
    daemon: Daemon, session: Session
) -> None:
    first = await talk(session)
    second = await talk(session, related_conversation=first)
    theirs = await pair(session, second, b"0")
    began = daemon.loop.time()
    waiting = asyncio.create_task(take(session, "desk", conversation=first, wait=5))
    await daemon.pass_time(2)
    await session.send(theirs, b"in the same group, of another conversation", "Answer")
    assert await asyncio.wait_for(waiting, 10) == []
    assert 5 <= daemon.loop.time() - began < 5.1
    assert daemon.broker.queues["desk"].line.wake_ups == 1


@pytest.mark.rule("RCV-21", "GRP-10")
@scenario
async def test_of_those_who_select_the_same_group_one_is_woken_at_a_time(
    daemon: Daemon, session: Session
) -> None:
    mine, yours = await answered(session)
    group = group_of(daemon, mine)
    waiting = [
        asyncio.create_task(take(session, "desk", group=group, wait=FOREVER)) for _ in range(10)
    ]
    await daemon.pass_time(1)
    line = daemon.broker.queues["desk"].line
    for number, one in enumerate(waiting):
        await session.send(yours, b"%d" % number, "Answer")
        assert bodies(await asyncio.wait_for(one, 1)) == [b"%d" % number]
        await daemon.pass_time(1)
        assert line.wake_ups == number + 1


@pytest.mark.rule("RCV-20", "RCV-3")
@scenario
async def test_a_message_for_a_group_of_its_own_wakes_who_waits(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1")

    async def read(**options: bytes) -> list[Message]:
        async with session.transaction() as tx:
            (one,) = await tx.receive("shop")
            selector = {name: getattr(one, options[name].decode()) for name in options}
            return await tx.receive("shop", wait=FOREVER, **selector)

    for options in ({}, {"group": b"group_id"}, {"conversation": b"handle"}):
        waiting = asyncio.create_task(read(**options))
        await daemon.pass_time(1)
        await session.send(handle, b"2", "Ask")
        assert bodies(await asyncio.wait_for(waiting, 1)) == [b"2"]
        await session.send(handle, b"1", "Ask")


@pytest.mark.rule("RCV-21", "RCV-22")
@with_limits(window=WindowOptions(window_messages=3, window_bytes=4000, page_messages=2))
async def test_who_is_woken_and_goes_without_taking_passes_it_on(
    daemon: Daemon, session: Session
) -> None:
    quitter, patient = await daemon.session(), await daemon.session()
    first = asyncio.create_task(wait_in_tx(quitter))
    await daemon.pass_time(0.1)
    second = asyncio.create_task(wait_in_tx(patient))
    await daemon.pass_time(0.1)
    queue = daemon.broker.queues["shop"]
    held = {}

    def hold(resume: object = None) -> None:  # the store takes its time
        held["resume"] = resume

    look = queue.backlog_may_precede
    queue.backlog_may_precede = lambda *asked: "resume" not in held or look(*asked)  # type: ignore[method-assign]
    fetch, queue.backlog.fetch = queue.backlog.fetch, hold  # type: ignore[method-assign]
    await talk(session, b"1")
    assert "resume" in held  # the first was woken, and is reading
    queue.backlog.fetch = fetch  # type: ignore[method-assign]
    await quitter.close()
    assert bodies(await asyncio.wait_for(second, 5)) == [b"1"]
    await asyncio.wait([first])
    assert isinstance(first.exception(), BrokerError)
    await patient.close()


async def wait_in_tx(session: Session) -> list[Message]:
    async with session.transaction() as tx:
        return await tx.receive("shop", wait=FOREVER)


@pytest.mark.rule("RCV-19", "RCV-5", "GRP-18", "GRP-20")
@scenario
async def test_who_selects_what_goes_away_learns_it_at_once(
    daemon: Daemon, session: Session
) -> None:
    first, second, third = [await talk(session, b"0") for _ in range(3)]
    left, group = group_of(daemon, second), group_of(daemon, first)
    by_group = asyncio.create_task(take(session, "desk", group=left, wait=FOREVER))
    by_handle = asyncio.create_task(take(session, "desk", conversation=second, wait=FOREVER))
    ended = asyncio.create_task(take(session, "desk", conversation=third, wait=FOREVER))
    await daemon.pass_time(1)
    await session.move(second, group)
    await fails(GroupNotFound, asyncio.wait_for(by_group, 1))
    await session.end(third)
    await fails(ConversationNotFound, asyncio.wait_for(ended, 1))
    assert not by_handle.done()  # it is still there, in another group
    theirs = {one.handle: one for _ in range(3) for one in await take(session, "shop", 1)}
    for handle in theirs:
        live = live_of(daemon, handle)
        if live.peer is not None and live.peer.endpoint.handle == second:
            await session.send(handle, b"found", "Answer")
    assert bodies(await asyncio.wait_for(by_handle, 1)) == [b"found"]


@pytest.mark.rule("RCV-19", "RCV-5", "GRP-10")
@scenario
async def test_who_selects_what_goes_away_learns_it_though_the_lock_goes_to_another(
    daemon: Daemon, session: Session
) -> None:
    stays = await talk(session)
    goes = await talk(session, related_conversation=stays)
    other, third = await daemon.session(), await daemon.session()
    ending = session.transaction()
    await ending.__aenter__()
    await ending.end(goes)
    await ending.get_group("spare")  # answered, so the end is done
    selecting = asyncio.create_task(
        third.receive("desk", conversation=goes, wait=FOREVER, autocommit=True)
    )
    holding = other.transaction()
    await holding.__aenter__()
    await holding.send(stays, b"x", "Ask")
    sending = asyncio.create_task(holding.get_group("spare"))
    await daemon.pass_time(1)
    assert not selecting.done()
    assert not sending.done()
    await ending.commit()
    await sending
    await fails(ConversationNotFound, asyncio.wait_for(selecting, 1))
    holding.rollback()
    await other.close()
    await third.close()


@pytest.mark.rule("RCV-22")
@scenario
async def test_a_receive_may_be_cancelled_at_any_moment(daemon: Daemon, session: Session) -> None:
    """Cancelled after 0, 1, 2 … turns of the loop: nothing is locked or lost, whatever was won."""
    await talk(session, b"1")
    reader = await daemon.session()
    for turns in range(60):
        task = asyncio.create_task(one_receive(reader, commit=False))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert bodies(await take(session, "shop", wait=1)) == [b"1"], turns
        await talk(session, b"1")
    await reader.close()


async def one_receive(session: Session, *, commit: bool) -> None:
    async with session.transaction() as tx:
        await tx.receive("shop", wait=FOREVER)
        if not commit:
            await tx.receive("desk", wait=FOREVER)


# Locks.


@pytest.mark.rule("GRP-11", "ERR-B1")
@scenario
async def test_a_lock_timeout_names_session_verb_and_age_of_the_holder(
    daemon: Daemon, session: Session
) -> None:
    _, yours = await answered(session)
    other = await daemon.session()
    async with undone(session) as tx:
        await tx.send(yours, b"x", "Answer")
        await tx.get_group("spare")
        error = await fails(LockTimeout, other.send(yours, b"y", "Answer"))
    assert f"client {session.client_id.hex()[:8]}" in error.message
    assert "latest verb get_group" in error.message
    assert "open for 30" in error.message
    assert (error.code, error.retryable) == ("lock_timeout", True)
    await other.close()


@pytest.mark.rule("GRP-11")
@scenario
async def test_a_commit_that_is_not_durable_for_long_is_waited_for(
    daemon: Daemon, session: Session
) -> None:
    mine, yours = await answered(session)
    await session.send(mine, b"1", "Ask")
    other, third = await daemon.session(), await daemon.session()
    async with closing(other, third):
        tx = session.transaction()
        assert bodies(await tx.receive("shop")) == [b"1"]
        joined = daemon.broker.store.join

        def late(changes: Any, done: Callable[[], None], *, urgent: bool = True) -> None:
            daemon.loop.call_later(100, lambda: joined(changes, done, urgent=urgent))

        daemon.broker.store.join = late  # type: ignore[method-assign]  # a disk that stands still
        committing = asyncio.create_task(tx.commit())
        await daemon.pass_time(0.1)
        daemon.broker.store.join = joined  # type: ignore[method-assign]
        sending = asyncio.create_task(other.send(yours, b"2", "Answer"))
        behind = asyncio.create_task(third.send(yours, b"3", "Answer"))
        await daemon.pass_time(95)
        assert not committing.done()
        assert not sending.done()
        assert not behind.done()
        await asyncio.gather(committing, sending, behind)
    assert bodies(await take(session, "desk")) == [b"2", b"3"]


@pytest.mark.rule("GRP-12", "ERR-B1")
@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_circle_of_waits_costs_the_youngest(count: int, tmp_path: object) -> None:
    @scenario
    async def program(daemon: Daemon, session: Session) -> None:
        handles = [await talk(session) for _ in range(count)]
        async with AsyncExitStack() as stack:
            open_ones = [await begun(daemon, session, stack) for _ in range(count)]
            for tx, handle in zip(open_ones, handles, strict=True):
                await tx.send(handle, b"own", "Ask")
            await daemon.pass_time(0.1)
            # The youngest begins to wait first; it is the oldest that closes the circle.
            for at in reversed(range(count)):
                await open_ones[at].send(handles[(at + 1) % count], b"next", "Ask")
                await daemon.pass_time(0.1)
            *others, youngest = open_ones
            error = await fails(DeadlockVictim, youngest.commit())
            assert (error.code, error.retryable) == ("deadlock_victim", True)
            began = daemon.loop.time()
            for tx in reversed(others):
                await tx.commit()
            assert daemon.loop.time() - began < 1
        sent = [bodies(await take(session, "shop")) for _ in range(count)]
        assert sorted(len(one) for one in sent) == sorted([1] + [2] * (count - 2) + [1])

    program(tmp_path)  # type: ignore[arg-type]  # a path, as every test gets it


async def begun(daemon: Daemon, session: Session, stack: AsyncExitStack) -> Transaction:
    """A transaction that the daemon knows of; it is rolled back at the end unless it is over."""
    tx = session.transaction()
    stack.callback(tx.rollback)
    await tx.receive("spare")
    await daemon.pass_time(0.1)
    return tx


@pytest.mark.rule("GRP-12", "DLG-T27")
@scenario
async def test_a_victim_is_told_so_although_a_dialog_it_names_has_gone_meanwhile(
    daemon: Daemon, session: Session
) -> None:
    first, second, gone = sorted([await talk(session) for _ in range(3)], key=_locked_as(daemon))
    async with AsyncExitStack() as stack:
        old, young = [await begun(daemon, session, stack) for _ in range(2)]
        await old.send(second, b"own", "Ask")
        await daemon.pass_time(0.1)
        await young.send([first, second, gone], b"next", "Ask")  # has the first, not the second
        await daemon.pass_time(0.1)
        await session.admin.clean_up(gone, "it hangs")
        await old.send(first, b"next", "Ask")  # closes the circle
        await daemon.pass_time(0.1)
        await fails(DeadlockVictim, young.commit())
        began = daemon.loop.time()
        await old.commit()
        assert daemon.loop.time() - began < 1


def _locked_as(daemon: Daemon) -> Callable[[bytes], bytes]:
    """Of several groups that one verb names, which it locks first (GRP-8)."""
    return lambda handle: group_of(daemon, handle)


@pytest.mark.rule("GRP-12", "GRP-10")
@pytest.mark.parametrize("selector", ["group", "conversation"])
def test_receives_by_selector_are_part_of_a_circle(selector: str, tmp_path: object) -> None:
    @scenario
    async def program(daemon: Daemon, session: Session) -> None:
        handles = [await talk(session) for _ in range(3)]
        groups = [group_of(daemon, one) for one in handles]
        async with AsyncExitStack() as stack:
            old, middle, young = [await begun(daemon, session, stack) for _ in range(3)]
            for tx, group in zip((old, middle, young), groups, strict=True):
                await tx.state(group, take_lock=True)

            def receive(tx: Transaction, at: int) -> "asyncio.Task[list[Message]]":
                named = handles[at] if selector == "conversation" else groups[at]
                return asyncio.create_task(
                    tx.receive("desk", wait=FOREVER, **{selector: named})  # type: ignore[arg-type]
                )

            first, second = receive(young, 0), receive(old, 1)
            await daemon.pass_time(40)  # longer than a wait for a lock
            assert not first.done()
            assert not second.done()
            await middle.send(handles[2], b"closes the circle", "Ask")
            await fails(DeadlockVictim, asyncio.wait_for(first, 1))
            await middle.commit()
            assert not second.done()
            second.cancel()
            await asyncio.wait([second])

    program(tmp_path)  # type: ignore[arg-type]


@pytest.mark.rule("GRP-12", "GRP-10", "RCV-18")
@scenario
async def test_a_wait_that_ends_soon_is_no_part_of_a_circle(
    daemon: Daemon, session: Session
) -> None:
    first, second = await talk(session), await talk(session)
    async with AsyncExitStack() as stack:
        old, young = [await begun(daemon, session, stack) for _ in range(2)]
        await old.state(group_of(daemon, first), take_lock=True)
        await young.state(group_of(daemon, second), take_lock=True)
        waiting = asyncio.create_task(young.receive("desk", conversation=first, wait=20))
        await daemon.pass_time(1)
        await old.send(second, b"x", "Ask")
        assert await waiting == []
        await young.commit()
        await old.commit()
    assert bodies(await take(session, "shop")) == [b"x"]


@pytest.mark.rule("PBT-18", "CLP-61", "BI-R7")
@scenario
async def test_a_forgotten_transaction_is_rolled_back_and_leaves_a_record(
    daemon: Daemon, session: Session
) -> None:
    sessions = daemon.instance.parts.sessions
    sessions.options = msgspec.structs.replace(sessions.options, transaction_age=120.0)
    handle = await talk(session, b"1")
    sleeper, reader = await daemon.session(), await daemon.session()
    tx = sleeper.transaction()
    (one,) = await tx.receive("shop")
    await tx.send(one.handle, b"never", "Answer")
    waiting = asyncio.create_task(take(reader, "shop", wait=FOREVER))
    for _ in range(4):
        await daemon.pass_time(25)
        await tx.state(one.group_id)  # it is in use all the time
    assert not waiting.done()
    await daemon.pass_time(30)
    assert bodies(await asyncio.wait_for(waiting, 1)) == [b"1"]
    await fails(TransactionAborted, tx.commit())
    (line,) = [
        fields
        for event, fields in daemon.log.lines
        if (event, fields.get("subclass")) == ("broker.daemon", "transaction_too_old")
    ]
    assert line["groups"] == [show(one.group_id)]
    assert line["verbs"] == {"receive": 1, "send": 1}
    assert line["client"].startswith(f"client {sleeper.client_id.hex()[:8]}")  # type: ignore[attr-defined]
    assert await take(session, "desk") == []
    assert handle
    await sleeper.close()
    await reader.close()


@pytest.mark.rule("RCV-20", "GRP-14", "GRP-15", "GRP-4")
@pytest.mark.parametrize("commits", [False, True])
def test_who_waits_chooses_among_all_that_one_transaction_lets_go(
    tmp_path: Path, commits: bool
) -> None:
    """The locks that end and the messages that come are there in the same moment."""

    async def program(daemon: Daemon) -> None:
        session, other = await daemon.session(), await daemon.session()
        dialogs = [await talk(session, b"%d" % number) for number in range(3)]
        async with undone(session) as first:
            groups = [await first.get_group("shop") for _ in dialogs]
        tx = session.transaction()
        await tx.__aenter__()
        for group in reversed(groups[1:] if commits else groups):
            assert group is not None
            async with tx.savepoint() as point:
                await tx.receive("shop", group=group)
                await point.undo()  # the lock stays
        if commits:
            assert bodies(await tx.receive("shop")) == [b"0"]
        waiting = asyncio.create_task(take(other, "shop", wait=60))
        await daemon.pass_time(1)
        assert not waiting.done()
        if commits:
            fresh = await tx.begin_dialog("urn:desk", "urn:shop", "talk")
            await tx.send(fresh, b"young", "Ask")
            await tx.commit()
        else:
            tx.rollback()
        assert bodies(await waiting) == [b"1" if commits else b"0"]
        await session.close()
        await other.close()

    play(program, tmp_path)


@pytest.mark.rule("GRP-9", "REL-18")
def test_a_long_line_for_one_lock_is_served_to_its_end(tmp_path: Path) -> None:
    """Each that gets the lock commits and hands it on: a long line must not be a deep stack."""
    count = 400

    async def program(daemon: Daemon) -> None:
        holder, other = await daemon.session(), await daemon.session()
        handle = await talk(holder)
        yours = await pair(holder, handle, b"first")
        await holder.send(yours, b"answer", "Answer")
        tx = holder.transaction()
        await tx.receive("desk")
        sent = [other.submit_send(handle, b"%d" % number, "Ask") for number in range(count)]
        await daemon.pass_time(1)
        group = live_of(daemon, handle).group
        assert len(group.line) == count
        await tx.commit()
        await asyncio.gather(*sent)
        assert group.holder is None
        found = [message.body async for message in other.browse("shop")]
        assert found == [b"%d" % number for number in range(count)]
        await holder.close()
        await other.close()

    play(program, tmp_path)


@pytest.mark.rule("CLP-37", "GRP-9")
def test_transactions_whose_commit_waits_for_a_lock_are_no_limit_for_others(
    tmp_path: Path,
) -> None:
    """A client may have so many open; those it has asked to commit are on their way."""

    async def program(daemon: Daemon) -> None:
        holder, other = await daemon.session(), await daemon.session()
        handle = await talk(holder, b"first")
        tx = holder.transaction()
        await tx.savepoint().__aenter__()  # from now on each verb is written as it comes
        await tx.send(handle, b"held", "Ask")
        await tx.get_group("desk")  # answered: the send has the lock by now

        async def one(number: int) -> None:
            async with other.transaction() as mine:
                await mine.get_group("desk")
                await mine.send(handle, b"%d" % number, "Ask")

        waiting = [asyncio.create_task(one(number)) for number in range(40)]
        await daemon.pass_time(1)
        await tx.commit()
        await asyncio.gather(*waiting)
        await holder.close()
        await other.close()

    play(program, tmp_path)


@pytest.mark.rule("REL-25")
def test_a_group_that_is_locked_again_and_again_has_one_place_among_the_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_groups, "_STALE", 10)

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handle = await talk(session)
        yours = await pair(session, handle, b"first")
        await session.send(yours, b"unread", "Answer")
        for _ in range(100):
            async with session.transaction() as tx:
                await tx.send(handle, b"1", "Ask")
                await tx.send(handle, b"2", "Ask")
        assert len(daemon.broker.queues["desk"].groups._heap) <= 13
        await session.close()

    play(program, tmp_path)
