"""Passing on: an item for another instance, encoded again with its hop block updated (FWD-5).

Reads:  nothing; values in, bytes out.          Calls: `protocol.wire`.
Never:  decodes, inspects a body, or drops unknown content: fields of a later version, and blocks
        that only the two ends understand, are passed on unchanged (FWD-14).
"""

from typing import Final

from brokerd.protocol.item_decoding import Header
from brokerd.protocol.items import (
    ITEM_ACK,
    ITEM_BROKER_ERROR,
    ITEM_FRAGMENT,
    ITEM_SECURED_ACK,
    ITEM_SECURED_ERROR,
    ITEM_SECURED_FRAGMENT,
)
from brokerd.protocol.wire import MAX_INT, pack

_HOP_AT: Final = {
    ITEM_FRAGMENT: 17,
    ITEM_ACK: 8,
    ITEM_BROKER_ERROR: 9,
    ITEM_SECURED_FRAGMENT: 17,
    ITEM_SECURED_ACK: 8,
    ITEM_SECURED_ERROR: 8,
}
"""Position of the hop block in the header of each kind of item."""


def passed_on(header: Header, body: bytes, *, hops: int, milliseconds: int) -> bytes:
    """Return the item for the next hop, `hops` forwardings and `milliseconds` later (FWD-5).

    `header` comes from `decode_boxcar`, with a valid item that has at least `hops` hops left.
    """
    at = _HOP_AT[header[0]]
    to_broker, left, time_to_live, consumed, *more = header[at]
    spent = min(consumed + milliseconds, MAX_INT)
    hop = (to_broker, left - hops, time_to_live, spent, *more)
    packed = pack((*header[:at], hop, *header[at + 1 :]))
    return packed + body if body else packed
