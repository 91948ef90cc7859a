"""Peers tell each other their clocks (TRN-47)."""

from typing import Any

import msgspec
import pytest

from brokerd.errors import ProtocolError
from brokerd.ids import BootId, InstanceId
from brokerd.protocol.connection import CLOCK_EVERY, Connection
from brokerd.protocol.connection_effects import Limits, Write
from brokerd.protocol.frames import FrameReader, Kind
from brokerd.protocol.neighbour import Arbitrate, Hello, Ping, Pong, Verdict, decode, encode
from brokerd.protocol.wire import FRAME_LIMIT, pack

NOON = 1_800_000_000_000_000
SECOND = 1_000_000
ME = Hello(InstanceId(b"a" * 16), BootId(b"1" * 16), options={"brokers": True})
PEER = Hello(InstanceId(b"b" * 16), BootId(b"2" * 16))


def machine(*, accepting: bool) -> Connection:
    return Connection(accepting=accepting, hello=ME, limits=Limits(), authorise=lambda _peer: None)


def feed(made: Connection, frame: Any, now: float, utc: int = 0) -> list[Any]:
    return list(made.receive(encode(frame), now, utc))


def written(effects: list[Any]) -> list[Any]:
    data = b"".join(effect.data for effect in effects if isinstance(effect, Write))
    return [decode(kind, payload) for kind, payload in FrameReader(FRAME_LIMIT).feed(data)]


def telling(clock: int) -> Hello:
    return msgspec.structs.replace(PEER, options={"clock": clock})


def online(clock: int) -> Connection:
    """A caller that came ONLINE at 101, with a peer whose clock was so at 100.5."""
    made = machine(accepting=False)
    made.connected(100.0, utc=NOON)
    feed(made, telling(clock), 101.0)
    feed(made, Arbitrate(Verdict.WON), 101.0)
    made.settled(101.0, keep=True)
    return made


@pytest.mark.rule("TRN-47", "TRN-10")
def test_each_side_says_its_clock_as_it_writes_its_hello() -> None:
    (hello,) = written(machine(accepting=False).connected(100.0, utc=NOON))
    assert hello.clock == NOON
    assert hello.options == {"brokers": True, "clock": NOON}
    accepting = machine(accepting=True)
    accepting.connected(100.0, utc=NOON)
    (answer,) = written(feed(accepting, PEER, 103.0, NOON + 3 * SECOND))
    assert answer.clock == NOON + 3 * SECOND
    assert written(machine(accepting=False).connected(100.0)) == [ME], "nobody tells the clock"


@pytest.mark.rule("TRN-47")
def test_who_asked_halves_the_time_that_the_answer_took() -> None:
    assert online(NOON).peer_clock == (NOON, 100.5)
    accepting = machine(accepting=True)
    accepting.connected(100.0, utc=NOON)
    feed(accepting, telling(NOON), 103.0)
    assert accepting.peer_clock == (NOON, 103.0), "it has asked nothing"


@pytest.mark.rule("TRN-47", "TRN-10")
@pytest.mark.parametrize("clock", [None, "noon", True, -1, 0, 2**63])
def test_a_peer_that_does_not_tell_is_not_asked(clock: Any) -> None:
    options = {} if clock is None else {"clock": clock}
    made = machine(accepting=True)
    made.connected(100.0, utc=NOON)
    feed(made, msgspec.structs.replace(PEER, options=options), 101.0)
    made.arbitrated(Verdict.WON, 101.0)
    assert made.peer_clock is None
    assert made.next_deadline() is None


@pytest.mark.rule("TRN-47", "TRN-30")
def test_a_peer_that_tells_is_asked_again_each_hour() -> None:
    made = online(NOON)
    asked_at = 100.5 + CLOCK_EVERY
    assert made.next_deadline() == asked_at
    assert made.timer_due(asked_at - 1) == []
    assert written(made.timer_due(asked_at)) == [Ping(1)]
    feed(made, Pong(1, NOON + 7 * SECOND), asked_at + 2)
    assert made.peer_clock == (NOON + 7 * SECOND, asked_at + 1)
    assert made.next_deadline() == asked_at + 1 + CLOCK_EVERY
    made.timer_due(asked_at + 1 + CLOCK_EVERY)
    feed(made, Pong(2), asked_at + 2 + CLOCK_EVERY)
    assert made.peer_clock == (NOON + 7 * SECOND, asked_at + 1), "it says nothing this time"
    assert made.next_deadline() == asked_at + 1 + 2 * CLOCK_EVERY, "and is not asked at once"


@pytest.mark.rule("TRN-47")
def test_an_answer_to_an_earlier_question_says_nothing() -> None:
    made = online(NOON)
    made.timer_due(100.5 + CLOCK_EVERY)
    feed(made, Pong(7, NOON + 9 * SECOND), 102.0 + CLOCK_EVERY)
    assert made.peer_clock == (NOON, 100.5)


@pytest.mark.rule("TRN-47", "BI-F5")
def test_a_ping_is_answered_with_the_clock_and_older_forms_are_understood() -> None:
    made = online(NOON)
    assert written(feed(made, Ping(4), 102.0, NOON + SECOND)) == [Pong(4, NOON + SECOND)]
    assert decode(Kind.PONG, pack((4,))) == Pong(4)
    assert decode(Kind.PONG, pack((4, NOON, "later"))) == Pong(4, NOON)
    with pytest.raises(ProtocolError, match="PONG is malformed"):
        decode(Kind.PONG, pack((4, "noon")))
