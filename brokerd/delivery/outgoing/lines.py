"""What waits for one destination: dialogs with something to send, and acknowledgements (TRN-40).

Reads: nothing.      Calls: turns.
Never: sends; the transmitter does, with what it finds here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from brokerd.broker.outgoing import Outgoing
from brokerd.delivery.outgoing.ready_line import Turns
from brokerd.telemetry.metrics import Histogram


class Line:
    """The dialogs that have something for one destination."""

    __slots__ = ("acks", "outbox", "ready", "wire")

    def __init__(self, ready: Turns) -> None:
        self.ready = ready
        self.acks: OrderedDict[Outgoing, None] = OrderedDict()
        """In the order of coming."""
        self.outbox = Histogram()
        """From the send of a message to its leaving, one for each turn, first attempts only."""
        self.wire = Histogram()
        """From leaving to being acknowledged, one at a time for each dialog."""

    def withdraw(self, ids: Container[int]) -> None:
        """Those with one of these identities (`id`) send there no more."""
        self.ready.drop(ids)
        self.acks = OrderedDict((out, None) for out in self.acks if id(out) not in ids)
