"""Connection: one stream to the daemon: frames out in few writes, frames in, pings if silent.

Reads:  the socket.      Calls: protocol.client_frames; its `Listener` with the frames.
Never:  knows the purpose of a frame, repeats a request, or reconnects; the link does.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from brokerd.client.address import Alternatives, Connector
from brokerd.client.failures import rebuild
from brokerd.clock import Clock
from brokerd.errors import ConnectionLost
from brokerd.protocol.client_frames import (
    PING_AFTER,
    PONG_WITHIN,
    DaemonFrame,
    Failed,
    Violation,
    Welcome,
    encode_ping,
)
from brokerd.protocol.client_readers import AnswerReader


class Patience(NamedTuple):
    """Seconds after which a client believes that a daemon is gone (CLP-60)."""

    open_within: float
    """For one attempt, from dialling to WELCOME."""
    ping_after: float
    """Without an arrival, or without a write, until a PING."""
    pong_within: float
    """Until the answer to the PING."""


USUAL: Final = Patience(10.0, PING_AFTER, PONG_WITHIN)
WITH_OTHERS: Final = Patience(3.0, 3.0, 3.0)
"""Where another daemon of the instance may have taken over from one that is stopped or cut off.

Whoever gives a daemon up wrongly loses a moment: the others refuse, and the outcome of what was
asked for is known by its token."""
_WRITE_HIGH: Final = 1 << 20

_T = TypeVar("_T")


class Listener(Protocol):
    """The owner of a connection; called from inside the loop, must not raise."""

    def arrived(self, frames: list[DaemonFrame]) -> None:
        """Handle frames that have arrived, in this order.

        Raises: nothing.
        """
        ...

    def writable(self) -> None:
        """Resume writing: the connection has room again.

        Raises: nothing.
        """
        ...

    def lost(self, connection: "Connection") -> None:
        """Handle the loss of the connection; called once, after `open_connection` has returned it.

        Raises: nothing.
        """
        ...

    def expects(self) -> bool:
        """Return whether an answer is due, so that silence may mean a failure (CLP-60).

        Raises: nothing.
        """
        ...


class Connection(asyncio.Protocol):
    """One connection; usable once `open_connection` has returned it."""

    def __init__(self, *, listener: Listener, clock: Clock, patience: Patience) -> None:
        self._listener = listener
        self._clock = clock
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._reader = AnswerReader()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._heard_at = self._wrote_at = clock.monotonic()
        self._open = False
        self._early: list[DaemonFrame] = []
        self.paused = False
        self.greeting: asyncio.Future[Welcome | Failed] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    # Out.

    def write(self, frame: bytes) -> None:
        """Write a frame at the end of this turn of the loop, in one write with the turn's others.

        Raises: nothing.
        """
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def close(self) -> None:
        """Write the buffered frames, then close the connection.

        Raises: nothing.
        """
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, without writing the buffered frames.

        Raises: nothing.
        """
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        out = self._out
        if not out or self._transport is None or self._transport.is_closing():
            out.clear()
            return
        self._wrote_at = self._clock.monotonic()
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        out.clear()

    # In.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport. Called by the loop.

        Raises: nothing.
        """
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_WRITE_HIGH)

    def data_received(self, data: bytes) -> None:
        """Decode frames and pass them to the listener. Called by the loop.

        Raises: nothing.
        """
        self._heard_at = self._clock.monotonic()
        frames = self._reader.feed(data)
        if frames and not self.greeting.done():
            first = frames.pop(0)
            if not isinstance(first, Welcome | Failed):
                self.abort()
                return
            self._reader.login_done()
            self.greeting.set_result(first)
        if frames and type(frames[-1]) is Violation:
            self.abort()
            frames.pop()
        if not self._open:
            self._early += frames
        elif frames:
            self._listener.arrived(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the listener of the loss. Called by the loop.

        Raises: nothing.
        """
        if not self.greeting.done():
            self.greeting.cancel()
        if not self.ended.done():
            self.ended.set_result(None)
        if self._open:
            self._open = False
            self._listener.lost(self)

    def refused(self, text: str) -> None:
        """Note why the daemon ended the connection before its answer to HELLO.

        Raises: nothing.
        """
        if not self.greeting.done():
            self.greeting.set_exception(ConnectionLost(text))

    def pause_writing(self) -> None:
        """Note that the transport is full. Called by the loop.

        Raises: nothing.
        """
        self.paused = True

    def resume_writing(self) -> None:
        """Notify the listener that the transport has room again. Called by the loop.

        Raises: nothing.
        """
        self.paused = False
        if self._open:
            self._listener.writable()

    def opened(self) -> None:
        """Pass frames to the listener from now on, first those that followed WELCOME directly.

        Raises: nothing.
        """
        self._open = True
        if self._early:
            self._loop.call_soon(self._listener.arrived, self._early)

    # Silence.

    async def watch(self) -> None:
        """Wait until the connection is lost; abort it if it is silent even after a ping (CLP-60).

        A ping is also sent if this side has written nothing for a while: a frame that arrives does
        not show how long ago the daemon last heard from this client (CLP-61).

        Raises: nothing.
        """
        number, (_, ping_after, pong_within) = 0, self._patience
        while not self.ended.done():
            now = self._clock.monotonic()
            is_silent = now >= self._heard_at + ping_after
            if not is_silent and now < self._wrote_at + ping_after:
                quiet_until = min(self._heard_at, self._wrote_at) + ping_after
                await until(self._clock, quiet_until, self.ended)
            elif not self._listener.expects():
                await until(self._clock, now + ping_after, self.ended)
            else:
                number += 1
                self.write(encode_ping(number))
                await until(self._clock, now + pong_within, self.ended)
                if is_silent and self._heard_at < now:
                    self.abort()
                    await asyncio.wait({self.ended})


