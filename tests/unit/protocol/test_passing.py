"""Passing an item on: the hop block is counted, everything else stays as it was (FWD-5, FWD-14)."""

from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from brokerd.delivery.forwarding import forwarder, report
from brokerd.protocol import passing
from brokerd.protocol.frames import (
    Ack,
    AckOnly,
    BrokerErrorItem,
    Fragment,
    Header,
    Hop,
    Item,
    SecuredAck,
    SecuredError,
    SecuredFragment,
    decode_boxcar,
    encode_item,
)
from brokerd.protocol.passing import passed_on

HOP = Hop(b"t" * 16, 10, 60_000, 7)
ACK = Ack(3, 0, 9, 1, b"b" * 16, True, ((5, 0, 6, 0), (8, 1, 8, 1)))  # type: ignore[arg-type]
_DIALOG = {"conversation_id": b"c" * 16, "from_initiator": True, "hop": HOP}
_PARTIES = {"from_service": "//from", "to_service": "//to", "from_broker": b"f" * 16}
_TYPES = {"contract": "c", "message_type": "t", "expires_at": 10**15, "incarnation": b"i" * 16}
_PLACE = {"message_id": b"m" * 16, "sequence": 7, "fragment": 2, "fragments": 5, "flags": 0}
_ALL: dict[str, Any] = _DIALOG | _PARTIES
_FRAGMENT: dict[str, Any] = _ALL | _TYPES | _PLACE
ITEMS: list[Item] = [
    Fragment(**_FRAGMENT, ack=ACK, body=b"body"),
    Fragment(**_FRAGMENT, ack=None, body=b""),
    AckOnly(**_ALL, ack=ACK),
    BrokerErrorItem(**_ALL, code=-8462, description="gone"),
    SecuredFragment(
        **_FRAGMENT, ack=ACK, body=b"s" * 20, key_id=b"k" * 16, ack_code=b"m" * 16, security=b"h"
    ),
    SecuredFragment(**_FRAGMENT, ack=None, body=b"t" * 16, key_id=b"k" * 16, ack_code=b""),
    SecuredAck(**_ALL, ack=ACK, ack_code=b"m" * 16),
    SecuredError(**_ALL, sealed=b"e" * 40),
]


def _body(item: Any) -> bytes:
    return item.body if isinstance(item, Fragment) else b""


@pytest.mark.rule("FWD-5", "FWD-14")
@given(st.lists(st.sampled_from(ITEMS), max_size=5), st.integers(0, 10), st.integers(0, 10**9))
def test_only_the_hop_block_changes(items: list[Item], hops: int, spent: int) -> None:
    headers: list[Header] = []
    decoded = decode_boxcar(b"".join(map(encode_item, items)), headers)
    assert decoded == items
    passed = [
        passed_on(header, _body(item), hops=hops, milliseconds=spent)
        for header, item in zip(headers, decoded, strict=True)
    ]
    counted = Hop(HOP.to_broker, HOP.hops - hops, HOP.time_to_live, HOP.time_consumed + spent)
    assert passed == [encode_item(replace(item, hop=counted)) for item in items]


@pytest.mark.rule("FWD-14")
@given(st.binary(max_size=200))
def test_a_body_is_passed_on_byte_by_byte_whatever_it_is(body: bytes) -> None:
    """Nothing of it has to be understood, so it may as well be encrypted."""
    item = Fragment(**_FRAGMENT, ack=ACK, body=body)
    headers: list[Header] = []
    decode_boxcar(encode_item(item), headers)
    passed = passed_on(headers[0], body, hops=1, milliseconds=0)
    counted = Hop(HOP.to_broker, HOP.hops - 1, HOP.time_to_live, HOP.time_consumed)
    assert passed == encode_item(replace(item, hop=counted))
    assert passed.endswith(body)


@pytest.mark.rule("FWD-14")
@pytest.mark.parametrize("module", [forwarder, report, passing])
def test_what_forwards_knows_nothing_of_keys(module: ModuleType) -> None:
    assert "security" not in Path(str(module.__file__)).read_text()


@pytest.mark.rule("FWD-14")
@pytest.mark.parametrize("at", range(len(ITEMS)))
def test_what_a_later_version_added_goes_on(at: int) -> None:
    item = ITEMS[at]
    plain = encode_item(item)
    unpacker = msgpack.Unpacker()
    unpacker.feed(plain)
    fields = unpacker.unpack()
    hop_at = passing._HOP_AT[fields[0]]
    fields[hop_at] = [*fields[hop_at], "of the hop block"]
    newer = msgpack.packb([*fields, {"signed": b"s" * 64}, 1.5]) + _body(item)

    headers: list[Header] = []
    (decoded,) = decode_boxcar(newer, headers)
    assert decoded == item
    passed = passed_on(headers[0], _body(item), hops=1, milliseconds=3)

    unpacker = msgpack.Unpacker()
    unpacker.feed(passed)
    assert unpacker.unpack() == [
        *fields[:hop_at],
        [HOP.to_broker, 9, 60_000, 10, "of the hop block"],
        *fields[hop_at + 1 :],
        {"signed": b"s" * 64},
        1.5,
    ]
    assert passed.endswith(_body(item))


@pytest.mark.rule("RTE-30")
@pytest.mark.parametrize("at", range(len(ITEMS)))
def test_the_target_inside_the_instance_never_leaves_it(at: int) -> None:
    inside = replace(ITEMS[at], hop=replace(HOP, local_target=b"l" * 16))
    assert encode_item(inside) == encode_item(ITEMS[at])
    assert decode_boxcar(encode_item(inside)) == [ITEMS[at]]
