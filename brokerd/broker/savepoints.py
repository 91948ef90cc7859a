"""Savepoints: earlier extents of a transaction, to which it can be rolled back (GRP-21).

Reads: nothing.      Calls: nothing.
Never: undoes anything; `transaction.py` does, back to a mark.
"""

from __future__ import annotations

import msgspec

from brokerd.broker.state import Group
from brokerd.errors import InvalidArgument


class Mark(msgspec.Struct, frozen=True):
    """The extent of a transaction at a savepoint: lengths of its lists, a copy of its states."""

    number: int
    begun: int
    intents: int
    received: int
    moved: int
    timers: int
    reserved: int
    size: int
    states: dict[Group, bytes | None]


class Savepoints:
    """The savepoints of one transaction, in the order in which they were set."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: list[Mark] = []

    def __contains__(self, number: object) -> bool:
        return any(mark.number == number for mark in self._marks)

    def add(self, mark: Mark) -> None:
        """Add a savepoint; its number must be above those of all others."""
        if self._marks and mark.number <= self._marks[-1].number:
            raise InvalidArgument(f"savepoint {mark.number} is not above {self._marks[-1].number}")
        self._marks.append(mark)

    def back_to(self, number: int) -> Mark:
        """Return the savepoint with this number and keep it; drop those set after it."""
        for at, mark in enumerate(self._marks):
            if mark.number == number:
                del self._marks[at + 1 :]
                return mark
        raise InvalidArgument(f"there is no savepoint {number} in this transaction")
