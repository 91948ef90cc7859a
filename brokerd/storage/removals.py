"""Removals: messages that were received are noted at once and deleted later, in their order.

Reads:  nothing.      Calls: the statements it is given.
Never:  lets a message be read that is noted, or forgets a note before its message is deleted.

A receive takes messages of one group, and they lie scattered among those of all the others. To
delete each at once rewrites a page of the file, and one of each index, for every message. A note of
all that a flush removes is one row; a sweep then deletes the noted messages lowest first, those
that lie together together. What a crash leaves noted is deleted before anything is read again.
"""

from collections.abc import Sequence, Set
from typing import Final

import msgspec
import orjson
from sqlalchemy import bindparam, delete, func, select, text

from brokerd.storage.engine import Connection
from brokerd.storage.statements import Deletes, Inserts, Script, sql
from brokerd.storage.tables import queue_messages as messages
from brokerd.storage.tables import queue_removals as removals

SLICE: Final = 1024
"""Messages that a flush deletes during a sweep, or twice as many as it notes if that is more."""

_note = Inserts(removals)
_delete = Deletes(messages.c.queuing_order)
_forget = sql(delete(removals).where(removals.c.removal_key <= bindparam("key")))
_APPLY = sql(
    delete(messages).where(
        messages.c.queuing_order.in_(
            select(text("value")).select_from(removals, func.json_each(removals.c.orders))
        )
    )
)
_CLEAR = sql(delete(removals))


class Removal(msgspec.Struct, frozen=True):
    """The part of one flush."""

    note: tuple[int, str] | None = None
    """A row of `queue_removals`."""
    delete: Sequence[int] = ()
    """Messages to delete now."""
    forget: int | None = None
    """Rows of `queue_removals` up to this one are done with."""


NOTHING: Final = Removal()


class Removals:
    """What is noted, and how far the sweep is."""

    def __init__(self, *, most: int) -> None:
        """`most`: messages that may be noted before a sweep begins; 0 = each is deleted at once."""
        self._most = most
        self._noted: set[int] = set()
        self._sweep: list[int] = []  # highest first
        self._swept_key = 0
        self._key = 0

    @property
    def noted(self) -> Set[int]:
        """Messages that are removed and may still be in the table."""
        return self._noted

    @property
    def is_sweeping(self) -> bool:
        """Whether flushes are to follow each other until the sweep is through."""
        return bool(self._sweep)

    def begin_sweep(self) -> int:
        """Delete what is noted, with the flushes that come; how many messages that are."""
        if not self._sweep and self._noted:
            self._sweep = sorted(self._noted, reverse=True)
            self._swept_key = self._key
        return len(self._sweep)

    def take(self, dequeued: Sequence[int]) -> Removal:
        """What a flush that removes these messages has to write."""
        if not self._most:
            return Removal(delete=dequeued) if dequeued else NOTHING
        note = None
        if dequeued:
            self._key += 1
            note = (self._key, orjson.dumps(dequeued).decode())
            self._noted.update(dequeued)
            if len(self._noted) >= self._most:
                self.begin_sweep()
        if not self._sweep:
            return Removal(note) if note else NOTHING
        count = max(SLICE, 2 * len(dequeued))
        now, self._sweep = self._sweep[: -count - 1 : -1], self._sweep[:-count]
        return Removal(note, now, None if self._sweep else self._swept_key)

    def durable(self, removal: Removal) -> None:
        """The flush is written: what it deleted is gone."""
        self._noted.difference_update(removal.delete)


def write(script: Script, removal: Removal) -> None:
    """Write a flush's part."""
    if removal.note is not None:
        _note.add(script, [removal.note])
    _delete.add(script, removal.delete)
    if removal.forget is not None:
        script.add(_forget, (removal.forget,))


def apply_all(connection: Connection) -> None:
    """Delete what was noted when the store was last open."""
    connection.execute(_APPLY)
    connection.execute(_CLEAR)
