"""Where the transport meets those who send and receive over it.

Reads, calls: nothing.      Never: decides; these are the forms of what is handed over.
"""

from collections.abc import Callable

import msgspec

from brokerd.ids import InstanceId
from brokerd.protocol.frames import Header, Item
from brokerd.protocol.neighbour import Advice


class Arrival(msgspec.Struct, frozen=True):
    """What one boxcar brought."""

    address: str | None
    """Destination that leads back to the peer; None if it has no endpoint we could find."""
    peer: InstanceId
    items: list[Item]
    headers: list[Header] = []  # msgspec copies it
    """Those of the items, as they came."""


Fill = Callable[[str, int, int], list[bytes]]
"""(address, room in bytes, room in items) -> encoded items; [] = nothing more for now.

A single item may exceed the room in bytes, up to the largest frame, when it comes alone."""
Arrived = Callable[[Arrival], None]
Changed = Callable[[str, bool], None]
"""The address came ONLINE (True), or is no longer (False): requeue what is unanswered (DLP-29)."""
Noticed = Callable[[InstanceId, Advice], None]