async def open_connection(
    connector: Connector, hello: bytes, *, listener: Listener, clock: Clock
) -> tuple[Connection, Welcome]:
    """Connect, send HELLO, and return the connection with the WELCOME of the daemon.

    The attempt fails after `USUAL.open_within` seconds, or sooner if the connector has others.

    Raises:
        OSError: the connection cannot be made.
        ConnectionLost: the daemon did not answer in time, or closed the connection.
        BrokerError: the refusal of the daemon.
    """
    patience = WITH_OTHERS if isinstance(connector, Alternatives) else USUAL
    deadline = clock.monotonic() + patience.open_within
    made: list[Connection] = []

    def factory() -> Connection:
        made.append(Connection(listener=listener, clock=clock, patience=patience))
        return made[-1]

    async def dial() -> Welcome:
        await connector(factory)
        made[-1].write(hello)
        answer = await made[-1].greeting
        if isinstance(answer, Failed):
            raise rebuild(answer)
        return answer

    try:
        welcome = await within(clock, deadline, dial())
    except BaseException:
        for connection in made:
            connection.abort()
        raise
    return made[-1], welcome


async def within(clock: Clock, deadline: float, awaitable: Awaitable[_T]) -> _T:
    """Return the result of `awaitable`, if it is done before the deadline.

    `deadline`: in seconds of the monotonic clock.

    Raises:
        ConnectionLost: the deadline came first, or the connection was closed.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await until(clock, deadline, task)
        if not task.done():
            raise ConnectionLost("the daemon did not answer in time")
        if task.cancelled():
            raise ConnectionLost("the daemon closed the connection")
        return task.result()
    finally:
        await _dispose(task)


async def until(clock: Clock, deadline: float, future: asyncio.Future[_T]) -> None:
    """Wait until `future` is done or the deadline has come; leave `future` as it is.

    `deadline`: in seconds of the monotonic clock.

    Raises: nothing.
    """
    timer = asyncio.ensure_future(clock.sleep_until(deadline))
    try:
        await asyncio.wait((timer, future), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _dispose(timer)


async def _dispose(task: asyncio.Future[_T]) -> None:
    """Cancel the task, wait for its end, and retrieve its exception."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
