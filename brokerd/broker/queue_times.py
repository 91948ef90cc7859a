"""Waiting times of the messages of one queue, by cause: histograms of committed receives (D12).

Reads:  the times it is given, all UTC microseconds of this instance.      Calls: metrics.
Never:  costs a message more than its own wait; the other times are measured for every eighth
        receive only.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.broker.hot_groups import HotGroups
from brokerd.broker.state import Taken
from brokerd.clock import Instant
from brokerd.telemetry.metrics import Histogram

_EVERY = 8


class QueueTimes:
    """The histograms of one queue, collected by the metrics log once an interval."""

    __slots__ = ("_turn", "handler", "hot", "queue", "retry", "wait")

    def __init__(self) -> None:
        self._turn = 0
        self.hot = HotGroups()
        """The groups with the most messages."""
        self.wait = Histogram()
        """For every message: time from its arrival to the commit of its receive."""
        self.queue = Histogram()
        """For a sample of receives: time from the arrival of the oldest message to the receive."""
        self.retry = Histogram()
        """As `queue`, for every receive whose messages had been given back before (RCV-30)."""
        self.handler = Histogram()
        """For the receives of `queue` and `retry`: time from the receive to its commit."""

    def consumed(self, taken: Sequence[Taken], now: Instant) -> None:
        """Count messages whose receives have become durable."""
        self.wait.add_all([now - one.enqueued_at for each in taken for one in each.messages])
        self.hot.add([(live.group.group_id, len(messages)) for live, messages, _, _ in taken])
        turn = self._turn
        for _, messages, _, received_at in taken:
            first = messages[0]
            turn += 1
            if first.deliveries:
                self.retry.add(received_at - first.enqueued_at)
            elif turn % _EVERY:
                continue
            else:
                self.queue.add(received_at - first.enqueued_at)
            self.handler.add(now - received_at)
        self._turn = turn

    def collect(self) -> dict[str, dict[str, int]]:
        """Return the counts since the last call, by the name of the histogram."""
        named = {
            "wait_us": self.wait,
            "queue_us": self.queue,
            "retry_us": self.retry,
            "handler_us": self.handler,
        }
        return {name: one.drain() for name, one in named.items() if one.count}
