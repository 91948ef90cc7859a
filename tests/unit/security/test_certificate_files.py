"""One file holds certificates of either purpose; a private key in it is refused."""

from pathlib import Path

import pytest

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.security.certificate_files import MOST, MOST_BYTES, read_certificates
from brokerd.security.certificates import make_certificate
from brokerd.security.credentials import Purpose
from brokerd.security.dialog_certificates import make_dialog_certificate

NOW = Instant(1_700_000_000_000_000)
OF_TRANSPORT = make_certificate("west", now=NOW)[0]
OF_DIALOGS = make_dialog_certificate("west", now=NOW)[0]
BOTH = (OF_TRANSPORT.pem + OF_DIALOGS.pem).encode()


@pytest.mark.rule("SEC-9")
def test_all_that_was_exported_is_read() -> None:
    assert read_certificates(b"# of west\n" + BOTH + b"\n# end\n") == [
        (Purpose.TRANSPORT, OF_TRANSPORT),
        (Purpose.DIALOG, OF_DIALOGS),
    ]
    assert read_certificates(BOTH.replace(b"\n", b"\r\n")) == read_certificates(BOTH)
    assert read_certificates(BOTH + BOTH) == read_certificates(BOTH)


@pytest.mark.rule("SEC-9")
def test_the_binary_forms_are_read() -> None:
    assert read_certificates(OF_TRANSPORT.encoded) == [(Purpose.TRANSPORT, OF_TRANSPORT)]
    assert read_certificates(OF_DIALOGS.encoded) == [(Purpose.DIALOG, OF_DIALOGS)]


@pytest.mark.rule("SX-9")
def test_a_private_key_is_refused_whatever_stands_before_it() -> None:
    key = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
    for content in (key, BOTH + key, key + BOTH):
        with pytest.raises(InvalidArgument, match="private key") as found:
            read_certificates(content)
        assert "c2VjcmV0" not in str(found.value)


@pytest.mark.rule("SEC-9", "SX-13")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"0",
        b"hello",
        Path(__file__).read_bytes(),
        BOTH[: len(BOTH) // 2],
        BOTH.replace(b"BROKERD DIALOG ", b""),
        OF_TRANSPORT.pem.replace("M", "N").encode(),
        b"".join(make_certificate("x", now=NOW)[0].pem.encode() for _ in range(MOST + 1)),
        b"-" * (MOST_BYTES + 1),
        b"-----BEGIN CERTIFICATE-----\n" * 1000,
    ],
)
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_certificates(content)
