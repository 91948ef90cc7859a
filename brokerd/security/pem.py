"""PEM: certificates and private keys as text, between lines that name them.

PURE.   Reads: the binary form.      Calls: nothing.
Never:  parses or checks what it writes.
"""

import base64
from typing import Final

CERTIFICATE: Final = "CERTIFICATE"
DIALOG_CERTIFICATE: Final = "BROKERD DIALOG CERTIFICATE"
REVOKED: Final = "X509 CRL"
"""Label of a list of revoked certificates."""
PRIVATE_KEY: Final = "PRIVATE KEY"
"""Label of a private key as PKCS #8 without a password."""
_WIDTH: Final = 64


def begin_of(label: str) -> str:
    """Return the line before a text with this label."""
    return f"-----BEGIN {label}-----"


def end_of(label: str) -> str:
    """Return the line after a text with this label."""
    return f"-----END {label}-----"


def to_pem(label: str, encoded: bytes) -> str:
    """Return the text of a binary form, which DER is in all cases but dialog certificates."""
    text = base64.b64encode(encoded).decode()
    lines = (text[at : at + _WIDTH] for at in range(0, len(text), _WIDTH))
    return "\n".join([begin_of(label), *lines, end_of(label), ""])
