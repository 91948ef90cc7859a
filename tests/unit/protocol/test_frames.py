"""Frames and items: what goes out comes back; what is off is refused (BI-F2 to BI-F6)."""

import math
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import ProtocolError
from brokerd.protocol.frames import (
    END,
    ENDS,
    ERROR,
    FRAME_LIMIT,
    HEADERS,
    LOGIN_LIMIT,
    Ack,
    AckOnly,
    BadItem,
    BrokerErrorItem,
    Fragment,
    FrameReader,
    Hop,
    Item,
    Kind,
    boxcar,
    decode_boxcar,
    encode_frame,
    encode_item,
)
from brokerd.protocol.neighbour import (
    Arbitrate,
    Goodbye,
    Hello,
    Notice,
    Ping,
    Pong,
    Reject,
    Verdict,
    decode,
    encode,
)
from brokerd.protocol.trace import Leg, Step, Trace
from brokerd.protocol.wire import LATEST, pack

IDS = st.binary(min_size=16, max_size=16).filter(any)
INTS = st.integers(0, 2**63 - 1)
NAMES = st.text(min_size=1, max_size=256)
HOPS = st.builds(Hop, st.one_of(st.just(b""), IDS), st.integers(0, 255), INTS, INTS)


@st.composite
def acks(draw) -> Ack:
    sequence = draw(st.integers(-1, 2**63 - 1))
    ends = st.tuples(INTS, INTS)
    ranges = draw(st.lists(st.tuples(ends, ends).map(sorted), max_size=16))
    return Ack(
        sequence=sequence,
        fragment=-1 if sequence < 0 else draw(st.integers(0, 2**31 - 2)),
        highest_seen=draw(st.integers(sequence, 2**63 - 1)),
        base_sequence=draw(INTS),
        broker_id=draw(IDS),
        first_acked=draw(st.booleans()),
        ranges=tuple((*a, *b) for a, b in ranges),
    )


@st.composite
def fragments(draw) -> Fragment:
    flags = draw(st.sampled_from([0, END, ERROR, HEADERS]))
    ends = bool(flags & ENDS)
    count = draw(st.integers(1, 2**31 - 1))
    return Fragment(
        conversation_id=draw(IDS),
        from_initiator=draw(st.booleans()),
        message_id=draw(IDS),
        sequence=draw(st.integers(1 if ends else 0, 2**63 - 2)),
        fragment=draw(st.integers(0, count - 1)),
        fragments=count,
        flags=flags,
        from_service=draw(NAMES),
        to_service=draw(NAMES),
        from_broker=draw(IDS),
        contract=draw(NAMES),
        message_type="" if ends else draw(NAMES),
        expires_at=draw(st.integers(0, LATEST)),
        incarnation=draw(IDS),
        ack=draw(st.none() | acks()),
        hop=draw(HOPS),
        body=draw(st.binary(max_size=300)),
    )


ITEMS = st.one_of(
    fragments(),
    st.builds(AckOnly, IDS, st.booleans(), NAMES, NAMES, IDS, acks(), HOPS),
    st.builds(
        BrokerErrorItem,
        IDS,
        st.booleans(),
        NAMES,
        NAMES,
        IDS,
        st.integers(-(2**31), -1),
        st.text(max_size=100),
        HOPS,
    ),
)
NEIGHBOURLY = st.one_of(
    st.builds(
        Hello,
        IDS,
        IDS,
        st.integers(0, 65535),
        st.integers(LOGIN_LIMIT, FRAME_LIMIT),
        st.integers(0, 9),
        st.integers(0, 9),
        st.dictionaries(st.text(max_size=9), st.text(max_size=9) | INTS | st.booleans()),
    ),
    st.builds(Reject, NAMES, NAMES),
    st.builds(Arbitrate, st.sampled_from(Verdict)),
    st.builds(Ping, INTS),
    st.builds(Pong, INTS),
    st.builds(Goodbye, NAMES),
    st.builds(Notice, IDS, st.booleans(), INTS, NAMES, NAMES, NAMES, IDS, st.integers(0, 10)),
    st.builds(
        Trace,
        IDS,
        st.sampled_from(Leg),
        NAMES,
        st.one_of(IDS, st.just(b"")),
        NAMES,
        IDS,
        st.integers(0, 10),
        st.lists(st.builds(Step, *[NAMES] * 9), max_size=4).map(tuple),
    ),
)


