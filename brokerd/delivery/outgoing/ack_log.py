"""The event `broker.remote_ack`: one line per acknowledgement sent or received, at level debug.

Reads: items that carry an acknowledgement, and their endpoint.      Calls: the log.
Never: writes anything unless the log has level debug (MON-16): callers check `is_on` first.
"""

from __future__ import annotations

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Sender
from brokerd.broker.state import Live
from brokerd.ids import show
from brokerd.protocol.frames import AckOnly, Fragment, Item
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import REMOTE_ACK


class AckLog:
    """Log of acknowledgements, one per instance."""

    __slots__ = ("_log", "is_on")

    def __init__(self, *, log: Log, is_on: bool) -> None:
        self._log = log
        self.is_on = is_on
        """Whether the log has level debug."""

    def sent(self, broker: Broker, item: Item, live: Sender | None, *, elevation: int = 0) -> None:
        """Log the ack of an item that leaves; `elevation`: levels gained by waiting (TRN-42)."""
        self._write("sent", broker, item, live, starvation_elevation=elevation)

    def received(self, broker: Broker, item: Item, live: Live | None) -> None:
        """Log the ack of an item that arrived; `live`: its endpoint, None = not read yet."""
        self._write("received", broker, item, live)

    def _write(
        self, way: str, broker: Broker, item: Item, live: Sender | None, **more: object
    ) -> None:
        ack = item.ack if isinstance(item, Fragment | AckOnly) else None
        if ack is None:
            return
        carrier = item if isinstance(item, Fragment) else None
        initiator = item.from_initiator if way == "sent" else not item.from_initiator
        self._log.debug(
            REMOTE_ACK,
            subclass=f"ack_{way}" if carrier is None else f"message_with_ack_{way}",
            broker=broker.name,
            conversation_id=show(item.conversation_id),
            role="initiator" if initiator else "target",
            sequence=None if carrier is None else carrier.sequence,
            fragment=None if carrier is None else carrier.fragment,
            acked_sequence=ack.sequence,
            acked_fragment=ack.fragment,
            priority=None if live is None else live.endpoint.priority,
            honor_priority=broker.store.identity.honor_priority,
            **more,
        )
