"""Destinations over real TCP: both ways, loss, back-pressure, goodbye, arbitration."""

import asyncio
import socket
from datetime import timedelta

import msgspec
import pytest

from brokerd.errors import PortTaken
from brokerd.ids import ConversationId
from brokerd.protocol.neighbour import Notice
from brokerd.transport import destinations, dialer
from brokerd.transport.destination import DestinationState

from .conftest import QUICK, Node


@pytest.mark.rule("TRN-2", "TRN-12", "TRN-19")
async def test_one_connection_carries_both_ways(start) -> None:
    a, b = await start(1), await start(2)
    a.send(b.address, b"to b")
    await b.until(lambda: b.bodies() == [b"to b"])
    assert b.came[0].address == a.address
    assert b.came[0].peer == a.instance_id
    b.send(a.address, b"to a")
    await a.until(lambda: a.bodies() == [b"to a"])
    assert a.transport.status(b.address).state is DestinationState.ONLINE
    assert b.transport.status(a.address).state is DestinationState.ONLINE
    assert len(a.transport.peers.connections) == len(b.transport.peers.connections) == 1
    (there,) = a.transport.known()
    assert (there.connects, there.fragments_sent, there.fragments_received) == (1, 1, 1)


@pytest.mark.rule("TRN-19")
async def test_who_was_not_there_yet_serves_its_name_as_soon_as_it_dials_in(start) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    a, named = await start(1), f"tcp://localhost:{port}"
    a.send(named, b"early")
    await a.until(lambda: a.transport.status(named).reason == "connect_failed")
    assert a.transport.status(named).state is DestinationState.SUPPRESSED
    b = await start(2, listen=f"TCP://127.0.0.1:{port}")
    b.send(a.address, b"here I am")
    await b.until(lambda: b.bodies() == [b"early"])
    assert a.transport.status(named).state is DestinationState.ONLINE
    (there,) = a.transport.known()
    assert (there.attempts, there.connects) == (1, 1)


@pytest.mark.rule("TRN-31", "TRN-32")
async def test_much_is_packed_and_comes_in_order(start) -> None:
    a, b = await start(1), await start(2)
    bodies = [b"%05d" % n + bytes(500) for n in range(3000)]
    a.send(b.address, *bodies)
    await b.until(lambda: len(b.bodies()) == len(bodies))
    assert b.bodies() == bodies
    (there,) = a.transport.known()
    assert there.fragments_sent == 3000
    assert 3000 / 512 <= there.boxcars_sent < 60
    assert all(len(arrival.items) <= 512 for arrival in b.came)
    assert all(sum(len(one.body) for one in arrival.items) <= 128 * 1024 for arrival in b.came)


@pytest.mark.rule("TRN-15", "TRN-18", "XMT-19", "DLP-29")
async def test_a_loss_is_told_suppresses_and_heals(start) -> None:
    a, b = await start(1), await start(2)
    a.send(b.address, b"one")
    await b.until(lambda: b.bodies() == [b"one"])
    for connection in list(b.transport.peers.connections.values()):
        assert connection._transport is not None
        connection._transport.abort()
    await a.until(lambda: (b.address, False) in a.changes)
    status = a.transport.status(b.address)
    assert (status.state, status.reason) == (DestinationState.SUPPRESSED, "connection_lost")
    a.send(b.address, b"two")
    assert a.transport.connect_pass() == 0
    a.clock.skipped = 14
    assert a.transport.connect_pass() == 0
    a.clock.skipped = 15
    assert a.transport.connect_pass() == 1
    await b.until(lambda: b.bodies() == [b"one", b"two"])
    assert a.changes == [(b.address, True), (b.address, False), (b.address, True)]
    assert a.transport.status(b.address).reason == ""


