"""Arguments that cannot be right fail at the call, before anything is asked (SDK-18)."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from brokerd import errors
from brokerd.client.session import Session
from tests.unit.client.scripted import HANDLE, Daemon

Call = Callable[[Any], Awaitable[object]]

ROWS: list[tuple[str, Call, type[errors.BrokerError], str]] = [
    ("no body", lambda tx: tx.send(HANDLE, None), errors.NullBody, "None"),
    ("a text", lambda tx: tx.send(HANDLE, "x"), errors.InvalidArgument, "not str"),
    ("too large", lambda tx: tx.send(HANDLE, bytes(2**24 + 1)), errors.MessageTooLarge, "16777217"),
    ("no handle", lambda tx: tx.send("abc", b""), errors.InvalidArgument, "str of 3"),
    ("twice", lambda tx: tx.send([HANDLE, HANDLE], b""), errors.DuplicateHandle, "position 1"),
    ("type", lambda tx: tx.send(HANDLE, b"", 5), errors.InvalidArgument, "message_type is int"),
    (
        "far",
        lambda tx: tx.begin_dialog("s", None),
        errors.InvalidArgument,
        "to_service is NoneType",
    ),
    ("long", lambda tx: tx.begin_dialog("s", "x" * 257), errors.InvalidName, "257 characters"),
    ("empty", lambda tx: tx.begin_dialog("s", ""), errors.InvalidName, "0 characters"),
    (
        "contract",
        lambda tx: tx.begin_dialog("s", "t", 5),
        errors.InvalidArgument,
        "contract is int",
    ),
    ("life", lambda tx: tx.begin_dialog("s", "t", None, 0), errors.InvalidLifetime, "not 0"),
    ("life text", lambda tx: tx.begin_dialog("s", "t", None, "1h"), errors.InvalidArgument, "'1h'"),
    (
        "encryption",
        lambda tx: tx.begin_dialog("s", "t", encryption="on"),
        errors.InvalidArgument,
        "encryption is 'on'",
    ),
    ("no text", lambda tx: tx.end(HANDLE, 7), errors.ErrorNeedsCodeAndText, "no description"),
    ("no number", lambda tx: tx.end(HANDLE, None, "x"), errors.ErrorNeedsCodeAndText, "None"),
    ("below 1", lambda tx: tx.end(HANDLE, 0, "x"), errors.ErrorNeedsCodeAndText, "error 0"),
    ("huge", lambda tx: tx.end(HANDLE, 1 << 80, "x"), errors.InvalidArgument, "too large"),
    ("error text", lambda tx: tx.end(HANDLE, "7", "x"), errors.InvalidArgument, "error is str"),
    ("long text", lambda tx: tx.end(HANDLE, 7, "x" * 3001), errors.InvalidArgument, "3001"),
    ("end twice", lambda tx: tx.end([HANDLE, HANDLE]), errors.DuplicateHandle, "position 1"),
    ("end none", lambda tx: tx.end([]), errors.InvalidArgument, "list of 0"),
    ("past", lambda tx: tx.set_timer(HANDLE, -1), errors.InvalidArgument, "-1"),
    ("timer text", lambda tx: tx.set_timer(HANDLE, "1"), errors.InvalidArgument, "'1'"),
    ("timer name", lambda tx: tx.set_timer(HANDLE, 1, ""), errors.InvalidArgument, "str of 0"),
    ("group", lambda tx: tx.move(HANDLE, b"x"), errors.InvalidArgument, "group is bytes of 1"),
    ("queue", lambda tx: tx.receive(None), errors.InvalidArgument, "queue is NoneType"),
    ("count", lambda tx: tx.receive("q", -1), errors.InvalidArgument, "max_messages is -1"),
    ("wait", lambda tx: tx.receive("q", wait=float("nan")), errors.InvalidArgument, "nan"),
    ("state", lambda tx: tx.set_state(HANDLE, "x"), errors.InvalidArgument, "state is str"),
]


@pytest.mark.rule("SDK-18", "SND-11", "DLG-10", "DLG-20", "SND-8", "DLG-47")
@pytest.mark.parametrize(("call", "error", "said"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
async def test_it_fails_at_the_call(
    call: Call, error: type[errors.BrokerError], said: str, session: Session, daemon: Daemon
) -> None:
    tx = session.transaction()
    with pytest.raises(error) as caught:
        await call(tx)
    assert type(caught.value) is error
    assert said in caught.value.message
    assert caught.value.hint
    tx.rollback()
    assert daemon.asked == []


@pytest.mark.rule("SDK-18")
async def test_what_only_the_broker_knows_comes_with_the_commit(
    session: Session, daemon: Daemon
) -> None:
    daemon.failing["transact"] = errors.InvalidState("send is not allowed in state DI")
    tx = session.transaction()
    await tx.send(HANDLE, b"x")
    assert daemon.asked == []
    with pytest.raises(errors.InvalidState):
        await tx.commit()


@pytest.mark.rule("SDK-18")
async def test_in_a_savepoint_it_comes_at_the_end_of_the_block(
    session: Session, daemon: Daemon
) -> None:
    daemon.failing["send"] = errors.InvalidState("send is not allowed in state DI")
    async with session.transaction() as tx:
        with pytest.raises(errors.InvalidState):
            async with tx.savepoint():
                await tx.send(HANDLE, b"x")
        assert tx.is_open
