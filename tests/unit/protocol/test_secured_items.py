"""Items of secured dialogs: what their seals cover, and how strictly they are decoded (SEC-29)."""

import msgpack
import pytest
from msgspec.structs import asdict, astuple, replace

from brokerd.ids import Incarnation, MessageId
from brokerd.protocol.frames import (
    BadItem,
    BrokerErrorItem,
    Fragment,
    SecuredAck,
    SecuredError,
    SecuredFragment,
    ack_header,
    decode_boxcar,
    dialog_header,
    encode_item,
    error_header,
    pack_error,
    read_error,
)
from tests.frames import ACK, BROKER, CONVERSATION, HOP, fragment

KEY = b"k" * 16
PLAIN = fragment(body=b"s" * 20)
SECURED = SecuredFragment(
    **asdict(PLAIN) | {"hop": HOP, "ack": ACK}, key_id=KEY, ack_code=b"m" * 16, security=b"h" * 9
)
ERROR = BrokerErrorItem(CONVERSATION, False, "//here", "//far", BROKER, -8408, "no", HOP)
SEALED = SecuredError(CONVERSATION, False, "//here", "//far", BROKER, b"e" * 40, HOP)

CHANGES: dict[str, object] = {
    "conversation_id": b"d" * 16,
    "from_initiator": False,
    "message_id": MessageId(b"J" * 16),
    "sequence": 2,
    "fragment": 1,
    "fragments": 2,
    "flags": 1,
    "from_service": "//far/Shop2",
    "to_service": "//here/Warehouse2",
    "from_broker": b"L" * 16,
    "contract": "orders/v2",
    "message_type": "Order2",
    "expires_at": 3 * 10**15,
    "incarnation": Incarnation(b"O" * 16),
}


@pytest.mark.rule("SEC-29", "SEC-35", "DLP-7")
def test_the_seal_of_a_fragment_covers_every_field_of_its_header() -> None:
    outside = {"ack", "hop", "body"}
    assert set(CHANGES) == set(Fragment.__struct_fields__) - outside
    seen = {dialog_header(astuple(PLAIN), KEY), dialog_header(astuple(PLAIN), b"j" * 16)}
    for field, value in CHANGES.items():
        seen.add(dialog_header(astuple(replace(PLAIN, **{field: value})), KEY))
    assert len(seen) == 2 + len(CHANGES)
    assert dialog_header(astuple(SECURED), KEY) == dialog_header(astuple(PLAIN), KEY)


@pytest.mark.rule("SEC-36")
def test_the_code_of_an_acknowledgement_covers_its_dialog_and_every_field() -> None:
    alone = SecuredAck(
        CONVERSATION, True, "//far/Shop", "//here/Warehouse", BROKER, ACK, HOP, b"m" * 16
    )
    assert ack_header(alone, ACK) == ack_header(SECURED, ACK)
    others = {"sequence": 6, "fragment": 1, "highest_seen": 10, "base_sequence": 4}
    more = {"broker_id": b"L" * 16, "first_acked": False, "ranges": ()}
    seen = {ack_header(alone, replace(ACK, **{k: v})) for k, v in (others | more).items()}
    for field in ("conversation_id", "from_initiator", "from_service", "to_service", "from_broker"):
        seen.add(ack_header(replace(alone, **{field: CHANGES[field]}), ACK))
    assert len(seen | {ack_header(alone, ACK)}) == 13


@pytest.mark.rule("SEC-37")
def test_an_error_is_sealed_with_its_dialog() -> None:
    assert error_header(ERROR) == error_header(SEALED)
    for field in ("conversation_id", "from_initiator", "from_service", "to_service", "from_broker"):
        value = CHANGES[field] if field != "from_initiator" else True
        assert error_header(replace(SEALED, **{field: value})) != error_header(ERROR)
    assert read_error(SEALED, pack_error(ERROR)) == ERROR
    for wrong in (b"", b"\xc1", msgpack.packb((1, "no")), msgpack.packb((-1, 2)), b"\x91\xff"):
        assert read_error(SEALED, wrong) is None


@pytest.mark.rule("BI-F4", "TRN-44")
@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (replace(SECURED, key_id=b"k"), "security"),
        (replace(SECURED, ack_code=b""), "security"),
        (replace(SECURED, ack=None), "security"),
        (replace(SECURED, security=b"h" * 513), "security"),
        (replace(SECURED, body=b"s" * 15), "security"),
        (replace(SECURED, sequence=-1), "sequence"),
        (replace(SEALED, sealed=b"e" * 27), "security"),
        (replace(SEALED, sealed=b"e" * 16_384), "header_too_large"),
        (
            SecuredAck(CONVERSATION, True, "//a", "//b", BROKER, ACK, HOP, b"m" * 17),
            "security",
        ),
    ],
)
def test_a_secured_item_that_is_out_of_bounds_is_dropped_alone(
    item: SecuredFragment, reason: str
) -> None:
    bad, good = decode_boxcar(encode_item(item) + encode_item(SECURED))
    assert isinstance(bad, BadItem)
    assert bad.reason == reason
    assert good == SECURED


@pytest.mark.rule("TRN-44", "DLP-7")
def test_a_kind_of_a_later_version_is_dropped_alone() -> None:
    header = msgpack.unpackb(encode_item(SEALED), use_list=False)
    bad, good = decode_boxcar(msgpack.packb((6, *header[1:])) + encode_item(PLAIN))
    assert bad == BadItem("unknown_item", CONVERSATION)
    assert good == PLAIN
