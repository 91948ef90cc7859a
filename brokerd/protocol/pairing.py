"""PAIR and PAIRED frames: two instances exchange what they install about each other (SEC-60).

Reads:  nothing; bytes in, values out, and back.    Calls: `protocol.wire`.
Never:  knows whether a proof is right; `security.pairing` does.

PAIR frames come from the joining side, PAIRED frames from the inviting side. A frame is one msgpack
array that begins with its stage. The first frame fits into the limit of a login; offers may be
longer, and come only after the proof. Nothing is ignored: other lengths are refused.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from msgspec import Struct

from brokerd.errors import ProtocolError
from brokerd.ids import ID_SIZE, InstanceId
from brokerd.protocol.frames import Kind, encode_frame
from brokerd.protocol.wire import MAX_NAME, Buffer, pack_payload, unpack_payload

VERSION: Final = 1
OFFER_LIMIT: Final = 64 * 1024
"""Largest frame after the proof; the length counts kind and payload."""
MOST_SERVICES: Final = 200
"""Most services that an offer names."""
MOST_CERTIFICATE: Final = 2 * 1024
MAX_REASON: Final = 512
_PROOF_BYTES: Final = 32


class Stage(IntEnum):
    """The stages of a pairing, in order; either side may end it by FAILED."""

    PROOF = 1
    OFFER = 2
    DONE = 3
    FAILED = 4


class Proof(Struct, frozen=True):
    """The proof that a side has the code."""

    version: int
    certificate: bytes
    """Transport certificate of the joining side, DER; empty from the inviting side, which has
    shown its own in the TLS handshake."""
    proof: bytes


class Offer(Struct, frozen=True):
    """The description that a side gives of itself."""

    name: str
    instance_id: InstanceId
    address: str
    """Address at which it listens."""
    dialog_certificate: bytes
    services: tuple[str, ...]
    """Services of its broker, which the other side routes to it."""


class Done(Struct, frozen=True):
    """A side has installed everything."""


class Failed(Struct, frozen=True):
    """A side has given up, and keeps nothing of the pairing."""

    reason: str


PairingFrame = Proof | Offer | Done | Failed


def encode(kind: Kind, frame: PairingFrame) -> bytes:
    """Return the whole frame; `kind`: PAIR or PAIRED."""
    fields: tuple[object, ...]
    match frame:
        case Proof():
            fields = (
                Stage.PROOF.value,
                frame.version,
                frame.certificate,
                frame.proof,
            )
        case Offer():
            who = (frame.name, frame.instance_id, frame.address)
            fields = (Stage.OFFER.value, *who, frame.dialog_certificate, frame.services)
        case Done():
            fields = (Stage.DONE.value,)
        case Failed():
            fields = (Stage.FAILED.value, frame.reason[:MAX_REASON])
    return encode_frame(kind, pack_payload(fields))


def decode(payload: Buffer) -> PairingFrame:
    """Return the frame with this payload.

    Raises:
        ProtocolError: the payload is malformed.
    """
    stage, *fields = unpack_payload(payload) or (None,)
    read = _READERS.get(stage) if type(stage) is int else None
    if read is None:
        raise ProtocolError("a pairing frame has no known stage")
    try:
        return read(*fields)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"a pairing frame is malformed: {error}") from error


def _proof(version: Any, certificate: Any, proof: Any) -> Proof:  # noqa: ANN401  # anything at all
    if type(version) is not int or version < 1:
        raise ValueError("a version is no number above 0")
    if len(_bytes(proof, _PROOF_BYTES)) != _PROOF_BYTES:
        raise ValueError(f"a proof has {_PROOF_BYTES} bytes")
    return Proof(version, _bytes(certificate, MOST_CERTIFICATE), proof)


def _offer(  # the fields of the frame
    name: Any,  # noqa: ANN401  # anything at all
    instance_id: Any,  # noqa: ANN401
    address: Any,  # noqa: ANN401
    certificate: Any,  # noqa: ANN401
    services: Any,  # noqa: ANN401
) -> Offer:
    if len(_bytes(instance_id, ID_SIZE)) != ID_SIZE:
        raise ValueError("an id has sixteen bytes")
    if type(services) is not tuple or len(services) > MOST_SERVICES:
        raise ValueError(f"there are at most {MOST_SERVICES} services")
    return Offer(
        _text(name, MAX_NAME),
        InstanceId(instance_id),
        _text(address, MAX_NAME),
        _bytes(certificate, MOST_CERTIFICATE),
        tuple(_text(one, MAX_NAME) for one in services),
    )


def _done() -> Done:
    return Done()


def _failed(reason: Any) -> Failed:  # noqa: ANN401  # anything at all
    return Failed(_text(reason, MAX_REASON, least=0))


_READERS: Final[dict[int, Callable[..., PairingFrame]]] = {
    Stage.PROOF.value: _proof,
    Stage.OFFER.value: _offer,
    Stage.DONE.value: _done,
    Stage.FAILED.value: _failed,
}


def _bytes(value: object, most: int) -> bytes:
    if type(value) is not bytes or len(value) > most:
        raise ValueError(f"bytes are none, or more than {most}")
    return value


def _text(value: object, most: int, *, least: int = 1) -> str:
    """Return a text that can be shown: no control characters, which could move a cursor."""
    if type(value) is not str or not least <= len(value) <= most or not value.isprintable():
        raise ValueError(f"a text is none, longer than {most}, or cannot be shown")
    return value
