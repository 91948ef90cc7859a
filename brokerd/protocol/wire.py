"""What is common to all frames: limits, hardened msgpack decoding, one reused packer (BI-F4).

Reads:  nothing.                                Calls: msgpack.
Never:  lets an error of msgpack out; hostile bytes end in `ProtocolError`.
"""

from collections.abc import Sequence
from typing import Final

import msgpack

from brokerd.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

LOGIN_LIMIT: Final = 4 * 1024
"""Largest frame before the login is over (BI-F2); the length counts kind and payload."""
FRAME_LIMIT: Final = 1024 * 1024
"""Largest frame of an ONLINE connection (TRN-33)."""
HEADER_LIMIT: Final = 16 * 1024
"""Largest header of one item (BI-F4)."""
MAX_ARRAY: Final = 1024
MAX_MAP: Final = 64
MAX_NESTING: Final = 8
MAX_NAME: Final = 256
MAX_TEXT: Final = 4096
MAX_RANGES: Final = 16
MAX_FRAGMENTS: Final = 2**31 - 1
MAX_INT: Final = 2**63 - 1
"""Sequence numbers, times and counts have 63 bits (DLP-4)."""

DECODING_ERRORS: Final = (
    ValueError,  # format, stack, extra data, bad UTF-8, duplicate keys
    TypeError,
    OverflowError,
    RecursionError,
    msgpack.UnpackException,  # out of data, buffer full
)
"""All that decoding hostile bytes may raise; none of them leaves this package."""


packer: Final = msgpack.Packer(autoreset=True)
"""Reused: making one costs more than packing an item."""


def extras_are_sound(values: object, depth: int = 2) -> bool:
    """Whether fields of a later version are at least well-formed, so that ignoring them is safe.

    Texts, bytes, integers, finite numbers, arrays and maps with text keys, nested at most 8 deep.
    """
    if isinstance(values, tuple):
        return depth <= MAX_NESTING and all(extras_are_sound(v, depth + 1) for v in values)
    if isinstance(values, dict):
        return depth <= MAX_NESTING and all(
            type(k) is str and extras_are_sound(v, depth + 1) for k, v in values.items()
        )
    if isinstance(values, float):
        return values - values == 0.0
    return values is None or isinstance(values, bool | int | str | bytes)


def unpack_payload(payload: Buffer) -> tuple[object, ...]:
    """The one array of a frame that is no boxcar.

    Raises:
        ProtocolError: it is not one sound msgpack array, or bytes follow it (BI-F4).
    """
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
    if not isinstance(value, tuple) or not extras_are_sound(value, 1):
        raise ProtocolError("frame is not one array of allowed values")
    return value


def pack_payload(fields: Sequence[object]) -> bytes:
    """The payload of a frame that is no boxcar."""
    return bytes(packer.pack(fields))


def make_unpacker() -> msgpack.Unpacker:
    """A streaming unpacker with every limit set."""
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
