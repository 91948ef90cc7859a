"""SimTransport: one end of a simulated connection, as the protocol at that end sees it.

It keeps asyncio's promises: what a slow network does not take fills a buffer and then pauses the
protocol's writing; `close` sends what is buffered first; `connection_lost` comes once.

Calls:  its protocol, in the context in which this side was made; the pipe its bytes go into.
Never:  delivers to a side that is closed or crashed.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Protocol

Address = str | tuple[str, int]


class OutgoingPipe(Protocol):
    """What a transport needs of the pipe its bytes go into; see `pipe.Pipe`."""

    @property
    def buffered(self) -> int:
        """Bytes written that the network has not taken."""
        ...

    def write(self, data: bytes) -> None:
        """Take bytes."""
        ...

    def finish(self) -> None:
        """Nothing more will be written."""
        ...

    def abort(self) -> None:
        """Throw away what is buffered, and end."""
        ...

    def stop_writer(self) -> None:
        """The transport is gone."""
        ...

    def arm_other(self) -> None:
        """The transport reads again."""
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
        """The user at the other end, None = nobody knows."""
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
        """As of a Unix socket, the user at the other end is known where one has been set."""
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
        """Send what is buffered, then the end; reading goes on."""
        if not self._closing and not self._eof_sent:
            self._eof_sent = True
            self._outgoing.finish()

    def can_write_eof(self) -> bool:
        """True, as for TCP."""
        return True

    def close(self) -> None:
        """Stop reading, send what is buffered, then end the connection."""
        if self._closing:
            return
        self._closing = True
        self._outgoing.finish()
        if not self._outgoing.buffered:
            self._loop.call_soon(self.lose, None, context=self.context)

    def abort(self) -> None:
        """End the connection at once; what is buffered is thrown away."""
        if self._gone:
            return
        self._closing = True
        self._outgoing.abort()
        self._loop.call_soon(self.lose, None, context=self.context)

    def is_closing(self) -> bool:
        """Whether it is closing or lost."""
        return self._closing

    def pause_reading(self) -> None:
        """Deliver nothing until `resume_reading`; the writer feels it when the window is full."""
        self._reading = False

    def resume_reading(self) -> None:
        """Deliver again."""
        if not self._reading:
            self._reading = True
            self._outgoing.arm_other()

    def is_reading(self) -> bool:
        """Whether bytes are delivered."""
        return self._reading and not self._closing

    def get_write_buffer_size(self) -> int:
        """Bytes written that the network has not taken."""
        return self._outgoing.buffered

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """The low and the high mark."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks, with asyncio's defaults."""
        if high is None:
            high = 64 * 1024 if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._low, self._high = low, high
        self._watch_level()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand this side over to another protocol."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol of this side."""
        return self._protocol

    # What the pipes and the network call.

    @property
    def gone(self) -> bool:
        """Whether `connection_lost` has been called, or never will be: the side has crashed."""
        return self._gone

    @property
    def accepts(self) -> bool:
        """Whether bytes may be delivered now."""
        return self._reading and not self._closing

    def attach(self, pipe: "OutgoingPipe") -> None:
        """Say where this side's bytes go; once, before anything else is called."""
        self._pipe = pipe

    def wake_incoming(self) -> None:
        """This side reads again, or is gone: what comes towards it is dealt with."""
        self._outgoing.arm_other()

    def begin(self) -> None:
        """Tell the protocol that it is connected."""
        if not self._gone:
            self._protocol.connection_made(self)

    def feed(self, data: bytes) -> None:
        """Deliver bytes to the protocol."""
        assert isinstance(self._protocol, asyncio.Protocol)
        self._protocol.data_received(data)

    def feed_eof(self) -> None:
        """Deliver the end; the side closes unless its protocol wants to go on writing."""
        assert isinstance(self._protocol, asyncio.Protocol)
        if not self._protocol.eof_received():
            self.close()

    def drained(self) -> None:
        """The pipe took some bytes."""
        self._watch_level()
        if self._closing and not self._gone and not self._outgoing.buffered:
            self._loop.call_soon(self.lose, None, context=self.context)

    def lose(self, error: OSError | None) -> None:
        """End this side now and tell its protocol. Runs in the context of this side."""
        if self._gone:
            return
        self.vanish()
        self._protocol.connection_lost(error)

    def vanish(self) -> None:
        """End this side without telling its protocol anything: its process is dead."""
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
