"""Client frames: the frames between a client and a daemon, and their encoding (CLP).

Reads:  values.     Calls: msgpack, msgspec.
Never:  performs I/O, or decodes; `client_readers` does.
Long values are sent in PARTs (CLP-20): the encoders cut them and the readers join them, so no other
module handles a PART. The arguments of the verbs are in `client_verbs`.
"""

from collections.abc import Callable, Sequence
from struct import Struct as Layout
from typing import Any, Final, TypeGuard

import msgpack
import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from brokerd.errors import BrokerError

VERSION: Final = 1

FRAME_LIMIT: Final = 1 << 20
"""Longest frame after the login, in bytes behind the length prefix (CLP-3)."""
LOGIN_LIMIT: Final = 4096
"""Longest frame before WELCOME, in bytes behind the length prefix (CLP-3)."""
PART_SIZE: Final = 256 * 1024
"""Bytes that this side puts into one PART (CLP-20); a reader accepts any up to the frame limit."""
SPAN_LIMIT: Final = 65 << 20
"""Longest value, in bytes, that a reader joins from PARTs by default (CLP-22)."""
OUTSTANDING: Final = 1024
"""Most unanswered requests of a client (CLP-30), and most tokens kept by a daemon (CLP-52)."""
BODY_LIMIT: Final = 16 << 20
"""Longest body by default, in bytes: `dialog.max_message` (SND-12)."""
PING_AFTER: Final = 20.0
"""Seconds without an arrival, or without a write, after which a client sends a PING, if it has a
request unanswered or a transaction open (CLP-60)."""
PONG_WITHIN: Final = 10.0
"""Seconds that a client waits for the PONG before it gives up the connection (CLP-60)."""
SILENCE_LIMIT: Final = 35.0
"""Seconds of silence that a daemon allows a client that holds or awaits something (CLP-61)."""

# Client to daemon.
HELLO: Final = 0
REQUEST: Final = 1
PART_UP: Final = 2
CANCEL: Final = 3
PING: Final = 4

# Daemon to client.
WELCOME: Final = 0
DONE: Final = 1
ANSWER: Final = 2
FAILED: Final = 3
PART_DOWN: Final = 4
PONG: Final = 5
GOODBYE: Final = 6

# Reasons of a GOODBYE (CLP-70); a colon and the fault follow the last two.
DRAINING: Final = "draining"
REPLACED: Final = "replaced"
IDLE: Final = "idle"
LATE: Final = "no_login"
VIOLATION: Final = "protocol_error"

_TEXT_LIMIT: Final = 2000

Piece = bytes | memoryview

_length: Final = Layout(">I").pack
_pack: Final[Callable[[object], bytes]] = msgpack.Packer(autoreset=True).pack
"""Packer shared by all threads, because it runs no Python code that could interleave."""
_pack_answer: Final = msgspec.msgpack.Encoder().encode
"""Faster packer for values made by a daemon: the same bytes in a third of the time. Unlike `_pack`,
it refuses subclasses of `str`, and packs sets as lists."""


# Frames that a daemon reads.


class Hello(Struct, frozen=True):
    """First frame of a connection (CLP-10)."""

    request: int
    version: int
    client_id: bytes
    broker: str
    info: dict[str, str | int]


class Request(Struct, frozen=True):
    """One verb to perform; `args` is the argument of `client_verbs.parse_verb`."""

    request: int
    tx: int | None
    verb: str
    args: list[Any]


class Cancel(Struct, frozen=True):
    """A client's notice that it no longer waits for this receive (CLP-40)."""

    request: int


class Ping(Struct, frozen=True):
    """A request that the daemon answers with a PONG of the same number."""

    number: int


class Unreadable(Struct, frozen=True):
    """A request that cannot be read: answered with FAILED, and the connection stays (CLP-6).

    The transaction that the request names, if any, fails at this point (CLP-37).
    """

    request: int
    error: BrokerError
    tx: int | None = None


class Violation(Struct, frozen=True):
    """A breach of the protocol by the far end; always the last item of a reader (CLP-5)."""

    reason: str


ClientFrame = Hello | Request | Cancel | Ping | Unreadable | Violation


