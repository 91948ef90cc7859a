"""Dialog certificates: the keys that secure dialogs from end to end (SEC-31).

PURE.   Reads: the bytes of a certificate.      Calls: the package `cryptography`.
Never:  trusts a certificate: `security.credentials` knows which ones an administrator installed.

A dialog certificate has two public keys: one of Ed25519, which signs, and one of X25519, which
agrees on keys. The former signs the certificate, and so the latter. The encoding is one msgpack
array, of which there is exactly one form; the SHA-256 of the encoding is the identifier.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from brokerd.clock import SECOND, Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import secret_bytes
from brokerd.security.certificates import DAYS, Certificate
from brokerd.security.pem import DIALOG_CERTIFICATE, begin_of, end_of, to_pem

MOST_BYTES: Final = 4096
"""Largest dialog certificate that is parsed, in either form."""
KEY_SIZE: Final = 32
SIGNATURE_SIZE: Final = 64
_VERSION: Final = 1
_LONGEST_SUBJECT: Final = 64
_LATEST: Final = 253_402_300_799 * SECOND
"""The last second of the year 9999."""
_BEGIN: Final = begin_of(DIALOG_CERTIFICATE).encode()
_END: Final = end_of(DIALOG_CERTIFICATE).encode()
_SIGNED: Final = b"brokerd dialog certificate\0"
"""Prefix of the bytes that are signed, so that no other signature can pass for this one."""
_PROBE: Final = X25519PrivateKey.from_private_bytes(bytes(range(KEY_SIZE)))


class DialogCertificate(Certificate, frozen=True):
    """A dialog certificate, parsed; its signature has been verified."""

    signing_key: bytes
    """Ed25519 public key, raw."""
    agreement_key: bytes
    """X25519 public key, raw."""

    @property
    def pem(self) -> str:
        """The certificate as text."""
        return to_pem(DIALOG_CERTIFICATE, self.encoded)


class PrivateKeys:
    """The private keys of a dialog certificate."""

    __slots__ = ("agreement", "signing")

    def __init__(self, encoded: bytes) -> None:
        """Read the keys as `make_dialog_certificate` returns them.

        Raises:
            InvalidArgument: the bytes are no such keys.
        """
        if len(encoded) != 2 * KEY_SIZE:
            raise InvalidArgument("these are no private keys of a dialog certificate")
        self.signing = Ed25519PrivateKey.from_private_bytes(encoded[:KEY_SIZE])
        self.agreement = X25519PrivateKey.from_private_bytes(encoded[KEY_SIZE:])

    def belong_to(self, certificate: DialogCertificate) -> bool:
        """Return whether these are the keys of a certificate."""
        signing = self.signing.public_key().public_bytes_raw()
        agreement = self.agreement.public_key().public_bytes_raw()
        return (signing, agreement) == (certificate.signing_key, certificate.agreement_key)


def make_dialog_certificate(
    name: str, *, now: Instant, days: int = DAYS, random: Callable[[int], bytes] = secret_bytes
) -> tuple[DialogCertificate, bytes]:
    """Return a new dialog certificate, and its two private keys, the signing one first.

    `random`: the source of the keys; any 32 bytes are a private key of either kind.
    """
    private = random(KEY_SIZE) + random(KEY_SIZE)
    start = Instant(now - now % SECOND)
    return certify(name, private, start, Instant(start + days * 24 * 3600 * SECOND)), private


def certify(
    name: str, private: bytes, not_before: Instant, not_after: Instant
) -> DialogCertificate:
    """Return the certificate of these private keys; the same arguments give the same bytes.

    Raises:
        InvalidArgument: the name or the dates do not fit into a certificate.
    """
    keys = PrivateKeys(private)
    fields = (
        _VERSION,
        name[:_LONGEST_SUBJECT],
        not_before,
        not_after,
        keys.signing.public_key().public_bytes_raw(),
        keys.agreement.public_key().public_bytes_raw(),
    )
    signature = keys.signing.sign(_SIGNED + msgspec.msgpack.encode(fields))
    return read_dialog_certificate(msgspec.msgpack.encode((*fields, signature)))


def read_dialog_certificate(encoded: bytes) -> DialogCertificate:
    """Parse a dialog certificate, as bytes or as text, and verify its signature.

    Raises:
        InvalidArgument: the bytes are no dialog certificate.
    """
    if len(encoded) > MOST_BYTES:
        raise InvalidArgument(
            f"a dialog certificate has at most {MOST_BYTES} bytes, not {len(encoded)}"
        )
    if _BEGIN in encoded:
        encoded = _from_text(encoded)
    try:
        fields = msgspec.msgpack.decode(encoded, type=_Fields)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refusal("its fields cannot be read") from error
    _, subject, not_before, not_after, signing, agreement, signature = fields
    # A second form of the same fields would have another identifier.
    if msgspec.msgpack.encode(fields) != encoded:
        raise _refusal("it is not in its only form")
    sizes = len(signing), len(agreement), len(signature)
    if fields[0] != _VERSION or sizes != (KEY_SIZE, KEY_SIZE, SIGNATURE_SIZE):
        raise _refusal("it is of an unknown version, or its keys have another size")
    if not 0 < len(subject) <= _LONGEST_SUBJECT or not subject.isprintable():
        raise _refusal("its subject is empty, too long or not printable")
    if not 0 <= not_before < not_after <= _LATEST:
        raise _refusal("its dates are not a period of time")
    try:
        signed = _SIGNED + msgspec.msgpack.encode(fields[:-1])
        Ed25519PublicKey.from_public_bytes(signing).verify(signature, signed)
        # Points of small order agree on a key that everybody knows; `exchange` refuses them.
        _PROBE.exchange(X25519PublicKey.from_public_bytes(agreement))
    except (InvalidSignature, ValueError) as error:
        raise _refusal("its signature or one of its keys is wrong") from error
    return DialogCertificate(
        encoded, subject, Instant(not_before), Instant(not_after), signing, agreement
    )


_Fields = tuple[int, str, int, int, bytes, bytes, bytes]


def _from_text(text: bytes) -> bytes:
    before, _, rest = text.partition(_BEGIN)
    inner, end, after = rest.partition(_END)
    if not end or before.strip() or after.strip():
        raise InvalidArgument("one dialog certificate is wanted, from its BEGIN line to its END")
    try:
        return base64.b64decode(b"".join(inner.split()), validate=True)
    except binascii.Error as error:
        raise _refusal("its text is damaged") from error


def _refusal(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"this is no dialog certificate: {why}",
        hint="export it again with `brokerd certificate export`",
    )
