"""The groups of one queue that can be received, in the order of their turns (GRP-15, PBT-16).

Reads:  the messages of groups in the window, the clock.      Calls: ageing.
Never:  locks a group or dequeues a message, or knows the backlog.

A group has at most one valid entry: the one it refers to (`Group.entry`). Only an unlocked group
with messages in the window that is not held has one. Other entries on the heap are stale, and are
dropped when they come first, or when there are too many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

from brokerd.broker.ageing import Ageing, oldest_at
from brokerd.broker.state import Group, Holder, HomeQueue, Live
from brokerd.clock import Instant

_STALE = 1000
"""The number of stale heap entries that is tolerated, however few other entries there are."""
NEXT_UP = 16
"""The number of groups next in turn that are checked for messages to load ahead."""


class ReadyGroups:
    """The unlocked groups with messages in the window, the one whose turn is next first."""

    __slots__ = ("_ageing", "_heap", "_home", "_limit", "_utc")

    def __init__(self, home: HomeQueue, utc: Callable[[], Instant]) -> None:
        """Create the ready groups of `home`; groups that moved to another queue are left out."""
        self._home = home
        self._utc = utc
        self._heap: list[tuple[int, int, Group]] = []
        self._limit = _STALE
        self._ageing: Ageing | None = None

    def use_ageing(self, interval: int | None) -> Ageing | None:
        """Start or stop the ageing of levels (PBT-16), and place the ready groups again."""
        if interval is None and self._ageing is None:
            return None
        self._ageing = None if interval is None else Ageing(interval, self._utc)
        entries, self._heap = self._heap, []
        for entry in entries:
            group = entry[2]
            if group.entry is entry:
                group.entry = None
                self.put(group)
        return self._ageing

    def put(self, group: Group) -> None:
        """Give an unlocked group its place, unless its present place is as good."""
        known, place = group.entry, self.place(group)
        if known is not None and known[:2] <= place:
            return
        entry = group.entry = (*place, group)
        heappush(self._heap, entry)
        if len(self._heap) > self._limit:
            self._drop_stale()
        if self._ageing is not None:
            self._ageing.watch(group)

    def _drop_stale(self) -> None:
        """Drop the entries of groups locked since, because receives may never pop them."""
        self._heap = [entry for entry in self._heap if entry[2].entry is entry]
        heapify(self._heap)
        self._limit = 2 * len(self._heap) + _STALE

    def place(self, group: Group, but: Collection[Live] = ()) -> tuple[int, int]:
        """Return the rank of a group among the others, lowest first (GRP-15, PBT-16).

        `but`: conversations of the group that do not count."""
        ready = group.ready
        if len(ready) == 1 and not but:
            (live,) = ready.values()
            level, order = live.endpoint.priority, _oldest(live)
        else:
            level, order = _rank(group.with_messages(but))
        if self._ageing is not None:
            level = self._ageing.level(level, oldest_at(group))
        return -level, order

    def first(self) -> tuple[int, int, Group] | None:
        """Return the entry of the best unlocked group; None if there is none."""
        if self._ageing is not None:
            for group in self._ageing.risen():
                if group.queue is self._home:  # else its service has moved to another (OBJ-35)
                    self.put(group)
                    self._ageing.watch(group)
        heap = self._heap
        while heap:
            entry = heap[0]
            if entry[2].entry is entry:
                return entry
            heappop(heap)
        return None

    def best(self, holder: Holder, but: Container[Group] = ()) -> Group | None:
        """Return the group that an unselective receive of this transaction takes (RCV-3).

        The group is unlocked, or locked by the transaction. `but`: groups of the transaction to
        skip (GRP-16)."""
        first = self.first()
        ended = holder.ended
        own: list[Group] = []
        for group in list(holder.ready):
            if not group.ready:  # all of its messages are received
                del holder.ready[group]
                continue
            is_here = group.queue is self._home and group.held is None
            if is_here and group not in but and group.with_messages(ended):
                own.append(group)
        if not own:
            return None if first is None else first[2]
        place, mine = min((self.place(one, ended), at) for at, one in enumerate(own))
        return first[2] if first is not None and first[:2] < place else own[mine]

    def count(self, most: int) -> int:
        """Count the unlocked groups in memory that have messages, up to `most`."""
        free = (entry for entry in self._heap if entry[2].entry is entry and entry[2].ready)
        return sum(1 for _ in islice(free, most))

    def next_up(self) -> list[Group]:
        """Return the few groups that are likely to be received next, in order."""
        return [one for _, _, one in sorted(self._heap[:NEXT_UP]) if one.entry is not None]

    def oldest_by_level(self) -> dict[int, Instant]:
        """Return when the oldest message of the first group of each level was enqueued."""
        first: dict[int, tuple[int, int, Group]] = {}
        for entry in self._heap:  # all of it: it is ordered by level, and holds stale entries
            level, order, group = entry
            if group.entry is entry and group.ready:
                known = first.get(level)
                if known is None or order < known[1]:
                    first[level] = entry
        return {-level: oldest_at(group) for level, (_, _, group) in first.items()}


def _rank(lives: Sequence[Live]) -> tuple[int, int]:
    """Return the level of a group, and the order of its oldest message of that level (GRP-15).

    Messages of lower levels may be older; they may be in the backlog, and do not count."""
    level = max(live.endpoint.priority for live in lives)
    return level, min(_oldest(live) for live in lives if live.endpoint.priority == level)


def _oldest(live: Live) -> int:
    """Return the order of a conversation's oldest message; an Error is first whatever its order."""
    first = live.ready[0]
    if first.sequence < 0:
        return min(message.order for message in live.ready)
    return first.order
