"""The lock of a group, taken anew; savepoints, as the client library sees them."""

import asyncio

import pytest

from brokerd.client.groups import ATTEMPTS
from brokerd.client.session import Session
from brokerd.errors import (
    DeadlockVictim,
    GroupNotFound,
    InvalidArgument,
    LockTimeout,
    NotInContract,
    TransactionAborted,
)
from brokerd.protocol.client_verbs import GetState, Savepoint, Send
from tests.unit.client.scripted import GROUP, HANDLE, Daemon, message, turns


@pytest.mark.rule("GRP-22")
@pytest.mark.parametrize("error", [LockTimeout(), DeadlockVictim()])
async def test_the_lock_is_asked_for_again_but_not_for_ever(
    session: Session, daemon: Daemon, error: LockTimeout | DeadlockVictim
) -> None:
    daemon.failing["get_state"] = error
    with pytest.raises(type(error)):
        await session.group(GROUP).__aenter__()
    await turns()
    assert daemon.asked.count("get_state") == ATTEMPTS
    assert daemon.asked.count("rollback") == ATTEMPTS
    assert not daemon.peer.txs
    daemon.failing["get_state"] = GroupNotFound()
    with pytest.raises(GroupNotFound):
        await session.group(GROUP).__aenter__()
    assert daemon.asked.count("get_state") == ATTEMPTS + 1
    del daemon.failing["get_state"]
    async with session.group(GROUP) as held:
        await held.set_state(b"s")
    assert daemon.state == {GROUP: b"s"}


@pytest.mark.rule("GRP-22", "CLP-110")
async def test_the_lock_comes_before_anything_else(session: Session, daemon: Daemon) -> None:
    async with session.group(GROUP) as held:
        assert [frame.args for frame in requests(daemon) if frame.verb == "get_state"] == [
            [GROUP, True]
        ]
        assert await held.tx.state(GROUP) is None
        await held.tx.send(HANDLE, b"1")
    assert GetState(GROUP) == GetState(GROUP, False)
    with pytest.raises(InvalidArgument):
        session.group(b"short")


def requests(daemon: Daemon) -> list:  # type: ignore[type-arg]  # frames of several kinds
    return [frame for frame in daemon.peer.frames if hasattr(frame, "verb")]


@pytest.mark.rule("GRP-21", "CLP-112")
async def test_an_error_nobody_waited_for_surfaces_at_the_end_of_its_savepoint(
    session: Session, daemon: Daemon
) -> None:
    tx = session.transaction()
    await tx.send(HANDLE, b"1")
    block = tx.savepoint()
    await block.__aenter__()
    daemon.failing["end"] = NotInContract()
    await tx.end(HANDLE)
    await tx.send(HANDLE, b"2")
    with pytest.raises(NotInContract):
        await block.__aexit__(None, None, None)
    del daemon.failing["end"]
    await tx.send(HANDLE, b"3")
    await tx.commit()
    assert daemon.applied == [Send(HANDLE, None, b"1"), Savepoint(1), Send(HANDLE, None, b"3")]


@pytest.mark.rule("GRP-21", "REL-3")
async def test_a_lost_connection_takes_the_savepoint_and_the_transaction(
    session: Session, daemon: Daemon
) -> None:
    tx = session.transaction()
    block = tx.savepoint()
    await block.__aenter__()
    daemon.peer.lose()
    await turns()
    await tx.send(HANDLE, b"1")
    with pytest.raises(TransactionAborted):
        await block.__aexit__(None, None, None)
    with pytest.raises(TransactionAborted):
        await tx.commit()


@pytest.mark.rule("RCV-22", "GRP-21", "CLP-41")
async def test_messages_of_a_cancelled_receive_go_back_with_the_savepoint(
    session: Session, daemon: Daemon
) -> None:
    tx = session.transaction()
    block = tx.savepoint()
    await block.__aenter__()
    daemon.queues["q"] = [message(0)]
    daemon.hold.add("receive")  # its answer is on its way when it is cancelled
    waiting = asyncio.create_task(tx.receive("q"))
    await turns()
    waiting.cancel()
    await asyncio.wait([waiting])
    daemon.peer.release()
    await block.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None)
    await tx.send(HANDLE, b"1")
    await tx.commit()
    assert [one.sequence for one in daemon.queues["q"]] == [0]
