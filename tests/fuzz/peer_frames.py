"""Frames of peers: what their bytes reach first (REL-32, BI-F).

An input is one byte that says where a connection stands, one for how the stream is cut, then what
the peer writes.
"""

from collections.abc import Iterator

from brokerd.ids import BootId
from brokerd.protocol.connection import Connection
from brokerd.protocol.connection_effects import (
    AskArbitration,
    AskSettlement,
    Breathe,
    Closed,
    Effect,
    Limits,
    Received,
)
from brokerd.protocol.frames import BadItem, decode_boxcar, encode_item
from brokerd.protocol.neighbour import Arbitrate, Hello, Verdict, encode
from tests import frames

MINE = Hello(frames.ME, BootId(b"b" * 16))
LOGIN = {
    "new": b"",
    "online": encode(frames.HELLO),
    "calling": b"",
    "calling online": encode(frames.HELLO) + encode(Arbitrate(Verdict.WON)),
}
PLACES = list(LOGIN)


def answered(made: Connection, effects: Iterator[Effect | Breathe]) -> list[Effect]:
    """Return the effects of a connection, answering its questions as the shell does."""
    said: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Breathe):
            continue
        said.append(effect)
        if isinstance(effect, AskArbitration):
            said += made.arbitrated(Verdict.WON, 100.0)
        elif isinstance(effect, AskSettlement):
            said += made.settled(100.0, keep=True)
    return said


def one_input(data: bytes) -> None:
    """Let a peer write these bytes; fail if the connection goes on after its end, or keeps more
    bytes than came."""
    if len(data) < 2:
        return
    place = PLACES[data[0] % len(PLACES)]
    made = Connection(
        accepting="calling" not in place,
        hello=MINE,
        limits=Limits(),
        authorise=lambda _peer: None,
    )
    made.connected(100.0)
    answered(made, made.receive(LOGIN[place], 100.0))
    cut, rest = data[1] or len(data), data[2:]
    ends = 0
    for at in range(0, len(rest), cut):
        said = answered(made, made.receive(rest[at : at + cut], 101.0))
        assert not (ends and said), "it goes on after its end"
        ends += sum(isinstance(one, Closed) for one in said)
        assert len(made._reader._partial) <= len(rest)
        for one in said:
            if isinstance(one, Received):
                check_items(one)
    assert ends + len(made.broken("over")) == 1


def check_items(boxcar: Received) -> None:
    """Fail unless the accepted items can be sent, and are the same then."""
    good = [item for item in boxcar.items if not isinstance(item, BadItem)]
    again = decode_boxcar(b"".join(map(encode_item, good)))
    assert again == good


def corpus() -> Iterator[tuple[str, bytes]]:
    """Yield the committed frames, in the form of inputs, with their names."""
    online, new = PLACES.index("online"), PLACES.index("new")
    for name, data in frames.committed_valid().items():
        place = new if name == "hello" else online
        yield name, bytes([place, 0]) + data
        yield f"{name}-in-threes", bytes([place + 2, 3]) + data
    for bad in frames.committed_bad():
        place = new if bad.when == "login" else online
        yield bad.name, bytes([place, 0]) + bad.data
