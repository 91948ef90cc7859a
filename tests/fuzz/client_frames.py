"""Frames of clients at the daemon, and of a daemon at a client (CLP-3 to CLP-21, BI-F).

An input is one byte that says which reader reads and whether the login is over, one for how the
stream is cut, then the stream.
"""

from collections.abc import Iterator

from brokerd.errors import BrokerError
from brokerd.protocol import client_frames as wire
from brokerd.protocol.client_readers import AnswerReader, RequestReader
from brokerd.protocol.client_verbs import parse_request

CLIENT = b"c" * 16
_SPAN = 1 << 20
_LONGEST_REFUSAL = 4096
_VERBS: list[tuple[int | None, str, list[object]]] = [
    (None, "begin", []),
    (1, "commit", [1]),
    (1, "begin_dialog", ["shop", "warehouse", "orders/v1", {"lifetime": 60}]),
    (1, "send", [b"h" * 16, "Order", b"body"]),
    (1, "receive", ["orders", {"wait_ms": 10}]),
    (None, "transact", [1, [["send", [b"h" * 16, "Order", b"body"]]]]),
    (None, "apply", [{"queue": [{"name": "orders"}]}]),
]


def one_input(data: bytes) -> None:
    """Let the far end write these bytes; fail if a reader goes on after a violation, or keeps more
    bytes than came."""
    if len(data) < 2:
        return
    reader = AnswerReader(span_limit=_SPAN) if data[0] & 1 else RequestReader(span_limit=_SPAN)
    if data[0] & 2:
        reader.login_done()
    cut, rest = data[1] or len(data), data[2:]
    is_over = False
    for at in range(0, len(rest), cut):
        found = reader.feed(rest[at : at + cut])
        while True:
            assert not (is_over and found), "it goes on after a violation"
            for one in found:
                is_over = is_over or isinstance(one, wire.Violation)
                if isinstance(one, wire.Request):
                    check(one)
            if not reader.has_more:
                break
            found = reader.feed(b"")
        assert sum(map(len, reader._pieces)) <= len(rest)
        assert len(reader._span._joined) <= len(rest)


def check(request: wire.Request) -> None:
    """Check the arguments of a request; only an error of the protocol may refuse them."""
    refusal = ""
    try:
        parse_request(request.tx, request.verb, request.args)
    except BrokerError as refused:
        refusal = str(refused)
    assert len(refusal) < _LONGEST_REFUSAL, "a refusal repeats what it refuses"


def corpus() -> Iterator[tuple[str, bytes]]:
    """Yield one frame of each kind, in the form of inputs, with its name."""
    hello = wire.encode_hello(CLIENT, "main", {"program": "fuzz", "pid": 1})
    yield "hello", b"\0\0" + hello
    for tx, verb, args in _VERBS:
        yield verb, b"\2\0" + hello + wire.encode_request(1, tx, verb, args)
    yield "cancel", b"\2\3" + hello + wire.encode_cancel(1) + wire.encode_ping(2)
    long = wire.encode_request(1, 1, "send", [b"h" * 16, "Order", b"x" * 70_000])
    yield "parts", b"\2\0" + hello + long
    down = [
        wire.encode_done([1, 2]),
        wire.encode_answer(3, {"a": [1, b"b"]}),
        wire.encode_failed(4, BrokerError("no")),
        wire.encode_pong(5),
        wire.encode_goodbye("drain"),
    ]
    yield "down", b"\3\0" + b"".join(down)
