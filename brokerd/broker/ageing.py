"""Ageing: groups that wait long at a queue are chosen ahead of their level (PBT-16).

Reads: the clock.      Calls: nothing.
Never: changes the level of an endpoint, or the order within a group; it only affects which group
is chosen next.

A group gains one level for each interval that its oldest message has waited, up to the highest
level. From then on the oldest message decides (GRP-15), so a group is chosen after ten intervals
at the latest, however many other messages arrive. A queue without the option has no ageing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from brokerd.broker.state import Group
from brokerd.clock import Instant

HIGHEST: Final = 10
"""The highest level (OBJ-48)."""
_LEAST: Final = 1000
"""Number of watched groups up to which locked or emptied groups are not dropped."""


class Ageing:
    """The rise of levels at one queue, and the groups in memory whose level is about to rise."""

    def __init__(self, interval: int, now: Callable[[], Instant]) -> None:
        """Create the ageing of a queue; `interval` in microseconds."""
        self._interval = interval
        self._now = now
        self._due: list[tuple[int, int, Group]] = []
        self._watched: set[Group] = set()
        self._count = 0
        self._most = _LEAST

    def level(self, level: int, since: int) -> int:
        """Return the level to which `level` rises for a message that has waited since `since`."""
        return min(HIGHEST, level + max(0, self._now() - since) // self._interval)

    def watch(self, group: Group) -> None:
        """Watch a group that waits to be chosen, so that `risen` returns it in time."""
        if group in self._watched:
            return
        waited = max(0, self._now() - oldest_at(group))
        next_at = self._now() + self._interval - waited % self._interval
        self._count += 1
        self._watched.add(group)
        heappush(self._due, (next_at, self._count, group))
        if len(self._due) > self._most:
            self._forget_those_gone()

    def risen(self) -> Iterator[Group]:
        """Yield the groups that have risen by now, unless they were locked or emptied since."""
        now = self._now()
        while self._due and self._due[0][0] <= now:
            _, _, group = heappop(self._due)
            self._watched.discard(group)
            if group.entry is not None:
                yield group

    def _forget_those_gone(self) -> None:
        """Drop groups that were locked or emptied; `watch` adds them when they wait again."""
        self._due = [due for due in self._due if due[2].entry is not None]
        heapify(self._due)
        self._watched = {group for _, _, group in self._due}
        self._most = max(_LEAST, 2 * len(self._due))


def oldest_at(group: Group) -> Instant:
    """Return the enqueue instant of the oldest message at the head of a conversation."""
    return min(live.ready[0].enqueued_at for live in group.ready.values())
