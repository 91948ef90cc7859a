"""Large bodies that were stored for a transaction, ahead of its messages (design D2). PURE.

Reads: nothing.      Calls: nothing.
Never: gives one stored body to two messages: each message has its own.
"""

from __future__ import annotations

from collections.abc import Container

from brokerd.ids import BodyKey


class KeptBodies:
    """The stored bodies of one transaction."""

    __slots__ = ("_all", "_free")

    def __init__(self) -> None:
        self._all: list[BodyKey] = []
        self._free: list[tuple[bytes, BodyKey]] = []

    def add(self, body: bytes, key: BodyKey) -> None:
        """Note that a body is stored under this key."""
        self._all.append(key)
        self._free.append((body, key))

    def count(self, body: bytes) -> int:
        """Return the number of stored copies of this body object that no message uses yet."""
        return sum(one is body for one, _ in self._free)

    def claim(self, body: bytes | None) -> BodyKey | None:
        """Claim a stored copy of this body object for one message; return the key of the copy.

        None: the object is not stored separately, or each copy has its message already."""
        for at, (one, key) in enumerate(self._free):
            if one is body:
                del self._free[at]
                return key
        return None

    def unused(self, used: Container[BodyKey]) -> list[BodyKey]:
        """Return the keys of the stored bodies that no message uses, and forget all bodies."""
        left = [key for key in self._all if key not in used]
        self._all.clear()
        self._free.clear()
        return left
