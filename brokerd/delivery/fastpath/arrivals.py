"""Fast path of whole messages that arrive in order on open dialogs.

Reads: the broker's memory.      Calls: protocol.dialog, the gathering flush of the store.
Never: decides anything that the general path would decide otherwise. If there is anything to
decide (a refusal, a gap, a fragment, an end, a state other than CO), it does nothing, and the
dispatcher takes the general path. A test compares the paths.
"""

from __future__ import annotations

from brokerd.broker import ordinary
from brokerd.broker.state import Live
from brokerd.delivery.fastpath.rows import OrdinaryRows
from brokerd.protocol import dialog
from brokerd.protocol.frames import Fragment
from brokerd.protocol.headers import Content, find_content_problem


class OrdinaryArrivals(OrdinaryRows):
    """Arrivals that join one flush together."""

    __slots__ = ()

    def add(self, live: Live, item: Fragment) -> bool:
        """Append a message to the queue of its receiver; False = nothing was done."""
        body = item.body or None
        if not ordinary.may_arrive(self._broker, live, item):
            return False
        if item.flags:
            if find_content_problem(item.body):  # it is refused (DLP-60)
                return False
            body = Content(item.body)
        got = dialog.ordinary_receive(live.endpoint, item.message_id)
        if got is None or not self._target.accept(
            live.contract, item.message_type, body, from_initiator=item.from_initiator
        ):
            return False
        self._enqueue(live, got, item.message_type, item.message_id, body)
        return True
