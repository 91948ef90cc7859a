"""The basis of all frames: limits, hardened msgpack decoding, one reused encoder (BI-F4).

Reads:  nothing.                                Calls: msgpack, msgspec.
Never:  raises an error of msgpack; hostile bytes end in `ProtocolError`.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgpack
import msgspec

from brokerd.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

LOGIN_LIMIT: Final = 4 * 1024
"""Largest frame before the end of the login (BI-F2); the length counts kind and payload."""
FRAME_LIMIT: Final = 1024 * 1024
"""Largest frame of an ONLINE connection (TRN-33)."""
HEADER_LIMIT: Final = 16 * 1024
"""Largest header of one item (BI-F4)."""
MAX_ARRAY: Final = 1024
MAX_MAP: Final = 64
MAX_NESTING: Final = 8
MAX_ITEMS: Final = 1024
"""Most items of a boxcar (TRN-33), twice the number that brokerd sends by default. A mebibyte has
room for 14,000 acknowledgements, which would block the loop for longer than is allowed (REL-32)."""
MAX_EXTRAS: Final = 128
"""Most values in the fields that a later version has added to a header."""
MAX_VALUES: Final = 4096
"""Most values in a frame other than a boxcar; the longest, a TRACE, has some 400."""
PLAIN_LIMIT: Final = 128 * 1024
"""Largest payload of a frame other than a boxcar; no peer may set a lower `transport.max_frame`."""
MAX_NAME: Final = 256
MAX_TEXT: Final = 4096
MAX_RANGES: Final = 16
MAX_FRAGMENTS: Final = 2**31 - 1
MAX_INT: Final = 2**63 - 1
"""Highest sequence number, time or count: they have 63 bits (DLP-4)."""
MAX_SEQUENCE: Final = MAX_INT - 1
"""Highest sequence of a message: the next sequence must have 63 bits too (DLP-13)."""
LATEST: Final = 253_370_764_800_000_000
"""Latest expiry instant, in microseconds: the end of the year 9998. Instants computed from it, such
as the end of the guard time, can then still be stored and shown (DLP-13)."""
MAX_ERROR: Final = MAX_INT
"""Highest code of an application's Error (DLG-20)."""

DECODING_ERRORS: Final = (
    ValueError,  # format, stack, extra data, bad UTF-8, duplicate keys
    TypeError,
    OverflowError,
    RecursionError,
    msgpack.UnpackException,  # out of data, buffer full
)
"""Everything that decoding hostile bytes may raise; none of it leaves this package."""


pack: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder().encode
"""Return a value as msgpack: the same bytes as `msgpack.packb`, in half the time.

One encoder for all callers, because creating one costs more than packing an item."""


def extras_are_sound(values: object, depth: int = 2, most: int = MAX_EXTRAS) -> bool:
    """Return whether fields of a later version are well-formed, so that ignoring them is safe.

    A field may be a text, bytes, an integer, a finite number, a boolean, None, or an array or a map
    with text keys, nested at most 8 deep. All fields together may have at most `most` values, since
    each value costs time to check.
    """
    return _left_behind(values, depth, most) >= 0


def _left_behind(value: object, depth: int, left: int) -> int:
    """Return `left` minus the number of values in `value`, itself included.

    Below 0 = a value is unsound, or there are more than `left`."""
    left -= 1
    if left >= 0 and isinstance(value, tuple | dict):
        return _left_behind_all(value, depth, left)
    is_sound = value is None or isinstance(value, bool | int | str | bytes)
    if isinstance(value, float):
        is_sound = value - value == 0.0
    return left if is_sound else -1


def _left_behind_all(
    values: tuple[object, ...] | dict[object, object], depth: int, left: int
) -> int:
    """Return `left` minus the number of values in the members of `values`.

    Below 0 = a member is unsound, or there are more than `left`."""
    if isinstance(values, dict):
        if any(type(key) is not str for key in values):
            return -1
        values = tuple(values.values())
    if depth > MAX_NESTING:
        return -1
    for one in values:
        left = _left_behind(one, depth + 1, left)
        if left < 0:
            break
    return left


def unpack_payload(payload: Buffer) -> tuple[object, ...]:
    """Return the one array of a frame other than a boxcar.

    Raises:
        ProtocolError: the payload is not one sound msgpack array, bytes follow the array, or the
            payload is too long (BI-F4, TRN-33).
    """
    if len(payload) > PLAIN_LIMIT:
        raise ProtocolError(f"a frame that is no boxcar has more than {PLAIN_LIMIT} bytes")
    try:
        value = msgpack.unpackb(
            payload,
            use_list=False,
            max_array_len=MAX_ARRAY,
            max_map_len=MAX_MAP,
            object_pairs_hook=_map_without_repeats,
            ext_hook=_refuse_extension,
        )
    except DECODING_ERRORS as error:
        raise ProtocolError(f"frame cannot be decoded: {error!r}"[:200]) from error
    if not isinstance(value, tuple) or not extras_are_sound(value, 1, MAX_VALUES):
        raise ProtocolError("frame is not one array of allowed values")
    return value


def pack_payload(fields: Sequence[object]) -> bytes:
    """Return the payload of a frame other than a boxcar."""
    return pack(fields)


def make_unpacker() -> msgpack.Unpacker:
    """Return a streaming unpacker with every limit set."""
    return msgpack.Unpacker(
        use_list=False,
        max_buffer_size=2 * FRAME_LIMIT,
        max_array_len=MAX_ARRAY,
        max_map_len=MAX_MAP,
        object_pairs_hook=_map_without_repeats,
        ext_hook=_refuse_extension,
    )


def _map_without_repeats(pairs: list[tuple[object, object]]) -> dict[object, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError(f"extension type {code} of {len(data)} bytes")
