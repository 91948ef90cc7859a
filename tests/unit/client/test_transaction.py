"""Transactions: one request while nothing is asked, many afterwards; all or nothing."""

import asyncio

import pytest

from brokerd.client.messages import FOREVER
from brokerd.client.outcomes import Park, Retry
from brokerd.client.session import Session
from brokerd.errors import (
    Busy,
    ContractNotFound,
    InvalidArgument,
    LockTimeout,
    NoSuchTx,
    TransactionAborted,
)
from brokerd.protocol.client_verbs import MAX_STATE, BeginDialog, End, Send, SetState
from tests.unit.client.scripted import GROUP, HANDLE, Daemon, MovedClock, message, turns


class Oops(Exception):
    pass


@pytest.mark.rule("CLP-34", "REL-3")
async def test_a_block_that_asks_nothing_is_one_request(session: Session, daemon: Daemon) -> None:
    async with session.transaction() as tx:
        handle = await tx.begin_dialog("shop", "warehouse")
        await tx.send(handle, b"1")
        await tx.send([handle, HANDLE], b"2", "Order")
        await tx.set_state(GROUP, b"s")
        await tx.end(HANDLE)
        await turns()
        assert daemon.asked == []
    assert daemon.asked == ["transact"]
    begun, *rest = daemon.applied
    assert isinstance(begun, BeginDialog)
    assert rest == [
        Send(handle, None, b"1"),
        Send([handle, HANDLE], "Order", b"2"),
        SetState(GROUP, b"s"),
        End(HANDLE),
    ]
    assert daemon.tokens == {0}


async def test_an_empty_block_asks_nothing(session: Session, daemon: Daemon) -> None:
    async with session.transaction():
        pass
    async with session.transaction() as tx:
        await tx.receive("q")
    await turns()
    assert daemon.asked == ["begin", "receive", "rollback"]
    assert daemon.tokens == set()


@pytest.mark.rule("REL-3")
async def test_an_exception_rolls_a_collected_block_back(session: Session, daemon: Daemon) -> None:

    async def block() -> None:
        async with session.transaction() as tx:
            await tx.send(HANDLE, b"1")
            raise Oops

    with pytest.raises(Oops):
        await block()
    await turns()
    assert daemon.asked == []


@pytest.mark.rule("REL-3", "RCV-15")
async def test_an_exception_rolls_an_interactive_block_back(
    session: Session, daemon: Daemon
) -> None:
    daemon.queues["q"] = [message(0), message(1)]

    async def block() -> None:
        async with session.transaction() as tx:
            assert len(await tx.receive("q", 1)) == 1
            await tx.send(HANDLE, b"reply")
            raise Oops

    with pytest.raises(Oops):
        await block()
    await turns()
    assert [each.sequence for each in daemon.queues["q"]] == [0, 1]
    assert daemon.applied == []
    assert daemon.asked[-1] == "rollback"


@pytest.mark.rule("CLP-32")
async def test_receive_and_reply_commit_together(session: Session, daemon: Daemon) -> None:
    daemon.queues["q"] = [message(0, b"order")]
    daemon.state[GROUP] = b"old"
    async with session.transaction() as tx:
        await tx.send(HANDLE, b"before")
        (order,) = await tx.receive("q")
        assert await tx.state(order.group_id) == b"old"
        await tx.set_state(order.group_id, b"new")
        await tx.send(order.handle, b"reply")
        assert daemon.applied == []
    assert daemon.applied == [
        Send(HANDLE, None, b"before"),
        SetState(GROUP, b"new"),
        Send(HANDLE, None, b"reply"),
    ]
    assert daemon.state[GROUP] == b"new"
    assert daemon.asked == [
        *("begin", "send", "receive", "get_state", "set_state", "send", "commit")
    ]


@pytest.mark.rule("CLP-20")
async def test_more_than_a_frame_becomes_interactive(session: Session, daemon: Daemon) -> None:
    async with session.transaction() as tx:
        for number in range(3):
            await tx.send(HANDLE, bytes([number]) * 500_000)
        await tx.send(HANDLE, b"x" * 2_000_000)
    assert daemon.asked == ["begin", "send", "send", "send", "send", "commit"]
    assert [len(verb.body or b"") for verb in daemon.applied if isinstance(verb, Send)] == [
        *(500_000, 500_000, 500_000, 2_000_000)
    ]


