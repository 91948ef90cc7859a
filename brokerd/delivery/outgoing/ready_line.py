"""Order in which dialogs send to one destination: by level, then first come first served (OBJ-59).

Reads: the levels of the dialogs.      Calls: nothing.
Never: sends; the transmitter does, with the dialogs that the line returns.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Container

from brokerd.broker.outgoing import Outgoing
from brokerd.model import DEFAULT_PRIORITY
from brokerd.telemetry.metrics import Histogram


class Turns:
    """The dialogs that have something for one destination, those of the highest level first.

    A dialog gains one level for each `starvation` seconds that it has waited (TRN-42). Its own
    level is read when it joins, so a changed level takes effect when the dialog joins for its next
    turn (OBJ-57)."""

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
        """Append the dialog to the queue of its priority level."""
        level = out.level
        line = self._levels.get(level)
        if line is None:
            line = self._levels[level] = deque()
        line.append((self._now(), out))

    def first(self) -> Outgoing:
        """Choose and return the dialog whose turn it is; the line must not be empty."""
        self._chosen = self._next()
        return self._levels[self._chosen][0][1]

    @property
    def level(self) -> int:
        """The level of the next dialog, raised by its waiting time; the line must not be empty."""
        level = self._next()
        return level + int((self._now() - self._levels[level][0][0]) / self._starvation)

    @property
    def elevation(self) -> int:
        """Levels that the dialog returned by `first` has gained by waiting (TRN-42)."""
        return int((self._now() - self._levels[self._chosen][0][0]) / self._starvation)

    def leave(self) -> None:
        """Remove the dialog returned by `first`: its turn is over."""
        line = self._levels[self._chosen]
        line.popleft()
        if not line:
            del self._levels[self._chosen]

    def drop(self, ids: Container[int]) -> None:
        """Remove all dialogs whose `id()` is in `ids`, whether it is their turn or not (MAN-3)."""
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


class Line:
    """The dialogs that have something for one destination."""

    __slots__ = ("acks", "outbox", "ready", "wire")

    def __init__(self, ready: Turns) -> None:
        self.ready = ready
        self.acks: OrderedDict[Outgoing, None] = OrderedDict()
        """Dialogs whose acknowledgement or error is due, in the order in which they became due."""
        self.outbox = Histogram()
        """Time from SEND to first transmission, of at most one sampled message per turn."""
        self.wire = Histogram()
        """Time from transmission to acknowledgement, of one message at a time per dialog."""

    def withdraw(self, ids: Container[int]) -> None:
        """Remove all dialogs whose `id()` is in `ids` from this destination."""
        self.ready.drop(ids)
        self.acks = OrderedDict((out, None) for out in self.acks if id(out) not in ids)
