"""Decoding the items of a boxcar, strictly: every field's type and bounds (BI-F4, BI-F6, DLP-6).

Reads:  nothing; bytes in, values out.          Calls: `protocol.wire`.
Never:  checks whether an item fits its dialog; `protocol.dialog` does.

An item whose end is known but whose header is invalid becomes a `BadItem`, and the other items
remain valid; if the end is unknown, the whole boxcar is a `ProtocolError` (TRN-44).
"""

from typing import Any, Final

import msgpack

from brokerd.errors import ProtocolError
from brokerd.ids import ID_SIZE
from brokerd.protocol.items import (
    END,
    ENDS,
    ERROR,
    HEADERS,
    ITEM_ACK,
    ITEM_BROKER_ERROR,
    ITEM_FRAGMENT,
    ITEM_SECURED_ACK,
    ITEM_SECURED_ERROR,
    ITEM_SECURED_FRAGMENT,
    Ack,
    AckOnly,
    BadItem,
    BrokerErrorItem,
    Fragment,
    Hop,
    Item,
    SecuredAck,
    SecuredError,
    SecuredFragment,
)
from brokerd.protocol.wire import (
    DECODING_ERRORS,
    HEADER_LIMIT,
    LATEST,
    MAX_FRAGMENTS,
    MAX_INT,
    MAX_ITEMS,
    MAX_NAME,
    MAX_RANGES,
    MAX_SEQUENCE,
    MAX_TEXT,
    Buffer,
    extras_are_sound,
    make_unpacker,
)

_FRAGMENT_FIELDS: Final = 18
_ACK_FIELDS: Final = 9
_BROKER_ERROR_FIELDS: Final = 10
_SECURED_FIELDS: Final = 21
_ACK_BLOCK_FIELDS: Final = 7
_HOP_BLOCK_FIELDS: Final = 4
_RANGE_FIELDS: Final = 4
_CONVERSATION_AT: Final = 2
_ACK_AT: Final = 16
_MOST_HOPS: Final = 255
_KEY_ID_SIZE: Final = 16
_CODE_SIZE: Final = 16
_TAG_SIZE: Final = 16
_LEAST_SEALED: Final = 12 + _TAG_SIZE
_MOST_SEALED: Final = 4 * MAX_TEXT + 64
_MOST_SECURITY: Final = 512
_LOWEST_CODE: Final = -(2**31)
_NO_ID: Final = bytes(ID_SIZE)
_UNSEQUENCED: Final = {
    ITEM_ACK: _ACK_FIELDS,
    ITEM_BROKER_ERROR: _BROKER_ERROR_FIELDS,
    ITEM_SECURED_ACK: _ACK_FIELDS + 1,
    ITEM_SECURED_ERROR: _BROKER_ERROR_FIELDS - 1,
}
"""Number of fields in the header of each kind without a sequence."""

_idle_unpackers: Final[list[msgpack.Unpacker]] = []  # making one costs as much as decoding an item
Header = tuple[Any, ...]
"""A decoded header, not yet checked; its values are used unchanged once checked."""
_TOO_LARGE: Final = BadItem("header_too_large")


class _HeaderIsOff(Exception):
    """A header is invalid, though the end of its item is known; the text is the reason."""


def decode_boxcar(payload: Buffer, headers: list[Header] | None = None) -> list[Item | BadItem]:
    """Return the items of a boxcar, in order; append the header of each, as decoded, to `headers`.

    Raises:
        ProtocolError: the boundaries of the items are unknown, or there are too many items; the
            caller closes the connection (TRN-33, TRN-44).
    """
    unpacker = _idle_unpackers.pop() if _idle_unpackers else make_unpacker()
    try:
        items = _decode_items(unpacker, payload, [] if headers is None else headers)
    except DECODING_ERRORS as error:
        raise ProtocolError(f"boxcar cannot be decoded: {error!r}"[:200]) from error
    # Only after success: an unpacker that failed still has bytes in it and is thrown away.
    _idle_unpackers.append(unpacker)
    return items


def _decode_items(
    unpacker: msgpack.Unpacker, payload: Buffer, headers: list[Header]
) -> list[Item | BadItem]:
    start = unpacker.tell()  # an idle unpacker has consumed all it was fed
    unpacker.feed(payload)
    items: list[Item | BadItem] = []
    at, end = 0, len(payload)
    while at < end:
        if len(items) == MAX_ITEMS:
            raise ProtocolError(f"a boxcar has more than {MAX_ITEMS} items")
        header = unpacker.unpack()
        body_at = unpacker.tell() - start
        size = header[1] if type(header) is tuple and len(header) > 1 else None
        if type(size) is not int or not 0 <= size <= end - body_at:
            raise ProtocolError("the end of an item cannot be told")
        body = unpacker.read_bytes(size) if size else b""
        headers.append(header)
        read = _fragment if header[0] == ITEM_FRAGMENT else _of_another_kind
        try:
            items.append(read(header, body) if body_at - at <= HEADER_LIMIT else _TOO_LARGE)
        except _HeaderIsOff as off:
            items.append(BadItem(str(off), _conversation_of(header)))
        at = body_at + size
    return items


