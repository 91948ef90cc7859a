"""Shelves: tables that are emptied as a whole, for messages beyond a window (design D4).

Reads:  nothing.      Calls: nothing.
Never:  gives a shelf to another queue while a message may be on it.

Deleting a message by its number takes SQLite longer than any other step in the message's life, as
each page that it leaves is written once more. Emptying a whole table takes a twentieth of the time,
as its pages are only freed. So messages beyond the window of a queue are written to a shelf, a
table that has some tens of thousands of messages of this queue only; when the last message has been
received, the shelf is emptied. A shelf is full when it has as many messages, or bytes, as a window
holds: the file may keep up to this many messages that were received long ago. The number of shelves
is fixed. When all are taken, the newest shelf of a queue continues to grow, and a queue without one
writes to the table of messages in windows, from which received messages are deleted by number.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from brokerd.ids import QueueKey

NO_SHELF: Final = 1
"""Place of messages beyond a window that are on no shelf; they share a table with messages in
windows."""
SHELVES: Final = range(2, 18)
"""Numbers of the shelves."""
PLACES: Final = (NO_SHELF, *SHELVES)
"""All places of messages that wait for a local service."""


class Shelf:
    """A shelf in use."""

    __slots__ = ("added", "bytes", "coming", "first", "is_counted", "live", "number", "queue")

    def __init__(self, number: int, queue: QueueKey | None, first: int, live: int) -> None:
        self.number = number
        self.queue = queue
        """Queue of the messages; None = several queues, since a service was given another queue."""
        self.first = first
        """Lower bound of the queuing orders on the shelf."""
        self.live = live
        """Number of messages on the shelf that are not removed, after all flushes begun so far."""
        self.is_counted = True
        """Whether `live` is exact; it is not after messages were deleted by index."""
        self.added = live
        """Number of messages put on the shelf, as far as this process knows."""
        self.bytes = 0
        """Bytes of the bodies of the messages in `added`."""
        self.coming = 0
        """Number of messages that have a place on the shelf, but are in no flush that has
        begun."""


class Place(NamedTuple):
    """A place to read."""

    number: int
    first: int
    """Lower bound of the queuing orders at the place."""


_OTHERS: Final = Place(NO_SHELF, 0)


class Places(NamedTuple):
    """The places to search for a set of messages."""

    each: Sequence[Place]
    """The places, in ascending order of their queuing orders."""
    before: int
    """The next unused queuing order when the places were listed."""


class _Open(dict[QueueKey, Shelf]):
    """The shelf for the next message of each queue."""

    def __init__(self, take_one: Callable[[QueueKey], Shelf]) -> None:
        super().__init__()
        self._take_one = take_one

    def __missing__(self, queue: QueueKey) -> Shelf:
        shelf = self[queue] = self._take_one(queue)
        return shelf


class Shelves:
    """The assignment of shelves to queues, and the count of the messages on each."""

    def __init__(
        self,
        *,
        size: int,
        size_bytes: int,
        found: Sequence[Shelf],
        has_others: bool,
        coming_order: Callable[[], int],
    ) -> None:
        """Create the assignment.

        `size`, `size_bytes`: number of messages, or bytes, at which a shelf is full; `size` 0 = no
        shelf is used. `found`: shelves that have messages at the start. `has_others`: whether
        messages beyond windows are on no shelf. `coming_order`: returns the next queuing order.
        """
        self._size = size
        self._size_bytes = size_bytes
        self._coming_order = coming_order
        self._none = Shelf(NO_SHELF, None, 0, 0)
        found = sorted(found, key=lambda one: one.first)
        # Later shelves are added at the end, so the order is that of `first`.
        self._taken = {shelf.number: shelf for shelf in found}
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
        """Return the place of one more message that stays beyond the window of its queue."""
        shelf = self._open[queue]
        shelf.coming += 1
        return shelf.number

    def _take_one(self, queue: QueueKey) -> Shelf:
        """Take a shelf for a queue that has none to write to."""
        if not self._free:
            self._has_others = True
            return self._none
        number = self._free.pop(0)
        # The message for which a shelf is taken may already have its queuing order.
        shelf = self._taken[number] = Shelf(number, queue, self._coming_order() - 1, 0)
        return shelf

    def places_for(self, queue: QueueKey | None) -> Places:
        """Return the places where a queue, or any queue, may have messages beyond its window."""
        others = [_OTHERS] if self._has_others else []
        return Places([*others, *self._shelves_of(queue)], self._coming_order())

    def all_places(self) -> Places:
        """Return the places where messages may be, beyond windows or not."""
        return Places([_OTHERS, *self._shelves_of(None)], self._coming_order())

    def _shelves_of(self, queue: QueueKey | None) -> list[Place]:
        return [
            Place(shelf.number, shelf.first)
            for shelf in self._taken.values()
            if queue is None or shelf.queue in {queue, None}
        ]

    def moved(self) -> None:
        """Note that messages were moved to another queue, which may have them on any shelf."""
        for shelf in self._taken.values():
            shelf.queue = None

    # The steps of a flush, called in the order in which flushes begin.

    def begin(self) -> None:
        """Begin to count the messages that a flush puts on shelves."""
        self._joined.clear()

    def joined(self, number: int, count: int, size: int) -> None:
        """Count messages of a flush that have the place `number`, and the size of their bodies.

        Messages that are deleted by index before they are written count, too.
        """
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
        """Return the messages in `orders` that belong to the shelf in its present use.

        The others belong to an earlier use: a transaction may hold a message that is then deleted
        by index, and receive it only when the shelf has been given to another queue.
        """
        shelf = self._taken.get(number)
        if shelf is None:
            return ()
        if min(orders) < shelf.first:
            return [order for order in orders if order >= shelf.first]
        return orders

    def removed(self, number: int, count: int) -> bool:
        """Count messages removed by number; return whether the shelf is empty and stays empty.

        False if the same flush puts messages on the shelf: it writes them after its removals.
        """
        shelf = self._taken[number]
        shelf.live -= count
        is_over = shelf.is_counted and not shelf.live and not shelf.coming
        return is_over and number not in self._joined

    def lost_count(self) -> None:
        """Stop counting, since messages on any shelf are deleted by index.

        From here on each shelf is released only when a read finds it empty.
        """
        for shelf in self._taken.values():
            shelf.is_counted = False

    def perhaps_empty(self, *, is_writing: bool) -> dict[int, int]:
        """Return shelves that a read may find empty, and the number of messages put on each.

        Shelves on which the flush being written puts messages are left out: while the disk is
        full, this flush is retried again and again.
        """
        but = self._joined if is_writing else ()
        return {
            shelf.number: shelf.added
            for shelf in self._taken.values()
            if not shelf.coming
            and shelf.number not in but
            and not (shelf.is_counted and shelf.live)
        }

    def is_as_it_was(self, number: int, added: int) -> bool:
        """Return whether no message was put on the shelf since `added`, and none is about to be."""
        shelf = self._taken.get(number)
        return shelf is not None and shelf.added == added and not shelf.coming

    def give_back(self, number: int) -> None:
        """Release a shelf that is empty, or that the beginning flush empties."""
        del self._taken[number]
        if self._size:
            self._free.append(number)
        self._close(number)
        self._close(NO_SHELF)

    def _close(self, number: int) -> None:
        """Make queues that write to this place take another shelf for their next message."""
        for queue in [queue for queue, shelf in self._open.items() if shelf.number == number]:
            del self._open[queue]
