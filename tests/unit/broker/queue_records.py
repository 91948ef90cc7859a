"""Records of a queue's live state for unit tests: conversations with messages, without a broker."""

from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from brokerd.broker.messages import QueuedMessage
from brokerd.broker.state import Group, Live
from brokerd.clock import Instant
from brokerd.ids import EndpointKey, GroupId, MessageId
from brokerd.protocol.transitions import State

NOTHING = cast("Any", None)
HOME = cast("Any", SimpleNamespace(aside=set()))
"""The queue of all these groups."""
_keys = count(1)


def group() -> Group:
    """Return a group without a conversation."""
    return Group(GroupId(next(_keys).to_bytes(16)), "service", HOME)


def conversation(of: Group, priority: int = 5) -> Live:
    """Return a conversation of a group, without a message."""
    key = EndpointKey(next(_keys))
    endpoint = SimpleNamespace(key=key, priority=priority, state=State.CONVERSING)
    live = Live(
        cast("Any", endpoint),
        group=of,
        queue=HOME,
        contract=NOTHING,
        coming=NOTHING,
        is_local=False,
    )
    of.members[key] = live
    return live


def message(order: int, body: bytes = b"", *, sequence: int | None = None) -> QueuedMessage:
    """Return a message that was enqueued at the instant `order`."""
    return QueuedMessage(
        order,
        order if sequence is None else sequence,
        "Ask",
        Instant(order),
        MessageId(order.to_bytes(16)),
        body,
    )


def holder(*groups: Group) -> Any:
    """Return a transaction that has locked these groups."""
    found = SimpleNamespace(ready={}, locked=[], ended=set(), took=lambda _group: None)
    for one in groups:
        assert one.lock(cast("Any", found))
    return found