# Frames that a client reads.


class Limits(Struct, frozen=True):
    """Limits that the daemon sets a client; keys added later have defaults here."""

    outstanding: int = OUTSTANDING
    frame: int = FRAME_LIMIT
    body: int = BODY_LIMIT
    transactions: int = 16
    waiting: int = 64


class Welcome(Struct, frozen=True):
    """Answer to HELLO (CLP-11). `highest_token` is -1 if no token of this client is known."""

    request: int
    version: int
    instance: str
    instance_id: bytes
    boot_id: bytes
    broker: str
    broker_id: bytes
    limits: Limits
    highest_token: int


class Done(Struct, frozen=True):
    """Success of requests that have no value."""

    requests: list[int]


class Answer(Struct, frozen=True):
    """Success of one request, with its value."""

    request: int
    value: Any


class Failed(Struct, frozen=True):
    """Failure of one request; the fields are those of a `BrokerError`."""

    request: int
    code: str
    message: str
    hint: str
    retryable: bool
    ssb_code: int | None


class Pong(Struct, frozen=True):
    """Answer to a PING."""

    number: int


class Goodbye(Struct, frozen=True):
    """Notice that the daemon is about to close the connection (CLP-70)."""

    reason: str


DaemonFrame = Welcome | Done | Answer | Failed | Pong | Goodbye | Violation


class MessageValue(Struct, frozen=True, array_like=True):
    """A received message, in the order of its fields on the wire (CLP-36)."""

    handle: bytes
    """Handle of the dialog, for the reply."""
    conversation_id: bytes
    """Id of the conversation, the same on both sides; for logs."""
    group_id: bytes
    """Conversation group: the key of the application's state."""
    sequence: int
    """Position in its dialog and direction, from 0; -1 for an Error, -2 for a timer."""
    message_type: str
    """Name of the message type."""
    body: bytes | None
    """The body; None = the message has none."""
    service: str
    """Service at this side."""
    contract: str
    """Name of the contract."""
    queuing_order: int
    """Number that rises within a queue and is never used again."""
    priority: int
    """Level of the dialog, 1 to 10."""
    enqueued_at: int
    """Instant of the arrival in the queue: UTC microseconds since 1970."""
    delivery_count: int
    """Number of times that the message was received and rolled back since the daemon started."""
    message_id: bytes
    """Id of the message, the same when it is sent again on another dialog."""
    validation: str
    """The check that the body has passed: E (empty), N (none), X (XML) or J (JSON)."""
    timer_name: str | None = None
    """Name of the conversation timer that is due; None unless it is a named one (PBT-23)."""


# Values to bytes. Each function returns whole frames, ready to be written.


def encode_hello(client_id: bytes, broker: str, info: dict[str, str | int]) -> bytes:
    """Encode a HELLO; its request number is always 0."""
    return _frame([HELLO, 0, None, "hello", [VERSION, client_id, broker, info]])


def encode_request(request: int, tx: int | None, verb: str, args: Sequence[object]) -> bytes:
    """Encode a REQUEST, preceded by PARTs if it is too long for one frame (CLP-20)."""
    payload = _pack([REQUEST, request, tx, verb, args])
    size = len(payload)
    if size <= FRAME_LIMIT:
        return _length(size) + payload
    packed = memoryview(payload)[len(_pack([REQUEST, request, tx, verb])) :]  # the packed `args`
    last = _frame([REQUEST, request, tx, verb, len(packed)])
    return _in_parts(PART_UP, request, packed, last)


def encode_cancel(request: int) -> bytes:
    """Encode a CANCEL."""
    return _frame([CANCEL, request])


def encode_ping(number: int) -> bytes:
    """Encode a PING."""
    return _frame([PING, number])


def encode_welcome(welcome: Welcome) -> bytes:
    """Encode a WELCOME."""
    fields = msgspec.structs.asdict(welcome)
    del fields["request"]
    fields["limits"] = msgspec.structs.asdict(welcome.limits)
    return _frame([WELCOME, welcome.request, fields])


