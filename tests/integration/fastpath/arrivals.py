"""Arrivals: fragments from a far side, given to a daemon without peers."""

from typing import Any

from brokerd.clock import Instant
from brokerd.ids import BrokerId, ConversationId, Incarnation, MessageId
from brokerd.protocol.frames import Fragment, Hop
from tests.integration.one_daemon import START, Daemon

FAR = BrokerId(b"f" * 16)


def arriving(daemon: Daemon, dialog: int, sequence: int, **fields: Any) -> Fragment:
    """A fragment of a dialog that a broker elsewhere began with the service urn:shop."""
    given: dict[str, Any] = {
        "fragment": 0,
        "fragments": 1,
        "flags": 0,
        "message_type": "Ask",
        "ack": None,
        "body": b"%d/%d" % (dialog, sequence),
    }
    given |= fields
    return Fragment(
        conversation_id=ConversationId(bytes([dialog]) * 16),
        from_initiator=True,
        message_id=MessageId(bytes([dialog, sequence]) * 8),
        sequence=sequence,
        from_service="urn:far",
        to_service="urn:shop",
        from_broker=FAR,
        contract="talk",
        expires_at=Instant(START + 3_600_000_000),
        incarnation=Incarnation(b"i" * 16),
        hop=Hop(daemon.broker.broker_id, 10, 60_000, 0),
        **given,
    )
