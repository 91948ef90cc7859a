"""What is progress of an endpoint, and what is more than that."""

import pytest
from msgspec.structs import replace

from brokerd.clock import Instant
from brokerd.ids import BrokerId, ConversationId, EndpointKey, GroupId, Handle, MessageId
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State

BEFORE = DialogEndpoint(
    key=EndpointKey(1),
    handle=Handle(b"h" * 16),
    conversation_id=ConversationId(b"c" * 16),
    is_initiator=True,
    service="urn:shop/desk",
    contract="urn:shop/order",
    far_service="urn:shop/orders",
    encryption=False,
    began_at=Instant(1),
    expires_at=Instant(2),
    priority=5,
    group_id=GroupId(b"g" * 16),
    state=State.CONVERSING,
)
PROGRESS = {
    "send_sequence": 7,
    "receive_sequence": 8,
    "receive_fragment": 9,
    "last_message": MessageId(b"m" * 16),
}
MORE = {
    "priority": 6,
    "group_id": GroupId(b"G" * 16),
    "state": State.ERROR,
    "far_broker": BrokerId(b"f" * 16),
    "bound": True,
    "end_sequence": 3,
    "far_end_sequence": 3,
    "discarded": 3,
    "first_acked": True,
    "purge_at": Instant(3),
    "error_code": -1,
    "error_text": "why",
    "route": "away",
    "error_queue": "letters",
    "state_since": Instant(4),
    "security": b"wrapped",
}


def test_every_field_that_changes_is_progress_or_more() -> None:
    fields = DialogEndpoint.__struct_fields__
    assert set(fields[fields.index("priority") :]) == {*PROGRESS, *MORE}


@pytest.mark.parametrize("field", PROGRESS)
def test_progress_alone_is_only_moving(field: str) -> None:
    after = replace(BEFORE, **{field: PROGRESS[field]})
    assert after.only_moved(BEFORE)
    assert replace(BEFORE, **PROGRESS).only_moved(after)


@pytest.mark.parametrize("field", MORE)
def test_any_other_field_is_more_than_moving(field: str) -> None:
    after = replace(BEFORE, **PROGRESS, **{field: MORE[field]})
    assert not after.only_moved(BEFORE)
    assert not BEFORE.only_moved(after)
