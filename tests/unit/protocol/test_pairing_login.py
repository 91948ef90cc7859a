"""PAIR in place of a login: when a connection takes it, and what else it then takes."""

from typing import Any

import pytest

from brokerd.ids import BootId, InstanceId
from brokerd.protocol.connection import Connection
from brokerd.protocol.connection_effects import Closed, Limits, Outcome, PairingArrived, Write
from brokerd.protocol.frames import Kind, encode_frame
from brokerd.protocol.neighbour import Hello, Reject, decode
from brokerd.protocol.neighbour import encode as encode_neighbourly
from brokerd.protocol.pairing import OFFER_LIMIT, Done, Failed, Proof, encode
from brokerd.protocol.wire import LOGIN_LIMIT

ME = Hello(InstanceId(b"m" * 16), BootId(b"b" * 16))
YOU = Hello(InstanceId(b"y" * 16), BootId(b"c" * 16))
PAIR = encode(Kind.PAIR, Proof(1, b"certificate", b"p" * 32))


def machine(*, accepting: bool = True, may_pair: bool = True) -> Connection:
    made = Connection(accepting=accepting, hello=ME, limits=Limits(), authorise=lambda _: None)
    made.connected(100.0)
    made.may_pair = may_pair
    return made


def feed(made: Connection, data: bytes, now: float = 101.0) -> list[Any]:
    return list(made.receive(data, now))


def is_refused(effects: list[Any]) -> bool:
    assert isinstance(effects[0], Write)
    frame = decode(effects[0].data[4], effects[0].data[5:])
    return isinstance(frame, Reject) and any(isinstance(one, Closed) for one in effects)


@pytest.mark.rule("SEC-62")
def test_pair_is_taken_as_the_first_frame_while_a_code_waits() -> None:
    made = machine()
    assert feed(made, PAIR) == [PairingArrived(PAIR[5:])]
    assert made.is_pairing
    made.may_pair = False  # the code is in use now
    done = encode(Kind.PAIR, Done())
    assert feed(made, done + done) == [PairingArrived(done[5:])] * 2


@pytest.mark.rule("SEC-62", "BI-F5")
@pytest.mark.parametrize(
    "made", [machine(may_pair=False), machine(accepting=False)], ids=["no code", "calling"]
)
def test_pair_is_refused_elsewhere(made: Connection) -> None:
    assert is_refused(feed(made, PAIR))


@pytest.mark.rule("SEC-62", "BI-F5")
@pytest.mark.parametrize("first", [True, False], ids=["hello first", "pair first"])
def test_a_connection_either_logs_in_or_pairs(first: bool) -> None:
    made = machine()
    hello = encode_neighbourly(YOU)
    feed(made, hello if first else PAIR)
    effects = feed(made, PAIR if first else hello)
    assert is_refused(effects)
    assert made.is_closed


@pytest.mark.rule("SEC-62", "BI-F2")
def test_frames_are_short_until_the_code_is_proven() -> None:
    long = encode_frame(Kind.PAIR, b"x" * LOGIN_LIMIT)
    made = machine()
    feed(made, PAIR)
    assert is_refused(feed(made, long))
    made = machine()
    feed(made, PAIR)
    made.pairing_proven(101.0)
    assert feed(made, long) == [PairingArrived(long[5:])]
    assert is_refused(feed(made, encode_frame(Kind.PAIR, b"x" * OFFER_LIMIT)))


@pytest.mark.rule("SEC-62", "TRN-9")
def test_the_proof_has_the_time_of_a_login_and_the_rest_a_minute() -> None:
    made = machine()
    feed(made, PAIR)
    assert made.next_deadline() == 110.0
    made.pairing_proven(105.0)
    assert made.next_deadline() == 165.0
    assert any(isinstance(one, Closed) for one in made.timer_due(165.0))


@pytest.mark.rule("SEC-62")
def test_a_pairing_that_is_over_closes_the_connection_in_order() -> None:
    made = machine()
    feed(made, encode(Kind.PAIR, Failed("changed my mind")))
    (end,) = made.pairing_over()
    assert isinstance(end, Closed)
    assert end.outcome is Outcome.ORDERLY
    assert made.pairing_over() == []
    left = machine()
    feed(left, PAIR)
    (end,) = left.broken("the far end left")
    assert isinstance(end, Closed)
    assert end.outcome is Outcome.ORDERLY
