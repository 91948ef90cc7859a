"""Items of a boxcar: fragments, acknowledgements, broker errors, and their encoding (DLP-7).

Items of secured dialogs are of kinds of their own, so plain ones carry nothing for security, and a
version that does not know these kinds drops such items alone.

Reads:  nothing; values in, bytes out.          Calls: `protocol.wire`.
Never:  decodes (`protocol.item_decoding` does) or checks whether an item fits its dialog
        (`protocol.dialog` does).

On the wire an item is a msgpack array `[item kind, size of the body, fields...]`, then the raw
bytes of the body. So a body is never inside a decoded header (BI-F4), and an item whose header is
invalid can be dropped alone, since its end is still known (TRN-44). Fields that a later version
appends to the array are ignored.
"""

from typing import Any, Final

from msgspec import Struct
from msgspec.structs import astuple

from brokerd.clock import Instant
from brokerd.ids import BrokerId, ConversationId, Incarnation, MessageId
from brokerd.protocol.wire import pack

END: Final = 1
"""Flag of a fragment that ends the dialog."""
ERROR: Final = 2
"""Flag of a fragment that carries an error made by the application."""
HEADERS: Final = 4
"""Flag of a fragment whose message has headers: its content begins with them (DLP-59)."""
ENDS: Final = END | ERROR
"""The flags of fragments that end a dialog; no message of an application has one."""


ITEM_FRAGMENT: Final = 0
ITEM_ACK: Final = 1
ITEM_BROKER_ERROR: Final = 2
ITEM_SECURED_FRAGMENT: Final = 3
ITEM_SECURED_ACK: Final = 4
ITEM_SECURED_ERROR: Final = 5


HEADER_FIELDS: Final = 14
"""Number of fields of a `Fragment` before its acknowledgement: its header (DLP-7).

These never change after the first transmission."""
BODY_AT: Final = 16
"""Position of the body among the fields of a `Fragment`, behind acknowledgement and hop block."""
_HOP_AT: Final = BODY_AT - 1


class Ack(Struct, frozen=True, gc=False, array_like=True):
    """The acknowledgement block (DLP-15, DLP-16, DLP-22, DLP-55).

    On the wire it is an array of its fields, in their order."""

    sequence: int
    """Everything up to and including (`sequence`, `fragment`) is stored; -1, -1 = nothing yet."""
    fragment: int
    highest_seen: int
    """Largest sequence seen; -1 = none."""
    base_sequence: int
    """Oldest sequence that the acknowledging side still holds to send; 0 = unknown (REL-15)."""
    broker_id: BrokerId
    """Broker that acknowledges (DLP-22)."""
    first_acked: bool = False
    """Whether the initiator has seen message 0 acknowledged (DLP-55)."""
    ranges: tuple[tuple[int, int, int, int], ...] = ()
    """Ranges held beyond (`sequence`, `fragment`), at most 16: (first sequence, first fragment,
    last sequence, last fragment), both ends included, so consecutive whole messages are one
    range."""


class Hop(Struct, frozen=True, gc=False):
    """The hop block (FWD-5). `to_broker` is b"" until it is known; times are milliseconds."""

    to_broker: bytes
    hops: int
    time_to_live: int
    time_consumed: int
    local_target: bytes = b""
    """Broker of this instance that the sender's routes lead to (RTE-30).

    Set only for an item that stays in this instance; it is never encoded, and is b"" for every
    arrival from outside."""


class Fragment(Struct, frozen=True, gc=False):
    """A sequenced fragment with its dialog header (DLP-7)."""

    conversation_id: ConversationId
    from_initiator: bool
    message_id: MessageId
    sequence: int
    fragment: int
    fragments: int
    flags: int
    from_service: str
    to_service: str
    from_broker: BrokerId
    contract: str
    message_type: str
    """Name of the message type; "" for END and ERROR."""
    expires_at: Instant
    incarnation: Incarnation
    ack: Ack | None
    hop: Hop
    body: bytes


class AckOnly(Struct, frozen=True, gc=False):
    """A dedicated, unsequenced acknowledgement (DLP-5, DLP-18)."""

    conversation_id: ConversationId
    from_initiator: bool
    from_service: str
    to_service: str
    from_broker: BrokerId
    ack: Ack
    hop: Hop


class BrokerErrorItem(Struct, frozen=True, gc=False):
    """An unsequenced error made by a broker: a negative code (DLP-3, DLP-42)."""

    conversation_id: ConversationId
    from_initiator: bool
    from_service: str
    to_service: str
    from_broker: BrokerId
    code: int
    description: str
    hop: Hop


