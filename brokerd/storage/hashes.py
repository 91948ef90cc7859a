"""The hash every stored body carries, so that damage is noticed and never served. PURE.

Reads: nothing.      Calls: nothing.      Never: hashes what is not a body.
"""

from hashlib import blake2b
from typing import Final

from brokerd.ids import BodyKey, ConversationId

HASH_SIZE: Final = 16
_LARGE: Final = 16 * 1024
"""Bytes from which on a copy of a body costs more than a second call."""


def body_hash(
    conversation_id: ConversationId, from_initiator: bool, sequence: int, body: bytes
) -> bytes:
    """BLAKE2b-128 of a body, bound to its place in its dialog (REL-6).

    A row of a queue hashes with `from_initiator = not endpoint.is_initiator`, a row of the
    transmission queue with `endpoint.is_initiator`; both with the sequence of the row, -1 and -2
    included. A message without a body has no hash.
    """
    place = conversation_id + b"%c%d." % (from_initiator, sequence)
    if len(body) < _LARGE:
        return blake2b(place + body, digest_size=HASH_SIZE).digest()
    hashed = blake2b(place, digest_size=HASH_SIZE)
    hashed.update(body)
    return hashed.digest()


def large_hash(
    conversation_id: ConversationId, from_initiator: bool, sequence: int, key: BodyKey, size: int
) -> bytes:
    """The hash of a message whose body is in pieces: it says which body that is, and how long.

    Each piece has a hash of its own (`piece_hash`), made where it is written: to hash 16 MiB takes
    as long as to receive hundreds of small messages."""
    return body_hash(conversation_id, from_initiator, sequence, b"%d.%d." % (key, size))


def piece_hash(key: BodyKey, piece: int, data: bytes) -> bytes:
    """BLAKE2b-128 of a piece of a body, bound to its place in it (REL-6)."""
    hashed = blake2b(b"%d.%d." % (key, piece), digest_size=HASH_SIZE)
    hashed.update(data)
    return hashed.digest()


def is_sound(
    conversation_id: ConversationId | None,
    from_initiator: bool,
    sequence: int,
    body: bytes | None,
    stored: bytes | None,
) -> bool:
    """Whether a stored body is the one that was written; False without its endpoint (BI-D3)."""
    if conversation_id is None:
        return False
    if body is None:
        return stored is None
    return stored == body_hash(conversation_id, from_initiator, sequence, body)
