"""END of several dialogs in one verb (DLG-47)."""

from pathlib import Path

import pytest

from brokerd.broker.transaction import Transaction
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction as Asked
from brokerd.errors import ConversationNotFound, InvalidState
from brokerd.ids import Handle
from brokerd.verbs.ends import end, end_ordinary
from brokerd.verbs.receives import ReceiveRequest, receive
from tests.integration.one_daemon import Daemon, play


async def talk(session: Session) -> bytes:
    async with session.transaction() as tx:
        handle = await tx.begin_dialog("urn:desk", "urn:shop", "talk")
        await tx.send(handle, b"hello", "Ask")
    return handle


async def states(daemon: Daemon) -> list[str]:
    return [str(one.state) for one in await daemon.broker.store.endpoints.page(20)]


async def receive_and_end(session: Session, handles: list[bytes]) -> None:
    async with session.transaction() as tx:
        await tx.receive("shop", groups=10)
        await tx.end(handles)


async def end_all_but_one(session: Session, handles: list[bytes], other: bytes) -> None:
    """Where the verb is by itself in a request, and where it is one of an open transaction."""
    with pytest.raises((ConversationNotFound, InvalidState)):
        await session.end([*handles, other])
    with pytest.raises((ConversationNotFound, InvalidState)):
        await receive_and_end(session, [*handles, other])


@pytest.mark.rule("DLG-47")
def test_several_are_ended_all_or_none(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handles = [await talk(session) for _ in range(3)]
        await end_all_but_one(session, handles, b"?" * 16)
        assert await states(daemon) == ["CO"] * 6
        await session.end(handles)
        assert await states(daemon) == ["DI"] * 3
        async with session.transaction() as tx:
            theirs = [one.handle for one in await tx.receive("shop", groups=10) if one.is_end]
        assert await states(daemon) == ["DI"] * 3
        await session.end(theirs[0])
        await end_all_but_one(session, theirs[1:], theirs[0])
        assert await states(daemon) == ["DI"] * 2
        await session.end(theirs[1:], 7, "enough")
        assert await states(daemon) == []
        await session.close()

    play(program, tmp_path)


async def end_within_a_savepoint(tx: Asked, handles: list[bytes]) -> None:
    async with tx.savepoint():
        await tx.end(handles)


@pytest.mark.rule("DLG-47", "GRP-21", "CLP-37")
def test_none_is_ended_where_the_transaction_goes_on_from_a_savepoint(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handles = [await talk(session) for _ in range(3)]
        async with session.transaction() as tx:
            await tx.end(handles[2])
            for refused in (handles, [*handles[:2], b"?" * 16]):
                with pytest.raises((ConversationNotFound, InvalidState)):
                    await end_within_a_savepoint(tx, refused)
            await tx.send(handles[0], b"still here", "Ask")
        assert sorted(await states(daemon)) == ["CO"] * 4 + ["DI"]
        await session.end(handles[:2])
        async with session.transaction() as tx:  # all that the other side has ended (end_ordinary)
            theirs = [one.handle for one in await tx.receive("shop", groups=10) if one.is_end]
            await tx.end(theirs[2])
            with pytest.raises(InvalidState):
                await end_within_a_savepoint(tx, theirs)
        assert await states(daemon) == ["DI"] * 2
        await session.end(theirs[:2])
        assert await states(daemon) == []
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("DLG-47")
def test_a_refusal_has_ended_none_before_anything_undoes_the_verb(tmp_path: Path) -> None:
    """A session gives up what a refused verb has done; the verb is not to count on that."""

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handles = [Handle(await talk(session)) for _ in range(3)]
        tx = Transaction(daemon.broker, "test")
        assert end(tx, handles[2:], None, None) is None
        with pytest.raises(InvalidState):
            end(tx, handles, None, None)
        await tx.committed()
        assert sorted(await states(daemon)) == ["CO"] * 4 + ["DI"]
        await session.end([*handles[:2]])
        tx = Transaction(daemon.broker, "test")
        taken = receive(tx, ReceiveRequest("shop", groups=10))
        assert isinstance(taken, list)
        theirs = [one.live.endpoint.handle for one in taken]
        assert end_ordinary(tx, theirs[2:])
        assert not end_ordinary(tx, theirs)
        await tx.committed()
        assert await states(daemon) == ["DI"] * 2
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("DLG-47", "DLG-20")
def test_each_gets_the_error(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await session.end([await talk(session) for _ in range(2)], 7, "enough")
        async with session.transaction() as tx:
            messages = await tx.receive("shop", groups=10)
            told = [one.error for one in messages if one.is_error]
            assert [(one.number, one.description) for one in told if one] == [(7, "enough")] * 2
            await tx.end([one.handle for one in messages if one.is_error])
        assert await states(daemon) == []
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("DLG-47", "SND-10", "GRP-9")
def test_what_another_transaction_has_locked_is_waited_for(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session, other = await daemon.session(), await daemon.session(node="other")
        handles = [await talk(session) for _ in range(4)]
        group = daemon.broker.endpoints.all()[2].group.group_id
        async with session.group(group) as held:
            asked = other.transaction()
            await asked.end(handles[::-1])
            future = asked.ask_commit()
            assert future is not None
            await daemon.pass_time(1)
            assert not future.done()
            assert await states(daemon) == ["CO"] * 8
            del held
        await future
        assert await states(daemon) == ["DI"] * 4
        await session.close()
        await other.close()

    play(program, tmp_path)
