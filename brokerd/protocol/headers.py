"""Headers of messages: their limits, and the content that carries them (SND-26 to SND-28). PURE.

Reads:  nothing; values in, values out.      Calls: msgspec.
Never:  gives a header a meaning: that is the business of the programs that send and receive it.

The *content* of a message is what travels and is stored: the body alone, or, if the flag `HEADERS`
of the message is set, two bytes (big-endian) with the length of the header block, then the block (a
msgpack map of names to text or bytes), then the body. Fragments, seals, pieces and hashes are of
the content, so they need not know about headers.

In memory a content with headers is a `Content`, any other one plain `bytes`. So whatever passes a
body on passes the headers on with it, and only the few modules that look into a body have to ask
for the body alone (`body_of`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgpack
import msgspec

from brokerd.protocol.items import HEADERS
from brokerd.protocol.wire import DECODING_ERRORS

if TYPE_CHECKING:
    HeaderMap = Mapping[str, str | bytes]
else:
    HeaderMap = Mapping[str, Any]  # for structs: msgspec has no union of text and bytes

Headers = Mapping[str, str | bytes]
"""The headers of one message: names with their values."""

MAX_HEADERS: Final = 64
"""Most headers of a message."""
MAX_HEADER_NAME: Final = 128
"""Most characters of the name of a header."""
MAX_BLOCK: Final = 8192
"""Most bytes of a header block."""
RESERVED_PREFIX: Final = "brokerd-"
"""Beginning of the names that programs cannot give to headers."""

CONTENT_TYPE: Final = "content-type"
"""The header for the media type of the body, such as `application/json`."""
CORRELATION_ID: Final = "correlation-id"
"""The header for the id that a request and everything caused by it have in common."""
TRACEPARENT: Final = "traceparent"
"""The header for the span that sent the message, in the form of W3C Trace Context."""
TRACESTATE: Final = "tracestate"
"""The header for what tracing systems add to `TRACEPARENT`."""
CLOUDEVENTS_PREFIX: Final = "ce-"
"""Beginning of the names of headers for the attributes of CloudEvents: `ce-id`, `ce-source`."""

_PREFIX: Final = 2
"""Bytes before a header block, which are its length."""
_NAME: Final = re.compile(rf"[\x21-\x7e]{{1,{MAX_HEADER_NAME}}}")
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_pack: Final = msgspec.msgpack.Encoder().encode


class _Nothing(dict[str, Any]):
    """An empty dict that stays empty, so that all messages without headers can share it."""

    __slots__ = ()

    def __setitem__(self, name: str, value: object) -> None:
        raise TypeError("the headers of a received message cannot be changed")


NO_HEADERS: Final[HeaderMap] = _Nothing()
"""The headers of all received messages that have none."""


class Content(bytes):
    """The content of a message with headers."""

    # Not slots: `bytes` allows none. Parsed when first needed, as most instances never look inside.
    _parsed: tuple[HeaderMap, bytes | None] | None = None

    @property
    def headers(self) -> HeaderMap:
        """The headers; empty if the header block is invalid."""
        return self._parse()[0]

    @property
    def body(self) -> bytes | None:
        """The body alone, the same object until `release`; None = the message has no body."""
        return self._parse()[1]

    def release(self) -> None:
        """Give back the memory of the parsed parts, which is as much as that of the body."""
        self._parsed = None

    def _parse(self) -> tuple[HeaderMap, bytes | None]:
        parsed = self._parsed
        if parsed is None:
            headers = _read(_block(self))
            if headers is None:  # the receiver refuses it, or it was put into the store by hand
                parsed = {}, bytes(self) or None
            else:
                parsed = headers, self[_block_end(self) :] or None
            self._parsed = parsed
        return parsed


def join(headers: Headers, body: bytes | None) -> Content:
    """Return the content of a message with headers, which `find_problem` has accepted."""
    block = _pack(headers)
    content = Content(len(block).to_bytes(_PREFIX, "big") + block + (body or b""))
    content._parsed = dict(headers), body or None  # saves a copy of the body
    return content


def content_of(data: bytes, flags: int) -> bytes:
    """Return the content of a message whose flags came beside it, from the wire or the store."""
    return Content(data) if flags & HEADERS else data


def flags_of(content: bytes | None) -> int:
    """Return the flags that have to go beside a content, onto the wire or into the store."""
    return HEADERS if type(content) is Content else 0


def body_of(content: bytes | None) -> bytes | None:
    """Return the body alone of a message; None = it has none."""
    return content.body if type(content) is Content else content


def headers_of(content: bytes | None) -> HeaderMap:
    """Return the headers of a message; empty if it has none."""
    return content.headers if type(content) is Content else {}


def trace_of(content: bytes | None) -> dict[str, str]:
    """Return the field of a log line that leads to the trace of a message; empty if it has none.

    Of all headers only this one is ever logged, and only in its own form: others are content."""
    value = headers_of(content).get(TRACEPARENT)
    is_known = isinstance(value, str) and _TRACE.fullmatch(value)
    return {"traceparent": value} if isinstance(value, str) and is_known else {}


def with_body(content: bytes | None, body: bytes | None) -> bytes | None:
    """Return the content with another body and the same headers, if it has any."""
    return join(content.headers, body) if type(content) is Content else body


def find_problem(headers: Mapping[Any, object]) -> str:
    """Return why a message cannot have these headers; empty = it can (SND-26, SND-27)."""
    if len(headers) > MAX_HEADERS:
        return f"{len(headers)} headers; a message has at most {MAX_HEADERS}"
    for name, value in headers.items():
        problem = _find_problem_of(name, value)
        if problem:
            return problem
    try:
        size = len(_pack(headers))
    except UnicodeEncodeError:
        return "a text cannot be encoded in UTF-8"
    if size > MAX_BLOCK:
        return f"{size} bytes of headers; a message has at most {MAX_BLOCK}"
    return ""


def _find_problem_of(name: object, value: object) -> str:
    """Return why a message cannot have this header; empty = it can."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return (
            f"{repr(name)[:80]} is no name of a header: 1 to {MAX_HEADER_NAME} printable ASCII "
            "characters, without spaces"
        )
    if name.startswith(RESERVED_PREFIX):
        return f"{name}: names that begin with {RESERVED_PREFIX} are for brokerd itself"
    if type(value) is not str and type(value) is not bytes:
        return f"{name}: a text or bytes are expected, not {type(value).__name__}"
    return ""


