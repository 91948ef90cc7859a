"""What waits for one destination: dialogs with something to send, and acknowledgements (TRN-40).

Reads: nothing.      Calls: turns.
Never: sends; the transmitter does, with what it finds here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from brokerd.broker.transmission import Outgoing
from brokerd.delivery.turns import Turns


class Line:
    """The dialogs that have something for one destination."""

    __slots__ = ("acks", "ready")

    def __init__(self, ready: Turns) -> None:
        self.ready = ready
        self.acks: OrderedDict[Outgoing, None] = OrderedDict()
        """In the order of coming."""

    def withdraw(self, ids: Container[int]) -> None:
        """Those with one of these identities (`id`) send there no more."""
        self.ready.drop(ids)
        self.acks = OrderedDict((out, None) for out in self.acks if id(out) not in ids)
