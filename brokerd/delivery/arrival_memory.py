"""Memory that arrivals take until they are stored, and when to stop reading (DSP-10, TRN-34).

Reads: what it is told.      Calls: pause and resume of the transport.
Never: drops anything; it only says that there is no room.
"""

from __future__ import annotations

from collections.abc import Callable


class ArrivalMemory:
    """Bytes held for all dialogs of the instance."""

    __slots__ = ("_hard", "_high", "_low", "_pause", "_paused", "_resume", "size")

    def __init__(
        self,
        *,
        low: int,
        high: int,
        hard: int,
        pause: Callable[[], None],
        resume: Callable[[], None],
    ) -> None:
        self._low = low
        self._high = high
        self._hard = hard
        self._pause = pause
        self._resume = resume
        self._paused = False
        self.size = 0

    def has_room(self, size: int) -> bool:
        """Whether so much more stays below the hard limit (DSP-10)."""
        return self.size + size <= self._hard

    def check(self) -> None:
        """Stop reading from peers above the high mark, go on below the low one."""
        if not self._paused and self.size > self._high:
            self._paused = True
            self._pause()
        elif self._paused and self.size < self._low:
            self._paused = False
            self._resume()
