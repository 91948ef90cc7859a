"""A client that speaks frames of the client protocol by itself, without the SDK."""

import asyncio
from typing import Any

import msgpack

from brokerd.protocol import client_frames as frames
from brokerd.protocol.client_readers import AnswerReader
from tests.integration.one_daemon import ADDRESS, Daemon

ME = b"client id 000001"


class Raw(asyncio.Protocol):
    """A client that writes what it likes and keeps what it gets."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.reader = AnswerReader()
        self.got: list[frames.DaemonFrame] = []
        self.lost = False
        self.transport: asyncio.Transport

    def data_received(self, data: bytes) -> None:
        self.got += self.reader.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def is_gone(self) -> bool:
        """Whether the connection has ended."""
        return self.lost

    def write(self, *data: bytes) -> None:
        self.transport.write(b"".join(data))

    async def answers(self, seconds: float = 0.5) -> list[Any]:
        """What came within some time, each frame in short."""
        await self.daemon.pass_time(seconds)
        got, self.got = self.got, []
        return [short(frame) for frame in got]


def short(frame: frames.DaemonFrame) -> object:
    match frame:
        case frames.Done(requests):
            return "done", *requests
        case frames.Answer(request, value):
            return "answer", request, value
        case frames.Failed(request, code):
            return "failed", request, code
        case frames.Pong(number):
            return "pong", number
        case frames.Goodbye(reason):
            return "goodbye", reason.split(":")[0]
        case _:
            return "welcome"


def done(answers: list[Any]) -> list[int]:
    """The requests that succeeded without a value."""
    return sorted(one for answer in answers if answer[0] == "done" for one in answer[1:])


async def stranger(daemon: Daemon) -> Raw:
    network = daemon.network.for_node("client")
    transport, raw = await network.connect(lambda: Raw(daemon), ADDRESS)
    assert isinstance(raw, Raw)
    raw.reader.login_done()
    raw.transport = transport
    return raw


async def client(daemon: Daemon, client_id: bytes = ME) -> Raw:
    raw = await stranger(daemon)
    raw.write(frames.encode_hello(client_id, "main", {"pid": 1}))
    assert await raw.answers(0.05) == ["welcome"]
    return raw


def ask(request: int, tx: int | None, verb: str, *args: object) -> bytes:
    return frames.encode_request(request, tx, verb, list(args))


def frame(value: object) -> bytes:
    packed = msgpack.packb(value)
    return len(packed).to_bytes(4, "big") + bytes(packed)


def begin_dialog(handle: bytes) -> list[object]:
    return ["begin_dialog", [handle, "urn:desk", "urn:shop", {"contract": "talk"}]]


def send(handle: bytes, body: bytes) -> list[object]:
    return ["send", [handle, "Ask", body]]


H = b"handle 000000001"


I2 = b"handle 000000002"


async def ready(daemon: Daemon) -> Raw:
    """A client with an open dialog H; requests 1 and token 0 are used up."""
    raw = await client(daemon)
    raw.write(ask(1, None, "transact", 0, [begin_dialog(H)]))
    assert await raw.answers() == [("done", 1)]
    return raw


async def received(raw: Raw, request: int, token: int, queue: str = "shop") -> list[bytes]:
    raw.write(ask(request, None, "receive", queue, None, None, None, None, token))
    (answer,) = await raw.answers()
    return [one[5] for one in answer[2]]