def encode_done(requests: Sequence[int]) -> bytes:
    """Encode one DONE for all `requests`."""
    return _frame([DONE, requests])


def encode_answer(request: int, value: object) -> bytes:
    """Encode an ANSWER, preceded by PARTs if it is too long for one frame (CLP-20)."""
    payload = _pack_answer([ANSWER, request, value])
    size = len(payload)
    if size <= FRAME_LIMIT:
        return _length(size) + payload
    packed = memoryview(payload)[len(_pack([ANSWER, request])) :]  # the packed value
    last = _frame([ANSWER, request, None, len(packed)])
    return _in_parts(PART_DOWN, request, packed, last)


class Bulky(list[Any]):
    """A list of values, or of lists, with large bodies that are written without a copy."""


def encode_bulky(request: int, value: Bulky) -> list[Piece]:
    """Encode an ANSWER as pieces to write one after the other, without copying large bodies."""
    packed: list[Piece] = []
    _spread(value, packed)
    last = _frame([ANSWER, request, None, sum(map(len, packed))])
    return _parts(PART_DOWN, request, packed, last)


def encode_messages(request: int, messages: Sequence[MessageValue]) -> bytes:
    """Encode the ANSWER to a `receive`."""
    return encode_answer(request, [astuple(message) for message in messages])


def encode_failed(request: int, error: BrokerError) -> bytes:
    """Encode a FAILED with the fields of `error`; texts are cut at 2,000 characters."""
    message, hint = error.message[:_TEXT_LIMIT], error.hint[:_TEXT_LIMIT]
    fields = [FAILED, request, error.code, message, hint, error.retryable, error.ssb_code]
    try:
        return _frame(fields)
    except UnicodeEncodeError:  # a lone surrogate from an operating system error
        fields[3:5] = [_printable(message), _printable(hint)]
        return _frame(fields)


def encode_pong(number: int) -> bytes:
    """Encode a PONG."""
    return _frame([PONG, number])


def encode_goodbye(reason: str) -> bytes:
    """Encode a GOODBYE; `reason` begins with one of the constants above."""
    return _frame([GOODBYE, _printable(reason)[:_TEXT_LIMIT]])


def request_size(body: int) -> int:
    """Return a safe upper bound of the frame size of a verb with a body of `body` bytes."""
    return body + 2048


def _frame(value: list[object]) -> bytes:
    payload = _pack(value)
    return _length(len(payload)) + payload


def _in_parts(kind: int, request: int, packed: memoryview, last: bytes) -> bytes:
    """Return PARTs and the frame they belong to; copy them only once, because they are large."""
    return b"".join(_parts(kind, request, [packed], last))


def _parts(kind: int, request: int, packed: Sequence[Piece], last: bytes) -> list[Piece]:
    """Return PARTs and the frame they belong to as pieces, for a value that consists of pieces."""
    whose = b"\x93" + _pack([kind, request])[1:]  # an array of three; the data follows
    left = sum(map(len, packed))
    room, out = 0, list[Piece]()
    for piece in packed:
        at, view = 0, memoryview(piece)
        while at < len(view):
            if not room:
                room = min(left, PART_SIZE)
                start = whose + _bytes_of(room)
                out += (_length(len(start) + room), start)
            some = view[at : at + room]
            out.append(some)
            at += len(some)
            room -= len(some)
            left -= len(some)
    out.append(last)
    return out


def _spread(value: Sequence[object], out: list[Piece]) -> None:
    """Pack a list; large bodies in the list, or in nested lists, become pieces of their own."""
    out.append(b"\xdd" + _length(len(value)))
    for one in value:
        if is_bulk(one):
            out += (_bytes_of(len(one)), one)
        elif type(one) is list and any(map(is_bulk, one)):
            _spread(one, out)
        else:
            out.append(_pack(one))


def is_bulk(value: object) -> TypeGuard[bytes]:
    """Return whether the value is a body so large that copies should be avoided."""
    return type(value) is bytes and len(value) >= PART_SIZE


def _bytes_of(size: int) -> bytes:
    """Return the msgpack header of a byte string of `size` bytes."""
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1, "big")
    return b"\xc5" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xc6" + _length(size)


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
