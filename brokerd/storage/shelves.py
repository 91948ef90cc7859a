"""Shelves: tables that are emptied at once, for messages beyond a window (design D4).

Reads:  nothing.      Calls: nothing.
Never:  gives a shelf to another queue while a message may be on it.

To delete a message by its number takes SQLite longer than anything else that is done with it, as
each page that it leaves is written once more. To empty a whole table takes a twentieth of that, as
its pages are only given back. So what is written beyond the window of a queue goes on a shelf, a
table that has messages of this queue only, some tens of thousands; when the last of them has been
received, the shelf is emptied. It is full with as many messages, or bytes, as a window has: so much
may lie there that was received long ago. The number of shelves is fixed. Where all are taken, the
newest shelf of a queue grows on, and a queue without one writes where messages in windows are; what
is received there is deleted by number.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from brokerd.ids import QueueKey

NO_SHELF: Final = 1
"""The place of messages beyond a window that are on no shelf; with those in windows."""
SHELVES: Final = range(2, 18)
"""Numbers of the shelves."""
PLACES: Final = (NO_SHELF, *SHELVES)
"""Wherever messages may be that wait for a local service."""


class Shelf:
    """One that is taken."""

    __slots__ = ("added", "bytes", "coming", "first", "is_counted", "live", "number", "queue")

    def __init__(self, number: int, queue: QueueKey | None, first: int, live: int) -> None:
        self.number = number
        self.queue = queue
        """Whose messages it has; None = of several queues, as services have changed theirs."""
        self.first = first
        """No message on it has a lower queuing order."""
        self.live = live
        """Messages on it that are not removed, with all flushes begun so far."""
        self.is_counted = True
        """Whether `live` is right: nobody counts what goes by index."""
        self.added = live
        """Messages put on it, as far as this process knows."""
        self.bytes = 0
        """Bytes of bodies that these have."""
        self.coming = 0
        """Messages that have their place on it and are in no flush that has begun."""


class Place(NamedTuple):
    """A place to read."""

    number: int
    first: int
    """No message there has a lower queuing order."""


_OTHERS: Final = Place(NO_SHELF, 0)


class Places(NamedTuple):
    """All that are to be read for some messages."""

    each: Sequence[Place]
    """The lowest first."""
    before: int
    """The queuing order that was given next when they were these."""


class _Open(dict[QueueKey, Shelf]):
    """The shelf on which the next message of a queue goes."""

    def __init__(self, take_one: Callable[[QueueKey], Shelf]) -> None:
        super().__init__()
        self._take_one = take_one

    def __missing__(self, queue: QueueKey) -> Shelf:
        shelf = self[queue] = self._take_one(queue)
        return shelf


class Shelves:
    """Which shelf has what."""

    def __init__(
        self,
        *,
        size: int,
        size_bytes: int,
        found: Sequence[Shelf],
        has_others: bool,
        coming_order: Callable[[], int],
    ) -> None:
        """`size`: messages from which on a shelf is full, or so many bytes; 0 = none is used.
        `has_others`: whether there are messages beyond windows on no shelf. `coming_order`: the
        queuing order that is given next."""
        self._size = size
        self._size_bytes = size_bytes
        self._coming_order = coming_order
        self._none = Shelf(NO_SHELF, None, 0, 0)
        found = sorted(found, key=lambda one: one.first)
        self._taken = {shelf.number: shelf for shelf in found}  # and later ones behind: by `first`
        self._free = [number for number in SHELVES if number not in self._taken] if size else []
        self._has_others = has_others
        self._joined: set[int] = set()
        self._open = _Open(self._take_one)
        for shelf in found:
            if shelf.added < size and shelf.queue is not None:
                self._open[shelf.queue] = shelf

    @property
    def taken(self) -> Sequence[int]:
        """Numbers of the shelves that may have messages."""
        return list(self._taken)

    def place(self, queue: QueueKey) -> int:
        """The place of one more message that stays beyond the window of its queue."""
        shelf = self._open[queue]
        shelf.coming += 1
        return shelf.number

    def _take_one(self, queue: QueueKey) -> Shelf:
        """A shelf for a queue that has none to write to."""
        if not self._free:
            self._has_others = True
            return self._none
        number = self._free.pop(0)
        # The message that asks for it may have its order already.
        shelf = self._taken[number] = Shelf(number, queue, self._coming_order() - 1, 0)
        return shelf

    def of(self, queue: QueueKey | None) -> Places:
        """Where a queue, or any, may have messages beyond its window."""
        others = [_OTHERS] if self._has_others else []
        return Places([*others, *self._shelves_of(queue)], self._coming_order())

    def all(self) -> Places:
        """Where messages may be, beyond windows or not."""
        return Places([_OTHERS, *self._shelves_of(None)], self._coming_order())

    def _shelves_of(self, queue: QueueKey | None) -> list[Place]:
        return [
            Place(shelf.number, shelf.first)
            for shelf in self._taken.values()
            if queue is None or shelf.queue in {queue, None}
        ]

    def moved(self) -> None:
        """Messages of some queue have gone to another one: it may have some on all shelves."""
        for shelf in self._taken.values():
            shelf.queue = None

    # What a flush does; all of it in the order in which flushes begin.

    def begin(self) -> None:
        """A flush begins."""
        self._joined.clear()

    def joined(self, number: int, count: int, size: int) -> None:
        """So many messages of that size together have this place, or are gone by index before they
        get there."""
        self._has_others |= number == NO_SHELF
        shelf = self._taken.get(number)
        if shelf is None:
            return
        shelf.coming -= count
        shelf.live += count
        self._joined.add(number)
        shelf.added += count
        shelf.bytes += size
        is_full = shelf.added >= self._size or shelf.bytes >= self._size_bytes
        if is_full and self._free:
            self._close(number)

    def on(self, number: int, orders: Sequence[int]) -> Sequence[int]:
        """Those of the messages that are on it as it is now: one that went by index may be received
        yet by a transaction that had it before, after its shelf was given to somebody else."""
        shelf = self._taken.get(number)
        if shelf is None:
            return ()
        if min(orders) < shelf.first:
            return [order for order in orders if order >= shelf.first]
        return orders

    def removed(self, number: int, count: int) -> bool:
        """So many are removed by number; whether none is left, nor will come.

        Not where the same flush puts some on it, which it does after all that it removes."""
        shelf = self._taken[number]
        shelf.live -= count
        is_over = shelf.is_counted and not shelf.live and not shelf.coming
        return is_over and number not in self._joined

    def lost_count(self) -> None:
        """Messages are removed by index, from whatever shelf: each is given back only when nothing
        is found there."""
        for shelf in self._taken.values():
            shelf.is_counted = False

    def perhaps_empty(self, *, is_writing: bool) -> dict[int, int]:
        """Shelves of which a look can tell whether they are empty, and what was put on each.

        None on which the flush puts some that is being written, if one is: while the disk is full
        it is written again and again."""
        but = self._joined if is_writing else ()
        return {
            shelf.number: shelf.added
            for shelf in self._taken.values()
            if not shelf.coming
            and shelf.number not in but
            and not (shelf.is_counted and shelf.live)
        }

    def is_as_it_was(self, number: int, added: int) -> bool:
        """Whether nothing was put on it since, nor will be."""
        shelf = self._taken.get(number)
        return shelf is not None and shelf.added == added and not shelf.coming

    def give_back(self, number: int) -> None:
        """It is empty, or emptied by the flush that begins."""
        del self._taken[number]
        if self._size:
            self._free.append(number)
        self._close(number)
        self._close(NO_SHELF)

    def _close(self, number: int) -> None:
        """Whose messages went there get another shelf."""
        for queue in [queue for queue, shelf in self._open.items() if shelf.number == number]:
            del self._open[queue]
