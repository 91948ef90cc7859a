"""Acknowledgements that wait a moment, since something may carry them (DLP-18, DLP-19).

Reads: nothing.      Calls: back, when the wait of one is over.
Never: makes or sends an acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from brokerd.broker.broker import Broker
from brokerd.broker.transmission import Outgoing
from brokerd.clock import Clock

_CLOSE = 0.001
"""Seconds that do not matter."""


class OwedAcks:
    """One timer for all dialogs, since all wait equally long."""

    __slots__ = ("_clock", "_delay", "_due", "_homes", "_line", "_timer")

    def __init__(
        self, *, clock: Clock, delay: float, due: Callable[[Broker, Outgoing], None]
    ) -> None:
        self._clock = clock
        self._delay = delay
        self._due = due
        self._line: deque[Outgoing] = deque()
        self._homes: dict[Outgoing, Broker] = {}
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, broker: Broker, out: Outgoing) -> None:
        """It owes one; soon it is due, unless a fragment has carried it."""
        self._homes[out] = broker
        out.ack_at = self._clock.monotonic() + self._delay
        self._line.append(out)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._expired)

    def _expired(self) -> None:
        """The wait of the oldest owed acks is over; those that rode along are not owed any more."""
        self._timer = None
        now = self._clock.monotonic()
        while self._line:
            out = self._line[0]
            broker = self._homes.get(out)
            if out.ack_at is None or broker is None:
                self._line.popleft()
                self._homes.pop(out, None)
            elif out.ack_at <= now + _CLOSE:
                self._line.popleft()
                self._homes.pop(out, None)
                self._due(broker, out)
            else:
                self._timer = asyncio.get_running_loop().call_later(out.ack_at - now, self._expired)
                return
