"""Large bodies that were stored for a transaction, before its messages are (design D2). PURE.

Reads: nothing.      Calls: nothing.
Never: gives one body to two messages: each goes with its own.
"""

from __future__ import annotations

from collections.abc import Container

from brokerd.ids import BodyKey


class KeptBodies:
    """Those of one transaction."""

    __slots__ = ("_all", "_free")

    def __init__(self) -> None:
        self._all: list[BodyKey] = []
        self._free: list[tuple[bytes, BodyKey]] = []

    def add(self, body: bytes, key: BodyKey) -> None:
        """It is stored under this key."""
        self._all.append(key)
        self._free.append((body, key))

    def count(self, body: bytes) -> int:
        """How often this very body is stored and no message has it."""
        return sum(one is body for one, _ in self._free)

    def take(self, body: bytes | None) -> BodyKey | None:
        """The key of this very body for one message; None = it is not stored by itself."""
        for at, (one, key) in enumerate(self._free):
            if one is body:
                del self._free[at]
                return key
        return None

    def unused(self, used: Container[BodyKey]) -> list[BodyKey]:
        """Those that did not come to belong to a message; nothing is known here afterwards."""
        left = [key for key in self._all if key not in used]
        self._all.clear()
        self._free.clear()
        return left
