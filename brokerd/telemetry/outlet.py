"""Outlet: standard error as a pipe or socket, whose reader may have stopped reading (FR-7).

Reads:  nothing.      Calls: the descriptor, without waiting.
Never:  waits for room, or writes half a line: the rest of a line goes before the next one.
"""

import os
import socket
import stat
import threading
from typing import Final, Self, TextIO

_NOW: Final = getattr(socket, "MSG_DONTWAIT", 0)


class Outlet:
    """The far end of standard error, written to only where it has room."""

    def __init__(self, descriptor: int, stream: socket.socket | None) -> None:
        """Write to a socket, or to a descriptor that does not block."""
        self._descriptor = descriptor
        self._stream = stream
        self._rest = b""
        self._lock = threading.Lock()

    @classmethod
    def behind(cls, terminal: TextIO) -> Self | None:
        """Return an outlet for a stream that is a pipe or a socket; None = for any other.

        The descriptor itself stays as it is, because other processes share it.
        """
        try:
            number = terminal.fileno()
            mode = os.fstat(number).st_mode
            if stat.S_ISFIFO(mode):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                return cls(os.open(f"/proc/self/fd/{number}", flags), None)
            if stat.S_ISSOCK(mode) and _NOW:
                stream = socket.socket(fileno=os.dup(number))
                return cls(stream.fileno(), stream)
        except (OSError, ValueError):  # no descriptor, another user's pipe, or not Linux
            return None
        return None

    def write(self, line: bytes) -> bool:
        """Write a line; return False, with nothing of it written, if there is no room.

        Raises:
            OSError: the far end is gone.
        """
        with self._lock:  # the watchdog writes from its own thread
            try:
                if self._rest:
                    self._rest = self._rest[self._put(self._rest) :]
                    if self._rest:
                        return False
                self._rest = line[self._put(line) :]
            except BlockingIOError:
                return False
        return True

    def close(self) -> None:
        """Close the outlet; standard error itself stays open."""
        if self._stream is not None:
            self._stream.close()
        else:
            os.close(self._descriptor)

    def _put(self, data: bytes) -> int:
        if self._stream is not None:
            return self._stream.send(data, _NOW)
        return os.write(self._descriptor, data)
