"""A changeset names each endpoint once, with its newest value."""

import pytest

from brokerd.clock import Instant
from brokerd.ids import ConversationId, EndpointKey, GroupId, Handle
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State
from brokerd.storage.changes import Changes

KEY = EndpointKey(4)


def endpoint(sent: int) -> DialogEndpoint:
    return DialogEndpoint(
        key=KEY,
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
        send_sequence=sent,
    )


@pytest.mark.parametrize(
    ("calls", "where"),
    [
        ("create put move", "created"),
        ("create move put", "created"),
        ("put move", "changed"),
        ("move put move", "changed"),
        ("move put", "changed"),
        ("move move", "moved"),
    ],
)
def test_endpoint_is_in_one_place_with_its_newest_value(calls: str, where: str) -> None:
    changes = Changes()
    steps = calls.split()
    for sent, call in enumerate(steps):
        getattr(changes, call)(endpoint(sent))
    last = endpoint(len(steps) - 1)
    found = {name: getattr(changes, name) for name in ("created", "changed", "moved")}
    assert {name: values for name, values in found.items() if values} == {where: {KEY: last}}


@pytest.mark.parametrize(
    ("calls", "removed"), [("create move", []), ("move", [KEY]), ("put", [KEY])]
)
def test_removed_endpoint_is_nowhere_else(calls: str, removed: list[EndpointKey]) -> None:
    changes = Changes()
    for call in calls.split():
        getattr(changes, call)(endpoint(0))
    changes.remove(KEY)
    assert (changes.created, changes.changed, changes.moved) == ({}, {}, {})
    assert changes.removed == removed