def one_fragment(**changed: Any) -> bytes:
    """A good header as a list, with fields changed by position, then the body."""
    fields: list[Any] = [0, 4, b"c" * 16, True, b"m" * 16, 7, 0, 1, 0, "//a", "//b", b"b" * 16]
    fields += ["DEFAULT", "DEFAULT", 10**15, b"i" * 16, None, [b"", 10, 60_000, 0]]
    for at, value in changed.items():
        fields[int(at.removeprefix("f"))] = value
    return bytes(msgpack.packb(fields)) + b"body"


@pytest.mark.rule("DLP-7", "TRN-31")
@given(st.lists(ITEMS, max_size=6))
def test_items_come_back_in_order(items: list[Item]) -> None:
    pieces = boxcar([encode_item(item) for item in items])
    ((kind, payload),) = FrameReader(FRAME_LIMIT).feed(b"".join(pieces))
    assert kind == Kind.BOXCAR
    assert decode_boxcar(payload) == items


@pytest.mark.rule("TRN-45")
@given(NEIGHBOURLY)
def test_frames_between_neighbours_come_back(frame) -> None:
    ((kind, payload),) = FrameReader(FRAME_LIMIT).feed(encode(frame))
    assert decode(kind, payload) == frame


@pytest.mark.rule("BI-F3")
@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_frames_are_the_same_however_the_stream_is_cut(
    bodies: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(encode_frame(16, body) for body in bodies)
    reader, found, at, turn = FrameReader(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += [(kind, bytes(body)) for kind, body in reader.feed(stream[at : at + size])]
        at, turn = at + size, turn + 1
    assert found == [(16, body) for body in bodies]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=40).map(tuple) | st.dictionaries(st.text(max_size=9), inner)
    ),
    max_leaves=20,
)


@pytest.mark.rule("TRN-45", "FWD-14")
@given(VALUES)
def test_a_value_is_packed_as_every_msgpack_does_it(value: object) -> None:
    assert pack(value) == msgpack.packb(value)


@pytest.mark.rule("DLP-15", "TRN-45")
def test_an_acknowledgement_block_is_an_array_of_its_fields() -> None:
    ack = Ack(4, 2, 9, 1, b"b" * 16, True, ((6, 0, 9, 3),))
    assert msgpack.unpackb(pack(ack)) == [4, 2, 9, 1, b"b" * 16, True, [[6, 0, 9, 3]]]


@pytest.mark.rule("BI-F3")
@given(ITEMS, st.data())
def test_no_prefix_of_an_item_is_taken(item, data) -> None:
    whole = encode_item(item)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(ProtocolError):
        decode_boxcar(whole[:cut])


@pytest.mark.rule("BI-F4")
@given(st.binary(max_size=400))
def test_random_bytes_raise_nothing_else(data: bytes) -> None:
    for kind in range(10):
        try:
            decode(kind, data) if kind else decode_boxcar(data)
        except ProtocolError:
            continue


@pytest.mark.rule("BI-F4")
@given(st.data())
def test_a_changed_byte_raises_nothing_else(data) -> None:
    good = bytearray(one_fragment() * 2)
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_boxcar(good)
    except ProtocolError:
        return


@pytest.mark.rule("TRN-33", "BI-F2")
@pytest.mark.parametrize("limit", [LOGIN_LIMIT, FRAME_LIMIT])
def test_lengths_are_limited(limit: int) -> None:
    whole = encode_frame(16, bytes(limit - 1))
    assert [len(p) for _, p in FrameReader(limit).feed(whole)] == [limit - 1]
    for length in (0, limit + 1, 2**32 - 1):
        with pytest.raises(ProtocolError):
            list(FrameReader(limit).feed(struct.pack(">IB", length, 16)))


@pytest.mark.rule("BI-F2")
def test_a_limit_raised_by_one_frame_counts_for_the_next() -> None:
    reader = FrameReader()
    stream = encode(Arbitrate(Verdict.WON)) + encode_frame(16, bytes(LOGIN_LIMIT))
    kinds = []
    for kind, _ in reader.feed(stream):
        kinds.append(kind)
        reader.limit = FRAME_LIMIT
    assert kinds == [Kind.ARBITRATE, Kind.BOXCAR]


