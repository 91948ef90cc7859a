"""Client readers: decode the bytes of one connection into frames, checking each field (CLP).

Reads:  bytes in pieces of any size.     Calls: msgpack, msgspec.
Never:  performs I/O, keeps more than one unfinished frame and one unfinished span, or trusts a
        length before comparing it with a limit.
The daemon feeds a `RequestReader`, the client an `AnswerReader`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from struct import Struct as Layout
from typing import Any, Final, Generic, TypeVar

import msgpack
import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from brokerd.errors import BadRequest, BrokerError, MessageTooLarge
from brokerd.protocol.client_frames import (
    ANSWER,
    CANCEL,
    DONE,
    FAILED,
    FRAME_LIMIT,
    GOODBYE,
    HELLO,
    LOGIN_LIMIT,
    PART_DOWN,
    PART_UP,
    PING,
    PONG,
    REQUEST,
    SPAN_LIMIT,
    WELCOME,
    Answer,
    Cancel,
    ClientFrame,
    DaemonFrame,
    Done,
    Failed,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Request,
    Unreadable,
    Violation,
    Welcome,
)

_HEAD: Final = 32
_SKIP_LIMIT: Final = 64 << 20
_ARRAY_LIMIT: Final = 131072
AT_ONCE: Final = 1024
"""Frames of one read that a daemon handles before other work gets its turn (REL-32)."""
_NO_LIMIT: Final = 1 << 62
_NUMBER_LIMIT: Final = 1 << 63
_LENGTH: Final = Layout(">I")
_PREFIX: Final = _LENGTH.size
_length_at: Final = _LENGTH.unpack_from

# Numbers of elements of the frames.
_PING_SIZE: Final = 2
_PART_SIZE: Final = 3
_REQUEST_SIZE: Final = 5
_SHORT_ANSWER: Final = 3

_Frame = TypeVar("_Frame")


class _Reader(ABC, Generic[_Frame]):
    """A reader that cuts a stream of bytes into frames; each byte is copied at most twice.

    An unfinished frame is kept in the pieces that arrived, and joined once when it is complete.
    """

    def __init__(self, *, span_limit: int = SPAN_LIMIT, at_once: int = _NO_LIMIT) -> None:
        self._limit = LOGIN_LIMIT
        self._at_once = at_once
        self._rest = b""
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = 0
        self._skip = 0
        self._broken = False
        self._span = _Span(span_limit)

    def login_done(self) -> None:
        """Allow frames of the full length from now on (CLP-3)."""
        self._limit = FRAME_LIMIT

    @property
    def has_more(self) -> bool:
        """Whether `feed` has kept frames for its next call, which then needs no new bytes."""
        return bool(self._rest) and not self._broken

    def feed(self, data: bytes) -> list[_Frame | Violation]:
        """Read the next bytes; return the frames that they complete.

        The list is empty after a `Violation`."""
        out: list[_Frame | Violation] = []
        if self._broken:
            return out
        if self._rest:
            data, self._rest = self._rest + data, b""
        if self._skip:
            data = self._skipped(data)
        if self._pieces:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return out
            data = b"".join(self._pieces)
            self._pieces.clear()
        try:
            self._cut(data, out)
        except _BrokenError as broken:
            self._broken = True
            out.append(Violation(str(broken)))
        return out

    def _cut(self, data: bytes, out: list[_Frame | Violation]) -> None:
        at, end = 0, len(data)
        view = memoryview(data)
        while end - at >= _PREFIX:
            if len(out) >= self._at_once:
                self._rest = data[at:]
                return
            (size,) = _length_at(data, at)
            # A frame over the limit need not end the connection (CLP-6): its first bytes give the
            # request number to answer, and the rest is skipped as it arrives, without being kept.
            if size > self._limit:
                self._refuse_long(size)
                if end - at < _PREFIX + _HEAD:
                    self._keep(data, at, _PREFIX + _HEAD)
                    return
                self._too_long(view[at + _PREFIX : at + _PREFIX + _HEAD], out)
                stop = at + _PREFIX + size
                self._skip = max(0, stop - end)
                at = min(stop, end)
                continue
            stop = at + _PREFIX + size
            if stop > end:
                self._keep(data, at, _PREFIX + size)
                return
            self._accept(view[at + _PREFIX : stop], out)
            at = stop
        if at < end:
            self._keep(data, at, _PREFIX)

    def _keep(self, data: bytes, at: int, need: int) -> None:
        rest = data[at:] if at else data
        self._pieces.append(rest)
        self._have = len(rest)
        self._need = need

    def _skipped(self, data: bytes) -> bytes:
        dropped = min(self._skip, len(data))
        self._skip -= dropped
        return data[dropped:]

    def _refuse_long(self, size: int) -> None:
        if self._limit == LOGIN_LIMIT or size > _SKIP_LIMIT:
            raise _BrokenError(f"a frame of {size} bytes is over the limit of {self._limit}")

    def _too_long(self, head: memoryview, out: list[_Frame | Violation]) -> None:
        raise _BrokenError("a frame is over the limit")

    @abstractmethod
    def _accept(self, payload: memoryview, out: list[_Frame | Violation]) -> None:
        """Decode the bytes of one frame; append the result, if any, to `out`."""


class RequestReader(_Reader[ClientFrame]):
    """The daemon's reader, for the frames of a client. Request numbers must rise (CLP-4)."""

    def __init__(self, *, span_limit: int = SPAN_LIMIT, at_once: int = AT_ONCE) -> None:
        super().__init__(span_limit=span_limit, at_once=at_once)
        self._last = -1

    def _accept(self, payload: memoryview, out: list[ClientFrame | Violation]) -> None:
        try:
            frame = _unpack(payload)
        except _UNREADABLE:
            frame = None
        if type(frame) is not list or not frame:
            out.append(self._unreadable(payload[:_HEAD], "the frame is no msgpack array"))
            return
        kind = frame[0]
        if kind == REQUEST and len(frame) == _REQUEST_SIZE and self._span.request is None:
            _, request, tx, verb, args = frame
            if self._is_plain(request, tx, verb, args):  # nearly all requests are
                self._last = request
                out.append(Request(request, tx, verb, args))
                return
        if kind == REQUEST:
            out.append(self._request(frame))
        elif kind == PART_UP and len(frame) == _PART_SIZE and type(frame[2]) is bytes:
            self._part(_number(frame[1]), frame[2])
        elif kind == CANCEL and len(frame) == _PING_SIZE:
            out.append(Cancel(_number(frame[1])))
        elif kind == PING and len(frame) == _PING_SIZE:
            out.append(Ping(_number(frame[1])))
        elif kind == HELLO:
            out.append(self._hello(frame))
        else:
            raise _BrokenError("a frame of an unknown kind or length")

    def _part(self, request: int, data: bytes) -> None:
        if self._limit == LOGIN_LIMIT:
            raise _BrokenError("a PART before WELCOME")
        self._span.add(request, data)

    def _is_plain(self, request: object, tx: object, verb: object, args: object) -> bool:
        """Return whether a request is valid and contains its arguments.

        This is the short form of the checks that `_request` does one by one, to name the fault."""
        return (
            type(request) is int
            and self._last < request < _NUMBER_LIMIT
            and type(verb) is str
            and type(args) is list
            and (tx is None or (type(tx) is int and 0 < tx < _NUMBER_LIMIT))
        )

    def _hello(self, frame: list[Any]) -> Hello:
        request = self._next_request(frame)
        if request:
            raise _BrokenError("HELLO has a number other than 0")
        try:
            _, _, nothing, verb, args = frame
            if nothing is not None or verb != "hello":
                raise _BrokenError("HELLO has another form")
            return msgspec.convert([request, *args], _HelloArgs, builtin_types=(bytes,)).hello()
        except (TypeError, ValueError, msgspec.ValidationError) as error:
            raise _BrokenError("HELLO has another form") from error

    def _request(self, frame: list[Any]) -> Request | Unreadable:
        request = self._next_request(frame)
        if len(frame) != _REQUEST_SIZE:
            return self._refused(frame, "a request is [1, request, tx, verb, args]")
        _, _, tx, verb, args = frame
        if type(args) is int:
            try:
                args = self._span.value(args)
            except BrokerError as error:
                return Unreadable(request, error, _tx(frame))
        elif self._span.request is not None:
            return self._refused(frame, "args: PARTs came before, so their length is expected")
        if type(verb) is str and type(args) is list and _is_tx(tx):
            return Request(request, tx, verb, args)
        return self._refused(frame, _wrong_field(tx, verb))

    def _refused(self, frame: list[Any], reason: str) -> Unreadable:
        self._span.clear()
        return Unreadable(frame[1], BadRequest(reason), _tx(frame))

    def _next_request(self, frame: list[Any]) -> int:
        request = _number(frame[1] if len(frame) > 1 else None)
        if request <= self._last:
            raise _BrokenError("request numbers must rise")
        if self._span.request is not None and self._span.request != request:
            raise _BrokenError("PARTs of one request are followed by another")
        self._last = request
        return request

    def _too_long(self, head: memoryview, out: list[ClientFrame | Violation]) -> None:
        out.append(self._unreadable(head, f"the frame is longer than {FRAME_LIMIT} bytes"))

    def _unreadable(self, head: memoryview, reason: str) -> Unreadable:
        """Return the refusal of a frame whose head still shows a request number (CLP-6).

        Raises:
            _BrokenError: the head shows no request to answer.
        """
        unpacker = msgpack.Unpacker()
        unpacker.feed(head)
        try:
            unpacker.read_array_header()
            start = [unpacker.unpack(), unpacker.unpack(), unpacker.unpack()]
        except (*_UNREADABLE, msgpack.OutOfData) as error:
            raise _BrokenError(reason) from error
        if start[0] != REQUEST:
            raise _BrokenError(reason)
        self._next_request(start)
        return self._refused(start, reason)


