"""Which conversation groups a queue's messages belong to: the few that have many of them (D12).

Reads:  how many messages of which group were received.      Calls: nothing.
Never:  remembers more than `MOST` groups, or costs a message anything: it is told once for all
        that a receive took of a conversation.

A group is forgotten when too many others come: then as much is taken from the count of each as the
largest of those has that do not stay. That is at most `received / (KEPT + 1)` in all, so whatever
has more than that many messages is there, and its count is too small by so much at most. Counts of
several windows, and what they may lack, are merged by adding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from brokerd.ids import show

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokerd.ids import GroupId

KEPT: Final = 256
MOST: Final = 2 * KEPT
"""Groups remembered at once; to forget half of them at a time costs little for each."""
TOLD: Final = 20
LEAST_PART: Final = 0.01
"""Of those, a window tells the largest that have such a part of its messages."""


class HotWindow(msgspec.Struct, frozen=True):
    """What was received since the last window, by group."""

    groups: dict[str, int]
    """The largest groups, and how many messages at least were theirs."""
    within: int
    """So many more each of them may have had at most, and any other group in all."""


class HotGroups:
    """Counted by the queue, taken by the metrics log once in a few minutes."""

    __slots__ = ("_counts", "_received", "_within")

    def __init__(self) -> None:
        self._counts: dict[GroupId, int] = {}
        self._received = self._within = 0

    def add(self, received: Iterable[tuple[GroupId, int]]) -> None:
        """Receives of so many messages of groups are durable."""
        counts = self._counts
        for group, messages in received:
            counts[group] = counts.get(group, 0) + messages
            self._received += messages
            if len(counts) > MOST:
                counts = self._forget()

    def take(self) -> HotWindow | None:
        """What was counted since the last call; None = nothing. Counting starts anew."""
        if not self._received:
            return None
        ordered = sorted(self._counts.items(), key=lambda one: (-one[1], one[0]))
        least = self._received * LEAST_PART
        told = [one for one in ordered[:TOLD] if one[1] >= least]
        next_one = ordered[len(told)][1] if len(told) < len(ordered) else 0
        window = HotWindow(
            groups={show(group): count for group, count in told}, within=self._within + next_one
        )
        self._counts = {}
        self._received = self._within = 0
        return window

    def _forget(self) -> dict[GroupId, int]:
        floor = sorted(self._counts.values(), reverse=True)[KEPT]
        self._counts = {group: n - floor for group, n in self._counts.items() if n > floor}
        self._within += floor
        return self._counts