@pytest.mark.rule("TRN-16", "TRN-17", "XMT-19", "NBT-8")
async def test_a_refused_connection_is_a_failed_attempt(start) -> None:
    a = await start(1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        a.send(nobody, b"lost in thought")
        await a.until(lambda: a.transport.status(nobody).failures == 1)
    status = a.transport.status(nobody)
    assert (status.state, status.reason) == (DestinationState.SUPPRESSED, "connect_failed")
    assert status.suppressed_until is not None
    a.clock.skipped = 59
    assert a.transport.connect_pass() == 0
    a.transport.retry(nobody)
    await a.until(lambda: a.transport.status(nobody).failures == 2)


@pytest.mark.rule("XMT-19", "TRN-17")
async def test_an_unknown_name_says_so(start) -> None:
    a = await start(1)
    a.send("tcp://no-such-host.invalid:4022", b"x")
    await a.until(lambda: a.transport.status("tcp://no-such-host.invalid:4022").failures == 1)
    assert a.transport.status("tcp://no-such-host.invalid:4022").reason == "dns_failed"


@pytest.mark.rule("TRN-7", "XMT-19", "NBT-20")
async def test_a_stranger_is_no_peer(start) -> None:
    a = await start(1)
    server = await asyncio.start_server(_speak_http, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    a.send(f"tcp://127.0.0.1:{port}", b"x")
    await a.until(lambda: a.transport.status(f"tcp://127.0.0.1:{port}").failures == 1)
    status = a.transport.status(f"tcp://127.0.0.1:{port}")
    assert status.reason == "handshake_failed"
    assert "HTTP" in status.detail or "length" in status.detail
    server.close()


@pytest.mark.rule("TRN-34", "TRN-35")
async def test_a_slow_reader_stops_the_writer(start) -> None:
    a, b = await start(1), await start(2)
    a.send(b.address, b"first")
    await b.until(lambda: b.bodies() == [b"first"])
    b.transport.pause_receiving()
    bodies = [bytes(30_000) for _ in range(1000)]  # more than any socket buffer takes
    a.send(b.address, *bodies)
    (connection,) = a.transport.peers.connections.values()
    await a.until(lambda: connection.is_send_flow_controlled)
    left = len(a.waiting[b.address])
    assert left > 0
    assert connection.unsent_bytes < 2 * QUICK.send_mark
    b.transport.resume_receiving()
    await b.until(lambda: len(b.bodies()) == 1001)
    assert not a.waiting[b.address]


@pytest.mark.rule("TRN-18", "END-5")
async def test_goodbye_suppresses_nothing(start) -> None:
    a, b = await start(1), await start(2)
    a.send(b.address, b"x")
    await b.until(lambda: b.bodies() == [b"x"])
    await b.transport.stop()
    await a.until(lambda: (b.address, False) in a.changes)
    status = a.transport.status(b.address)
    assert (status.state, status.reason) == (DestinationState.IDLE, "")
    assert "closing" in b.log.subclasses()
    assert b.log.subclasses()[-1] == "closed"


@pytest.mark.rule("END-5")
async def test_stopping_sends_what_is_waiting(start) -> None:
    a, b = await start(1), await start(2)
    a.send(b.address, b"first")
    await b.until(lambda: b.bodies() == [b"first"])
    a.send(b.address, *[bytes(1000)] * 2000)
    await a.transport.stop()
    await b.until(lambda: len(b.bodies()) == 2001)


@pytest.mark.rule("TRN-28")
async def test_idle_connections_are_closed(start) -> None:
    a, b = await start(1), await start(2)
    a.send(b.address, b"x")
    await b.until(lambda: b.bodies() == [b"x"])
    assert a.transport.close_idle() == 0
    a.transport._options = msgspec.structs.replace(QUICK, idle_close=timedelta(0))
    assert a.transport.close_idle() == 1
    await a.until(lambda: (b.address, False) in a.changes)
    assert a.transport.status(b.address).state is DestinationState.IDLE
    a.send(b.address, b"again")
    await b.until(lambda: b.bodies() == [b"x", b"again"])


@pytest.mark.rule("TRN-4", "TRN-17", "TRN-23")
async def test_two_names_of_one_peer_share_a_connection(start) -> None:
    a, b = await start(1), await start(2)
    other = b.address.replace("127.0.0.1", "localhost")
    a.send(b.address, b"one")
    await b.until(lambda: b.bodies() == [b"one"])
    a.send(other, b"two")
    await b.until(lambda: b.bodies() == [b"one", b"two"])
    assert a.transport.status(other).state is DestinationState.ONLINE
    await a.until(lambda: len(a.transport.peers.connections) == 1)
    assert a.transport.status(other).failures == 0
    assert a.transport.status(other).suppressed_until is None


@pytest.mark.rule("TRN-24", "TRN-27")
@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
async def test_connecting_at_once_leaves_one_connection(start, first: int, second: int) -> None:
    to_a, to_b = ([b"%s %03d" % (to, n) + bytes(2000) for n in range(200)] for to in (b"a", b"b"))
    for _ in range(20):
        a, b = await start(first), await start(second)
        a.send(b.address, *to_b)
        b.send(a.address, *to_a)
        await b.until(lambda b=b: b.bodies() == to_b)
        await a.until(lambda a=a: a.bodies() == to_a)
        await a.until(lambda a=a: len(a.transport.peers.connections) == 1)
        await b.until(lambda b=b: len(b.transport.peers.connections) == 1)
        assert a.transport.status(b.address).state is DestinationState.ONLINE
        assert b.transport.status(a.address).state is DestinationState.ONLINE


@pytest.mark.rule("TRN-26")
async def test_an_instance_recognises_itself(start) -> None:
    a = await start(1)
    a.send(a.address, b"x")
    await a.until(lambda: a.transport.status(a.address).is_self)
    await a.until(lambda: not a.transport.peers.connections)
    assert a.transport.status(a.address).state is DestinationState.IDLE


@pytest.mark.rule("NBT-4")
async def test_a_notice_reaches_the_neighbour(start) -> None:
    a, b = await start(1), await start(2)
    a.send(b.address, b"x")
    await b.until(lambda: b.bodies() == [b"x"])
    notice = Notice(ConversationId(b"c" * 16), True, 0, "local_service_missing", "//there/Target")
    assert b.transport.notice(a.instance_id, notice)
    await a.until(lambda: a.notices == [notice])
    assert not b.transport.notice(b.instance_id, notice)


@pytest.mark.rule("END-17")
async def test_a_taken_port_fails_at_once_or_is_retried(start) -> None:
    a = await start(1)
    strict = Node(2, listen=a.address)
    with pytest.raises(PortTaken):
        await strict.transport.start(must_listen=True)
    patient = Node(3, listen=a.address)
    await patient.transport.start()
    listener = patient.transport.listeners[0]
    assert "in use" in str(listener.listen_error)
    assert patient.log.subclasses() == ["listen_failed"]
    await a.transport.stop()
    patient.transport.connect_pass()
    await patient.until(lambda: listener.is_open)
    assert listener.listen_error is None
    await patient.transport.stop()
    assert patient.log.subclasses() == ["listen_failed", "listening", "stopped"]


@pytest.mark.rule("END-1", "END-5")
async def test_without_an_endpoint_nothing_leaves(start) -> None:
    a = await start(1)
    mute = Node(2)
    mute.transport.listeners.clear()
    await mute.transport.start()
    mute.send(a.address, b"x")
    assert mute.transport.connect_pass() == 0
    assert mute.transport.status(a.address).reason == "transport_unavailable"
    assert not mute.transport.peers.connections
    await mute.transport.stop()


@pytest.mark.rule("TRN-33", "TRN-44")
@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        bytes(64),
        b"\xff" * 64,
        b"\x00\x00\x00\x02\x10\x00",
    ],
)
async def test_junk_closes_that_connection_only(start, junk: bytes) -> None:
    a, b = await start(1), await start(2)
    host, port = b.address.removeprefix("tcp://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(junk)
    async with asyncio.timeout(5):
        await reader.read()
    writer.close()
    a.send(b.address, b"still here")
    await b.until(lambda: b.bodies() == [b"still here"])


async def _speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()
    writer.close()


@pytest.mark.rule("REL-25", "SX-12")
async def test_addresses_without_end_take_bounded_memory(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TRANSPORT route takes the address from the name of a service, which peers choose."""
    monkeypatch.setattr(destinations, "MOST_KNOWN", 20)
    monkeypatch.setattr(dialer, "MOST_ATTEMPTS", 5)
    a, b = await start(1), await start(2)
    a.send(b.address, b"first")
    await b.until(lambda: b.bodies() == [b"first"])
    for number in range(1, 250):
        a.transport.notify(f"tcp://127.0.0.{number}:1")  # nothing listens there
        assert len(a.transport.known()) <= 20
        assert len(a.transport.peers.connections) <= 1 + 5
    assert a.transport.is_online(b.address)
    a.send(b.address, b"second")
    await b.until(lambda: b.bodies() == [b"first", b"second"])
