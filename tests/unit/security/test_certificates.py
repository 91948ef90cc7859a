"""Certificates: made, read back, and held against the clock."""

import hashlib
from pathlib import Path

import pytest

from brokerd.clock import SECOND, Instant
from brokerd.errors import InvalidArgument
from brokerd.security.certificates import (
    MOST_BYTES,
    make_certificate,
    read_certificate,
    why_not_valid,
)

NOW = Instant(1_800_000_000 * SECOND)
DAY = 86_400 * SECOND


@pytest.mark.rule("SEC-2")
def test_a_certificate_is_the_same_in_pem_and_der() -> None:
    made, key = make_certificate("west", now=NOW, days=90)
    assert read_certificate(made.encoded) == read_certificate(made.pem.encode()) == made
    assert made.subject == "west"
    assert made.not_after - made.not_before == 90 * DAY
    assert made.id == hashlib.sha256(made.encoded).digest()
    assert len(key) > 32
    assert key not in made.encoded


@pytest.mark.rule("SEC-3")
def test_only_its_dates_make_a_certificate_invalid() -> None:
    made, _ = make_certificate("west", now=NOW, days=1)
    assert why_not_valid(made, NOW) == ""
    assert why_not_valid(made, made.not_after) == ""
    assert "expired at 2027-01-16 08:00:00 UTC" in why_not_valid(made, Instant(NOW + DAY + SECOND))


@pytest.mark.rule("SEC-11")
@pytest.mark.parametrize(("behind", "refused"), [(299, False), (300, False), (301, True)])
def test_a_start_in_the_future_is_tolerated_for_five_minutes(*, behind: int, refused: bool) -> None:
    made, _ = make_certificate("west", now=NOW)
    why = why_not_valid(made, Instant(NOW - behind * SECOND))
    assert bool(why) is refused
    if refused:
        assert "valid only from 2027-01-15 08:00:00 UTC" in why
        assert "local" in why
        assert "compare the clocks" in why


@pytest.mark.rule("SX-2")
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"", r"no X\.509 certificate"),
        (b"x" * (MOST_BYTES + 1), f"at most {MOST_BYTES} bytes"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", r"no X\.509"),
    ],
)
def test_what_is_no_certificate_is_refused_by_name(bad: bytes, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        read_certificate(bad)


def test_several_certificates_in_one_file_are_refused() -> None:
    made, _ = make_certificate("west", now=NOW)
    with pytest.raises(InvalidArgument, match="one certificate is wanted, and here are 2"):
        read_certificate((made.pem + made.pem).encode())


def test_a_certificate_of_an_unknown_version_is_refused() -> None:
    """Found by fuzzing: the package refuses it with an exception of its own."""
    made, _ = make_certificate("west", now=NOW)
    at = made.encoded.index(b"\xa0\x03\x02\x01\x02") + 4
    bad = made.encoded[:at] + b"\x2c" + made.encoded[at + 1 :]
    with pytest.raises(InvalidArgument, match="44 is not a valid X509 version"):
        read_certificate(bad)


def test_certificates_that_fuzzing_found_are_refused() -> None:
    found = sorted((Path(__file__).parents[2] / "data" / "fuzz" / "certificate").iterdir())
    assert found
    for one in found:
        with pytest.raises(InvalidArgument, match=r"no X\.509 certificate"):
            read_certificate(one.read_bytes())
