"""Messages of a level that came into a window before some that lie in front of them (design D4).

Reads:  nothing.      Calls: nothing.      Never:  forgets one that the cursor has not passed.

Until then the store would give them again. A queue may have as many of them as a window, and of
each conversation that is counted only its own are asked for: all are never copied for one.
"""

from collections.abc import Collection, Set
from typing import Final

from brokerd.ids import EndpointKey

_LEAST: Final = 4096
"""How many there are at least before those that were passed are looked for."""
_NONE: Final[Set[int]] = frozenset()


class OutOfTurn:
    """Queuing orders, all together and by conversation; some may have been passed since."""

    __slots__ = ("_of", "_room", "orders")

    def __init__(self) -> None:
        self.orders: set[int] = set()
        self._of: dict[EndpointKey, set[int]] = {}
        self._room = _LEAST

    def add(self, key: EndpointKey, orders: Collection[int]) -> None:
        """Messages of a conversation have come in."""
        self.orders.update(orders)
        self._of.setdefault(key, set()).update(orders)

    def of(self, key: EndpointKey) -> Set[int]:
        """Those of one conversation; it changes as they do."""
        return self._of.get(key, _NONE)

    def passed(self, cursor: int) -> None:
        """All up to the cursor have been in the window.

        They are looked for when there are twice as many as were left before, so that each is looked
        at a few times, however many pages are brought in."""
        if len(self.orders) >= self._room:
            self.forget(cursor)

    def forget(self, cursor: int) -> None:
        """Keep those behind the cursor."""
        self.orders = _behind(cursor, self.orders)
        behind = {key: _behind(cursor, orders) for key, orders in self._of.items()}
        self._of = {key: orders for key, orders in behind.items() if orders}
        self._room = max(_LEAST, 2 * len(self.orders))


def _behind(cursor: int, orders: Set[int]) -> set[int]:
    return {order for order in orders if order > cursor}