@pytest.mark.rule("CLP-37")
async def test_the_first_failure_of_a_pipeline_surfaces_at_commit(
    session: Session, daemon: Daemon
) -> None:
    tx = session.transaction()
    await tx.receive("q")
    daemon.failing["begin_dialog"] = ContractNotFound("no such contract")
    handle = await tx.begin_dialog("shop", "warehouse", "orders")
    await tx.send(handle, b"1")
    with pytest.raises(ContractNotFound, match="no such contract"):
        await tx.commit()
    await turns()
    assert daemon.applied == []
    assert daemon.peer.txs == {}


@pytest.mark.rule("REL-3")
async def test_what_could_not_even_be_written_is_not_committed_without(
    session: Session, daemon: Daemon
) -> None:
    tx = session.transaction()
    await tx.receive("q")
    await tx.send(HANDLE, b"1")
    await tx.send(HANDLE, b"2", "\ud800")
    with pytest.raises(InvalidArgument):
        await tx.commit()
    await turns()
    assert daemon.applied == []
    assert daemon.peer.txs == {}


@pytest.mark.rule("CLP-37")
async def test_after_a_failure_every_verb_tells_it(session: Session, daemon: Daemon) -> None:
    daemon.failing["receive"] = LockTimeout("held by another")

    async def block() -> None:
        async with session.transaction() as tx:
            with pytest.raises(LockTimeout):
                await tx.receive("q")
            with pytest.raises(LockTimeout):
                await tx.send(HANDLE)

    with pytest.raises(LockTimeout):
        await block()
    await turns()
    assert daemon.peer.txs == {}


@pytest.mark.rule("CLP-37")
async def test_a_receive_behind_a_failed_send_tells_of_the_send(
    session: Session, daemon: Daemon
) -> None:
    daemon.failing["send"] = ContractNotFound("first cause")
    tx = session.transaction()
    await tx.send(HANDLE)
    with pytest.raises(ContractNotFound, match="first cause"):
        await tx.receive("q")
    tx.rollback()


@pytest.mark.rule("REL-3")
async def test_a_finished_transaction_takes_no_verb(session: Session, daemon: Daemon) -> None:
    async with session.transaction() as tx:
        await tx.send(HANDLE)
    for verb in (tx.send(HANDLE), tx.receive("q"), tx.commit()):
        with pytest.raises(NoSuchTx):
            await verb
    tx.rollback()
    assert daemon.asked == ["transact"]


@pytest.mark.rule("REL-3")
async def test_a_block_that_has_ended_it_itself_is_left_without_a_word(
    session: Session, daemon: Daemon
) -> None:
    async with session.transaction() as tx:
        await tx.send(HANDLE)
        await tx.commit()
    async with session.transaction() as tx:
        await tx.send(HANDLE)
        tx.rollback(Retry(60))
    assert daemon.asked == ["transact"]


async def test_an_outcome_that_is_none_rolls_nothing_back(session: Session, daemon: Daemon) -> None:
    async with session.transaction() as tx:
        await tx.send(HANDLE)
        for wrong in (Retry, "later", 5):
            with pytest.raises(InvalidArgument, match="outcome is"):
                tx.rollback(wrong)  # type: ignore[arg-type]
    assert daemon.asked == ["transact"]
    for bad in (lambda: Retry("x"), lambda: Park(5), lambda: Park("")):  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            bad()


async def test_arguments_are_checked_before_anything_is_asked(
    session: Session, daemon: Daemon
) -> None:
    tx = session.transaction()
    bad = [
        tx.begin_dialog(None, "b"),  # type: ignore[arg-type]
        tx.begin_dialog("a", "b", broker_id="elsewhere"),
        tx.begin_dialog("a", "b", broker_id=b"1"),
        tx.begin_dialog("a", "b", related_group=b"1"),
        tx.begin_dialog("a", "b", lifetime=1.5),
        tx.send(HANDLE, b"", 5),  # type: ignore[arg-type]
        tx.set_state(GROUP, "text"),  # type: ignore[arg-type]
        tx.set_state(GROUP, bytes(MAX_STATE + 1)),
        session.send(HANDLE, b"", 5),  # type: ignore[arg-type]
        session.apply("queue"),  # type: ignore[arg-type]
        tx.state(b"1"),
        tx.end(b"1"),
    ]
    for verb in bad:
        with pytest.raises(InvalidArgument):
            await verb
    assert daemon.asked == []


@pytest.mark.rule("RCV-18")
async def test_a_waiting_receive_gets_what_arrives(session: Session, daemon: Daemon) -> None:
    async with session.transaction() as tx:
        receiving = asyncio.ensure_future(tx.receive("q", wait=FOREVER))
        await turns()
        assert not receiving.done()
        daemon.peer.arrive("q", message(0, b"late"))
        assert [each.body for each in await receiving] == [b"late"]
    assert daemon.queues["q"] == []


