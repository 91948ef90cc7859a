"""Publication: the effects of one changeset that become visible once it is durable (REL-4).

Reads:  nothing.      Calls: the queues, the transmission queue, parking, the listeners.
Never:  changes an endpoint: all transactions see such changes when the changeset joins (design D1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brokerd.broker.arriving_bodies import ArrivingBodies
from brokerd.broker.broker import Broker
from brokerd.broker.dialog_events import DialogEvent, Lost
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.queues import publish
from brokerd.broker.state import Group, Live
from brokerd.storage.changes import Changes, OutgoingRow, QueueRow

Arrivals = list[tuple[Live, QueueRow]]


class Publication:
    """The effects of one changeset on memory, readers and listeners."""

    __slots__ = (
        "_after",
        "_broker",
        "_changes",
        "_damaged",
        "_dialog_events",
        "_lost",
        "arrivals",
        "bodies",
        "done",
        "outgoing",
        "publish_arrivals",
        "states",
    )

    def __init__(self, broker: Broker, changes: Changes) -> None:
        self._broker = broker
        self._changes = changes
        self.states: list[tuple[Group, bytes | None]] = []
        """States that applications have set for groups."""
        self.outgoing: list[tuple[Outgoing, OutgoingRow]] = []
        """Messages that join the transmission queue."""
        self.arrivals: Arrivals = []
        """Messages that join a queue."""
        self.publish_arrivals: Callable[[Arrivals], None] = publish
        """Publishes the arrivals, and everything else that becomes visible at the same moment."""
        self.bodies: ArrivingBodies | None = None
        """Bodies that arrive in fragments; most changesets have none."""
        self.done: Callable[[], None] = _do_nothing
        """The function to call after everything is published."""
        self._damaged: Arrivals | None = None
        self._lost: list[Lost] | None = None
        self._dialog_events: list[DialogEvent] | None = None
        self._after: list[Callable[[], object]] | None = None

    def park_damaged(self) -> None:
        """Note that the latest arrival has lost its body: park its group before any receive."""
        self._damaged = [*(self._damaged or ()), self.arrivals[-1]]

    def report_lost(self, lost: Lost) -> None:
        """Report an Error that no application will see."""
        self._lost = [*(self._lost or ()), lost]

    def report(self, events: Sequence[DialogEvent]) -> None:
        """Report life-cycle events of dialogs."""
        if events:
            self._dialog_events = [*(self._dialog_events or ()), *events]

    def call(self, function: Callable[[], object]) -> None:
        """Call this function after everything else is published."""
        self._after = [*(self._after or ()), function]

    def publish(self) -> None:
        """Publish everything: the changeset is durable."""
        broker = self._broker
        for group, state in self.states:
            group.keep_state(state)
        for out, sent in self.outgoing:
            out.published(sent)
        for live, row in self._damaged or ():  # before any receive
            if not live.gone and row.queuing_order >= live.dropped_before:
                broker.held.damaged(live, row.queuing_order, row.message_id)
        self.publish_arrivals(self.arrivals)
        if self.bodies is not None:
            self.bodies.publish()
        if self._changes.rare is not None:
            broker.timers.published(self._changes.rare.timers)
        for lost in self._lost or ():
            broker.on_lost(lost)
        if self._dialog_events is not None:
            broker.on_dialog_events(broker, self._dialog_events)
        for function in self._after or ():
            function()
        self.done()


def _do_nothing() -> None:
    """Do nothing: there is no caller to notify."""
