"""CERTIFICATES frames: an instance shows its own certificates to its neighbours (SEC-64).

Reads:  nothing; fields in, values out, and back.    Calls: `protocol.wire`.
Never:  parses a certificate or checks a proof; `admin.certificate_exchange` does.
"""

from typing import Any, Final, Literal

from msgspec import Struct

from brokerd.protocol.wire import MAX_TEXT

OPTION: Final = "certificates"
"""HELLO option of an instance that sends and accepts CERTIFICATES frames."""
MOST_SHOWN: Final = 8
"""Most certificates in one frame: four for each purpose."""
MOST_BYTES: Final = 1024
"""Largest certificate in a frame, encoded; those that an instance makes have some 300 bytes."""
PROOF_SIZE: Final = 64
_ID_SIZE: Final = 32

PurposeName = Literal["transport", "dialog"]
_PURPOSES: Final[tuple[PurposeName, ...]] = ("transport", "dialog")


class Shown(Struct, frozen=True):
    """One certificate of the sender."""

    purpose: PurposeName
    encoded: bytes
    proof: bytes
    """Signature by the key of this certificate, which shows that the sender has the key."""


class CertificatesHere(Struct, frozen=True):
    """All certificates of the sender's own; the list replaces the previous one."""

    shown: tuple[Shown, ...] = ()


class CertificatesKept(Struct, frozen=True):
    """The answer: which of the certificates the sender of the answer has installed."""

    ids: tuple[bytes, ...] = ()
    refusal: str = ""
    """Why it has not installed the others; empty = it has installed all that it wants."""


def fields_of(frame: CertificatesHere | CertificatesKept) -> tuple[object, ...]:
    """Return the fields of a CERTIFICATES frame; the first says which of the two it is."""
    if isinstance(frame, CertificatesKept):
        return True, frame.ids, frame.refusal
    return False, tuple((one.purpose, one.encoded, one.proof) for one in frame.shown)


def certificates_of(fields: tuple[Any, ...]) -> CertificatesHere | CertificatesKept:
    """Return the list or the answer in these fields.

    Raises:
        ValueError, IndexError: malformed.
    """
    is_answer, listed = fields[:2]
    if type(listed) is not tuple or len(listed) > MOST_SHOWN:
        raise ValueError(f"certificates are no array, or more than {MOST_SHOWN}")
    if is_answer is False:
        return CertificatesHere(tuple(_shown(one) for one in listed))
    if is_answer is not True:
        raise ValueError("it is neither a list nor an answer")
    if any(type(one) is not bytes or len(one) != _ID_SIZE for one in listed):
        raise ValueError(f"the id of a certificate has {_ID_SIZE} bytes")
    refusal = fields[2]
    if type(refusal) is not str or len(refusal) > MAX_TEXT:
        raise ValueError(f"a reason is no text, or longer than {MAX_TEXT}")
    return CertificatesKept(listed, refusal)


def _shown(fields: Any) -> Shown:  # noqa: ANN401  # as decoded
    if type(fields) is not tuple:
        raise ValueError("a certificate in a list is no array")
    purpose, encoded, proof = fields[:3]
    if purpose not in _PURPOSES:
        raise ValueError("a certificate is for transport or for dialogs")
    if type(encoded) is not bytes or len(encoded) > MOST_BYTES:
        raise ValueError(f"a certificate is no bytes, or longer than {MOST_BYTES}")
    if type(proof) is not bytes or len(proof) != PROOF_SIZE:
        raise ValueError(f"a proof has {PROOF_SIZE} bytes")
    return Shown(purpose, encoded, proof)