class SecuredFragment(Fragment, frozen=True, gc=False):
    """A fragment of a secured dialog: its body is sealed, its header is in clear (SEC-35)."""

    key_id: bytes
    """Identifier of the key that has sealed the body."""
    ack_code: bytes
    """Code that authenticates the acknowledgement block; b"" if there is none (SEC-36)."""
    security: bytes = b""
    """Security header; b"" = the far side has the keys already (SEC-26)."""


class SecuredAck(AckOnly, frozen=True, gc=False):
    """A dedicated acknowledgement of a secured dialog (SEC-36)."""

    ack_code: bytes


class SecuredError(Struct, frozen=True, gc=False):
    """An error that a broker made for a secured dialog (SEC-37)."""

    conversation_id: ConversationId
    from_initiator: bool
    from_service: str
    to_service: str
    from_broker: BrokerId
    sealed: bytes
    hop: Hop


class BadItem(Struct, frozen=True, gc=False):
    """An item dropped because its header is invalid; the connection stays open (TRN-44, BI-F6)."""

    reason: str
    conversation_id: bytes = b""
    """Conversation of the item, for the log; b"" if it could not be read."""


Secured = SecuredFragment | SecuredAck | SecuredError
Item = Fragment | AckOnly | BrokerErrorItem | SecuredError


def encode_item(item: Item) -> bytes:
    """Return the item as encoded in a boxcar."""
    if type(item) is Fragment:
        return _encode_fragment(item)
    if type(item) is SecuredFragment:
        return _encode_secured(item)
    assert not isinstance(item, Fragment)
    fields: list[object] = [
        ITEM_ACK,
        0,
        item.conversation_id,
        item.from_initiator,
        item.from_service,
        item.to_service,
        item.from_broker,
    ]
    if isinstance(item, AckOnly):
        fields.append(item.ack)
    elif isinstance(item, BrokerErrorItem):
        fields[0] = ITEM_BROKER_ERROR
        fields += (item.code, item.description)
    else:
        fields[0] = ITEM_SECURED_ERROR
        fields.append(item.sealed)
    fields.append(_hop_block(item.hop))
    if type(item) is SecuredAck:
        fields[0] = ITEM_SECURED_ACK
        fields.append(item.ack_code)
    return pack(fields)


def dialog_header(fields: tuple[Any, ...], key_id: bytes) -> bytes:
    """Return the header of a fragment as its seal covers it (DLP-7, SEC-35).

    `fields`: those of the fragment, as `astuple` returns them."""
    return pack((ITEM_SECURED_FRAGMENT, *fields[:HEADER_FIELDS], key_id))


def ack_header(item: Fragment | AckOnly, ack: Ack) -> bytes:
    """Return an acknowledgement block, with its dialog, as its code covers it (SEC-36).

    The code is the same for a block that travels alone and for one within a fragment."""
    return pack(
        (
            ITEM_SECURED_ACK,
            item.conversation_id,
            item.from_initiator,
            item.from_service,
            item.to_service,
            item.from_broker,
            ack,
        )
    )


def error_header(item: BrokerErrorItem | SecuredError) -> bytes:
    """Return what is sent in clear beside an error, as its seal covers it (SEC-37)."""
    return pack(
        (
            ITEM_SECURED_ERROR,
            item.conversation_id,
            item.from_initiator,
            item.from_service,
            item.to_service,
            item.from_broker,
        )
    )


def pack_error(item: BrokerErrorItem) -> bytes:
    """Return code and description of an error, to be sealed."""
    return pack((item.code, item.description))


def _encode_fragment(item: Fragment) -> bytes:
    body = item.body
    header = pack(
        (
            ITEM_FRAGMENT,
            len(body),
            item.conversation_id,
            item.from_initiator,
            item.message_id,
            item.sequence,
            item.fragment,
            item.fragments,
            item.flags,
            item.from_service,
            item.to_service,
            item.from_broker,
            item.contract,
            item.message_type,
            item.expires_at,
            item.incarnation,
            item.ack,
            _hop_block(item.hop),
        )
    )
    return header + body


def _encode_secured(item: SecuredFragment) -> bytes:
    body = item.body
    fields = astuple(item)
    header = pack(
        (
            ITEM_SECURED_FRAGMENT,
            len(body),
            *fields[:_HOP_AT],
            _hop_block(item.hop),
            *fields[BODY_AT + 1 :],
        )
    )
    return header + body


def _hop_block(hop: Hop) -> tuple[object, ...]:
    return (hop.to_broker, hop.hops, hop.time_to_live, hop.time_consumed)
