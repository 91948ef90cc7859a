"""Neighbours: advisory frames to instances that are ONLINE, and the addresses of instances.

Reads:  connections, destinations.      Calls: connections.
Never:  keeps a frame that cannot be sent now; such a frame is advisory, or will be sent again.
"""

from collections import deque

from brokerd.ids import InstanceId
from brokerd.protocol.brokers import BrokersHere
from brokerd.protocol.certificate_lists import CertificatesHere, CertificatesKept
from brokerd.protocol.neighbour import Advice
from brokerd.security.tls import Identity
from brokerd.transport.connection import PeerConnection
from brokerd.transport.destination import Destination
from brokerd.transport.peers import Peers


class Neighbours:
    """The part of `Destinations` that concerns instances rather than addresses."""

    peers: Peers
    _known: dict[str, Destination]
    _bound: dict[PeerConnection, deque[Destination]]

    def _destination(self, address: str) -> Destination:
        raise NotImplementedError  # `Destinations` has it

    def notify(self, address: str) -> None:
        """Connect to an address, or send its pending items."""
        raise NotImplementedError  # `Destinations` has it

    def notice(self, peer: InstanceId, notice: Advice) -> bool:
        """Send a NOTICE to a neighbour if it is ONLINE (NBT-4).

        False: not sent, and not kept, because a NOTICE is advisory."""
        connection = self.peers.online.get(peer)
        if connection is None or not connection.is_writable:
            return False
        connection.send_notice(notice)
        return True

    def notice_to(self, address: str, notice: Advice) -> bool:
        """Send a NOTICE to the instance at an address (NBT-6).

        False: not sent; if there was no connection, one is being opened."""
        connection = self._destination(address).connection
        if connection is None:
            self.notify(address)
            return False
        if connection.is_writable:
            connection.send_notice(notice)
        return connection.is_writable

    def tell_all(self, advice: Advice) -> None:
        """Send a frame to every neighbour that is ONLINE."""
        for peer in list(self.peers.online):
            self.notice(peer, advice)

    def addresses_of(self, peer: InstanceId) -> list[str]:
        """Return the destinations that the connection to a neighbour serves (TRN-4)."""
        connection = self.peers.online.get(peer)
        bound = self._bound.get(connection, ()) if connection is not None else ()
        return [one.address for one in bound]

    def peer_at(self, address: str) -> InstanceId | None:
        """Return the instance at an address; None = not known yet."""
        known = self._known.get(address)
        serving = None if known is None else known.connection
        for peer, connection in self.peers.online.items():
            if connection is serving or (known is None and connection.place == address):
                return peer
        return None if known is None else known.peer

    def neighbours(self) -> list[InstanceId]:
        """Return the neighbours that are ONLINE."""
        return list(self.peers.online)

    def place_of(self, peer: InstanceId) -> str:
        """Return an address of a neighbour that is ONLINE; empty = none is known."""
        connection = self.peers.online.get(peer)
        place = connection.place if connection is not None else None
        return next(iter(self.addresses_of(peer)), place or "")

    def heard_at(self, peer: InstanceId) -> float:
        """Return when anything last arrived from a neighbour (monotonic); 0 = it is not ONLINE."""
        connection = self.peers.online.get(peer)
        return 0.0 if connection is None else connection.machine.heard_at

    def identity_of(self, peer: InstanceId) -> Identity | None:
        """Return the principal at the far end of the connection to a neighbour.

        None: the neighbour is not ONLINE."""
        connection = self.peers.online.get(peer)
        return None if connection is None else connection.identity

    def own_certificate_to(self, peer: InstanceId) -> bytes | None:
        """Return the id of the certificate with which this side has logged in at a neighbour."""
        connection = self.peers.online.get(peer)
        return None if connection is None else connection.own_certificate_id

    def show_certificates(
        self, peer: InstanceId, frame: CertificatesHere | CertificatesKept
    ) -> bool:
        """Send a neighbour the list of own certificates, or the answer to its list (SEC-64).

        False: the neighbour is not ONLINE, or does not support such frames."""
        connection = self.peers.online.get(peer)
        if connection is None or not connection.machine.shows_certificates:
            return False
        connection.send_notice(frame)
        return True

    def tell_brokers(self, peer: InstanceId, here: BrokersHere) -> bool:
        """Send a neighbour the list of the brokers of this instance (TRN-46).

        False: the neighbour is not ONLINE, or does not support such frames. Flow control does not
        hold the frame back, because it is small and is not sent again."""
        connection = self.peers.online.get(peer)
        if connection is None or not connection.machine.names_brokers:
            return False
        if not connection.is_trusted:
            return False  # the list is nobody's business but the peers'
        connection.send_notice(here)
        return True