def find_content_problem(content: bytes) -> str:
    """Return why the header block of a message from elsewhere is invalid; empty = it is valid.

    Reserved names are accepted: a later version may send some (SND-28)."""
    if len(content) < _PREFIX or len(content) < _block_end(content):
        return "the header block is longer than the message"
    block = _block(content)
    if len(block) > MAX_BLOCK:
        return f"a header block of {len(block)} bytes; at most {MAX_BLOCK} are allowed"
    headers = _read(block)
    if headers is None:
        return "the header block is no map of names to text or bytes"
    if len(headers) > MAX_HEADERS:
        return f"{len(headers)} headers; at most {MAX_HEADERS} are allowed"
    is_twice, is_named = len(headers) != _announced(block), all(map(_NAME.fullmatch, headers))
    return "a header is given twice" if is_twice else "" if is_named else "a name is invalid"


def _block_end(content: bytes) -> int:
    return _PREFIX + int.from_bytes(content[:_PREFIX], "big")


def _read(block: bytes) -> HeaderMap | None:
    """Return the headers in a block; None = it is not a map of names to text or bytes."""
    try:
        found = msgpack.unpackb(block)
    except DECODING_ERRORS:
        return None
    if type(found) is not dict or not all(type(one) is str for one in found):
        return None
    return found if all(type(one) in (str, bytes) for one in found.values()) else None


def _announced(block: bytes) -> int:
    """Return the number of entries that a msgpack map announces."""
    kind = block[0]
    if kind < _MAP_16:
        return kind & 0x0F
    return int.from_bytes(block[1:3] if kind == _MAP_16 else block[1:5], "big")


_MAP_16: Final = 0xDE
"""First byte of a msgpack map with a length of two bytes; shorter maps have it in that byte."""


def _block(content: bytes) -> bytes:
    return content[_PREFIX : _block_end(content)]
