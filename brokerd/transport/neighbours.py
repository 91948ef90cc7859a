"""Neighbours: what instances that are ONLINE are told beside messages, and who lives where.

Reads:  connections, destinations.      Calls: connections.
Never:  keeps what cannot be said now: it is advice, or is said again.
"""

from collections import deque
from collections.abc import Callable

from brokerd.ids import InstanceId
from brokerd.protocol.brokers import BrokersHere
from brokerd.protocol.neighbour import Advice
from brokerd.transport.connection import PeerConnection
from brokerd.transport.destination import Destination
from brokerd.transport.peers import Peers

Told = Callable[[InstanceId], None]
"""Told that a neighbour is ONLINE, or that no connection leads to it any more."""


class Neighbours:
    """The part of `Destinations` that concerns who is there."""

    peers: Peers
    _known: dict[str, Destination]
    _bound: dict[PeerConnection, deque[Destination]]

    def _destination(self, address: str) -> Destination:
        raise NotImplementedError  # `Destinations` has it

    def notify(self, address: str) -> None:
        """Connect to an address, or send what waits for it."""
        raise NotImplementedError  # `Destinations` has it

    def notice(self, peer: InstanceId, notice: Advice) -> bool:
        """Send a NOTICE to a neighbour if it is ONLINE; advisory, so never kept (NBT-4)."""
        connection = self.peers.online.get(peer)
        if connection is None or not connection.is_writable:
            return False
        connection.send_notice(notice)
        return True

    def notice_to(self, address: str, notice: Advice) -> bool:
        """Send a NOTICE to whoever is at an address (NBT-6).

        False = nobody is there now; if there is no connection, one is being opened."""
        connection = self._destination(address).connection
        if connection is None:
            self.notify(address)
            return False
        if connection.is_writable:
            connection.send_notice(notice)
        return connection.is_writable

    def tell_all(self, advice: Advice) -> None:
        """Send it to every neighbour that is ONLINE."""
        for peer in list(self.peers.online):
            self.notice(peer, advice)

    def addresses_of(self, peer: InstanceId) -> list[str]:
        """Where a neighbour that is ONLINE lives, as far as it is sent to (TRN-4)."""
        connection = self.peers.online.get(peer)
        bound = self._bound.get(connection, ()) if connection is not None else ()
        return [one.address for one in bound]

    def peer_at(self, address: str) -> InstanceId | None:
        """Who lives at an address; None = that is not known yet."""
        known = self._known.get(address)
        serving = None if known is None else known.connection
        for peer, connection in self.peers.online.items():
            if connection is serving or (known is None and connection.place == address):
                return peer
        return None if known is None else known.peer

    def neighbours(self) -> list[InstanceId]:
        """Those that are ONLINE."""
        return list(self.peers.online)

    def place_of(self, peer: InstanceId) -> str:
        """An address of a neighbour that is ONLINE; empty if none is known."""
        connection = self.peers.online.get(peer)
        place = connection.place if connection is not None else None
        return next(iter(self.addresses_of(peer)), place or "")

    def heard_at(self, peer: InstanceId) -> float:
        """When anything came from a neighbour last; 0 = it is not ONLINE."""
        connection = self.peers.online.get(peer)
        return 0.0 if connection is None else connection.machine.heard_at

    def tell_brokers(self, peer: InstanceId, here: BrokersHere) -> bool:
        """Tell a neighbour which brokers are here (TRN-46); False = it is not ONLINE, or takes no
        such frames. Flow control does not hold it back: it is small, and not said again."""
        connection = self.peers.online.get(peer)
        if connection is None or not connection.machine.names_brokers:
            return False
        connection.send_notice(here)
        return True