BAD_ITEMS = {
    "short id": {"f2": b"c" * 15},
    "id is text": {"f2": "c" * 16},
    "direction is a number": {"f3": 1},
    "sequence is negative": {"f5": -1},
    "sequence is 2^63": {"f5": 2**63},
    "no sequence can follow": {"f5": 2**63 - 1},
    "deadline after the year 9998": {"f14": LATEST + 1},
    "sequence is a float": {"f5": 7.0},
    "sequence is a boolean": {"f5": True},
    "fragment outside the count": {"f6": 1},
    "no fragments": {"f7": 0},
    "end and error": {"f8": 3, "f13": ""},
    "unknown flag": {"f8": 4, "f13": ""},
    "end has a type": {"f8": END},
    "error has a type": {"f8": ERROR},
    "message has no type": {"f13": ""},
    "first message of the initiator ends": {"f5": 0, "f8": END, "f13": ""},
    "first message of the initiator fails": {"f5": 0, "f8": ERROR, "f13": ""},
    "more fragments than there may be": {"f7": 2**31},
    "no conversation": {"f2": bytes(16)},
    "no message id": {"f4": bytes(16)},
    "no service": {"f10": ""},
    "long service": {"f9": "s" * 257},
    "service is bytes": {"f9": b"//a"},
    "deadline is not a time": {"f14": math.nan},
    "incarnation is short": {"f15": b""},
    "ack is a number": {"f16": 1},
    "ack is short": {"f16": [1, 0, 1]},
    "highest seen below the ack": {"f16": [5, 0, 4, 0, b"b" * 16, False, []]},
    "ack -1 with a fragment": {"f16": [-1, 0, 4, 0, b"b" * 16, False, []]},
    "17 ranges": {"f16": [5, 0, 9, 0, b"b" * 16, False, [[6, 0, 6, 0]] * 17]},
    "range runs backwards": {"f16": [5, 0, 9, 0, b"b" * 16, False, [[7, 0, 6, 0]]]},
    "range of three": {"f16": [5, 0, 9, 0, b"b" * 16, False, [[7, 0, 6]]]},
    "hop is a map": {"f17": {"hops": 3}},
    "hops 256": {"f17": [b"", 256, 1, 0]},
    "time to live is negative": {"f17": [b"", 10, -1, 0]},
    "to broker is short": {"f17": [b"1", 10, 1, 0]},
    "unknown item": {"f0": 9},
}


@pytest.mark.rule("DLP-6", "DLP-13", "BI-F4", "BI-F6", "TRN-44")
@pytest.mark.parametrize("changed", BAD_ITEMS.values(), ids=BAD_ITEMS.keys())
def test_a_bad_header_is_dropped_alone(changed: dict[str, Any]) -> None:
    good = one_fragment()
    first, bad, last = decode_boxcar(good + one_fragment(**changed) + good)
    assert isinstance(first, Fragment)
    assert isinstance(last, Fragment)
    assert isinstance(bad, BadItem)
    assert bad.reason


@pytest.mark.rule("DLP-6", "DLP-13")
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"f8": END | ERROR, "f13": ""}, "flags"),
        ({"f8": END | HEADERS, "f13": ""}, "flags"),
        ({"f8": ERROR | HEADERS, "f13": ""}, "flags"),
        ({"f8": HEADERS, "f13": ""}, "message_type"),
        ({"f8": END}, "message_type"),
        ({"f13": ""}, "message_type"),
        ({"f5": 0, "f8": END, "f13": ""}, "message_0_ends"),
        ({"f5": 0, "f8": ERROR, "f13": ""}, "message_0_ends"),
        ({"f2": bytes(16)}, "null_id"),
        ({"f4": bytes(16)}, "null_id"),
        ({"f5": 2**63}, "sequence"),
        ({"f7": 2**31}, "sequence"),
        ({"f6": 1}, "sequence"),
    ],
)
def test_the_reason_names_what_is_wrong(changed: dict[str, Any], reason: str) -> None:
    (bad,) = decode_boxcar(one_fragment(**changed))
    assert isinstance(bad, BadItem)
    assert (bad.reason, len(bad.conversation_id or b"")) == (reason, 16)


@pytest.mark.rule("DLP-4", "DLP-6", "DLP-13", "DLP-16", "DLG-19")
@pytest.mark.parametrize(
    "changed",
    [
        {"f5": 2**63 - 2},
        {"f14": LATEST},
        {"f6": 2**31 - 2, "f7": 2**31 - 1},
        {"f9": "s" * 256},
        {"f3": False, "f5": 0, "f8": END, "f13": ""},  # a target may end before it ever sent
        {"f3": False, "f5": 0, "f8": ERROR, "f13": ""},
        {"f5": 1, "f8": END, "f13": ""},
        {"f16": [5, 0, 5, 0, b"b" * 16, False, []]},  # it has seen what it acknowledges
        {"f16": [5, 0, 9, 0, b"b" * 16, False, [[6, 0, 6, 0]] * 16]},
        {"f17": [b"", 255, 0, 0]},
    ],
)
def test_what_is_just_allowed_is_taken(changed: dict[str, Any]) -> None:
    (item,) = decode_boxcar(one_fragment(**changed))
    assert isinstance(item, Fragment)


