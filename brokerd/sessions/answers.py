"""What is written to one client, gathered for a turn of the loop.

Reads: nothing.      Calls: the transport.
Never: keeps more than a write's worth: a long answer is written at once (CLP-62).
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from brokerd.protocol import client_frames as frames

_WRITE_NOW: Final = 256 * 1024


class Answers:
    """Frames that wait to be written; requests done without a value share one frame."""

    __slots__ = ("_done", "_loop", "_out", "_scheduled", "_size", "transport")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: list[int] = []
        self._out: list[bytes] = []
        self._size = 0
        self._scheduled = False
        self.transport: asyncio.Transport | None = None
        """None = nobody is connected: what is written is lost."""

    def done(self, requests: Sequence[int]) -> None:
        """These requests succeeded and have no value."""
        self._done += requests
        if not self._scheduled:
            self._schedule()

    def write(self, data: bytes) -> None:
        """A frame, behind all that is done."""
        self._gather_done()
        self._out.append(data)
        self._size += len(data)
        if self._size > _WRITE_NOW:
            self._write_out()
        elif not self._scheduled:
            self._schedule()

    def write_large(self, pieces: list[frames.Piece]) -> None:
        """Frames that are in pieces, too large to be copied once more."""
        self.flush()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(pieces)

    def flush(self) -> None:
        """Write what has gathered, at once."""
        self._scheduled = False
        self._gather_done()
        self._write_out()

    def _gather_done(self) -> None:
        if self._done:
            self._out.append(frames.encode_done(self._done))
            self._done = []

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self.flush)

    def _write_out(self) -> None:
        out, self._out, self._size = self._out, [], 0
        if self.transport is not None and out and not self.transport.is_closing():
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
