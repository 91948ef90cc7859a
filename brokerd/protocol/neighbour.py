"""Frames between neighbours: HELLO to GOODBYE, and the frames that advise (TRN-45).

Reads:  nothing; bytes in, values out, and back.    Calls: `protocol.wire`.
Never:  knows what a frame does to a connection; `protocol.connection` does.

Each frame is one msgpack array. Fields that a later minor version appends are ignored (BI-F5).
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from brokerd.errors import ProtocolError
from brokerd.ids import ID_SIZE, BootId, ConversationId, InstanceId
from brokerd.protocol import brokers, certificate_lists, role
from brokerd.protocol.brokers import BrokersHere
from brokerd.protocol.certificate_lists import CertificatesHere, CertificatesKept
from brokerd.protocol.frames import Kind, encode_frame
from brokerd.protocol.role import RoleAnswer, RoleQuestion
from brokerd.protocol.trace import Trace, fields_of, trace_of
from brokerd.protocol.wire import (
    FRAME_LIMIT,
    LOGIN_LIMIT,
    MAX_INT,
    MAX_NAME,
    MAX_TEXT,
    Buffer,
    pack,
    unpack_payload,
)

MAGIC: Final = "brokerd"
MAJOR: Final = 1
"""Peers of another major version are refused (TRN-10)."""
MINOR: Final = 0
HIGHEST_PORT: Final = 65535
MOST_HOPS: Final = 10
"""Highest number of times that a NOTICE is passed on, so that it cannot circulate for ever."""
CLOCK: Final = "clock"
"""HELLO option with the sender's current UTC, which its PONGs then report too (TRN-47)."""
_HIGHEST_FRAME: Final = 2**31 - 1


class RejectReason(StrEnum):
    """Reason for refusing a login (NBT-20)."""

    PROTOCOL = "protocol"
    NO_COMPATIBLE_PROTOCOL = "no_compatible_protocol"
    NOT_AUTHENTICATED = "not_authenticated"
    NOT_AUTHORISED = "not_authorised"
    TLS_REQUIRED = "tls_required"
    """Only encrypted connections are admitted (END-10)."""
    PLAIN_ONLY = "plain_only"
    """Only unencrypted connections are admitted; sent in clear (SEC-10)."""
    ENDPOINT_DISABLED = "endpoint_disabled"
    DRAINING = "draining"
    TOO_MANY = "too_many_connections"


class Verdict(StrEnum):
    """Decision of the accepting side about a connection (TRN-23 to TRN-25)."""

    WON = "won"
    WON_OVER_STALE = "won_over_stale"
    """The connection replaces an older one that did not answer (TRN-25)."""
    LOST = "lost"


class GoodbyeReason(StrEnum):
    """Reason for ending a connection in an orderly way (TRN-18)."""

    IDLE = "idle"
    DRAIN = "drain"
    ARBITRATION = "arbitration"
    RENEW = "renew"
    """A certificate was replaced: either side may connect again at once (SEC-89)."""


class Hello(Struct, frozen=True):
    """The sender's identity, limits and options (TRN-7)."""

    instance_id: InstanceId
    boot_id: BootId
    port: int = 0
    """Port on which the sender's own broker endpoint listens; 0 = none."""
    largest_frame: int = FRAME_LIMIT
    major: int = MAJOR
    minor: int = MINOR
    options: dict[str, str | int | bool] = {}  # msgspec copies it
    """Options of the sender; unknown ones are ignored (TRN-10)."""

    @property
    def clock(self) -> int:
        """The sender's UTC in microseconds as of this frame; 0 = not reported (TRN-47)."""
        clock = self.options.get(CLOCK)
        return clock if type(clock) is int and 0 < clock <= MAX_INT else 0


class Reject(Struct, frozen=True):
    """A refusal, after which the sender closes the connection (NBT-20)."""

    reason: str
    phase: str


class Arbitrate(Struct, frozen=True):
    """The accepting side's decision; after `won` the connection is ONLINE."""

    verdict: Verdict


class Ping(Struct, frozen=True):
    """A request that the peer answers with PONG (TRN-30)."""

    number: int


class Pong(Struct, frozen=True):
    """The answer to a PING, with its number."""

    number: int
    clock: int = 0
    """The sender's UTC in microseconds; 0 = not reported (TRN-47)."""


class Goodbye(Struct, frozen=True):
    """The sender's last frame; the receiver answers with its own GOODBYE and closes."""

    reason: str


class Notice(Struct, frozen=True):
    """Advice on why a fragment from a neighbour was not accepted (NBT-4 to NBT-6)."""

    conversation_id: ConversationId
    from_initiator: bool
    """Direction of the fragment that was not accepted."""
    sequence: int
    reason: str
    """A key of XMT-19."""
    detail: str = ""
    to_service: str = ""
    """Service that sent the fragment; a forwarder passes the NOTICE on to it (NBT-6)."""
    to_broker: bytes = b""
    """Broker of that service."""
    hops: int = MOST_HOPS
    """Number of neighbours that may still pass the NOTICE on (FWD-6)."""


Advice = (
    Notice | Trace | RoleQuestion | RoleAnswer | BrokersHere | CertificatesHere | CertificatesKept
)
"""Frames that do not change the state of a connection, and may be lost."""
Neighbourly = Hello | Reject | Arbitrate | Ping | Pong | Goodbye | Advice


