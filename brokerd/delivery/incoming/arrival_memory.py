"""Memory of arrivals until they are stored, and when to stop reading (DSP-10, TRN-34).

Reads: its arguments.      Calls: pause and resume of the transport.
Never: drops anything; it only reports that there is no room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from brokerd.ids import InstanceId

if TYPE_CHECKING:
    from brokerd.delivery.incoming.dialogs import ArrivingDialog


class ArrivalMemory:
    """The bytes that the arrivals of all dialogs of the instance take in memory."""

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
        """Return whether `size` more bytes stay within the hard limit (DSP-10)."""
        return self.size + size <= self._hard

    def check(self) -> None:
        """Pause reading from peers above the high mark, and resume it below the low mark."""
        if not self._paused and self.size > self._high:
            self._paused = True
            self._pause()
        elif self._paused and self.size < self._low:
            self._paused = False
            self._resume()


class EarlyShares:
    """Memory of early fragments, which wait for a gap to close, by the peer that brought them.

    Only the missing fragment or a tick ends their wait, so one peer could fill all memory and stop
    the reading from all others. A peer may hold at most as much as it leaves free for the others
    (DSP-16)."""

    __slots__ = ("_by_peer", "_limit", "_total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._by_peer: Counter[InstanceId | None] = Counter()

    def has_room(self, peer: InstanceId | None, size: int) -> bool:
        """Return whether this peer may hold `size` more bytes."""
        return self._by_peer[peer] + size <= self._limit - self._total - size

    def update(self, one: ArrivingDialog) -> None:
        """Update the count with the early bytes that a dialog holds now, and their peer."""
        held = 0 if one.arrivals is None else one.arrivals.early_size
        before, peer = one.early_counted
        if held == before and peer == one.neighbour:
            return
        self._add(peer, -before)
        self._add(one.neighbour, held)
        one.early_counted = held, one.neighbour

    def _add(self, peer: InstanceId | None, size: int) -> None:
        self._total += size
        self._by_peer[peer] += size
        if not self._by_peer[peer]:
            del self._by_peer[peer]
