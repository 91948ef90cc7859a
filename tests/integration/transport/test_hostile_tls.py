"""Strangers and hostile peers at an endpoint that requires certificates."""

import asyncio
import contextlib
import socket
import ssl
from typing import Any

import pytest

from brokerd.protocol.connection_effects import LoginOutcome
from brokerd.protocol.frames import FrameReader
from brokerd.protocol.neighbour import Reject, decode
from brokerd.transport.options import TransportOptions
from tests import frames
from tests.integration.transport.test_logins import (
    PUBLIC,
    Secured,
    make,  # noqa: F401  # the fixture
    pair,
)

HELD = 24
WAVES, WAVE = 40, 50


def client_hello() -> bytes:
    """The first bytes of a handshake."""
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


async def dial(at: Secured) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = at.address.removeprefix("tcp://").split(":")
    return await asyncio.open_connection(host, int(port))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(10):
            while await reader.read(4096):
                pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.rule("END-18", "SX-2", "SX-12")
async def test_handshakes_that_never_end_do_not_keep_a_peer_out(make, monkeypatch):  # noqa: F811
    """They have not logged in, so that the oldest of them goes when a place is wanted."""
    for name in ("PATIENCE", "LEAST_PATIENCE"):
        monkeypatch.setattr(f"brokerd.transport.door.{name}", 0.05)
    options = TransportOptions(max_logins=4)
    east, west = await pair(make, options=options)
    held = []
    for number in range(HELD):
        reader, writer = await dial(east)
        writer.write(client_hello()[: 1 + number * 20])
        held.append((reader, writer))
    await west.delivers(east)
    door = east.node.transport.endpoint.door
    assert door.refused["displaced"] > 0
    assert door.strangers <= options.max_logins
    for _, writer in held:
        writer.close()


@pytest.mark.rule("END-18", "SX-2", "SX-12", "REL-32")
async def test_two_thousand_half_handshakes_leave_nothing_behind(make):  # noqa: F811
    east, west = await pair(make)
    await west.delivers(east)
    hello = client_hello()
    port = int(east.address.rpartition(":")[2])

    def wave(number: int) -> None:
        with contextlib.ExitStack() as held:
            for at in range(WAVE):
                one = held.enter_context(socket.create_connection(("127.0.0.1", port)))
                one.send(hello[: (number + at) % len(hello)])

    for number in range(WAVES):
        await asyncio.to_thread(wave, number)
    await west.delivers(east, b"after all of them")
    peers = east.node.transport.peers
    async with asyncio.timeout(30):
        while len(peers.connections) > 1 or peers.closing:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert east.node.transport.endpoint.door.strangers == 0
    assert LoginOutcome.SUCCESS not in east.rules.outcomes()[1:]


@pytest.mark.rule("TRN-9", "SX-2", "SX-12")
async def test_a_byte_now_and_then_does_not_prolong_a_handshake(make):  # noqa: F811
    east = await make(1, "east")
    reader, writer = await dial(east)
    peers = east.node.transport.peers
    hello = client_hello()
    for at in range(4):
        writer.write(hello[at : at + 1])
        async with asyncio.timeout(10):
            while not any(one.has_stream for one in peers.connections.values()):  # noqa: ASYNC110
                await asyncio.sleep(0)
        east.node.clock.skipped += 1.3
    (connection,) = peers.connections.values()
    connection._timer_fired()
    assert await is_closed(reader)
    writer.close()


@pytest.mark.rule("SX-2", "SEC-12", "BI-F2", "BI-F1", "TRN-44", "SX-12")
async def test_what_is_bad_before_the_login_is_bad_inside_of_tls_too(make):  # noqa: F811
    """Frames that promise gigabytes, random bytes, frames out of order."""
    east, west = await pair(make, authentication=PUBLIC)
    ours = await west.delivers(east)
    context = west.keys.contexts().client(shows_certificate=False)
    host, port = east.address.removeprefix("tcp://").split(":")
    tried = 0
    for bad in frames.committed_bad():
        if (bad.when, bad.answer) != ("login", "closes"):
            continue
        tried += 1
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=context, server_hostname="any"
        )
        writer.write(bad.data)
        assert await is_closed(reader)
        writer.close()
    assert tried
    wrong = {LoginOutcome.PROTOCOL_ERROR, LoginOutcome.FORMAT_ERROR}
    assert wrong <= set(east.rules.outcomes())
    assert await west.delivers(east, b"after all of them") is ours


@pytest.mark.rule("SX-2", "SX-12")
@pytest.mark.parametrize(
    "bad",
    [
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff" + b"\x16\x03\x03\x40\x00" + bytes(0x4000),
        b"\x16\x03\x01\x00\x00" * 1000,
        b"\x17\x03\x03\x00\x01\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100,
    ],
    ids=["record-64KiB", "hello-16MiB", "empty-records", "data-first", "http", "noise"],
)
async def test_bytes_that_are_no_handshake_cost_the_stranger_its_connection(make, bad):  # noqa: F811
    east, west = await pair(make)
    ours = await west.delivers(east)
    reader, writer = await dial(east)
    writer.write(bad)
    assert await is_closed(reader)
    assert await west.delivers(east, b"still") is ours
    writer.close()


@pytest.mark.rule("NBT-20", "END-18")
async def test_a_full_house_is_told_to_a_caller_that_expects_tls(make):  # noqa: F811
    """The door refuses before anything is read, and therefore in clear."""
    east, west = await pair(make, options=TransportOptions(max_peers=1))
    reader, writer = await dial(east)
    peers: Any = east.node.transport.peers
    async with asyncio.timeout(10):
        while not peers.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
    status = await west.refused(east)
    assert "too_many_connections" in status.detail
    writer.close()
    assert await is_closed(reader)


@pytest.mark.rule("NBT-20", "SEC-10")
async def test_a_plain_stranger_is_refused_in_clear(make):  # noqa: F811
    east = await make(1, "east")
    reader, writer = await dial(east)
    writer.write(b"\0\0\0\1\0")
    async with asyncio.timeout(10):
        said = await reader.read()
    ((kind, payload),) = FrameReader().feed(said)
    assert decode(kind, payload) == Reject("tls_required", "wait_login_negotiate")
    assert east.rules.outcomes() == [LoginOutcome.NEGOTIATE_FAILURE]
    writer.close()
