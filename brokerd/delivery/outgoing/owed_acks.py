"""Acknowledgements that wait a moment for a fragment that could carry them (DLP-18, DLP-19).

Reads: nothing.      Calls: `due`, when the delay of an acknowledgement is over.
Never: makes or sends an acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.clock import Clock

_CLOSE = 0.001
"""Seconds by which a timer may be early."""


class OwedAcks:
    """One timer for all dialogs, since all of them wait equally long."""

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
        """Make an acknowledgement due after the delay, unless a fragment carries it before."""
        due = self._clock.monotonic() + self._delay
        out.acks.due(due)
        self._line.append((due, out, broker))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._expired)

    def hurry(self) -> None:
        """Make all of them due now, because their connections are about to close (DLP-19)."""
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
