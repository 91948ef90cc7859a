"""CERTIFICATES frames: whole lists, bounded, and their answers (SEC-64)."""

from typing import Any

import pytest

from brokerd.clock import Instant
from brokerd.errors import ProtocolError
from brokerd.protocol.certificate_lists import (
    MOST_BYTES,
    MOST_SHOWN,
    CertificatesHere,
    CertificatesKept,
    Shown,
)
from brokerd.protocol.frames import Kind
from brokerd.protocol.neighbour import decode, encode
from brokerd.protocol.wire import LOGIN_LIMIT, pack
from brokerd.security.certificates import make_certificate
from brokerd.security.dialog_certificates import make_dialog_certificate

NOW = Instant(1_800_000_000_000_000)
NAME = "x" * 64
ONE = Shown("transport", make_certificate(NAME, now=NOW)[0].encoded, b"p" * 64)
TWO = Shown("dialog", make_dialog_certificate(NAME, now=NOW)[0].encoded, b"p" * 64)


@pytest.mark.rule("SEC-64")
@pytest.mark.parametrize(
    "frame",
    [
        CertificatesHere(),
        CertificatesHere((ONE, TWO) * (MOST_SHOWN // 2)),
        CertificatesKept(),
        CertificatesKept((b"i" * 32,) * MOST_SHOWN, "why"),
    ],
    ids=["no list", "list", "nothing kept", "kept"],
)
def test_a_frame_comes_out_as_it_went_in_and_fits_the_smallest_frame(
    frame: CertificatesHere | CertificatesKept,
) -> None:
    data = encode(frame)
    assert data[4] == Kind.CERTIFICATES
    assert decode(data[4], data[5:]) == frame
    assert len(data) - 4 <= LOGIN_LIMIT


@pytest.mark.rule("SEC-64", "BI-F4")
@pytest.mark.parametrize(
    "fields",
    [
        (),
        (False,),
        (None, ()),
        (0, ()),
        (False, "list"),
        (False, [("transport", b"c", b"p" * 64)] * (MOST_SHOWN + 1)),
        (False, ["transport"]),
        (False, [("mail", b"c", b"p" * 64)]),
        (False, [("dialog", "c", b"p" * 64)]),
        (False, [("dialog", b"c" * (MOST_BYTES + 1), b"p" * 64)]),
        (False, [("dialog", b"c", b"p" * 63)]),
        (False, [("dialog", b"c")]),
        (True, [b"i" * 32]),
        (True, [b"i" * 31], ""),
        (True, ["i" * 32], ""),
        (True, [], 1),
        (True, [], "x" * 5000),
    ],
)
def test_what_is_malformed_is_refused(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ProtocolError):
        decode(Kind.CERTIFICATES, pack(fields))


@pytest.mark.rule("SEC-64", "BI-F5")
def test_fields_of_a_later_version_are_ignored() -> None:
    payload = pack((True, [], "", {"later": 1}))
    assert decode(Kind.CERTIFICATES, payload) == CertificatesKept()