def deep(levels: int) -> bytes:
    return b"\x91" * levels + b"\x00"


BROKEN_BOXCARS = {
    "no array": b"\xc0",
    "empty array": b"\x90",
    "array of one": b"\x91\x00",
    "size is text": b"\x92\x00\xa1x",
    "size beyond the frame": one_fragment()[:-1],
    "size negative": one_fragment(f1=-1),
    "reserved byte": b"\xc1",
    "bad utf-8": one_fragment().replace(b"//a", b"\xff\xfe\xfd"),
    "extension": one_fragment(f5=msgpack.ExtType(5, b"12")),
    "array of 1025": msgpack.packb([0] * 1025),
    "map of 65": msgpack.packb([0, 0, {str(n): n for n in range(65)}]),
    "duplicate key": b"\x93\x00\x00\x82\xa1a\x01\xa1a\x01",
    "key is a number": b"\x93\x00\x00\x81\x01\x01",
    "nested beyond all bounds": deep(5000),
    "trailing byte": one_fragment() + b"\x00",
}


@pytest.mark.rule("BI-F4", "TRN-44")
@pytest.mark.parametrize("payload", BROKEN_BOXCARS.values(), ids=BROKEN_BOXCARS.keys())
def test_a_boxcar_whose_items_cannot_be_told_apart_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_boxcar(payload)
    assert len(decode_boxcar(one_fragment())) == 1  # nothing of it is left behind


@pytest.mark.rule("BI-F4", "BI-F5")
@pytest.mark.parametrize(
    ("extra", "sound"),
    [
        ("later", True),
        ({"later": [1, None, 2.5]}, True),
        (math.nan, False),
        (math.inf, False),
        ([[[[[[[["deep"]]]]]]]], False),
        (msgpack.Timestamp(1), False),
        ("x" * 17_000, False),
    ],
)
def test_fields_of_a_later_version_are_ignored_if_sound(extra, sound: bool) -> None:
    fields = [*msgpack.unpackb(one_fragment()[:-4]), extra]
    (item,) = decode_boxcar(msgpack.packb(fields) + b"body")
    assert isinstance(item, Fragment if sound else BadItem)


BAD_FRAMES = {
    "not an array": (Kind.PING, b"\x01"),
    "bytes after it": (Kind.PING, b"\x91\x01\x00"),
    "nothing": (Kind.PING, b""),
    "empty": (Kind.PING, b"\x90"),
    "negative": (Kind.PING, b"\x91\xff"),
    "2^64 - 1": (Kind.PONG, b"\x91\xcf" + b"\xff" * 8),
    "extension": (Kind.GOODBYE, msgpack.packb([msgpack.ExtType(1, b"x")])),
    "bad utf-8": (Kind.GOODBYE, b"\x91\xa1\xff"),
    "nan": (Kind.GOODBYE, msgpack.packb(["idle", math.nan])),
    "nested 9 deep": (Kind.GOODBYE, msgpack.packb(["idle", [[[[[[[[1]]]]]]]]])),
    "verdict unknown": (Kind.ARBITRATE, msgpack.packb(["drawn"])),
    "wrong magic": (Kind.HELLO, msgpack.packb(["x", 1, 0, b"i" * 16, b"b" * 16, 0, 9999, {}])),
    "short hello": (Kind.HELLO, msgpack.packb(["brokerd", 1, 0])),
    "short id": (Kind.HELLO, msgpack.packb(["brokerd", 1, 0, b"i", b"b" * 16, 0, 9999, {}])),
    "tiny frames": (Kind.HELLO, msgpack.packb(["brokerd", 1, 0, b"i" * 16, b"b" * 16, 0, 9, {}])),
    "options a list": (
        Kind.HELLO,
        msgpack.packb(["brokerd", 1, 0, b"i" * 16, b"b" * 16, 0, 9999, []]),
    ),
    "no neighbour's frame": (Kind.BOXCAR, b"\x91\x01"),
}


@pytest.mark.rule("BI-F4", "TRN-44")
@pytest.mark.parametrize(("kind", "payload"), BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_a_malformed_frame_is_refused(kind: int, payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(kind, payload)
