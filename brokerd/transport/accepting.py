"""Acceptor: accepts connections of one listening socket, as many as a door admits (END-18).

Reads:  the listening socket.           Calls: `transport.door`, the running event loop.
Never:  reads a connection, or writes to one that is admitted; the factory's protocol object does.
Wakes:  when a connection arrives, and after a pause.
Fails:  if the machine has no descriptor left, it pauses and resumes by itself (REL-27).

The servers of asyncio and uvloop accept hundreds of connections in one turn, and create a transport
for each before any can be refused. An `Acceptor` refuses a connection before anything is created
for it.
"""

import asyncio
import errno
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, cast

from brokerd.telemetry.log import Log
from brokerd.transport.door import Door, Seat, highest_descriptor

AT_ONCE: Final = 16
"""Limit of connections accepted in one turn of the event loop, so that other work gets its turn."""
PAUSE: Final = 1.0
"""Seconds of pause after an accept has failed, for example for lack of descriptors."""
_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR})
"""Errors of a single connection, which was aborted or is blocked by a firewall: accept the next."""


class Occupant(Protocol):
    """The protocol object that a factory makes for an accepted connection."""

    seat: Seat | None


class Acceptor:
    """The acceptor of the connections to one listening socket."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], asyncio.Protocol],
        *,
        door: Door,
        is_shared: Callable[[str], bool],
    ) -> None:
        """Create the acceptor and begin to accept.

        `is_shared`: returns whether all programs of this machine share a literal address."""
        self._socket = listening
        self._factory = factory
        self._door = door
        self._log: Log = door.log
        self._is_shared = is_shared
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_reading = False
        self._resume()

    @property
    def port(self) -> int:
        """The port of a TCP socket."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Stop accepting; connections stay open."""
        self._stop_reading()
        self._stop_timer()
        self._socket.close()

    def _resume(self) -> None:
        self._stop_timer()
        if not self._is_reading and self._socket.fileno() >= 0:
            self._is_reading = True
            self._loop.add_reader(self._socket.fileno(), self._accept_some)

    def _pause(self, seconds: float) -> None:
        self._stop_reading()
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self._resume)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket.fileno())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _accept_some(self) -> None:
        for _ in range(AT_ONCE):
            # Checked before each accept: only a connection that was accepted may displace another.
            wait = self._door.wait()
            if wait:
                self._pause(wait)
                self._door.when_room(self._resume)
                return
            try:
                stream, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _GONE:
                    continue
                self._failed(error)
                return
            self._admit(stream)

    def _failed(self, error: OSError) -> None:
        """Log a failed accept, and pause; a later one may succeed."""
        self._pause(PAUSE)
        self._log_failure(errno.errorcode.get(error.errno or 0, "unknown"), error)

    def _log_failure(self, reason: str, error: Exception) -> None:
        self._log.warning(
            "broker.endpoint",
            subclass="accept_failed",
            listener=self._door.kind,
            reason=reason,
            error=str(error),
        )

    def _admit(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        host = _host_of(stream)
        seat = self._door.enter(
            host,
            is_shared=not host or self._is_shared(host),
            has_room=is_descriptor_free(stream.fileno(), is_local=not host),
        )
        if isinstance(seat, bytes):
            with stream, suppress(OSError):
                stream.send(seat)
            return
        opening = self._loop.create_task(self._open(stream, seat))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, stream: socket.socket, seat: Seat) -> None:
        made = partial(_occupied, self._factory, seat)
        try:
            await self._loop.connect_accepted_socket(made, stream)
        except Exception as error:  # noqa: BLE001  # per connection: others are still admitted
            seat.leave()
            stream.close()
            if not isinstance(error, OSError):  # otherwise the peer has closed it already
                self._log_failure(type(error).__name__, error)


def _occupied(factory: Callable[[], asyncio.Protocol], seat: Seat) -> asyncio.Protocol:
    protocol = factory()
    cast("Occupant", protocol).seat = seat
    return protocol


def _host_of(stream: socket.socket) -> str:
    """Return the literal address of the far end; empty for a Unix socket."""
    if stream.family == socket.AF_UNIX:
        return ""
    try:
        return str(stream.getpeername()[0])
    except OSError:
        return "unknown"


def is_descriptor_free(number: int, *, is_local: bool) -> bool:
    """Return whether a connection may use the descriptor `number` (REL-27).

    The limit is read each time, because it can change while the process runs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft == resource.RLIM_INFINITY or number <= highest_descriptor(soft, is_local=is_local)
