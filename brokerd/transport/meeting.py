"""Types that the transport exchanges with the parts that send and receive over it.

Reads, calls: nothing.      Never: decides; these are types only.
"""

from collections.abc import Callable

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


Fill = Callable[[str, int, int], list[bytes]]
"""(address, room in bytes, room in items) -> encoded items; [] = nothing more for now.

A single item may exceed the room in bytes, up to the largest frame, if it is the only one."""
Arrived = Callable[[Arrival], None]
Changed = Callable[[str, bool], None]
"""(address, is online): the address came ONLINE, or was lost: queue again what is outstanding
(DLP-29)."""
Noticed = Callable[[InstanceId, Advice], None]
