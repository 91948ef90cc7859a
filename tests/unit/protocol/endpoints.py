"""Endpoints, fragments and acks for the tests of the dialog core."""

from typing import Any

from brokerd.clock import Instant
from brokerd.ids import (
    BrokerId,
    ConversationId,
    EndpointKey,
    GroupId,
    Handle,
    Incarnation,
    MessageId,
)
from brokerd.protocol.dialog import WHOLE
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import Ack, Fragment, Hop
from brokerd.protocol.transitions import State

NOW = Instant(1_700_000_000_000_000)
LATER = Instant(NOW + 3_600_000_000)
FAR = BrokerId(b"f" * 16)
OTHER = BrokerId(b"o" * 16)


def endpoint(*, initiator: bool, state: State, **given: Any) -> DialogEndpoint:
    """An endpoint that has sent two messages and received two."""
    values: dict[str, Any] = {
        "key": EndpointKey(1),
        "handle": Handle(b"h" * 16),
        "conversation_id": ConversationId(b"c" * 16),
        "is_initiator": initiator,
        "service": "urn:desk",
        "contract": "talk",
        "far_service": "urn:shop",
        "encryption": False,
        "began_at": NOW,
        "expires_at": LATER,
        "priority": 5,
        "group_id": GroupId(b"g" * 16),
        "state": state,
        "far_broker": FAR,
        "bound": True,
        "send_sequence": 2,
        "receive_sequence": 2,
    }
    if state is State.DISCONNECTED_OUTBOUND:
        values |= {"send_sequence": 3, "end_sequence": 2}
    return DialogEndpoint(**(values | given))


def fragment(sequence: int, **given: Any) -> Fragment:
    """A fragment from the far side; a whole message unless it says otherwise."""
    values: dict[str, Any] = {
        "conversation_id": ConversationId(b"c" * 16),
        "from_initiator": True,
        "message_id": MessageId(b"m" * 16),
        "sequence": sequence,
        "fragment": 0,
        "fragments": 1,
        "flags": 0,
        "from_service": "urn:shop",
        "to_service": "urn:desk",
        "from_broker": FAR,
        "contract": "talk",
        "message_type": "Ask",
        "expires_at": LATER,
        "incarnation": Incarnation(b"i" * 16),
        "ack": None,
        "hop": Hop(b"", 10, 60_000, 0),
        "body": b"x",
    }
    return Fragment(**(values | given))


def ack(sequence: int, part: int = WHOLE, **given: Any) -> Ack:
    """An acknowledgement from the bound broker."""
    values: dict[str, Any] = {
        "sequence": sequence,
        "fragment": part,
        "highest_seen": sequence,
        "base_sequence": 0,
        "broker_id": FAR,
    }
    return Ack(**(values | given))
