"""Strangers' bytes against a whole transport: they cost the stranger its connection alone."""

import asyncio
import struct

import msgspec
import pytest

from brokerd.ids import BootId, InstanceId
from brokerd.protocol.frames import FRAME_LIMIT, FrameReader, Kind, encode_frame
from brokerd.protocol.neighbour import (
    Arbitrate,
    Hello,
    Neighbourly,
    Ping,
    Pong,
    Verdict,
    decode,
    encode,
)
from brokerd.protocol.wire import MAX_ITEMS
from tests import frames

from .conftest import QUICK, Node
from .test_timing import EAST, SPEC, WEST, World, play

LOGIN_ANSWERS = 2
"""HELLO and ARBITRATE."""


class Stranger:
    """A stream to a node, written to by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def reach(cls, node: Node) -> "Stranger":
        host, port = node.address.removeprefix("tcp://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def log_in(self, number: int) -> None:
        """As the instance of that number."""
        me = InstanceId(number.to_bytes(16))
        self.writer.write(encode(Hello(me, BootId(bytes(16)))))
        answers: list[Neighbourly] = []
        parser = FrameReader()
        while len(answers) < LOGIN_ANSWERS:
            data = await self.reader.read(4096)
            assert data, "refused"
            answers += [decode(kind, payload) for kind, payload in parser.feed(data)]
        assert answers[-1] == Arbitrate(Verdict.WON)

    async def is_closed(self) -> bool:
        """The node has closed it, whatever it said before."""
        try:
            async with asyncio.timeout(5):
                while await self.reader.read(4096):
                    pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def leave(self) -> None:
        self.writer.close()


@pytest.mark.rule("BI-F1", "BI-F2", "BI-F4", "BI-F5", "BI-F6", "REL-32", "TRN-33", "TRN-44")
async def test_hostile_bytes_touch_no_other_connection(start) -> None:
    a, b = await start(1), await start(2)
    a.send(b.address, b"before")
    await b.until(lambda: b.bodies() == [b"before"])
    (ours,) = b.transport.peers.connections.values()
    for number, bad in enumerate(frames.committed_bad(), start=100):
        stranger = await Stranger.reach(b)
        if bad.when == "online":
            await stranger.log_in(number)
        stranger.writer.write(bad.data)
        await stranger.writer.drain()
        if bad.answer == "closes":
            assert await stranger.is_closed(), bad.name
        stranger.leave()
        await b.until(lambda: list(b.transport.peers.connections.values()) == [ours])
    drops = [bad for bad in frames.committed_bad() if bad.answer == "drops"]
    assert b.transport.corrupted_items == len(drops)
    assert ours.machine.is_online
    a.send(b.address, b"after")
    await b.until(lambda: b"after" in b.bodies())
    assert a.changes == [(b.address, True)]


@pytest.mark.rule("BI-F3", "TRN-9")
def test_a_login_one_byte_a_second_ends_with_the_time_for_it() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        whole = frames.committed_valid()["hello"]
        lost: list[float] = []

        class Slow(asyncio.Protocol):
            def connection_lost(self, _error: Exception | None) -> None:
                lost.append(world.loop.time())

        transport, _ = await world.net.for_node("mallory").connect(Slow, EAST)
        world.east.send(WEST, b"meanwhile")
        for byte in whole:
            transport.write(bytes([byte]))
            await world.clock.sleep_until(world.loop.time() + 1)
            if lost:
                break
        assert 9.9 <= lost[0] <= 11
        assert world.west.bodies() == [b"meanwhile"]
        assert world.east.transport.status(WEST).state == "online"

    play(script, SPEC)


@pytest.mark.rule("TRN-33", "BI-F2")
async def test_a_smaller_largest_frame_is_kept_to(start) -> None:
    small = msgspec.structs.replace(QUICK, max_frame=128 * 1024)
    a, b = await start(1), await start(2, options=small)
    bodies = [b"%03d" % n + bytes(30_000) for n in range(40)]
    a.send(b.address, *bodies)
    await b.until(lambda: b.bodies() == bodies)
    assert "closed" not in b.log.subclasses()
    (connection,) = a.transport.peers.connections.values()
    assert connection.machine.peer is not None
    assert connection.machine.peer.largest_frame == 128 * 1024
    assert await _too_long_for(b)


async def _too_long_for(node: Node) -> bool:
    stranger = await Stranger.reach(node)
    await stranger.log_in(77)
    stranger.writer.write(struct.pack(">IB", 128 * 1024 + 1, Kind.BOXCAR))
    try:
        return await stranger.is_closed()
    finally:
        stranger.leave()


@pytest.mark.rule("TRN-33", "REL-32")
async def test_a_boxcar_of_a_mebibyte_of_bad_items_closes_its_connection_and_no_other(
    start,
) -> None:
    a, b = await start(1), await start(2)
    a.send(b.address, b"before")
    await b.until(lambda: b.bodies() == [b"before"])
    stranger = await Stranger.reach(b)
    await stranger.log_in(88)
    bad = b"\x92\x09\x00"
    stranger.writer.write(encode_frame(Kind.BOXCAR, bad * ((FRAME_LIMIT - 1) // len(bad))))
    assert await stranger.is_closed()
    stranger.leave()
    assert b.transport.corrupted_items == 0
    a.send(b.address, b"after")
    await b.until(lambda: b"after" in b.bodies())


@pytest.mark.rule("TRN-44", "REL-32")
async def test_bad_items_of_one_boxcar_are_one_line(start) -> None:
    node = await start(1)
    stranger = await Stranger.reach(node)
    await stranger.log_in(88)
    stranger.writer.write(encode_frame(Kind.BOXCAR, b"\x92\x09\x00" * MAX_ITEMS))
    await node.until(lambda: node.transport.corrupted_items == MAX_ITEMS)
    lines = [fields for event, fields in node.log.lines if event == "broker.corrupted_message"]
    assert [line["items"] for line in lines] == [MAX_ITEMS]
    stranger.leave()


@pytest.mark.rule("REL-32")
async def test_thousands_of_pings_at_once_are_answered_in_turns(start) -> None:
    node = await start(1)
    stranger = await Stranger.reach(node)
    await stranger.log_in(88)
    count = 20_000
    stranger.writer.write(b"".join(encode(Ping(number)) for number in range(count)))
    came, parser = list[int](), FrameReader()
    async with asyncio.timeout(60):
        while len(came) < count:
            data = await stranger.reader.read(1 << 16)
            assert data
            answers = [decode(kind, payload) for kind, payload in parser.feed(data)]
            came += [answer.number for answer in answers if isinstance(answer, Pong)]
    assert came == list(range(count))
    stranger.leave()
