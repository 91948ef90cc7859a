"""Frames for one client, gathered until the waiters of a flush, or of a loop turn, were notified.

Reads: whether an open transaction will be answered once more.      Calls: the transport.
Never: keeps more than one write may have: a long answer is written at once (CLP-62).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from brokerd.protocol import client_frames as frames

_WRITE_NOW: Final = 256 * 1024


class Answered(Protocol):
    """A transaction whose requests are answered."""

    @property
    def answers_by_itself(self) -> bool:
        """Whether one more answer comes without a further request (CLP-9)."""


class ResponseBuffer:
    """Frames that wait to be written; requests done without a value share one frame."""

    __slots__ = ("_done", "_out", "_scheduled", "_silent", "_size", "soon", "transport")

    def __init__(self) -> None:
        self.soon: Callable[[Callable[[], None]], object] = asyncio.get_running_loop().call_soon
        self._done: list[int] = []
        self._silent: list[Answered] = []  # those with requests in _done
        self._out: list[bytes] = []
        self._size = 0
        self._scheduled = False
        self.transport: asyncio.Transport | None = None
        """None = no client is connected: what is written is lost."""

    def done(self, requests: Sequence[int]) -> None:
        """Add requests that succeeded and have no value, and have them written soon."""
        self._done += requests
        if not self._scheduled:
            self._schedule()

    def done_inside(self, request: int, transaction: Answered) -> None:
        """Add a request of an open transaction that succeeded; `settle` decides when it is
        written."""
        self._done.append(request)
        if not self._silent or self._silent[-1] is not transaction:
            self._silent.append(transaction)

    @property
    def unwritten(self) -> int:
        """Number of requests that are done and not written yet."""
        return len(self._done)

    def settle(self, *, at_once: bool) -> None:
        """Schedule the write after all requests of a read were taken.

        It waits where a later answer of each transaction comes by itself and can carry these along,
        because each write wakes a program (CLP-9). `at_once`: it may not wait."""
        waits = not at_once and all(one.answers_by_itself for one in self._silent)
        if self._done and not self._scheduled and not waits:
            self._schedule()

    def write(self, data: bytes) -> None:
        """Add a frame, behind all requests that are done."""
        self._gather_done()
        self._out.append(data)
        self._size += len(data)
        if self._size > _WRITE_NOW:
            self._write_out()
        elif not self._scheduled:
            self._schedule()

    def write_large(self, pieces: list[frames.Piece]) -> None:
        """Write frames that are in pieces, too large to be copied once more."""
        self.flush()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(pieces)

    def flush(self) -> None:
        """Write the gathered frames now."""
        self._scheduled = False
        self._gather_done()
        self._write_out()

    def _gather_done(self) -> None:
        if self._done:
            self._out.append(frames.encode_done(self._done))
            self._done = []
            self._silent.clear()

    def _schedule(self) -> None:
        self._scheduled = True
        self.soon(self.flush)

    def _write_out(self) -> None:
        out, self._out, self._size = self._out, [], 0
        if self.transport is not None and out and not self.transport.is_closing():
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
