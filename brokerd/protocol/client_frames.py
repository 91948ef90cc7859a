"""Client frames: what a client and a daemon write to each other, and how it becomes bytes (CLP).

Reads:  values.     Calls: msgpack, msgspec.
Never:  performs I/O; bytes become these values in `client_readers`.
Long values travel in PARTs (CLP-20): the encoders cut them, the readers join them, so nobody
else ever sees a PART. The arguments of the verbs are in `client_verbs`.
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
"""Longest rest of a frame after login, in bytes (CLP-3)."""
LOGIN_LIMIT: Final = 4096
"""The same before WELCOME (CLP-3)."""
PART_SIZE: Final = 256 * 1024
"""Bytes this side puts into one PART (CLP-20); a receiver takes any size up to the frame limit."""
SPAN_LIMIT: Final = 65 << 20
"""Longest value a reader joins from PARTs unless told otherwise (CLP-22)."""
OUTSTANDING: Final = 1024
"""Requests a client may have unanswered (CLP-30), and tokens a daemon remembers (CLP-52)."""
BODY_LIMIT: Final = 16 << 20
"""Longest body by default, `dialog.max_message` (SND-12)."""
PING_AFTER: Final = 20.0
"""Seconds without a word from either side after which a client with something open asks for one
(CLP-60)."""
PONG_WITHIN: Final = 10.0
"""Seconds a client then waits before it gives the connection up (CLP-60)."""
SILENCE_LIMIT: Final = 35.0
"""Seconds of silence a daemon allows a client that holds or awaits something (CLP-61)."""

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

# Reasons of a GOODBYE (CLP-70); the last two are followed by a colon and what was wrong.
DRAINING: Final = "draining"
REPLACED: Final = "replaced"
IDLE: Final = "idle"
LATE: Final = "no_login"
VIOLATION: Final = "protocol_error"

_TEXT_LIMIT: Final = 2000

Piece = bytes | memoryview

_length: Final = Layout(">I").pack
_pack: Final[Callable[[object], bytes]] = msgpack.Packer(autoreset=True).pack
"""It runs no Python code, so threads may share it."""
_pack_answer: Final = msgspec.msgpack.Encoder().encode
"""The same bytes in a third of the time, of what a daemon has made: it takes no subclass of `str`,
and sets as lists."""


# What a daemon reads.


class Hello(Struct, frozen=True):
    """First frame of a connection (CLP-10)."""

    request: int
    version: int
    client_id: bytes
    broker: str
    info: dict[str, str | int]


class Request(Struct, frozen=True):
    """One verb to perform; `args` is what `client_verbs.parse_verb` takes."""

    request: int
    tx: int | None
    verb: str
    args: list[Any]


class Cancel(Struct, frozen=True):
    """The client no longer waits for this receive (CLP-40)."""

    request: int


class Ping(Struct, frozen=True):
    """Answer with a PONG of the same number."""

    number: int


class Unreadable(Struct, frozen=True):
    """A request that cannot be taken: answer it with FAILED and `error`, stay connected (CLP-6).

    If it named a transaction, that one has failed in this place (CLP-37).
    """

    request: int
    error: BrokerError
    tx: int | None = None


class Violation(Struct, frozen=True):
    """The far end broke the protocol; always the last thing a reader gives (CLP-5)."""

    reason: str


ClientFrame = Hello | Request | Cancel | Ping | Unreadable | Violation


# What a client reads.


class Limits(Struct, frozen=True):
    """What the daemon takes from one client; keys added later have defaults here."""

    outstanding: int = OUTSTANDING
    frame: int = FRAME_LIMIT
    body: int = BODY_LIMIT
    transactions: int = 16
    waiting: int = 64


class Welcome(Struct, frozen=True):
    """Answer to HELLO (CLP-11). `highest_token` is -1 if none is known of this client."""

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
    """These requests succeeded and have no value."""

    requests: list[int]


class Answer(Struct, frozen=True):
    """The value of one request."""

    request: int
    value: Any


class Failed(Struct, frozen=True):
    """One request failed; the fields are those of a `BrokerError`."""

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
    """The daemon is about to close this connection (CLP-70)."""

    reason: str


DaemonFrame = Welcome | Done | Answer | Failed | Pong | Goodbye | Violation


class MessageValue(Struct, frozen=True, array_like=True):
    """A received message, in the order of its fields on the wire (CLP-36)."""

    handle: bytes
    """Handle of the dialog, to answer on."""
    conversation_id: bytes
    """Id of the conversation, the same on both sides; for logs."""
    group_id: bytes
    """Conversation group: the key for state."""
    sequence: int
    """Position in its dialog and direction, from 0; -1 for an Error, -2 for a timer."""
    message_type: str
    """Name of the message type."""
    body: bytes | None
    """None = there is none."""
    service: str
    """Service at this side."""
    contract: str
    """Name of the contract."""
    queuing_order: int
    """Rises in a queue and is never used again."""
    priority: int
    """Level of the dialog, 1 to 10."""
    enqueued_at: int
    """UTC microseconds since 1970."""
    delivery_count: int
    """How often it was received and rolled back since the daemon started."""
    message_id: bytes
    """Stays the same when the message is sent again on another dialog."""
    validation: str
    """How the body was checked: E (empty), N (not), X (XML) or J (JSON)."""
    timer_name: str | None = None
    """Name of a named conversation timer that is due (PBT-23)."""


# Values to bytes. Each function returns whole frames, ready to be written.


def encode_hello(client_id: bytes, broker: str, info: dict[str, str | int]) -> bytes:
    """HELLO; its request number is always 0."""
    return _frame([HELLO, 0, None, "hello", [VERSION, client_id, broker, info]])


def encode_request(request: int, tx: int | None, verb: str, args: Sequence[object]) -> bytes:
    """REQUEST, with the PARTs before it if it is too long for one frame (CLP-20)."""
    payload = _pack([REQUEST, request, tx, verb, args])
    size = len(payload)
    if size <= FRAME_LIMIT:
        return _length(size) + payload
    packed = memoryview(payload)[len(_pack([REQUEST, request, tx, verb])) :]  # what args are
    last = _frame([REQUEST, request, tx, verb, len(packed)])
    return _in_parts(PART_UP, request, packed, last)


def encode_cancel(request: int) -> bytes:
    """CANCEL."""
    return _frame([CANCEL, request])


def encode_ping(number: int) -> bytes:
    """PING."""
    return _frame([PING, number])


def encode_welcome(welcome: Welcome) -> bytes:
    """WELCOME."""
    fields = msgspec.structs.asdict(welcome)
    del fields["request"]
    fields["limits"] = msgspec.structs.asdict(welcome.limits)
    return _frame([WELCOME, welcome.request, fields])


def encode_done(requests: Sequence[int]) -> bytes:
    """DONE for all of `requests`."""
    return _frame([DONE, requests])


def encode_answer(request: int, value: object) -> bytes:
    """ANSWER, with the PARTs before it if it is too long for one frame (CLP-20)."""
    payload = _pack_answer([ANSWER, request, value])
    size = len(payload)
    if size <= FRAME_LIMIT:
        return _length(size) + payload
    packed = memoryview(payload)[len(_pack([ANSWER, request])) :]  # what the value is
    last = _frame([ANSWER, request, None, len(packed)])
    return _in_parts(PART_DOWN, request, packed, last)


class Bulky(list[Any]):
    """A list with large bodies in it, at most a list deeper: they are written without a copy."""


def encode_bulky(request: int, value: Bulky) -> list[Piece]:
    """ANSWER in the pieces that it is written in, one after the other; bodies are not copied."""
    packed: list[Piece] = []
    _spread(value, packed)
    last = _frame([ANSWER, request, None, sum(map(len, packed))])
    return _parts(PART_DOWN, request, packed, last)


def encode_messages(request: int, messages: Sequence[MessageValue]) -> bytes:
    """ANSWER to a `receive`."""
    return encode_answer(request, [astuple(message) for message in messages])


def encode_failed(request: int, error: BrokerError) -> bytes:
    """FAILED with the fields of `error`; texts are cut at 2,000 characters."""
    message, hint = error.message[:_TEXT_LIMIT], error.hint[:_TEXT_LIMIT]
    fields = [FAILED, request, error.code, message, hint, error.retryable, error.ssb_code]
    try:
        return _frame(fields)
    except UnicodeEncodeError:  # a lone surrogate that an operating system error brought along
        fields[3:5] = [_printable(message), _printable(hint)]
        return _frame(fields)


def encode_pong(number: int) -> bytes:
    """PONG."""
    return _frame([PONG, number])


def encode_goodbye(reason: str) -> bytes:
    """GOODBYE; `reason` is one of the constants above."""
    return _frame([GOODBYE, _printable(reason)[:_TEXT_LIMIT]])


def request_size(body: int) -> int:
    """A safe upper estimate of the frame of a verb with a body of that many bytes."""
    return body + 2048


def _frame(value: list[object]) -> bytes:
    payload = _pack(value)
    return _length(len(payload)) + payload


def _in_parts(kind: int, request: int, packed: memoryview, last: bytes) -> bytes:
    """PARTs, then the frame they belong to. They are large, so that each copy of them counts."""
    return b"".join(_parts(kind, request, [packed], last))


def _parts(kind: int, request: int, packed: Sequence[Piece], last: bytes) -> list[Piece]:
    """The same in pieces, of a value that is in pieces itself."""
    whose = b"\x93" + _pack([kind, request])[1:]  # an array of three, of which two are here
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
    """Pack a list, the large bodies in it, or in the lists in it, as pieces of their own."""
    out.append(b"\xdd" + _length(len(value)))
    for one in value:
        if is_bulk(one):
            out += (_bytes_of(len(one)), one)
        elif type(one) is list and any(map(is_bulk, one)):
            _spread(one, out)
        else:
            out.append(_pack(one))


def is_bulk(value: object) -> TypeGuard[bytes]:
    """Whether this is so large that each copy of it counts."""
    return type(value) is bytes and len(value) >= PART_SIZE


def _bytes_of(size: int) -> bytes:
    """What msgpack writes before so many bytes."""
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1, "big")
    return b"\xc5" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xc6" + _length(size)


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
