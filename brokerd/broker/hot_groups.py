"""The conversation groups with the most messages of a queue (D12).

Reads:  the number of received messages of each group.      Calls: nothing.
Never:  remembers more than `MOST` groups, or costs a message anything: it is called once for all
        messages of a conversation that a receive dequeued.

When there are too many groups, only the `KEPT` largest stay, and the count of the largest group
that is dropped is subtracted from all counts. The subtracted amounts add up to at most
`received / (KEPT + 1)`. So every group with more messages than this bound is known, and its count
is too small by at most the bound. Counts and bounds of several windows are merged by adding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from brokerd.ids import GroupId, show

KEPT: Final = 256
MOST: Final = 2 * KEPT
"""Groups remembered at once; dropping half of them at a time costs little for each."""
LISTED: Final = 20
LEAST_PART: Final = 0.01
"""The least share of a window's messages with which a group is listed."""


class HotWindow(msgspec.Struct, frozen=True):
    """The messages received since the last window, by group."""

    groups: dict[str, int]
    """The largest groups, with a lower bound of the number of messages of each."""
    within: int
    """Upper bound of the undercount of each listed group, and of the count of any unlisted one."""


class HotGroups:
    """The counts of one queue, collected by the metrics log every few minutes."""

    __slots__ = ("_counts", "_received", "_within")

    def __init__(self) -> None:
        self._counts: dict[GroupId, int] = {}
        self._received = self._within = 0

    def add(self, received: Iterable[tuple[GroupId, int]]) -> None:
        """Count durable receives, each a number of messages of a group."""
        counts = self._counts
        for group, messages in received:
            counts[group] = counts.get(group, 0) + messages
            self._received += messages
            if len(counts) > MOST:
                counts = self._forget()

    def collect(self) -> HotWindow | None:
        """Return the counts since the last call, and restart them; None = nothing was received."""
        if not self._received:
            return None
        ordered = sorted(self._counts.items(), key=lambda one: (-one[1], one[0]))
        least = self._received * LEAST_PART
        largest = [one for one in ordered[:LISTED] if one[1] >= least]
        next_one = ordered[len(largest)][1] if len(largest) < len(ordered) else 0
        window = HotWindow(
            groups={show(group): count for group, count in largest}, within=self._within + next_one
        )
        self._counts = {}
        self._received = self._within = 0
        return window

    def _forget(self) -> dict[GroupId, int]:
        floor = sorted(self._counts.values(), reverse=True)[KEPT]
        self._counts = {group: n - floor for group, n in self._counts.items() if n > floor}
        self._within += floor
        return self._counts
