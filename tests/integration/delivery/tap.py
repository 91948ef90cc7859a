"""A tap on the items that arrive at an instance."""

from typing import Any
from unittest.mock import patch

from tests.integration.peers import Peer


class Tap:
    """Keeps what arrives at an instance, and loses what it is told to."""

    def __init__(self, peer: Peer) -> None:
        self.items: list[Any] = []
        self.boxcars: list[int] = []
        """Number of items in each boxcar."""
        self.loses: Any = lambda _item: False
        self._take = peer.instance.parts.dispatcher.arrived
        patch.object(peer.instance.parts.dispatcher, "arrived", self._arrived).start()

    def _arrived(self, items: Any, neighbour: Any = None) -> None:
        self.items += items
        self.boxcars.append(len(items))
        self._take([one for one in items if not self.loses(one)], neighbour)

    def of(self, kind: type) -> list[Any]:
        return [one for one in self.items if type(one) is kind]
