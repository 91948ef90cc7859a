"""Acceptor: takes connections off one listening socket, as many as a door lets in (END-18).

Reads:  the listening socket.           Calls: `transport.door`, the running event loop.
Never:  reads or writes what a connection says; that is for the protocol its factory makes.
Wakes:  when somebody connects, and after it has paused.
Fails:  where the machine has no descriptor left it pauses, and goes on by itself (REL-27).

The servers of both event loops accept hundreds of connections in one turn and make a transport for
each before anybody can refuse one. Here each is refused by its number before anything is made.
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
"""Connections accepted in one turn of the loop, so that others get theirs."""
PAUSE: Final = 1.0
"""Seconds without accepting after it has failed, as where the machine has no descriptor left."""
_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR})
"""The one who connected has left again, or a firewall keeps it out: the next one may be fine."""


class Occupant(Protocol):
    """What a factory makes for a connection that was accepted."""

    seat: Seat | None


class Acceptor:
    """One listening socket."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], asyncio.Protocol],
        *,
        door: Door,
        is_shared: Callable[[str], bool],
    ) -> None:
        """`is_shared`: whether all programs of this machine have that address."""
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
        """Accept no more; connections stay."""
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
        """Accepting failed: later there may be room again."""
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
        except Exception as error:  # noqa: BLE001  # per connection: others are still let in
            seat.leave()
            stream.close()
            if not isinstance(error, OSError):  # else it has left already
                self._log_failure(type(error).__name__, error)


def _occupied(factory: Callable[[], asyncio.Protocol], seat: Seat) -> asyncio.Protocol:
    protocol = factory()
    cast("Occupant", protocol).seat = seat
    return protocol


def _host_of(stream: socket.socket) -> str:
    """The literal address of the far end; empty over a Unix socket."""
    if stream.family == socket.AF_UNIX:
        return ""
    try:
        return str(stream.getpeername()[0])
    except OSError:
        return "unknown"


def is_descriptor_free(number: int, *, is_local: bool) -> bool:
    """Whether a connection may have the descriptor of that number (REL-27).

    The limit is read each time, since it can be altered while the process runs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft == resource.RLIM_INFINITY or number <= highest_descriptor(soft, is_local=is_local)
