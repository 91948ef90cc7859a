"""Frames of the adjacent broker protocol: kinds, cutting a stream into frames, boxcars (TRN-45).

Reads:  nothing; bytes in, values out, and back.    Calls: `protocol.items` and
        `protocol.item_decoding`, whose names it exports again.
Never:  decodes a payload; `protocol.neighbour` and `protocol.item_decoding` do.

A frame is a u32 big-endian length of the rest, a kind byte, and a payload. The payload of every
kind but BOXCAR is one msgpack array; that of a BOXCAR is items one after another.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

from brokerd.errors import ProtocolError
from brokerd.protocol.item_decoding import Header, decode_boxcar, read_error
from brokerd.protocol.items import (
    BODY_AT,
    END,
    ENDS,
    ERROR,
    HEADERS,
    Ack,
    AckOnly,
    BadItem,
    BrokerErrorItem,
    Fragment,
    Hop,
    Item,
    Secured,
    SecuredAck,
    SecuredError,
    SecuredFragment,
    ack_header,
    dialog_header,
    encode_item,
    error_header,
    pack_error,
)
from brokerd.protocol.wire import FRAME_LIMIT, LOGIN_LIMIT, Buffer

__all__ = [
    "BODY_AT",
    "END",
    "ENDS",
    "ERROR",
    "FRAME_LIMIT",
    "HEADERS",
    "LOGIN_LIMIT",
    "Ack",
    "AckOnly",
    "BadItem",
    "BrokerErrorItem",
    "Fragment",
    "FrameReader",
    "Header",
    "Hop",
    "Item",
    "Kind",
    "Secured",
    "SecuredAck",
    "SecuredError",
    "SecuredFragment",
    "ack_header",
    "boxcar",
    "decode_boxcar",
    "dialog_header",
    "encode_frame",
    "encode_item",
    "error_header",
    "pack_error",
    "read_error",
]

_PREFIX: Final = struct.Struct(">IB")
_LENGTH_SIZE: Final = 4


class Kind(IntEnum):
    """Frame kinds (TRN-45)."""

    HELLO = 1
    REJECT = 2
    ARBITRATE = 3
    PING = 4
    PONG = 5
    ROLE = 6
    GOODBYE = 7
    NOTICE = 8
    TRACE = 9
    BROKERS = 10
    PAIR = 11
    PAIRED = 12
    CERTIFICATES = 13
    BOXCAR = 16


def encode_frame(kind: int, payload: Buffer) -> bytes:
    """Return one whole frame."""
    return _PREFIX.pack(1 + len(payload), kind) + payload


def boxcar(items: Sequence[bytes]) -> list[bytes]:
    """Return encoded items as one BOXCAR frame, in pieces for `writelines` (TRN-31).

    The caller observes the limits of TRN-32 and TRN-33.
    """
    return [_PREFIX.pack(1 + sum(map(len, items)), Kind.BOXCAR), *items]


class FrameReader:
    """A reader that cuts a byte stream into frames; it keeps at most one unfinished frame."""

    def __init__(self, limit: int = LOGIN_LIMIT) -> None:
        self.limit = limit
        """Largest length now allowed; the consumer raises it at the end of the login."""
        self._partial = bytearray()
        self._wanted = _LENGTH_SIZE

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield (kind, payload) of each frame that is now complete.

        Exhaust the iterator; only then is the rest of `data` kept. It is lazy, so that a limit
        raised while one frame is handled applies to the next frame.

        Raises:
            ProtocolError: a length of 0, or above the limit; nothing after it can be read.
        """
        if self._partial:
            self._partial += data
            if len(self._partial) < self._wanted:
                return
            data = bytes(self._partial)
            self._partial = bytearray()
        view = memoryview(data)
        at, end = 0, len(data)
        while end - at > _LENGTH_SIZE:
            length, kind = _PREFIX.unpack_from(data, at)
            if not 1 <= length <= self.limit:
                raise ProtocolError(_describe_stranger(data, length, self.limit))
            after = at + _LENGTH_SIZE + length
            if after > end:
                self._wanted = after - at
                break
            yield kind, view[at + _LENGTH_SIZE + 1 : after]
            at = after
        else:
            self._wanted = _LENGTH_SIZE + 1
        if at < end:
            self._partial += view[at:]


def _describe_stranger(data: bytes, length: int, limit: int) -> str:
    if data[:2] == b"\x16\x03":
        return "the far end speaks TLS, this endpoint does not"
    if data[:4] in (b"GET ", b"POST", b"HEAD", b"OPTI", b"PUT "):
        return "the far end speaks HTTP"
    return f"frame length {length} is not within 1 to {limit}"
