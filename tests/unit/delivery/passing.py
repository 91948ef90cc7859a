"""Items as a forwarder meets them."""

from typing import Any

from msgspec.structs import replace

from brokerd.ids import InstanceId
from brokerd.protocol.frames import (
    Ack,
    AckOnly,
    Fragment,
    Header,
    Hop,
    Item,
    decode_boxcar,
    encode_item,
)

PEER = InstanceId(b"p" * 16)
HOP = Hop(b"", 10, 60_000, 0)
_COMMON: dict[str, Any] = {
    "conversation_id": b"c" * 16,
    "from_initiator": True,
    "from_service": "from",
    "to_service": "to",
    "from_broker": b"f" * 16,
    "hop": HOP,
}


def fragment(
    sequence: int,
    number: int = 0,
    *,
    body: bytes = b"",
    conversation: bytes = b"c" * 16,
    **more: Any,
) -> Fragment:
    """A fragment of a message of nine."""
    fields: dict[str, Any] = _COMMON | {
        "conversation_id": conversation,
        "message_id": b"m" * 16,
        "sequence": sequence,
        "fragment": number,
        "fragments": 9,
        "flags": 0,
        "contract": "c",
        "message_type": "t",
        "expires_at": 10**15,
        "incarnation": b"i" * 16,
        "ack": None,
        "body": body,
    }
    return Fragment(**fields | more)


def ack(*, conversation: bytes = b"c" * 16) -> AckOnly:
    """A dedicated acknowledgement."""
    block = Ack(3, 0, 3, 0, b"b" * 16)  # type: ignore[arg-type]
    fields = _COMMON | {"conversation_id": conversation, "ack": block}
    return AckOnly(**fields)


def arrived(*items: Item) -> tuple[list[Item], list[Header], InstanceId]:
    """What the transport hands on of them."""
    headers: list[Header] = []
    decoded = decode_boxcar(b"".join(map(encode_item, items)), headers)
    good = [one for one in decoded if isinstance(one, Item)]
    assert len(good) == len(items)
    return good, headers, PEER


def departed(packed: list[bytes]) -> list[Item]:
    """What the next hop makes of what left."""
    return [one for one in decode_boxcar(b"".join(packed)) if isinstance(one, Item)]


def counted(item: Item, *, hops: int = 1, milliseconds: int = 0) -> Item:
    """The item as it should leave."""
    hop = item.hop
    less = Hop(hop.to_broker, hop.hops - hops, hop.time_to_live, hop.time_consumed + milliseconds)
    return replace(item, hop=less)
