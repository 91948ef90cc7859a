"""The committed frames against one connection: the valid, their every prefix, the hostile."""

import gc
import sys
from typing import Any

import pytest

from brokerd.ids import BootId
from brokerd.protocol.connection import Connection
from brokerd.protocol.connection_effects import AskArbitration, Closed, Limits, Outcome, Received
from brokerd.protocol.frames import BadItem, Fragment
from brokerd.protocol.neighbour import Hello, Verdict, encode
from tests import frames

VALID = frames.committed_valid()
BAD = frames.committed_bad()
MINE = Hello(frames.ME, BootId(b"b" * 16))


def machine(when: str) -> Connection:
    """The accepting side of a connection, before or behind its login."""
    made = Connection(accepting=True, hello=MINE, limits=Limits(), authorise=lambda _peer: None)
    made.connected(100.0)
    if when == "online":
        for effect in made.receive(encode(frames.HELLO), 100.0):
            if isinstance(effect, AskArbitration):
                made.arbitrated(Verdict.WON, 100.0)
        assert made.is_online
    return made


def feed(made: Connection, data: bytes) -> list[Any]:
    return list(made.receive(data, 101.0))


def fate(effects: list[Any]) -> str:
    """What became of hostile bytes, in the words of the files' names."""
    if any(isinstance(one, Closed) for one in effects):
        return "closes"
    items = [item for one in effects if isinstance(one, Received) for item in one.items]
    if any(isinstance(item, BadItem) for item in items):
        assert isinstance(items[-1], Fragment), "its neighbour is none the worse for it"
        return "drops"
    return "ignores" if effects else "waits"


@pytest.mark.rule("BI-F2", "BI-F4", "BI-F5", "BI-F6")
def test_every_frame_of_the_generator_is_committed() -> None:
    assert frames.valid().keys() == VALID.keys()
    assert {one.name for one in frames.hostile()} <= {one.name for one in BAD}


@pytest.mark.rule("TRN-44", "TRN-45", "BI-F5")
@pytest.mark.parametrize("name", VALID)
def test_a_valid_frame_is_taken_as_it_was_committed(name: str) -> None:
    made = machine("login" if name == "hello" else "online")
    effects = feed(made, VALID[name])
    if name == "arbitrate":  # the accepting side is never told
        assert fate(effects) == "closes"
    elif name in ("reject", "goodbye"):
        (end,) = [one for one in effects if isinstance(one, Closed)]
        wanted = Outcome.ORDERLY if name == "goodbye" else Outcome.LOST
        assert (end.outcome, made.is_closed) == (wanted, True)
    else:
        assert fate(effects) not in ("closes", "drops")
        assert not made.is_closed


@pytest.mark.rule("BI-F1", "BI-F2", "BI-F4", "BI-F5", "BI-F6", "TRN-44")
@pytest.mark.parametrize("bad", BAD, ids=[one.name for one in BAD])
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_hostile_frame_gets_its_answer(bad: frames.Hostile, pieces: int) -> None:
    made = machine(bad.when)
    cut = -(-len(bad.data) // pieces)
    effects: list[Any] = []
    for at in range(0, len(bad.data), cut):
        effects += feed(made, bad.data[at : at + cut])
    answer = fate(effects)
    if bad.name.endswith("ping-of-a-later-minor.bin"):
        assert len(effects) == 1  # its PONG
    assert answer == bad.answer
    assert len([one for one in effects if isinstance(one, Closed)]) == (answer == "closes")
    assert made.is_closed == (answer == "closes")


@pytest.mark.rule("BI-F2")
@pytest.mark.parametrize("when", ["login", "online"])
def test_an_announced_length_reserves_nothing(when: str) -> None:
    made = machine(when)
    (bad,) = [one for one in BAD if (one.when, one.answer) == (when, "waits")]
    feed(made, bad.data)
    assert sys.getsizeof(made._reader._partial) < 200


@pytest.mark.rule("BI-F3", "TRN-9")
@pytest.mark.parametrize("when", ["login", "online"])
@pytest.mark.parametrize("name", VALID)
def test_every_prefix_and_then_the_end(name: str, when: str) -> None:
    whole = VALID[name]
    for length in range(len(whole)):
        made = machine(when)
        assert feed(made, whole[:length]) == []
        (end,) = made.broken("the peer closed the connection")
        assert isinstance(end, Closed)
        assert end.outcome is (Outcome.FAILED if when == "login" else Outcome.LOST)
        assert feed(made, whole[length:]) == []
        assert made.broken("again") == []


@pytest.mark.rule("BI-F3", "TRN-9")
@pytest.mark.parametrize("name", VALID)
def test_byte_by_byte_is_as_good_as_at_once(name: str) -> None:
    when = "login" if name == "hello" else "online"
    at_once, slowly = machine(when), machine(when)
    whole = feed(at_once, VALID[name])
    assert [one for byte in VALID[name] for one in feed(slowly, bytes([byte]))] == whole


@pytest.mark.rule("BI-F2", "BI-F4", "REL-32")
def test_hostile_bytes_leave_nothing_behind() -> None:
    def replay() -> int:
        for bad in BAD:
            made = machine(bad.when)
            feed(made, bad.data)
            made.broken("over")
        gc.collect()
        return sys.getallocatedblocks()

    gc.collect()
    gc.freeze()  # what other tests have left is not walked through each time
    try:
        before = [replay() for _ in range(5)][-1]
        after = [replay() for _ in range(20)][-1]
    finally:
        gc.unfreeze()
    assert after - before < 200  # 20 x 74 frames
