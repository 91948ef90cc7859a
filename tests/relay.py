"""Relay: passes bytes between two daemons on loopback, and can break the way between them.

Calls:  the loop's sockets.      Never:  looks into what it passes, or listens beyond loopback.
A relay that does look is made of this one by `_dial` and `_see`: `postgresql/cut.py`.
"""

import asyncio
from contextlib import suppress
from random import Random
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_PIECE: Final = 64 * 1024

Connection = tuple[asyncio.StreamWriter, asyncio.StreamWriter]
"""Back to who has connected, and on to the target."""


class Relay:
    """Accepts on a port of its own and connects each connection to the port of a daemon."""

    def __init__(self, target: int, *, seed: int = 0) -> None:
        self._target = target
        self._rng = Random(seed)
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self.refuses = False
        """Whether new connections are reset at once."""
        self.latency = 0.0
        """Seconds by which each piece is late, on average."""
        self.tears_after = 0
        """Bytes, on average, after which a connection is reset within a piece; 0: never."""
        self.resets = 0
        """How many connections have been reset here."""
        self.passed = 0
        """Bytes passed on."""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)

    @property
    def port(self) -> int:
        """Where it listens, once started."""
        assert self._server is not None, "it has been started"
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Pass nothing more on, and tell nobody."""
        self._open.clear()

    def reset(self) -> None:
        """End every connection at both ends."""
        for connection in list(self._connections):
            self._reset(connection)

    def heal(self) -> None:
        """Pass everything on at once, and accept."""
        self._open.set()
        self.refuses, self.latency, self.tears_after = False, 0.0, 0

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        if self.refuses:
            back.transport.abort()
            return
        try:
            far, out = await self._dial()
        except OSError:
            back.close()
            return
        connection = (back, out)
        self._connections.add(connection)
        for source, sink in ((near, out), (far, back)):
            task = asyncio.ensure_future(self._pass(source, sink, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(LOOPBACK, self._target)

    async def _see(self, data: bytes, sink: asyncio.StreamWriter, connection: Connection) -> bytes:
        """Return what is passed on now of what has come; of the end, which is no bytes, too."""
        return data

    async def _pass(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        connection: Connection,
    ) -> None:
        try:
            with suppress(OSError):
                while data := await source.read(_PIECE):
                    await self._open.wait()
                    data = await self._see(data, sink, connection)
                    if not data:
                        continue
                    if self.latency:
                        await asyncio.sleep(self.latency * self._rng.uniform(0.5, 1.5))
                    if sink.is_closing():  # the connection was reset meanwhile
                        return
                    if self._tears(len(data)):
                        sink.write(data[: self._rng.randrange(len(data))])
                        await asyncio.sleep(0)  # the part leaves before the reset
                        self._reset(connection)
                        return
                    self.passed += len(data)
                    sink.write(data)
                    await sink.drain()
            await self._see(b"", sink, connection)
        finally:
            self._connections.discard(connection)
            sink.close()
            with suppress(OSError):
                await sink.wait_closed()

    def _tears(self, size: int) -> bool:
        return bool(self.tears_after) and self._rng.random() < size / self.tears_after

    def _reset(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self.resets += 1
            for writer in connection:
                writer.transport.abort()
