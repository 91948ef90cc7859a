"""Waiting line of one destination: dialogs with something to send, acknowledgements (TRN-40).

Reads: nothing.      Calls: ready_line.
Never: sends; the transmitter does, with the dialogs it gets from here.
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
        """Dialogs whose acknowledgement or error is due, in the order in which it became so."""
        self.outbox = Histogram()
        """Time from SEND to first transmission, of messages sampled at most once a turn."""
        self.wire = Histogram()
        """Time from transmission to acknowledgement, of one message at a time per dialog."""

    def withdraw(self, ids: Container[int]) -> None:
        """Remove all dialogs whose `id()` is in `ids` from this destination."""
        self.ready.drop(ids)
        self.acks = OrderedDict((out, None) for out in self.acks if id(out) not in ids)
