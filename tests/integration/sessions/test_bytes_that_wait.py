"""Requests that wait with their bodies: clients are read only as fast as these are stored."""

import asyncio
import gc
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.broker.transaction import Transaction
from brokerd.errors import LockTimeout
from brokerd.protocol import client_frames as frames
from brokerd.sessions.flow_control import WRITER
from brokerd.sessions.session import ClientSession
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import alone, given
from tests.integration.sessions.raw_client import (
    I2,
    H,
    Raw,
    ask,
    begin_dialog,
    client,
    done,
    ready,
    received,
    send,
)
from tests.integration.shorthand import talk

LARGE = 2_000
BODY = bytes(10_000)
LIMIT = 25_000
"""Bytes at which a client is read no further."""
MOST = 100_000
"""Bytes that may wait for what only a client can do."""


class SlowStore:
    """Lets large bodies be stored one by one, when the test says so."""

    def __init__(self, daemon: Daemon) -> None:
        self._store = daemon.broker.store
        self._keep = self._store.keep
        self._gates: list[asyncio.Future[None]] = []
        self._store.keep = self._slowly  # type: ignore[method-assign]

    async def _slowly(self, body: bytes, piece_size: int) -> Any:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        await gate
        return await self._keep(body, piece_size)

    def go_on(self) -> None:
        """The first body that waits is stored."""
        self._gates.pop(0).set_result(None)


scenario = given(alone, sessions={"backlog_bytes": LIMIT}, large_body=LARGE, max_bytes=MOST)


def session_of(daemon: Daemon, raw: Raw) -> ClientSession:
    (session,) = [
        one for one in daemon.instance.parts.sessions._connected if one.client_id.endswith(b"1")
    ]
    return session


def transact(number: int, body: bytes) -> bytes:
    return ask(1 + number, None, "transact", number, [send(H, body)])


async def one_by_one(raw: Raw, *requests: bytes) -> list[Any]:
    answers = []
    for request in requests:
        raw.write(request)
        answers += await raw.answers(0.05)
    return answers


@pytest.mark.rule("CLP-62", "REL-33", "CLP-31")
@scenario
async def test_a_client_is_read_no_further_than_its_bodies_are_stored(daemon: Daemon) -> None:
    raw = await ready(daemon)
    store, session = SlowStore(daemon), session_of(daemon, raw)
    sent = [b"%d" % number + BODY for number in range(1, 10)]
    assert await one_by_one(raw, *(transact(n, body) for n, body in enumerate(sent, 1))) == []
    assert session.line.waiting_bytes <= LIMIT + len(sent[0])
    raw.write(frames.encode_ping(7))
    assert await raw.answers() == []
    for _ in sent:
        store.go_on()
        await daemon.pass_time(0.05)
        assert session.line.waiting_bytes <= LIMIT + len(sent[0])
    answers = await raw.answers()
    assert done([one for one in answers if one[0] == "done"]) == list(range(2, 11))
    assert ("pong", 7) in answers
    assert session.line.waiting_bytes == 0
    assert await received(raw, 100, 100) == sent


@pytest.mark.rule("CLP-62", "CLP-61")
@scenario
async def test_what_a_client_says_while_it_is_not_read_is_not_missed(daemon: Daemon) -> None:
    raw = await ready(daemon)
    store, session = SlowStore(daemon), session_of(daemon, raw)
    await one_by_one(raw, *(transact(number, BODY) for number in range(1, 4)))
    assert WRITER in session.reading.reasons
    await daemon.pass_time(100)
    assert not raw.is_gone()
    for _ in range(3):
        store.go_on()
        await daemon.pass_time(0.05)
    assert done(await raw.answers()) == [2, 3, 4]


@pytest.mark.rule("CLP-30", "CLP-62")
@pytest.mark.parametrize("within", ["transact", "transaction"])
def test_behind_a_client_so_many_bytes_wait_and_no_more(tmp_path: Path, within: str) -> None:
    """It is read all the same, or it could not end what the others wait for."""

    @scenario
    async def program(daemon: Daemon) -> None:
        raw = await ready(daemon)
        raw.write(ask(2, 1, "begin"), ask(3, 1, "send", H, "Ask", b"first"))
        await raw.answers()
        if within == "transact":
            requests = [ask(10 + n, None, "transact", n, [send(H, BODY)]) for n in range(1, 15)]
        else:
            raw.write(ask(9, 2, "begin"))
            await raw.answers()
            requests = [ask(10 + n, 2, "send", H, "Ask", BODY) for n in range(1, 15)]
        answers = await one_by_one(raw, *requests)
        assert answers == [("failed", 10 + n, "busy") for n in (12, 13, 14)]
        assert session_of(daemon, raw).line.waiting_bytes == 11 * len(BODY)
        raw.write(ask(50, 1, "commit", 50))
        answers = await raw.answers()
        assert 50 in done([one for one in answers if one[0] == "done"])
        assert session_of(daemon, raw).line.waiting_bytes == 0
        raw.write(frames.encode_ping(1))
        assert await raw.answers() == [("pong", 1)]

    program(tmp_path)


