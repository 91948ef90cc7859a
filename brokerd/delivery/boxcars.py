"""Boxcars: own messages and forwarded ones share the boxcars to a destination (TRN-43).

Reads:  the levels of waiting items.      Calls: the transmitter and the forwarder, to fill them.
Never:  holds an item.
"""

from brokerd.delivery.forwarding.forwarder import Forwarder
from brokerd.delivery.outgoing.transmitter import Transmitter


class Boxcars:
    """Source of items for the transport, one per instance."""

    def __init__(self, *, transmitter: Transmitter, forwarder: Forwarder) -> None:
        self._transmitter = transmitter
        self._forwarder = forwarder
        self._others_first = False

    def fill(self, address: str, room_bytes: int, room_items: int) -> list[bytes]:
        """Return items for a destination; on equal levels the two sources alternate."""
        others = self._forwarder.level(address)
        if others is None:
            return self._transmitter.fill(address, room_bytes, room_items)
        own = self._transmitter.level(address)
        if own is None:  # acks may still wait, and must not wait for all forwarded items
            own = others
        if own == others:
            self._others_first = not self._others_first
        if own < others or (own == others and self._others_first):
            items = self._forwarder.fill(address, room_bytes, room_items)
            room = room_bytes - sum(map(len, items))
            if room > 0 and len(items) < room_items:
                count = room_items - len(items)
                items += self._transmitter.fill(address, room, count, alone=not items)
            return items
        items = self._transmitter.fill(address, room_bytes, room_items)
        room = room_bytes - sum(map(len, items))
        if room > 0 and len(items) < room_items:
            count = room_items - len(items)
            items += self._forwarder.fill(address, room, count, alone=not items)
        return items
