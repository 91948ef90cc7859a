"""Hashes of stored bodies, which show damage, so that a damaged body is never served. PURE.

Reads: nothing.      Calls: nothing.      Never: hashes anything but a body.

A hash finds damage, not forgery: a program that can write the file can write a hash. XXH3 takes a
tenth of the time of a cryptographic hash, and every message is hashed when it is stored and when it
is read.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from xxhash import xxh3_64, xxh3_64_digest

from brokerd.ids import BodyKey, ConversationId

_OLD_SIZE: Final = 16
"""Bytes of a hash that was written before revision 0016: BLAKE2b-128."""
_LARGE: Final = 16 * 1024
"""Size in bytes from which copying a body costs more than hashing it with a second call."""
_SEEDS: Final = (1 << 64) - 1


def body_hash(
    conversation_id: ConversationId, from_initiator: bool, sequence: int, body: bytes
) -> bytes:
    """Return the XXH3-64 of a body, bound to its place in its dialog (REL-6).

    A row of a queue hashes with `from_initiator = not endpoint.is_initiator`, a row of the
    transmission queue with `endpoint.is_initiator`; both with the sequence of the row, -1 and -2
    included. A message without a body has no hash.
    """
    seed = (sequence << 1 | from_initiator) & _SEEDS
    if len(body) < _LARGE:
        return xxh3_64_digest(conversation_id + body, seed)
    hashed = xxh3_64(conversation_id, seed)
    hashed.update(body)
    return hashed.digest()


def large_hash(
    conversation_id: ConversationId, from_initiator: bool, sequence: int, key: BodyKey, size: int
) -> bytes:
    """Return the hash of a message whose body is in pieces: it covers the body's key and size.

    Each piece has its own hash (`piece_hash`), made when the piece is written, so that a message of
    hundreds of mebibytes does not wait until its whole body is hashed at once.
    """
    return body_hash(conversation_id, from_initiator, sequence, _name(key, size))


def piece_hash(key: BodyKey, piece: int, data: bytes) -> bytes:
    """Return the XXH3-64 of a piece of a body, bound to its place in the body (REL-6)."""
    hashed = xxh3_64(_name(key, piece))
    hashed.update(data)
    return hashed.digest()


def is_sound(
    conversation_id: ConversationId | None,
    from_initiator: bool,
    sequence: int,
    body: bytes | None,
    stored: bytes | None,
) -> bool:
    """Return whether a stored body is as it was written; False if it has no endpoint (BI-D3)."""
    if conversation_id is None:
        return False
    if body is None or stored is None:
        return body is stored
    if len(stored) != _OLD_SIZE:
        return stored == body_hash(conversation_id, from_initiator, sequence, body)
    return stored == _old(conversation_id + b"%c%d." % (from_initiator, sequence), body)


def not_surely_sound(
    rows: Sequence[tuple[Any, ...]], sequence_at: int, *, is_outgoing: bool
) -> list[int]:
    """Return the indexes of the rows to check with `is_sound`; all other rows are sound.

    A row has hash and body at positions 9 and 10, and ends with whether its endpoint is the
    initiator's, and its conversation. This function checks a whole page: two calls for each
    message would take as long as the hash does.
    """
    return [
        at
        for at, row in enumerate(rows)
        if row[-1] is None
        or row[10] is None
        or row[9]
        != xxh3_64_digest(
            row[-1] + row[10],
            (row[sequence_at] << 1 | ((not row[-2]) ^ is_outgoing)) & _SEEDS,
        )
    ]


def is_large_sound(
    place: tuple[ConversationId, bool, int], key: BodyKey, size: int, stored: bytes | None
) -> bool:
    """Return whether a message with a body in pieces was written with the body `key`.

    `place`: the first three arguments of `body_hash`.
    """
    return is_sound(*place, _name(key, size), stored)


def is_piece_sound(key: BodyKey, piece: int, data: bytes, stored: bytes) -> bool:
    """Return whether a piece is as it was written at its place in the body."""
    if len(stored) != _OLD_SIZE:
        return stored == piece_hash(key, piece, data)
    return stored == _old(_name(key, piece), data)


def _name(key: BodyKey, number: int) -> bytes:
    return b"%d.%d." % (key, number)


def _old(place: bytes, data: bytes) -> bytes:
    hashed = blake2b(place, digest_size=_OLD_SIZE)
    hashed.update(data)
    return hashed.digest()
