"""Boxcar: the items that leave for one destination together, and the room that is left (TRN-32).

Reads: nothing.      Calls: protocol.frames, to encode the items.
Never: chooses an item; the transmitter does.
"""

from __future__ import annotations

from brokerd.protocol.frames import Fragment, Item, encode_item

_HEADER_SIZE = 400
"""Bytes counted for the header of an item that is not encoded."""


class Boxcar:
    """A boxcar that is being filled."""

    __slots__ = ("_has_others", "_is_for_here", "encoded", "items", "room", "room_items")

    def __init__(
        self, room: int, room_items: int, *, has_others: bool = False, is_for_here: bool = False
    ) -> None:
        """Begin a boxcar with room for so many bytes and items.

        `has_others`: items of a forwarder are in it already. `is_for_here`: the items stay in this
        instance and need not be encoded."""
        self.room = room
        """Bytes that are left; less than 0 if an item alone is larger than a boxcar."""
        self.room_items = room_items
        """Number of items that are left."""
        self.items: list[Item] = []
        self.encoded: list[bytes] = []
        """The items as they leave, in the same order; empty if they stay in this instance."""
        self._has_others = has_others
        self._is_for_here = is_for_here

    def add(self, item: Item) -> int:
        """Add an item; return the bytes that it takes."""
        self.items.append(item)
        self.room_items -= 1
        if self._is_for_here:
            size = _HEADER_SIZE + (len(item.body) if isinstance(item, Fragment) else 0)
        else:
            encoded = encode_item(item)
            self.encoded.append(encoded)
            size = len(encoded)
        self.room -= size
        return size

    def fits(self, size: int) -> bool:
        """Return whether an item of at most so many bytes may be added.

        Into an empty boxcar every item may: the largest frame limits it, not the boxcar."""
        return size <= self.room or not (self.items or self._has_others)

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be added, however small it is."""
        return self.room <= 0 or self.room_items <= 0
