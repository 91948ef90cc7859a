"""Messages of a level that entered a window before others in front of them (design D4).

Reads:  nothing.      Calls: nothing.      Never:  forgets one that the cursor has not passed.

Until the cursor passes them, a page from the store would contain them again. A queue may have as
many of them as fit into a window; counting a conversation needs only its own orders, so that the
whole set is never copied for one.
"""

from collections.abc import Collection, Set
from typing import Final

from brokerd.ids import EndpointKey

_LEAST: Final = 4096
"""The least number of orders at which those passed are dropped."""
_NONE: Final[Set[int]] = frozenset()


class OutOfTurn:
    """Queuing orders, all together and by conversation; the cursor may have passed some of them."""

    __slots__ = ("_of", "_room", "orders")

    def __init__(self) -> None:
        self.orders: set[int] = set()
        self._of: dict[EndpointKey, set[int]] = {}
        self._room = _LEAST

    def add(self, key: EndpointKey, orders: Collection[int]) -> None:
        """Note loaded messages of a conversation."""
        self.orders.update(orders)
        self._of.setdefault(key, set()).update(orders)

    def of(self, key: EndpointKey) -> Set[int]:
        """Return the orders of one conversation; the set is not a copy."""
        return self._of.get(key, _NONE)

    def passed(self, cursor: int) -> None:
        """Drop the orders up to the cursor, if enough have gathered: all those have been in the
        window.

        That happens when there are twice as many as were left the last time, so that each order is
        examined only a few times, however many pages are loaded."""
        if len(self.orders) >= self._room:
            self.forget(cursor)

    def forget(self, cursor: int) -> None:
        """Keep only the orders behind the cursor."""
        self.orders = _behind(cursor, self.orders)
        behind = {key: _behind(cursor, orders) for key, orders in self._of.items()}
        self._of = {key: orders for key, orders in behind.items() if orders}
        self._room = max(_LEAST, 2 * len(self.orders))


def _behind(cursor: int, orders: Set[int]) -> set[int]:
    return {order for order in orders if order > cursor}
