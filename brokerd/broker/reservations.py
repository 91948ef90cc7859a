"""Reservations: what an open transaction holds of limits, until it ends (PBT-24, REL-42).

Reads:  nothing.      Calls: retention, the rooms of queues.
Never:  refuses anything: a verb has asked whether there is room, and nothing ran in between.
"""

from __future__ import annotations

from typing import Self

from brokerd.broker import retention
from brokerd.broker.room import Room
from brokerd.broker.state import Live


class Reservations:
    """The reservations of one transaction, in the order of its verbs."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: list[tuple[Live | Room, int, int]] = []

    def __len__(self) -> int:
        return len(self._made)

    def retain(self, live: Live, rows: int, size: int) -> Self:
        """Count messages that will be retained of a conversation, if their number is limited."""
        if retention.reserve(live, rows, size):
            self._made.append((live, rows, size))
        return self

    def enter(self, room: Room, size: int) -> Self:
        """Count a message of `size` bytes that will go onto a queue with limits."""
        room.reserve(size)
        self._made.append((room, 1, size))
        return self

    def undo(self, first: int) -> None:
        """Give back all but the first reservations."""
        for of, rows, size in self._made[first:]:
            if isinstance(of, Room):
                of.give_back(size)
            else:
                retention.give_back(of, rows, size)
        del self._made[first:]

    def joined(self) -> None:
        """Give back what the commit counts from now on: its messages are on their way."""
        for of, _, size in self._made:
            if isinstance(of, Room):
                of.give_back(size)
        self._made.clear()
