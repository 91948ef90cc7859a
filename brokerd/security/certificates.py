"""Certificates: those that prove an instance or a client to the far end of a connection (SEC-2).

PURE.   Reads: the bytes of a certificate.      Calls: the package `cryptography`.
Never:  trusts a certificate: `security.credentials` knows which ones an administrator installed.

A certificate is identified by the SHA-256 of its DER encoding. Neither its issuer nor a host name
in it means anything (SEC-3), unless certificates come from a company's own authority.
"""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID
from msgspec import Struct

from brokerd.clock import SECOND, Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import secret_bytes
from brokerd.security.pem import CERTIFICATE, begin_of, to_pem

DAYS: Final = 398
"""Days for which a certificate made here is valid, unless its maker says otherwise."""
TOLERANCE: Final = 5 * 60 * SECOND
"""A certificate is valid from this long before it is made: other clocks may be behind (SEC-11)."""
MOST_BYTES: Final = 16 * 1024
"""Largest certificate that is parsed."""
REFUSALS: Final = (
    ValueError,
    TypeError,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    UnsupportedAlgorithm,
)
"""Exceptions by which the package refuses bytes; they have no common base."""
_KEY_BYTES: Final = 32
_SERIAL_BYTES: Final = 20
_PEM: Final = begin_of(CERTIFICATE).encode()


class Certificate(Struct, frozen=True):
    """A certificate, parsed; times are UTC microseconds."""

    encoded: bytes
    """DER."""
    subject: str
    """Common name, for people; it proves nothing by itself."""
    not_before: Instant
    not_after: Instant

    @property
    def id(self) -> bytes:
        """SHA-256 of the encoding."""
        return hashlib.sha256(self.encoded).digest()

    @property
    def pem(self) -> str:
        """The certificate as text."""
        return to_pem(CERTIFICATE, self.encoded)


def make_certificate(
    name: str, *, now: Instant, days: int = DAYS, random: Callable[[int], bytes] = secret_bytes
) -> tuple[Certificate, bytes]:
    """Return a new self-signed certificate, and its private key as PKCS #8 in DER."""
    key = Ed25519PrivateKey.from_private_bytes(random(_KEY_BYTES))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    start = datetime.fromtimestamp(now // SECOND, UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(int.from_bytes(random(_SERIAL_BYTES)) >> 1 or 1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, None)
    )
    private = key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return read_certificate(made.public_bytes(serialization.Encoding.DER)), private


def read_certificate(encoded: bytes) -> Certificate:
    """Parse a certificate in PEM or DER.

    Raises:
        InvalidArgument: the bytes are no certificate, several, or too many.
    """
    if len(encoded) > MOST_BYTES:
        raise InvalidArgument(f"a certificate has at most {MOST_BYTES} bytes, not {len(encoded)}")
    try:
        if _PEM in encoded:
            found = x509.load_pem_x509_certificates(encoded)
            if len(found) != 1:
                raise InvalidArgument(f"one certificate is wanted, and here are {len(found)}")
            parsed = found[0]
        else:
            parsed = x509.load_der_x509_certificate(encoded)
        names = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return Certificate(
            parsed.public_bytes(serialization.Encoding.DER),
            str(names[0].value) if names else "",
            _instant(parsed.not_valid_before_utc),
            _instant(parsed.not_valid_after_utc),
        )
    except REFUSALS as error:
        raise InvalidArgument(
            f"this is no X.509 certificate: {error}", hint="give a file in PEM or DER"
        ) from error


def why_not_valid(certificate: Certificate, now: Instant) -> str:
    """Return why a certificate is not valid now; empty = it is valid (SEC-3, SEC-11)."""
    if now + TOLERANCE < certificate.not_before:
        return (
            f"the certificate of {certificate.subject!r} is valid only from "
            f"{_both_times(certificate.not_before)}; it is {_both_times(now)} here: compare the "
            "clocks of both machines"
        )
    if now > certificate.not_after:
        return (
            f"the certificate of {certificate.subject!r} expired at "
            f"{_both_times(certificate.not_after)}; it is {_both_times(now)} here"
        )
    return ""


def show_id(certificate_id: bytes) -> str:
    """Return the identifier of a certificate as an operator reads and types it."""
    return certificate_id.hex()


def _instant(moment: datetime) -> Instant:
    return Instant(int(moment.timestamp()) * SECOND)


def _both_times(moment: Instant) -> str:
    at = datetime.fromtimestamp(moment // SECOND, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC ({at.astimezone():%Y-%m-%d %H:%M:%S %Z} local)"
