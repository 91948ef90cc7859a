"""PAIR and PAIRED frames: bounded, strictly read."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import ProtocolError
from brokerd.ids import InstanceId
from brokerd.protocol.frames import Kind
from brokerd.protocol.pairing import (
    MOST_CERTIFICATE,
    MOST_SERVICES,
    OFFER_LIMIT,
    Done,
    Failed,
    Offer,
    PairingFrame,
    Proof,
    decode,
    encode,
)
from brokerd.protocol.wire import LOGIN_LIMIT, MAX_NAME, pack

ID = InstanceId(b"i" * 16)
OFFER = Offer("west", ID, "tcp://w:1", b"certificate", ("urn:a", "stra\u00dfe"))


@pytest.mark.rule("SEC-62")
@pytest.mark.parametrize("kind", [Kind.PAIR, Kind.PAIRED])
@pytest.mark.parametrize(
    "frame",
    [
        Proof(1, b"der", b"p" * 32),
        Proof(1, b"", b"p" * 32),
        OFFER,
        Done(),
        Failed("why"),
        Failed(""),
    ],
    ids=["proof", "answer", "offer", "done", "failed", "without a reason"],
)
def test_a_frame_comes_back(kind: Kind, frame: PairingFrame) -> None:
    data = encode(kind, frame)
    assert data[4] == kind
    assert decode(data[5:]) == frame


@pytest.mark.rule("SEC-62", "BI-F2")
def test_the_largest_frames_fit_their_limits() -> None:
    first = Proof(1, b"c" * MOST_CERTIFICATE, b"p" * 32)
    assert len(encode(Kind.PAIR, first)) - 4 <= LOGIN_LIMIT
    services = tuple("s" * MAX_NAME for _ in range(MOST_SERVICES))
    offer = Offer("n" * MAX_NAME, ID, "a" * MAX_NAME, b"c" * MOST_CERTIFICATE, services)
    assert len(encode(Kind.PAIRED, offer)) - 4 <= OFFER_LIMIT
    assert decode(encode(Kind.PAIRED, offer)[5:]) == offer


WRONG: list[Any] = [
    [],
    [0],
    [5],
    ["1"],
    [True],
    [None],
    [1],
    [1, 1, b"", b"p" * 31],
    [1, 1, b"", b"p" * 33],
    [1, 0, b"", b"p" * 32],
    [1, True, b"", b"p" * 32],
    [1, 1, "", b"p" * 32],
    [1, 1, b"c" * (MOST_CERTIFICATE + 1), b"p" * 32],
    [1, 1, b"", b"p" * 32, "more"],
    [2, "west", b"i" * 15, "tcp://w:1", b"", []],
    [2, "", ID, "tcp://w:1", b"", []],
    [2, "we\nst", ID, "tcp://w:1", b"", []],
    [2, "w" * (MAX_NAME + 1), ID, "tcp://w:1", b"", []],
    [2, "west", ID, b"tcp://w:1", b"", []],
    [2, "west", ID, "tcp://w:1", None, []],
    [2, "west", ID, "tcp://w:1", b"", ["s"] * (MOST_SERVICES + 1)],
    [2, "west", ID, "tcp://w:1", b"", [b"s"]],
    [2, "west", ID, "tcp://w:1", b"", ["\x1b[2J"]],
    [2, "west", ID, "tcp://w:1", b"", "services"],
    [2, "west", ID, "tcp://w:1", b"", [], 1],
    [3, 1],
    [4],
    [4, b"why"],
    [4, "w" * 513],
    [4, "why\x07"],
    {"stage": 3},
    3,
]


@pytest.mark.rule("SEC-62", "BI-F4")
@pytest.mark.parametrize("fields", WRONG, ids=map(str, range(len(WRONG))))
def test_what_is_malformed_is_refused(fields: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(pack(fields))


@pytest.mark.rule("SEC-62", "BI-F4")
@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with suppress(ProtocolError):
        decode(data)


def test_a_long_reason_is_cut() -> None:
    data = encode(Kind.PAIRED, Failed("w" * 9999))
    assert decode(data[5:]) == Failed("w" * 512)
