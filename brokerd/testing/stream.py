"""SimTransport: one end of a simulated connection, as the protocol at that end sees it.

It keeps asyncio's promises: bytes that a slow network does not accept fill a buffer, and then pause
the protocol's writing; `close` sends the buffered bytes first; `connection_lost` is called once.

Calls:  its protocol, in the context in which this side was created; the pipe that gets its bytes.
Never:  delivers bytes to a closed or crashed side.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Protocol

Address = str | tuple[str, int]


class OutgoingPipe(Protocol):
    """The pipe that a transport writes to, as the transport sees it; see `pipe.Pipe`."""

    @property
    def buffered(self) -> int:
        """Number of written bytes that the network has not accepted yet."""
        ...

    def write(self, data: bytes) -> None:
        """Accept bytes for sending."""
        ...

    def finish(self) -> None:
        """Send the end of the stream after the buffered bytes."""
        ...

    def abort(self) -> None:
        """Discard the buffered bytes, and end the stream."""
        ...

    def stop_writer(self) -> None:
        """Record that the transport has ended."""
        ...

    def arm_other(self) -> None:
        """Resume deliveries to the transport."""
        ...


class SimTransport(asyncio.Transport):
    """One end of a connection, as the protocol at that end sees it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BaseProtocol,
        *,
        node: str,
        context: Context,
        sockname: Address,
        peername: Address,
        lost: Callable[["SimTransport"], None],
    ) -> None:
        super().__init__({"sockname": sockname, "peername": peername})
        self.peer_uid: int | None = None
        """User id of the program at the other end; None = unknown."""
        self.node = node
        self.context = context
        self._pipe: OutgoingPipe | None = None
        self._loop = loop
        self._protocol = protocol
        self._told_lost = lost
        self._closing = False
        self._gone = False
        self._eof_sent = False
        self._reading = True
        self._paused_writer = False
        self._low, self._high = 16 * 1024, 64 * 1024

    # What the protocol calls.

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the same as asyncio; also `peer_uid`, if it is set."""
        if name == "peer_uid" and self.peer_uid is not None:
            return self.peer_uid
        return super().get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; ignored once the transport is closing or lost."""
        if self._eof_sent:
            raise RuntimeError("write after write_eof")
        if data and not self._closing:
            self._outgoing.write(bytes(data))
            self._watch_level()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several pieces of bytes."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """Send the buffered bytes, then the end of the stream; reading continues."""
        if not self._closing and not self._eof_sent:
            self._eof_sent = True
            self._outgoing.finish()

    def can_write_eof(self) -> bool:
        """Return True, as for TCP."""
        return True

    def close(self) -> None:
        """Stop reading, send the buffered bytes, then end the connection."""
        if self._closing:
            return
        self._closing = True
        self._outgoing.finish()
        if not self._outgoing.buffered:
            self._loop.call_soon(self.lose, None, context=self.context)

    def abort(self) -> None:
        """End the connection immediately; discard the buffered bytes."""
        if self._gone:
            return
        self._closing = True
        self._outgoing.abort()
        self._loop.call_soon(self.lose, None, context=self.context)

    def is_closing(self) -> bool:
        """Return whether the transport is closing or lost."""
        return self._closing

    def pause_reading(self) -> None:
        """Deliver no bytes until `resume_reading`; the writer notices once the window is full."""
        self._reading = False

    def resume_reading(self) -> None:
        """Deliver bytes again."""
        if not self._reading:
            self._reading = True
            self._outgoing.arm_other()

    def is_reading(self) -> bool:
        """Return whether bytes are delivered."""
        return self._reading and not self._closing

    def get_write_buffer_size(self) -> int:
        """Return the number of written bytes that the network has not accepted yet."""
        return self._outgoing.buffered

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and the high mark of the write buffer, in bytes."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks of the write buffer, in bytes, with asyncio's defaults."""
        if high is None:
            high = 64 * 1024 if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._low, self._high = low, high
        self._watch_level()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol of this side."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol of this side."""
        return self._protocol

    # What the pipes and the network call.

    @property
    def gone(self) -> bool:
        """Whether this side has ended: `connection_lost` was called, or the node has crashed."""
        return self._gone

    @property
    def accepts(self) -> bool:
        """Whether bytes may be delivered now."""
        return self._reading and not self._closing

    def attach(self, pipe: "OutgoingPipe") -> None:
        """Set the pipe that this side writes to; call it once, before anything else."""
        self._pipe = pipe

    def wake_incoming(self) -> None:
        """Resume deliveries to this side; if it has ended, they are answered with a reset."""
        self._outgoing.arm_other()

    def begin(self) -> None:
        """Call `connection_made` of the protocol, unless this side has already ended."""
        if not self._gone:
            self._protocol.connection_made(self)

    def feed(self, data: bytes) -> None:
        """Deliver bytes to the protocol."""
        assert isinstance(self._protocol, asyncio.Protocol)
        self._protocol.data_received(data)

    def feed_eof(self) -> None:
        """Deliver the end of the stream; close this side unless its protocol continues to write."""
        assert isinstance(self._protocol, asyncio.Protocol)
        if not self._protocol.eof_received():
            self.close()

    def drained(self) -> None:
        """Resume the protocol's writing, or finish closing, after the pipe has accepted bytes."""
        self._watch_level()
        if self._closing and not self._gone and not self._outgoing.buffered:
            self._loop.call_soon(self.lose, None, context=self.context)

    def lose(self, error: OSError | None) -> None:
        """End this side and call `connection_lost`; to be called in this side's context."""
        if self._gone:
            return
        self.vanish()
        self._protocol.connection_lost(error)

    def vanish(self) -> None:
        """End this side without calling its protocol, as if its process had died."""
        self._closing = self._gone = True
        self._outgoing.stop_writer()
        self._told_lost(self)

    @property
    def _outgoing(self) -> "OutgoingPipe":
        assert self._pipe is not None
        return self._pipe

    def _watch_level(self) -> None:
        size = self._outgoing.buffered
        if not self._paused_writer and size > self._high:
            self._paused_writer = True
            self._protocol.pause_writing()
        elif self._paused_writer and size <= self._low:
            self._paused_writer = False
            if not self._gone:
                self._protocol.resume_writing()