@pytest.mark.rule("RCV-22", "CLP-40")
async def test_a_cancelled_wait_leaves_nothing_locked(session: Session, daemon: Daemon) -> None:
    async with session.transaction() as tx:
        receiving = asyncio.ensure_future(tx.receive("q", wait=FOREVER))
        await turns()
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        await turns()
        assert daemon.peer.waiting == {}
        daemon.peer.arrive("q", message(0))
        assert len(await tx.receive("q")) == 1


@pytest.mark.rule("RCV-22", "CLP-41")
async def test_messages_of_a_cancelled_wait_are_not_committed(
    session: Session, daemon: Daemon
) -> None:

    async def block() -> None:
        async with session.transaction() as tx:
            receiving = asyncio.ensure_future(tx.receive("q", wait=FOREVER))
            await turns()
            daemon.peer.arrive("q", message(0))
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            await tx.send(HANDLE)

    with pytest.raises(TransactionAborted, match="taken messages"):
        await block()
    await turns()
    assert len(daemon.queues["q"]) == 1
    assert daemon.applied == []


@pytest.mark.rule("RCV-22")
async def test_a_cancelled_block_rolls_back(session: Session, daemon: Daemon) -> None:
    daemon.queues["q"] = [message(0)]
    reached = asyncio.Event()

    async def work() -> None:
        async with session.transaction() as tx:
            await tx.receive("q")
            reached.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await reached.wait()
    assert daemon.queues["q"] == []
    task.cancel()
    await turns()
    assert len(daemon.queues["q"]) == 1


@pytest.mark.rule("RCV-22", "RCV-16")
async def test_a_cancelled_autocommit_wait_consumes_nothing(
    session: Session, daemon: Daemon
) -> None:
    receiving = asyncio.ensure_future(session.receive("q", wait=FOREVER, autocommit=True))
    await turns()
    receiving.cancel()
    await turns()
    daemon.peer.arrive("q", message(0))
    await turns()
    assert len(daemon.queues["q"]) == 1
    assert daemon.peer.txs == {}


@pytest.mark.rule("CLP-41")
@pytest.mark.parametrize("wait", [None, 5.0])
async def test_what_a_cancelled_autocommit_consumed_comes_with_the_next(
    session: Session, daemon: Daemon, wait: float | None
) -> None:
    daemon.queues["q"] = [message(0), message(1), message(2, group_id=b"z" * 16)]
    daemon.hold = {"receive"} if wait is None else {"commit"}
    receiving = asyncio.ensure_future(session.receive("q", wait=wait, autocommit=True))
    await turns()
    receiving.cancel()
    await turns()
    daemon.hold = set()
    daemon.peer.release()
    await turns()
    assert daemon.queues["q"] == []
    first = await session.receive("q", 1, autocommit=True)
    rest = await session.receive("q", autocommit=True)
    other = await session.receive("q", autocommit=True)
    assert [[each.sequence for each in some] for some in (first, rest, other)] == [[0], [1], [2]]
    assert await session.receive("q", autocommit=True) == []


@pytest.mark.rule("CLP-11")
async def test_more_transactions_than_allowed_wait_their_turn(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    count = session.welcome.limits.transactions
    blocks = [session.transaction() for _ in range(count)]
    for tx in blocks:
        await tx.receive("q")
    late = asyncio.ensure_future(session.transaction().receive("q"))
    await turns()
    assert not late.done()
    blocks[0].rollback()
    assert await late == []


async def test_a_cancelled_wait_for_a_turn_takes_none(session: Session, daemon: Daemon) -> None:
    blocks = [session.transaction() for _ in range(session.welcome.limits.transactions)]
    for tx in blocks:
        await tx.receive("q")
    late = asyncio.ensure_future(session.transaction().receive("q"))
    await turns()
    late.cancel()
    await turns()
    blocks[0].rollback()
    assert await session.transaction().receive("q") == []
    assert daemon.asked.count("begin") == len(blocks) + 1


@pytest.mark.rule("CLP-37")
async def test_a_transaction_that_may_not_begin_says_why(session: Session, daemon: Daemon) -> None:
    """What comes behind the refused `begin` finds no transaction, and that is not the cause."""
    daemon.failing["begin"] = Busy("16 transactions of this client are open")

    async def block() -> None:
        async with session.transaction() as tx:
            await tx.receive("q")

    with pytest.raises(Busy, match="16 transactions"):
        await block()