class AnswerReader(_Reader[DaemonFrame]):
    """The client's reader, for the frames of the daemon."""

    def _accept(self, payload: memoryview, out: list[DaemonFrame | Violation]) -> None:
        try:
            frame = _unpack(payload)
            kind = frame[0]
            if kind == DONE:
                out.append(Done(_numbers(frame[1])))
            elif kind == ANSWER:
                out.append(self._answer(frame))
            elif kind == FAILED:
                out.append(msgspec.convert(frame[1:], _FailedArgs).failed())
            elif kind == PART_DOWN:
                self._span.add(_number(frame[1]), frame[2])
            elif kind == PONG:
                out.append(Pong(_number(frame[1])))
            elif kind == GOODBYE:
                out.append(Goodbye(str(frame[1])))
            elif kind == WELCOME:
                out.append(_welcome(_number(frame[1]), frame[2]))
            else:
                raise _BrokenError("a frame of an unknown kind")
        except (*_UNREADABLE, TypeError, LookupError, msgspec.ValidationError) as error:
            raise _BrokenError("a frame cannot be read") from error

    def _answer(self, frame: list[Any]) -> Answer:
        request = _number(frame[1])
        is_whole = len(frame) == _SHORT_ANSWER
        if self._span.request != (None if is_whole else request):
            raise _BrokenError("PARTs of one answer are followed by another")
        if is_whole:
            return Answer(request, frame[2])
        try:
            return Answer(request, self._span.value(frame[3]))
        except BrokerError as error:
            raise _BrokenError(error.message) from error


