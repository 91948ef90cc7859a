"""Timers of the dialogs: when to send again, and when to acknowledge (DLP-18, DLP-19, DLP-27).

Reads: when the window of a dialog, or its acknowledgement, is due.      Calls: `due`, for each.
Never: decides what is sent again (the window does, `protocol.sending`), or makes acknowledgements.

Retransmissions and acknowledgements each have one timer of the event loop for all dialogs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.clock import Clock

_CLOSE = 0.001
"""Seconds by which a timer may fire early."""
FEW = 1024
"""Number of heap entries up to which stale ones are not removed."""


class RetransmissionTimers:
    """A heap of timers; a dialog whose timer moved to an earlier time has a second, stale entry.

    An entry is stale, too, if its dialog is gone or has nothing outstanding. A stale entry
    keeps the dialog in memory until it comes due, so such entries are removed once they may be half
    of all.
    """

    __slots__ = ("_at", "_clock", "_count", "_due", "_heap", "_most", "_timer")

    def __init__(self, *, clock: Clock, due: Callable[[Outgoing, float], None]) -> None:
        self._clock = clock
        self._due = due
        self._heap: list[tuple[float, int, Outgoing]] = []
        self._count = 0
        self._most = FEW
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def arm(self, out: Outgoing) -> None:
        """Schedule the check of the dialog's timer at its due time (DLP-27)."""
        due = out.window.due
        if due is None or (out.route.timer and out.route.timer <= due):
            return
        out.route.timer_armed(due)
        self._count += 1
        heappush(self._heap, (due, self._count, out))
        if len(self._heap) > self._most:
            self._throw_out()
        self._set()

    def _throw_out(self) -> None:
        awaited = []
        for entry in self._heap:
            at, _, out = entry
            if out.route.timer != at:
                continue
            if out.window.due is None or out.live.gone:
                out.route.timer_disarmed()
            else:
                awaited.append(entry)
        heapify(awaited)
        self._heap, self._most = awaited, max(FEW, 2 * len(awaited))

    def _set(self) -> None:
        if not self._heap:
            return
        first = self._heap[0][0]
        if self._timer is not None:
            if self._at <= first:
                return
            self._timer.cancel()
        self._at = first
        wait = max(0.0, first - self._clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(wait, self._expired)

    def _expired(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now + _CLOSE:
            at, _, out = heappop(self._heap)
            if out.route.timer != at:
                continue
            out.route.timer_disarmed()
            due = out.window.due
            if due is None or out.held or out.live.gone:
                continue
            if due > now + _CLOSE:  # an ack has moved it since it was armed
                self.arm(out)
                continue
            self._due(out, now)
        self._set()


class AckTimers:
    """Acknowledgements that wait a moment for a fragment that could carry them (DLP-18, DLP-19).

    All wait for the same time."""

    __slots__ = ("_clock", "_delay", "_due", "_line", "_timer")

    def __init__(
        self, *, clock: Clock, delay: float, due: Callable[[Broker, Outgoing], None]
    ) -> None:
        self._clock = clock
        self._delay = delay
        self._due = due
        self._line: deque[tuple[float, Outgoing, Broker]] = deque()
        # Sorted by due time, as the delay is constant. A dialog that owes another ack after one was
        # carried is in it twice; `due_at` says which entry counts.
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, broker: Broker, out: Outgoing) -> None:
        """Make an acknowledgement due after the delay, unless a fragment carries it earlier."""
        due = self._clock.monotonic() + self._delay
        out.acks.due(due)
        self._line.append((due, out, broker))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._expired)

    def expire_all(self) -> None:
        """Make all waiting acknowledgements due now: connections are about to close (DLP-19)."""
        line = list(self._line)
        self._line.clear()
        for due, out, broker in line:
            if out.acks.due_at == due:
                self._due(broker, out)

    def _expired(self) -> None:
        """Call `due` for each ack whose delay is over and that no fragment has carried."""
        self._timer = None
        now = self._clock.monotonic()
        while self._line:
            due, out, broker = self._line[0]
            if due > now + _CLOSE:
                self._timer = asyncio.get_running_loop().call_later(due - now, self._expired)
                return
            self._line.popleft()
            if out.acks.due_at == due:
                self._due(broker, out)