def _fragment(header: Header, body: bytes, own: Header = ()) -> Fragment:
    """Return the fragment of a header; raise `_HeaderIsOff` if it is invalid (DLP-6, DLP-13).

    `own`: the fields that only a secured fragment has; () = it is a plain one."""
    # One condition for all types and lengths: this runs for each fragment that arrives. `type() is`
    # keeps a boolean from passing as an integer.
    if len(header) != _FRAGMENT_FIELDS:
        if len(header) < _FRAGMENT_FIELDS or not extras_are_sound(header[_FRAGMENT_FIELDS:]):
            raise _HeaderIsOff("header")
        header = header[:_FRAGMENT_FIELDS]
    (
        _,
        _,
        conversation_id,
        from_initiator,
        message_id,
        sequence,
        fragment,
        fragments,
        flags,
        from_service,
        to_service,
        from_broker,
        contract,
        message_type,
        expires_at,
        incarnation,
        ack_block,
        hop_block,
    ) = header
    if not (
        type(conversation_id) is bytes
        and type(message_id) is bytes
        and type(from_broker) is bytes
        and type(incarnation) is bytes
        and len(conversation_id) == len(message_id) == len(from_broker) == ID_SIZE
        and len(incarnation) == ID_SIZE
        and type(from_initiator) is bool
        and type(from_service) is str
        and type(to_service) is str
        and type(contract) is str
        and type(message_type) is str
        and 0 < len(from_service) <= MAX_NAME
        and 0 < len(to_service) <= MAX_NAME
        and len(contract) <= MAX_NAME
        and len(message_type) <= MAX_NAME
        and type(sequence) is int
        and type(fragment) is int
        and type(fragments) is int
        and type(flags) is int
        and type(expires_at) is int
        and 0 <= expires_at <= LATEST
    ):
        raise _HeaderIsOff("header")
    if not (0 <= sequence <= MAX_SEQUENCE and 0 <= fragment < fragments <= MAX_FRAGMENTS):
        raise _HeaderIsOff("sequence")
    if (flags == 0) != (message_type != "") or flags:
        reason = _what_flags_break(flags, sequence, message_type, from_initiator=from_initiator)
        if reason:
            raise _HeaderIsOff(reason)
    if _NO_ID in (conversation_id, message_id):
        raise _HeaderIsOff("null_id")
    ack = None if ack_block is None else _read_ack(ack_block)
    fields = (*header[_CONVERSATION_AT:_ACK_AT], ack, _read_hop(hop_block), body, *own)
    if not own:
        return Fragment(*fields)
    key_id, code, security = own
    if not (
        type(key_id) is bytes
        and len(key_id) == _KEY_ID_SIZE
        and type(code) is bytes
        and len(code) == (0 if ack is None else _CODE_SIZE)
        and type(security) is bytes
        and len(security) <= _MOST_SECURITY
        and len(body) >= _TAG_SIZE
    ):
        raise _HeaderIsOff("security")
    return SecuredFragment(*fields)


def _what_flags_break(
    flags: int, sequence: int, message_type: str, *, from_initiator: bool
) -> str | None:
    """Return the name of the violation of DLP-6; None if the flags are valid.

    A target may end a dialog before it has sent anything, an initiator may not."""
    if flags not in (0, END, ERROR, HEADERS):
        return "flags"  # 11275
    ends = flags & ENDS != 0
    if ends and sequence == 0 and from_initiator:
        return "message_0_ends"  # 11277
    if ends != (message_type == ""):
        return "message_type"  # 11278, 11279
    return None


def _of_another_kind(header: Header, body: bytes) -> Item:
    if type(header[0]) is int and header[0] == ITEM_SECURED_FRAGMENT:
        return _secured_fragment(header, body)
    return _unsequenced(header, body)


def _secured_fragment(header: Header, body: bytes) -> Fragment:
    """Return the secured fragment of a header; whether it is authentic shows when it is opened."""
    if len(header) != _SECURED_FIELDS and (
        len(header) < _SECURED_FIELDS or not extras_are_sound(header[_SECURED_FIELDS:])
    ):
        raise _HeaderIsOff("header")
    return _fragment(header[:_FRAGMENT_FIELDS], body, header[_FRAGMENT_FIELDS:_SECURED_FIELDS])


