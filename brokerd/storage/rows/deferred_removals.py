"""Removals: received messages are noted at once and deleted later, many together.

Reads:  nothing.      Calls: the statements it is given.
Never:  lets a noted message be read, or deletes a note before its message.

A receive takes messages of one group, and these lie scattered among the messages of all other
groups. Deleting each immediately would rewrite a page of the file, and a page of each index, per
message. A note of all messages that a flush removes from a place is one row. A shelf all of whose
messages are noted is emptied as a whole; elsewhere a sweep deletes the noted messages lowest first,
so that neighbours are deleted together. After a crash, the messages still noted are deleted before
anything is read.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Final

import msgspec
import orjson
from sqlalchemy import bindparam, delete

from brokerd.storage.connections import Connection
from brokerd.storage.shelves import NO_SHELF, PLACES, SHELVES, Shelves
from brokerd.storage.statements import Deletes, Inserts, Script, sql
from brokerd.storage.stretches import table_at
from brokerd.storage.tables import messages_at
from brokerd.storage.tables import queue_removals as removals

SLICE: Final = 1024
"""Number of messages that a flush deletes during a sweep; if it notes more than half as many
messages, it deletes twice the number that it notes."""
MOST_ON_SHELF: Final = 8
"""Factor by which more messages may be noted on a shelf than elsewhere, because a shelf may soon be
emptied as a whole."""
_KEYS: Final = 1 << 40
"""Number of note keys per place. The keys of shelf n begin at n times this number; the keys for
messages on no shelf begin at 0."""

_note = Inserts(removals)
_deletes = {place: Deletes(table.c.queuing_order) for place, table in messages_at.items()}
_forget = sql(
    delete(removals).where(removals.c.removal_key.between(bindparam("first"), bindparam("last")))
)
_EMPTY: Final = {number: f"DELETE FROM {table_at(number)}" for number in SHELVES}  # noqa: S608
# If a shelf ever has a message that is not noted, this violates a constraint, so that the flush
# fails and nothing is lost: the next start deletes the noted messages by number. The count uses
# another index than the count of a start does, in case that index lacks rows (a mere count(*)
# would use it); counting the table itself would take several times as long.
_SURELY: Final = {
    number: "UPDATE store SET id = 0 WHERE"  # noqa: S608
    f" (SELECT count(sequence) FROM {table_at(number)} INDEXED BY {table_at(number)}_of) > ?"
    for number in SHELVES
}
NOTED: Final = "SELECT value FROM queue_removals, json_each(queue_removals.orders)"
"""Queuing orders of all noted messages."""


def noted_at(place: int) -> str:
    """Return SQL for the queuing orders of the noted messages of a place."""
    first, last = _keys(place)
    return f"{NOTED} WHERE removal_key BETWEEN {first} AND {last}"


def _keys(place: int) -> tuple[int, int]:
    first = place * _KEYS if place in SHELVES else 0
    return first, first + _KEYS - 1


class QueueRemoval(msgspec.Struct, frozen=True):
    """The removals that one flush writes."""

    notes: Sequence[tuple[int, str]] = ()
    """Rows of `queue_removals`."""
    delete: Mapping[int, Sequence[int]] = {}
    """Messages to delete now, by place."""
    emptied: Sequence[tuple[int, int]] = ()
    """Shelves to empty, each with the number of its noted messages."""
    forget: Sequence[tuple[int, int]] = ()
    """First and last keys of rows of `queue_removals` to delete."""


NOTHING: Final = QueueRemoval()


class _Noted:
    """The noted messages of one place."""

    __slots__ = ("is_idle", "key", "orders", "place", "sweep", "swept_key")

    def __init__(self, place: int) -> None:
        self.place = place
        self.orders: set[int] = set()
        self.key, _ = _keys(place)
        self.sweep: list[int] = []  # highest first
        self.swept_key = 0
        self.is_idle = False
        """Whether nothing was noted since the last request for a sweep."""

    def note(self, orders: Sequence[int]) -> tuple[int, str]:
        self.key += 1
        self.orders.update(orders)
        self.is_idle = False
        return self.key, orjson.dumps(orders).decode()

    def begin_sweep(self) -> None:
        if not self.sweep and self.orders:
            self.sweep = sorted(self.orders, reverse=True)
            self.swept_key = self.key


class Removals:
    """The noted messages, and the progress of the sweeps."""

    def __init__(self, *, most: int, shelves: Shelves) -> None:
        """Create the record of noted messages.

        `most`: messages that may be noted before a sweep begins; 0 = no message is noted, each
        is deleted immediately.
        """
        self._most = most
        self._shelves = shelves
        self._places = {place: _Noted(place) for place in PLACES}
        self._sweeps: list[_Noted] = []

    def noted(self, place: int) -> Set[int]:
        """Return the messages at a place that are removed and may still be in its table."""
        return self._places[place].orders

    @property
    def is_sweeping(self) -> bool:
        """Whether flushes have to follow each other until the sweeps are done."""
        return bool(self._sweeps)

    def begin_sweep(self, *, all_of_it: bool = False) -> int:
        """Begin to delete noted messages with the next flushes; return the number to be deleted.

        Messages on a shelf are left out if any message on it was noted since the last call: the
        shelf will probably be emptied soon. `all_of_it` includes these messages.
        """
        for noted in self._places.values():
            if noted.place == NO_SHELF or noted.is_idle or all_of_it:
                self._begin(noted)
            noted.is_idle = True
        return sum(len(noted.sweep) for noted in self._sweeps)

    def _begin(self, noted: _Noted) -> None:
        noted.begin_sweep()
        if noted.sweep and noted not in self._sweeps:
            self._sweeps.append(noted)

    def plan(
        self, dequeued: Sequence[int], dequeued_from: Mapping[int, Sequence[int]]
    ) -> QueueRemoval:
        """Return the removals that a flush writes; `dequeued_from`: messages on shelves."""
        if not self._most:
            return self._at_once(dequeued, dequeued_from)
        notes: list[tuple[int, str]] = []
        emptied: list[tuple[int, int]] = []
        if dequeued:
            notes.append(self._note(self._places[NO_SHELF], dequeued, self._most))
        for number, removed in dequeued_from.items():
            if not (orders := self._shelves.on(number, removed)):
                continue
            noted = self._places[number]
            before = len(noted.orders)
            note = self._note(noted, orders, MOST_ON_SHELF * self._most)
            # A set, so that a message removed twice counts once.
            if self._shelves.removed(number, len(noted.orders) - before):
                self._give_back(noted)
                # No note is written: the flush deletes all messages of the shelf, and with them the
                # notes of earlier flushes (`forget`).
                emptied.append((number, len(noted.orders)))
            else:
                notes.append(note)
        forget = [_keys(number) for number, _ in emptied]
        if not self._sweeps:
            return QueueRemoval(notes, {}, emptied, forget) if notes or emptied else NOTHING
        noted = self._sweeps[0]
        # Delete at least twice as many messages as are noted, so that the sweep outpaces the
        # receives.
        count = max(SLICE, 2 * (len(dequeued) + sum(map(len, dequeued_from.values()))))
        swept, noted.sweep = noted.sweep[: -count - 1 : -1], noted.sweep[:-count]
        if not noted.sweep:
            self._sweeps.pop(0)
            first, _ = _keys(noted.place)
            forget.append((first, noted.swept_key))
        return QueueRemoval(notes, {noted.place: swept}, emptied, forget)

    def _at_once(
        self, dequeued: Sequence[int], dequeued_from: Mapping[int, Sequence[int]]
    ) -> QueueRemoval:
        for number, orders in dequeued_from.items():
            if mine := self._shelves.on(number, orders):
                self._shelves.removed(number, len(mine))
        now = {NO_SHELF: dequeued, **dequeued_from} if dequeued else dequeued_from
        return QueueRemoval(delete=now) if now else NOTHING

    def _note(self, noted: _Noted, orders: Sequence[int], most: int) -> tuple[int, str]:
        # Messages that this flush itself removes are left to the next sweep: the flush may also
        # write some of them.
        if len(noted.orders) >= most:
            self._begin(noted)
        return noted.note(orders)

    def _give_back(self, noted: _Noted) -> None:
        self._shelves.give_back(noted.place)
        noted.sweep = []
        if noted in self._sweeps:
            self._sweeps.remove(noted)

    def durable(self, removal: QueueRemoval) -> None:
        """Drop the notes of messages that a written flush has deleted."""
        for place, orders in removal.delete.items():
            self._places[place].orders.difference_update(orders)
        for number, _ in removal.emptied:
            self._places[number].orders.clear()


def write(script: Script, removal: QueueRemoval) -> None:
    """Add the removals of a flush to its script."""
    for number, noted in removal.emptied:
        script.add(_SURELY[number], (noted,))
        script.add(_EMPTY[number], ())
    _note.add(script, removal.notes)
    for place, orders in removal.delete.items():
        _deletes[place].add(script, orders)
    script.add(_forget, *removal.forget)


def apply_all(connection: Connection) -> None:
    """Delete the messages that were noted when the store was last open."""
    for place in PLACES:
        connection.execute(
            f"DELETE FROM {table_at(place)} WHERE queuing_order IN ({noted_at(place)})"  # noqa: S608
        )
    connection.execute("DELETE FROM queue_removals")
