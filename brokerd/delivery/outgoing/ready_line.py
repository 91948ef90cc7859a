"""Whose turn it is to send to one destination: by level, then in the order of coming (OBJ-59).

Reads: the level of what waits.      Calls: nothing.
Never: sends; the transmitter does, with what it finds here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container

from brokerd.broker.outgoing import Outgoing
from brokerd.model import DEFAULT_PRIORITY


class Turns:
    """The dialogs that have something for one destination, those of the highest level first.

    One that has waited for `starvation` seconds counts as a level higher, and for each so many
    seconds again as one more (TRN-42). The level is looked at when a dialog joins, so one that has
    more to send than one turn takes picks up a new level between two turns (OBJ-57)."""

    __slots__ = ("_chosen", "_levels", "_now", "_starvation")

    def __init__(self, *, now: Callable[[], float], starvation: float) -> None:
        self._now = now
        self._starvation = starvation
        self._levels: dict[int, deque[tuple[float, Outgoing]]] = {}
        self._chosen = DEFAULT_PRIORITY

    def __bool__(self) -> bool:
        return bool(self._levels)

    def __len__(self) -> int:
        return sum(map(len, self._levels.values()))

    def append(self, out: Outgoing) -> None:
        """It joins behind those of its level."""
        level = out.level
        line = self._levels.get(level)
        if line is None:
            line = self._levels[level] = deque()
        line.append((self._now(), out))

    def first(self) -> Outgoing:
        """Whose turn it is; there is somebody."""
        self._chosen = self._next()
        return self._levels[self._chosen][0][1]

    @property
    def level(self) -> int:
        """The level of who is next, with what waiting has added; there is somebody."""
        level = self._next()
        return level + int((self._now() - self._levels[level][0][0]) / self._starvation)

    @property
    def elevation(self) -> int:
        """Levels that the one which `first` gave has gained by waiting (TRN-42)."""
        return int((self._now() - self._levels[self._chosen][0][0]) / self._starvation)

    def leave(self) -> None:
        """Its turn is over: the one that `first` gave leaves."""
        line = self._levels[self._chosen]
        line.popleft()
        if not line:
            del self._levels[self._chosen]

    def drop(self, ids: Container[int]) -> None:
        """Those with one of these identities (`id`) leave, whose turn it was or not (MAN-3)."""
        for level, line in list(self._levels.items()):
            kept = deque(entry for entry in line if id(entry[1]) not in ids)
            if kept:
                self._levels[level] = kept
            else:
                del self._levels[level]

    def _next(self) -> int:
        levels = self._levels
        if len(levels) == 1:
            return next(iter(levels))
        now = self._now()

        def rank(level: int) -> tuple[int, float]:
            since = levels[level][0][0]
            return level + int((now - since) / self._starvation), -since

        return max(levels, key=rank)