class _Span:
    """The PARTs received so far of one value (CLP-20, CLP-21)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._joined = bytearray()
        self._size = 0
        self.request: int | None = None

    def add(self, request: int, data: bytes) -> None:
        """Append a PART; beyond the limit, drop the data and count only its size."""
        if self.request is None:
            self.request = request
        elif self.request != request:
            raise _BrokenError("PARTs of two values are mixed")
        self._size += len(data)
        if self._size <= self._limit:
            self._joined += data  # a list would cost memory for every PART, even a short one
        else:
            self._joined = bytearray()

    def value(self, size: int) -> object:
        """Return the joined value and clear the span.

        Raises:
            BadRequest: `size` differs from the bytes received, or these are not a msgpack value.
            MessageTooLarge: the value is longer than the limit.
        """
        packed, found = self._joined, self._size
        self.clear()
        if found != size:
            raise BadRequest(f"args: {size} bytes were announced and {found} came")
        if found > self._limit:
            raise MessageTooLarge(f"a request of {found} bytes is over {self._limit}")
        try:
            return _unpack(packed)
        except _UNREADABLE as error:
            raise BadRequest("args: the joined PARTs are no msgpack value") from error

    def clear(self) -> None:
        """Drop the PARTs received so far."""
        self._joined = bytearray()
        self._size = 0
        self.request = None


class _BrokenError(Exception):
    """The boundaries or the order of frames are broken; the connection cannot be read further."""


class _HelloArgs(Struct, frozen=True, array_like=True):
    request: int
    version: int
    client_id: bytes
    broker: str
    info: dict[str, str | int] = msgspec.field(default_factory=dict)

    def hello(self) -> Hello:
        return Hello(self.request, self.version, self.client_id, self.broker, self.info)


class _FailedArgs(Struct, frozen=True, array_like=True):
    request: int
    code: str
    message: str
    hint: str
    retryable: bool
    ssb_code: int | None = None

    def failed(self) -> Failed:
        return Failed(*astuple(self))


def _welcome(request: int, fields: dict[str, object]) -> Welcome:
    return msgspec.convert({**fields, "request": request}, Welcome, builtin_types=(bytes,))


def _is_tx(tx: object) -> bool:
    return tx is None or (type(tx) is int and 0 < tx < _NUMBER_LIMIT)


def _tx(frame: list[Any]) -> int | None:
    """Return the transaction that a frame names; None if it names none."""
    tx = next(iter(frame[2:3]), None)
    return tx if type(tx) is int and _is_tx(tx) else None


def _wrong_field(tx: object, verb: object) -> str:
    if not _is_tx(tx):
        return "tx: nil or an integer above 0 is expected"
    return "verb: a string is expected" if type(verb) is not str else "args: an array is expected"


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < _NUMBER_LIMIT:
        raise _BrokenError("a number of 0 or more is expected")
    return value


def _numbers(values: object) -> list[int]:
    return msgspec.convert(values, list[int])


def _no_extension(code: int, data: bytes) -> object:
    raise ValueError("extension types are not used")


_UNREADABLE: Final = (ValueError, RecursionError, msgpack.FormatError, msgpack.StackError)


_unpack: Final[Callable[[bytes | bytearray | memoryview], Any]] = partial(
    msgpack.unpackb,
    ext_hook=_no_extension,
    max_array_len=_ARRAY_LIMIT,
    max_map_len=_ARRAY_LIMIT,
)
"""Decoder of one msgpack value of any shape."""
