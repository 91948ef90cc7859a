"""A stream inside the process: a client of this daemon without a socket (design D15).

Reads: bytes written on one side.      Calls: the protocols at both ends.
Never: copies or frames bytes: it passes them on as written, one turn of the loop later.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

Factory = Callable[[], asyncio.Protocol]
HIGH_WATER: Final = 4 * 1024 * 1024


class LocalStream(asyncio.Transport):
    """One end of a stream inside the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.extra: dict[str, object] = {}
        """Facts about the far end, for `get_extra_info`."""
        self._loop = loop
        self._protocol: asyncio.BaseProtocol | None = None
        self._far: LocalStream | None = None
        self._waiting: list[bytes] = []
        self._size = 0
        self._reading = True
        self._closing = False
        self._scheduled = False
        self._stopped_far = False

    def join(self, far: "LocalStream", protocol: asyncio.BaseProtocol) -> None:
        """Connect this end to the far end and to this end's protocol."""
        self._far, self._protocol = far, protocol
        protocol.connection_made(self)

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return what is known of the far end under that name."""
        return self.extra.get(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Pass bytes to the far end."""
        far = self._far
        if self._closing or far is None or not data:
            return
        far._accept(bytes(data))  # private, but of the same class

    def is_closing(self) -> bool:
        """Return whether this end is closed."""
        return self._closing

    def close(self) -> None:
        """Close both ends, after the written bytes have been delivered."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._lost)
            if self._far is not None:
                self._far._end()

    def abort(self) -> None:
        """Close both ends, as `close` does."""
        self.close()

    def pause_reading(self) -> None:
        """Deliver no bytes until `resume_reading`."""
        self._reading = False

    def resume_reading(self) -> None:
        """Deliver bytes again."""
        self._reading = True
        self._schedule()

    def is_reading(self) -> bool:
        """Return whether bytes are delivered."""
        return self._reading

    def get_write_buffer_size(self) -> int:
        """Return the number of written bytes not yet delivered at the far end."""
        return self._far._size if self._far is not None else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits: those of a local stream are fixed."""

    def _accept(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER and not self._stopped_far and self._far is not None:
            self._stopped_far = True
            writer = self._far._protocol
            if isinstance(writer, asyncio.Protocol):
                writer.pause_writing()
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._waiting:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if not self._reading or self._closing or not self._waiting:
            return
        data, self._size = b"".join(self._waiting), 0
        self._waiting.clear()
        if self._stopped_far and self._far is not None:
            self._stopped_far = False
            writer = self._far._protocol
            if isinstance(writer, asyncio.Protocol):
                writer.resume_writing()
        assert isinstance(self._protocol, asyncio.Protocol)
        self._protocol.data_received(data)

    def _end(self) -> None:
        """Deliver the waiting bytes, then close this end, because the far end has closed."""
        if self._closing:
            return
        if self._waiting and self._reading:
            self._deliver()
        self._closing = True
        self._loop.call_soon(self._lost)

    def _lost(self) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(None)
            self._protocol = None


def connect_local(
    server: Factory, client: Factory, *, extra: Mapping[str, object] | None = None
) -> tuple[asyncio.Transport, asyncio.Protocol]:
    """Create both protocols and connect them; return the client's transport and protocol.

    `extra`: what the server's stream knows of the client."""
    loop = asyncio.get_running_loop()
    near, far = LocalStream(loop), LocalStream(loop)
    far.extra.update(extra or {})
    protocol = client()
    far.join(near, server())
    near.join(far, protocol)
    return near, protocol