def _unsequenced(header: Header, body: bytes) -> AckOnly | BrokerErrorItem | SecuredError:
    kind = header[0]
    wanted = _UNSEQUENCED.get(kind) if type(kind) is int else None  # True equals 1
    if wanted is None:
        raise _HeaderIsOff("unknown_item")
    if body or len(header) < wanted or not extras_are_sound(header[wanted:]):
        raise _HeaderIsOff("header")
    _, _, conversation_id, from_initiator, from_service, to_service, from_broker = header[:7]
    if not (
        type(conversation_id) is bytes
        and type(from_broker) is bytes
        and len(conversation_id) == len(from_broker) == ID_SIZE
        and type(from_initiator) is bool
        and type(from_service) is str
        and type(to_service) is str
        and 0 < len(from_service) <= MAX_NAME
        and 0 < len(to_service) <= MAX_NAME
    ):
        raise _HeaderIsOff("header")
    if conversation_id == _NO_ID:
        raise _HeaderIsOff("null_id")
    hop = _read_hop(header[9 if kind == ITEM_BROKER_ERROR else 8])
    common = header[_CONVERSATION_AT:7]
    fields: Header
    if kind == ITEM_ACK:
        fields = (*common, _read_ack(header[7]), hop)
        return AckOnly(*fields)
    if kind == ITEM_SECURED_ACK:
        fields = (*common, _read_ack(header[7]), hop, _bytes(header[9], _CODE_SIZE, _CODE_SIZE))
        return SecuredAck(*fields)
    if kind == ITEM_SECURED_ERROR:
        fields = (*common, _bytes(header[7], _LEAST_SEALED, _MOST_SEALED), hop)
        return SecuredError(*fields)
    code, description = header[7], header[8]
    if type(code) is not int or not _LOWEST_CODE <= code < 0:
        raise _HeaderIsOff("error_code")
    if type(description) is not str or len(description) > MAX_TEXT:
        raise _HeaderIsOff("description")
    fields = (*common, code, description, hop)
    return BrokerErrorItem(*fields)


def read_error(sealed: SecuredError, opened: bytes) -> BrokerErrorItem | None:
    """Return the error that a broker has sealed; None = it is invalid."""
    try:
        code, description = msgpack.unpackb(opened, use_list=False, raw=False)
    except DECODING_ERRORS:
        return None
    is_code = type(code) is int and _LOWEST_CODE <= code < 0
    if not is_code or type(description) is not str or len(description) > MAX_TEXT:
        return None
    return BrokerErrorItem(
        sealed.conversation_id,
        sealed.from_initiator,
        sealed.from_service,
        sealed.to_service,
        sealed.from_broker,
        code,
        description,
        sealed.hop,
    )


def _bytes(value: object, least: int, most: int) -> bytes:
    if type(value) is not bytes or not least <= len(value) <= most:
        raise _HeaderIsOff("security")
    return value


def _read_ack(block: object) -> Ack:
    if type(block) is not tuple or len(block) < _ACK_BLOCK_FIELDS:
        raise _HeaderIsOff("ack_block")
    # A longer block comes from a later version: its further fields are ignored if they are sound
    # (DLP-7, BI-F5), which costs nothing for a block of the known length.
    if len(block) > _ACK_BLOCK_FIELDS and not extras_are_sound(block):
        raise _HeaderIsOff("ack_block")
    sequence, fragment, highest_seen, base, broker_id, first_acked, ranges = block[:7]
    if not (
        type(sequence) is int
        and type(fragment) is int
        and type(highest_seen) is int
        and type(base) is int
        and -1 <= sequence <= highest_seen <= MAX_INT
        and -1 <= fragment < MAX_FRAGMENTS
        and (sequence < 0) == (fragment < 0)
        and 0 <= base <= MAX_INT
        and type(broker_id) is bytes
        and len(broker_id) == ID_SIZE
        and type(first_acked) is bool
        and type(ranges) is tuple
        and (not ranges or _are_ranges(ranges))
    ):
        raise _HeaderIsOff("ack_block")
    fields: Header = block if len(block) == _ACK_BLOCK_FIELDS else block[:_ACK_BLOCK_FIELDS]
    return Ack(*fields)


def _are_ranges(ranges: Header) -> bool:
    return len(ranges) <= MAX_RANGES and all(
        type(r) is tuple
        and len(r) == _RANGE_FIELDS
        and all(type(n) is int and 0 <= n <= MAX_INT for n in r)
        and r[:2] <= r[2:]
        for r in ranges
    )


def _read_hop(block: object) -> Hop:
    if type(block) is not tuple or len(block) < _HOP_BLOCK_FIELDS:
        raise _HeaderIsOff("hop_block")
    if len(block) > _HOP_BLOCK_FIELDS and not extras_are_sound(block):
        raise _HeaderIsOff("hop_block")
    to_broker, hops, time_to_live, time_consumed = block[:4]
    if not (
        type(to_broker) is bytes
        and len(to_broker) in (0, ID_SIZE)
        and type(hops) is int
        and 0 <= hops <= _MOST_HOPS
        and type(time_to_live) is int
        and 0 <= time_to_live <= MAX_INT
        and type(time_consumed) is int
        and 0 <= time_consumed <= MAX_INT
    ):
        raise _HeaderIsOff("hop_block")
    return Hop(to_broker, hops, time_to_live, time_consumed)


def _conversation_of(header: Header) -> bytes:
    named = header[2] if len(header) > 2 else b""  # noqa: PLR2004  # the field after the size
    return named if isinstance(named, bytes) and len(named) == ID_SIZE else b""
