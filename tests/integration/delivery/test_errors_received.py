"""Errors of applications and of brokers on their way in: what they say, and when (DLG-28 to 30)."""

from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from brokerd.client.session import Session
from brokerd.clock import Instant, show_instant
from brokerd.errors import ErrorNeedsCodeAndText, InvalidArgument
from brokerd.ids import ConversationId, show
from brokerd.protocol.frames import END, ERROR, Fragment
from brokerd.protocol.transitions import State
from brokerd.protocol.wire import LATEST, MAX_ERROR, MAX_SEQUENCE
from tests.integration.one_daemon import Daemon
from tests.integration.scenarios import scenario
from tests.integration.shorthand import bodies, fails, take, talk
from tests.integration.two_brokers import Wire, between

UNREADABLE = (1, "the error message of the other side cannot be read")


async def opened(wire: Wire, main: Session, east: Session) -> tuple[bytes, Fragment]:
    """A dialog to `east` on which nothing is owed: the handle of its initiator, and message 0."""
    wire.passed.clear()
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"0", "Ask")
    assert bodies(await take(east, "harbour", wait=5)) == [b"0"]
    await wire.daemon.pass_time(1)
    return mine, next(one for one in wire.passed if isinstance(one, Fragment))


def error_like(first: Fragment, body: bytes, sequence: int = 1) -> Fragment:
    """An Error of the application that has sent `first`."""
    return msgspec.structs.replace(
        first, sequence=sequence, flags=ERROR, message_type="", body=body, ack=None
    )


READ = {
    "highest": (b'{"code": %d, "description": "x"}' % MAX_ERROR, (MAX_ERROR, "x")),
    "no description": (b'{"code": 7}', (7, "")),
    "long description": (
        orjson.dumps({"code": 7, "description": "x" * 3001}),
        (7, "x" * 3000),
    ),
    "a number that no store holds": (b'{"code": 9223372036854775808}', UNREADABLE),
    "zero": (b'{"code": 0, "description": "x"}', UNREADABLE),
    "a number of brokers": (b'{"code": -8462, "description": "x"}', UNREADABLE),
    "no integer": (b'{"code": 7.5}', UNREADABLE),
    "no code": (b"{}", UNREADABLE),
    "half a character": (b'{"code": 7, "description": "\\ud800"}', UNREADABLE),
    "deep": (b'{"code": 7, "more": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", UNREADABLE),
    "no JSON": (b"\xff\x00", UNREADABLE),
    "empty": (b"", UNREADABLE),
}


@pytest.mark.rule("DLG-28", "DLG-20", "DLG-T13")
@pytest.mark.parametrize(("body", "read"), READ.values(), ids=READ.keys())
def test_whatever_an_error_says_it_is_one(
    body: bytes, read: tuple[int, str], tmp_path: Path
) -> None:
    """And neither it nor its repeats do harm to anything else."""

    @between
    async def run(wire: Wire, main: Session, east: Session) -> None:
        _, first = await opened(wire, main, east)
        for _ in range(2):
            wire.deliver([error_like(first, body)])
            await wire.daemon.pass_time(1)
        (told,) = await take(east, "harbour")
        assert told.error is not None
        assert (told.error.number, told.error.description) == read
        assert orjson.loads(told.body or b"")["origin"] == "application"
        live = wire.at_east(first.conversation_id)
        assert live is not None
        assert live.endpoint.state is State.ERROR
        await opened(wire, main, east)

    run(tmp_path)


@pytest.mark.rule("DLG-20", "DLG-28")
@scenario
async def test_an_error_code_has_63_bits(daemon: Daemon, session: Session) -> None:
    """The daemon looks for itself: not every client has the checks of the SDK."""

    def end(handle: bytes, code: int) -> Any:
        return session._link.transact((("end", (handle, code, "x")),)).future

    mine = await talk(session, b"1")
    for code, error in ((MAX_ERROR + 1, InvalidArgument), (0, ErrorNeedsCodeAndText)):
        await fails(error, end(mine, code))
    await end(mine, MAX_ERROR)
    told, *_ = await take(session, "shop")
    assert told.error is not None
    assert told.error.number == MAX_ERROR


@pytest.mark.rule("DLG-29", "DLG-28")
@scenario
async def test_the_body_of_an_error_says_whose_it_is(daemon: Daemon, session: Session) -> None:
    failed = await talk(session, b"1")
    await session.end(failed, 7, "grüße")
    refused = await session.begin_dialog("urn:desk", "urn:shop", "other")
    await session.send(refused, b"x", "Both")
    for box, code, origin in (("shop", 7, "application"), ("desk", -8408, "broker")):
        told, *_ = await take(session, box)
        body = orjson.loads(told.body or b"")
        assert list(body) == ["code", "description", "origin", "conversation_id", "at"]
        assert (body["code"], body["origin"]) == (code, origin)
        assert (body["description"] == "grüße") is (code == 7)
        assert body["conversation_id"] == show(told.conversation_id)
        assert body["at"] == show_instant(Instant(told.enqueued_at))


@pytest.mark.rule("DLP-13", "DLP-4", "DLG-30", "DLG-T30")
@pytest.mark.parametrize("known", [True, False])
def test_the_highest_number_of_an_error_can_be_stored(known: bool, tmp_path: Path) -> None:
    @between
    async def run(wire: Wire, main: Session, east: Session) -> None:
        _, first = await opened(wire, main, east)
        error = error_like(first, b'{"code": 7}', MAX_SEQUENCE)
        if not known:
            error = msgspec.structs.replace(error, conversation_id=ConversationId(b"n" * 16))
        wire.deliver([error])
        await wire.daemon.pass_time(1)
        live = wire.at_east(error.conversation_id)
        assert live is not None
        assert live.endpoint.state is (State.ERROR if known else State.CLOSED)
        assert live.endpoint.receive_sequence == MAX_SEQUENCE + 1
        assert len(await take(east, "harbour")) == known
        await opened(wire, main, east)

    run(tmp_path)


@pytest.mark.rule("DLP-13", "DLP-56", "DLG-32")
@between
async def test_the_latest_expiry_can_be_stored_with_the_guard_time(
    wire: Wire, main: Session, east: Session
) -> None:
    _, first = await opened(wire, main, east)
    replaced = msgspec.structs.replace
    lasting = replaced(
        first, conversation_id=ConversationId(b"n" * 16), expires_at=LATEST, ack=None
    )
    wire.drops = lambda item: item.conversation_id == lasting.conversation_id  # it is not settled
    wire.deliver([lasting, replaced(lasting, sequence=1, flags=END, message_type="", body=b"")])
    await wire.daemon.pass_time(1)
    got = await take(east, "harbour", wait=1)
    await east.end(got[0].handle)
    live = wire.at_east(lasting.conversation_id)
    assert live is not None
    assert live.endpoint.state is State.CLOSED
    assert live.endpoint.purge_at is not None
    assert live.endpoint.purge_at > LATEST
    await opened(wire, main, east)