def encode(frame: Neighbourly) -> bytes:
    """Return the whole frame."""
    match frame:
        case Trace():
            kind, fields = Kind.TRACE, fields_of(frame)
        case RoleQuestion() | RoleAnswer():
            kind, fields = Kind.ROLE, role.fields_of(frame)
        case BrokersHere():
            kind, fields = Kind.BROKERS, brokers.fields_of(frame)
        case CertificatesHere() | CertificatesKept():
            kind, fields = Kind.CERTIFICATES, certificate_lists.fields_of(frame)
        case _:
            kind, fields = _fields(frame)
    return encode_frame(kind, pack(fields))


def decode(kind: int, payload: Buffer) -> Neighbourly:
    """Return the frame of kind `kind` with this payload.

    Raises:
        ProtocolError: the payload is malformed, or the kind is not one of these (TRN-44).
    """
    read = _READERS.get(kind)
    if read is None:
        raise ProtocolError(f"frame kind {kind} does not belong here")
    fields = unpack_payload(payload)
    try:
        return read(fields)
    except (ValueError, IndexError) as error:
        raise ProtocolError(f"{Kind(kind).name} is malformed: {error}") from error


def _fields(
    frame: Hello | Reject | Arbitrate | Ping | Pong | Goodbye | Notice,
) -> tuple[Kind, tuple[object, ...]]:
    match frame:
        case Hello():
            ids = (frame.instance_id, frame.boot_id)
            last = (frame.port, frame.largest_frame, frame.options)
            return Kind.HELLO, (MAGIC, frame.major, frame.minor, *ids, *last)
        case Reject():
            return Kind.REJECT, (frame.reason, frame.phase)
        case Arbitrate():
            return Kind.ARBITRATE, (frame.verdict.value,)
        case Ping() | Pong():
            clock = frame.clock if isinstance(frame, Pong) else 0
            kind = Kind.PONG if isinstance(frame, Pong) else Kind.PING
            return kind, (frame.number, clock) if clock else (frame.number,)
        case Goodbye():
            return Kind.GOODBYE, (frame.reason,)
        case Notice():
            what = (frame.conversation_id, frame.from_initiator, frame.sequence)
            to = (frame.to_service, frame.to_broker, frame.hops)
            return Kind.NOTICE, (*what, frame.reason, frame.detail, *to)


def _hello(fields: tuple[Any, ...]) -> Hello:
    magic, major, minor, instance_id, boot_id, port, largest_frame, options = fields[:8]
    if magic != MAGIC:
        raise ValueError("the far end is no brokerd")
    if type(options) is not dict:
        raise ValueError("options are no map")
    return Hello(
        instance_id=InstanceId(_id(instance_id)),
        boot_id=BootId(_id(boot_id)),
        port=_integer(port, 0, HIGHEST_PORT),
        largest_frame=_integer(largest_frame, LOGIN_LIMIT, _HIGHEST_FRAME),
        major=_integer(major, 0, HIGHEST_PORT),
        minor=_integer(minor, 0, HIGHEST_PORT),
        options={k: v for k, v in options.items() if isinstance(v, str | int)},
    )


def _reject(fields: tuple[Any, ...]) -> Reject:
    return Reject(_text(fields[0], MAX_NAME), _text(fields[1], MAX_NAME))


def _arbitrate(fields: tuple[Any, ...]) -> Arbitrate:
    return Arbitrate(Verdict(_text(fields[0], MAX_NAME)))


def _ping(fields: tuple[Any, ...]) -> Ping:
    return Ping(_integer(fields[0], 0, MAX_INT))


def _pong(fields: tuple[Any, ...]) -> Pong:
    clock = fields[1] if len(fields) > 1 else 0
    return Pong(_integer(fields[0], 0, MAX_INT), _integer(clock, 0, MAX_INT))


def _goodbye(fields: tuple[Any, ...]) -> Goodbye:
    return Goodbye(_text(fields[0], MAX_NAME))


def _notice(fields: tuple[Any, ...]) -> Notice:
    conversation_id, from_initiator, sequence, reason, detail, service, broker, hops = fields[:8]
    if type(from_initiator) is not bool:
        raise ValueError("direction is no boolean")
    return Notice(
        ConversationId(_id(conversation_id)),
        from_initiator,
        _integer(sequence, 0, MAX_INT),
        _text(reason, MAX_NAME),
        _text(detail, MAX_TEXT),
        _text(service, MAX_NAME),
        b"" if broker == b"" else _id(broker),
        _integer(hops, 0, MOST_HOPS),
    )


_READERS: Final[dict[int, Callable[[tuple[Any, ...]], Neighbourly]]] = {
    Kind.HELLO: _hello,
    Kind.REJECT: _reject,
    Kind.ARBITRATE: _arbitrate,
    Kind.PING: _ping,
    Kind.PONG: _pong,
    Kind.GOODBYE: _goodbye,
    Kind.NOTICE: _notice,
    Kind.TRACE: trace_of,
    Kind.ROLE: role.role_of,
    Kind.BROKERS: brokers.brokers_of,
    Kind.CERTIFICATES: certificate_lists.certificates_of,
}


def _id(value: object) -> bytes:
    if type(value) is not bytes or len(value) != ID_SIZE:
        raise ValueError("an id has sixteen bytes")
    return value


def _integer(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"a number is not within {least} to {most}")
    return value


def _text(value: object, most: int) -> str:
    if type(value) is not str or len(value) > most:
        raise ValueError(f"a text is none, or longer than {most}")
    return value