@pytest.mark.rule("CLP-30")
@scenario
async def test_then_no_body_is_taken_for_a_dialog_that_is_free_either(daemon: Daemon) -> None:
    """A send on it would take the fast path, without waiting for a lock."""
    raw = await ready(daemon)
    raw.write(
        ask(2, None, "transact", 1, [begin_dialog(I2), send(I2, b"opens")]),
        *(ask(2 + number, number, "begin") for number in (1, 2, 3)),
        ask(6, 1, "send", H, "Ask", b"first"),
    )
    assert done(await raw.answers()) == [2, 3, 4, 5, 6]
    raw.write(*(ask(10 + n, 2, "send", H, "Ask", BODY) for n in range(1, 12)))
    assert await raw.answers() == []
    raw.write(
        ask(40, 3, "send", I2, "Ask", b"small"),
        ask(41, None, "transact", 2, [send(I2, b"small")]),
        ask(42, None, "transact", 3, [send(I2, b"")]),
    )
    assert sorted(await raw.answers()) == [
        ("done", 42),
        ("failed", 40, "busy"),
        ("failed", 41, "busy"),
    ]


@pytest.mark.rule("GRP-11", "REL-33", "FD-7")
def test_a_send_waits_behind_bodies_as_long_as_they_take_to_be_stored(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session, other = await daemon.session(), await daemon.session()
        handle = await talk(session, b"x")
        store, keep = daemon.broker.store, daemon.broker.store.keep

        async def slowly(body: bytes, size: int) -> Any:
            await daemon.pass_time(3)
            return await keep(body, size)

        with patch.object(store, "keep", slowly):
            large = [session.send(handle, BODY, "Ask") for _ in range(30)]
            sending = asyncio.gather(*large, other.send(handle, b"behind", "Ask"))
            await sending
        assert daemon.loop.time() > 90
        async with session.transaction() as tx:
            await tx.send(handle, BODY, "Ask")
            await tx.get_group("spare")
            with pytest.raises(LockTimeout):  # a client that does nothing is another matter
                await other.send(handle, b"in vain", "Ask")
        await session.close()
        await other.close()

    play(program, tmp_path, large_body=LARGE)


@pytest.mark.rule("GRP-11")
def test_a_wait_for_a_lock_leaves_nothing_to_the_collector(tmp_path: Path) -> None:
    """Garbage in circles stays until then, and would have the bodies with it."""

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handle = await talk(session, b"x")
        gc.collect()
        gc.disable()
        try:
            known = {id(one) for one in gc.get_objects() if type(one) is Transaction}
            sends = [session.send(handle, b"%d" % n + BODY, "Ask") for n in range(20)]
            await asyncio.gather(*sends)
            await daemon.pass_time(1)
            left = [one for one in gc.get_objects() if type(one) is Transaction]
            assert [one for one in left if id(one) not in known] == []
        finally:
            gc.enable()
        await session.close()

    play(program, tmp_path, large_body=LARGE)


@pytest.mark.rule("CLP-62")
def test_one_client_that_waits_does_not_keep_others_from_being_read(tmp_path: Path) -> None:
    @scenario
    async def program(daemon: Daemon) -> None:
        raw, other = await ready(daemon), await client(daemon, b"client id 000002")
        store = SlowStore(daemon)
        await one_by_one(raw, *(transact(number, BODY) for number in range(1, 4)))
        assert WRITER in session_of(daemon, raw).reading.reasons
        begin = ["begin_dialog", [b"handle 000000009", "urn:desk", "urn:shop", {}]]
        other.write(ask(1, None, "transact", 0, [begin]))
        assert await other.answers() == [("done", 1)]
        for _ in range(3):
            store.go_on()
            await daemon.pass_time(0.05)

    program(tmp_path)
