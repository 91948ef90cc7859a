"""Dialog certificates: made, read, and refused in every other form (SEC-31)."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.clock import SECOND, Instant
from brokerd.errors import InvalidArgument
from brokerd.security.certificates import why_not_valid
from brokerd.security.dialog_certificates import (
    MOST_BYTES,
    DialogCertificate,
    PrivateKeys,
    certify,
    make_dialog_certificate,
    read_dialog_certificate,
)

VECTOR = json.loads(
    (Path(__file__).parents[2] / "data/security/dialog_certificate.json").read_text("utf-8")
)
NOW = Instant(1_790_000_000 * SECOND)
GOOD = bytes.fromhex(VECTOR["encoded"])


@pytest.mark.rule("SEC-31", "SX-5")
def test_the_certificate_of_known_keys_is_that_of_the_vector() -> None:
    made = certify(
        VECTOR["subject"],
        bytes.fromhex(VECTOR["private"]),
        Instant(VECTOR["not_before"]),
        Instant(VECTOR["not_after"]),
    )
    assert made.encoded.hex() == VECTOR["encoded"]
    assert made.id.hex() == VECTOR["id"] == hashlib.sha256(made.encoded).hexdigest()
    assert made.signing_key.hex() == VECTOR["signing_key"]
    assert made.agreement_key.hex() == VECTOR["agreement_key"]


@pytest.mark.rule("SEC-31")
def test_a_certificate_made_here_can_be_read_as_bytes_and_as_text() -> None:
    made, private = make_dialog_certificate("east", now=NOW, days=2)
    assert read_dialog_certificate(made.encoded) == made
    assert read_dialog_certificate(made.pem.encode()) == made
    assert isinstance(made, DialogCertificate)
    assert made.subject == "east"
    assert PrivateKeys(private).belong_to(made)
    assert not PrivateKeys(bytes(range(64))).belong_to(made)
    assert why_not_valid(made, NOW) == ""
    assert "expired" in why_not_valid(made, Instant(NOW + 3 * 24 * 3600 * SECOND))


@pytest.mark.rule("SEC-31")
def test_no_flipped_bit_is_read() -> None:
    for at in range(len(GOOD) * 8):
        flipped = bytearray(GOOD)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(InvalidArgument):
            read_dialog_certificate(bytes(flipped))


@pytest.mark.rule("SEC-31")
@pytest.mark.parametrize("change", ["version", "dates", "subject", "small", "form", "longer"])
def test_a_certificate_that_is_signed_rightly_may_still_be_wrong(change: str) -> None:
    keys = PrivateKeys(bytes(range(64)))
    version, subject, start, end, signing, agreement, _ = msgspec.msgpack.decode(GOOD)
    fields = {
        "version": (2, subject, start, end, signing, agreement),
        "dates": (version, subject, end, start, signing, agreement),
        "subject": (version, "a\nb", start, end, signing, agreement),
        "small": (version, subject, start, end, signing, bytes(32)),
    }.get(change, (version, subject, start, end, signing, agreement))
    signature = keys.signing.sign(b"brokerd dialog certificate\0" + msgspec.msgpack.encode(fields))
    encoded = msgspec.msgpack.encode((*fields, signature))
    if change == "form":  # an integer in more bytes than it needs
        encoded = encoded[:1] + b"\xcc\x01" + encoded[2:]
    elif change == "longer":
        encoded += b"\0"
    with pytest.raises(InvalidArgument):
        read_dialog_certificate(encoded)


@pytest.mark.rule("SEC-31")
@given(st.binary(max_size=300))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_dialog_certificate(data)


@pytest.mark.rule("SEC-31")
@pytest.mark.parametrize(
    "text",
    [
        b"x" * (MOST_BYTES + 1),
        b"-----BEGIN BROKERD DIALOG CERTIFICATE-----\nAAAA",
        b"-----BEGIN BROKERD DIALOG CERTIFICATE-----\n!\n"
        b"-----END BROKERD DIALOG CERTIFICATE-----\n",
    ],
)
def test_damaged_text_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_dialog_certificate(text)


@pytest.mark.rule("SEC-31")
def test_two_certificates_in_one_file_are_refused() -> None:
    made, _ = make_dialog_certificate("east", now=NOW)
    with pytest.raises(InvalidArgument, match="one dialog certificate"):
        read_dialog_certificate(made.pem.encode() * 2)
