"""Types that the transport exchanges with the parts that send and receive over it.

Reads, calls: nothing.      Never: decides; these are types only.
"""

from typing import Protocol

import msgspec

from brokerd.ids import InstanceId
from brokerd.protocol.frames import Header, Item
from brokerd.protocol.neighbour import Advice


class Arrival(msgspec.Struct, frozen=True):
    """The content of one received boxcar."""

    address: str | None
    """Destination that leads back to the peer; None = no endpoint of the peer is known."""
    peer: InstanceId
    items: list[Item]
    headers: list[Header] = []  # msgspec copies the default
    """Headers of the items, as received."""


class TransportEvents(Protocol):
    """The listener of the transport: it supplies the items to send, and gets the arrivals."""

    def fill(self, address: str, room_bytes: int, room_items: int) -> list[bytes]:
        """Return encoded items for an address; [] = nothing more for now.

        An item may exceed `room_bytes`, up to the largest frame, if it is the only one."""
        ...

    def boxcar_arrived(self, arrival: Arrival) -> None:
        """Process the items of a boxcar."""
        ...

    def notice_arrived(self, neighbour: InstanceId, notice: Advice) -> None:
        """Process a NOTICE, TRACE, ROLE or BROKERS frame."""
        ...

    def address_changed(self, address: str, online: bool) -> None:
        """Queue the dialogs of an address that came ONLINE or was lost (DLP-29)."""
        ...

    def reached_self(self, address: str) -> None:
        """Note that an address leads back to this instance (RTE-41)."""
        ...

    def neighbour_met(self, peer: InstanceId) -> None:
        """Note that a neighbour came ONLINE."""
        ...

    def neighbour_left(self, peer: InstanceId) -> None:
        """Note that no connection leads to a neighbour any longer."""
        ...

    def before_closing(self) -> None:
        """Send owed acknowledgements before connections are closed on purpose (DLP-19)."""
        ...
