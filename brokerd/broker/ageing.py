"""Ageing: who waits long at a queue is chosen before its level would have it (PBT-16).

Reads: the clock.      Calls: nothing.
Never: changes a level that anybody sees, or the order within a group; it counts for choosing only.

A group gains one level for each interval that its oldest message has waited, up to the highest
level there is. From there on the oldest message decides (GRP-15), so a group is chosen after ten
intervals however many others come. A queue without the option has none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from brokerd.clock import Instant

if TYPE_CHECKING:
    from brokerd.broker.groups import Group

HIGHEST: Final = 10
"""The highest level (OBJ-48)."""
_LEAST: Final = 1000
"""Groups that are watched before it is asked which of them are gone."""


class Ageing:
    """How levels rise at one queue, and which groups in memory are about to rise."""

    def __init__(self, interval: int, now: Callable[[], Instant]) -> None:
        """`interval` in microseconds."""
        self._interval = interval
        self._now = now
        self._due: list[tuple[int, int, Group]] = []
        self._watched: set[Group] = set()
        self._count = 0
        self._most = _LEAST

    def level(self, level: int, since: int) -> int:
        """What a level has become for who waits since then."""
        return min(HIGHEST, level + max(0, self._now() - since) // self._interval)

    def watch(self, group: Group) -> None:
        """The group waits to be chosen: see to it that it rises in time."""
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
        """Groups that have a higher level by now, unless they were locked or emptied since."""
        now = self._now()
        while self._due and self._due[0][0] <= now:
            _, _, group = heappop(self._due)
            self._watched.discard(group)
            if group.entry is not None:
                yield group

    def _forget_those_gone(self) -> None:
        """Groups that were locked or emptied are watched anew when they wait again."""
        self._due = [due for due in self._due if due[2].entry is not None]
        heapify(self._due)
        self._watched = {group for _, _, group in self._due}
        self._most = max(_LEAST, 2 * len(self._due))


def oldest_at(group: Group) -> Instant:
    """When the message was enqueued that has waited longest at the head of a conversation."""
    return min(live.ready[0].enqueued_at for live in group.ready.values())
