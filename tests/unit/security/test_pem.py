"""PEM: the one writer of certificates and keys as text, and what all TLS contexts share."""

import ssl

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import load_pem_x509_certificate

from brokerd.clock import Instant
from brokerd.security.certificates import make_certificate
from brokerd.security.pem import PRIVATE_KEY, to_pem
from brokerd.security.tls_rules import harden

NOW = Instant(1_700_000_000_000_000)


@pytest.mark.rule("SEC-2")
def test_the_texts_are_those_that_others_read_and_write() -> None:
    certificate, private = make_certificate("west", now=NOW)
    parsed = load_pem_x509_certificate(certificate.pem.encode())
    assert parsed.public_bytes(serialization.Encoding.PEM).decode() == certificate.pem
    key = serialization.load_pem_private_key(to_pem(PRIVATE_KEY, private).encode(), None)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    assert key.private_bytes(serialization.Encoding.PEM, *form).decode() == to_pem(
        PRIVATE_KEY, private
    )


@pytest.mark.rule("SX-4")
@pytest.mark.parametrize("checks_dates", [True, False])
def test_every_context_takes_tls_1_3_alone_and_no_chain(checks_dates: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    harden(context, checks_dates=checks_dates)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert bool(context.verify_flags & 0x200000) is not checks_dates
