"""Certificate files: certificates of either purpose, as an operator passes them on (SEC-9).

PURE.   Reads: the bytes of a file.             Calls: certificates, dialog_certificates.
Never:  trusts a certificate.

One file may have several certificates as text, each between its own lines: what one instance
exports for another has one for transport and one for dialogs.
"""

import re
from typing import Final

from brokerd.errors import InvalidArgument
from brokerd.security.certificates import Certificate, read_certificate
from brokerd.security.credentials import Purpose
from brokerd.security.dialog_certificates import read_dialog_certificate
from brokerd.security.pem import DIALOG_CERTIFICATE

MOST: Final = 16
"""Most certificates in one file."""
MOST_BYTES: Final = 64 * 1024
"""Largest file that is parsed."""
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,64})-----.*?-----END \1-----", re.DOTALL)
_DIALOG: Final = DIALOG_CERTIFICATE.encode()
_SEQUENCE: Final = 0x30
"""First byte of an X.509 certificate in DER."""
_ARRAYS: Final = range(0x90, 0xA0)
"""First bytes of short msgpack arrays, among them of a dialog certificate in its binary form."""
_AGAIN: Final = "write it again on the other machine: brokerd certificate export"


def read_certificates(content: bytes) -> list[tuple[Purpose, Certificate]]:
    """Parse all certificates of a file, as text, or one in its binary form.

    Raises:
        InvalidArgument: there is no certificate, too many, or one that cannot be read; or a private
            key is among them.
    """
    if len(content) > MOST_BYTES:
        raise InvalidArgument(
            f"a file of certificates has at most {MOST_BYTES} bytes, not {len(content)}"
        )
    blocks = [(found[1], found[0]) for found in _BLOCK.finditer(content)]
    if not blocks:
        return [_read_binary(content)]
    if any(b"PRIVATE KEY" in label for label, _ in blocks):
        raise InvalidArgument(
            "the file has a private key, which nobody else may have",
            hint="give only the certificate; where the file has been sent, make a new key",
        )
    if len(blocks) > MOST:
        raise InvalidArgument(f"at most {MOST} certificates are read, and here are {len(blocks)}")
    distinct = dict.fromkeys(block for _, block in blocks)
    return [_read(block + b"\n", is_dialog=_DIALOG in block) for block in distinct]


def _read_binary(content: bytes) -> tuple[Purpose, Certificate]:
    """Parse a file that has no whole certificate as text.

    Raises:
        InvalidArgument: it is no certificate; the message says what is there instead.
    """
    if not content.strip():
        raise InvalidArgument("the file is empty", hint=_AGAIN)
    if b"-----BEGIN " in content:
        raise InvalidArgument(
            "the file is cut off: the END of a certificate is missing", hint=_AGAIN
        )
    if content[0] == _SEQUENCE:
        return _read(content, is_dialog=False)
    if content[0] not in _ARRAYS:
        raise InvalidArgument("there is no certificate in the file", hint=_AGAIN)
    return _read(content, is_dialog=True)


def _read(encoded: bytes, *, is_dialog: bool) -> tuple[Purpose, Certificate]:
    if is_dialog:
        return Purpose.DIALOG, read_dialog_certificate(encoded)
    return Purpose.TRANSPORT, read_certificate(encoded)
