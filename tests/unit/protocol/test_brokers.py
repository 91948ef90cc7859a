"""BROKERS frames: whole sets of ids, bounded (TRN-46)."""

from typing import Any

import msgspec
import pytest

from brokerd.errors import ProtocolError
from brokerd.ids import BootId, BrokerId, InstanceId
from brokerd.protocol.brokers import MOST_BROKERS, BrokersHere, brokers_here
from brokerd.protocol.connection import Connection
from brokerd.protocol.connection_effects import Limits
from brokerd.protocol.frames import Kind
from brokerd.protocol.neighbour import Hello, decode, encode
from brokerd.protocol.wire import LOGIN_LIMIT, pack

IDS = [BrokerId(number.to_bytes(16, "big")) for number in range(MOST_BROKERS + 1)]
HELLO = Hello(InstanceId(b"a" * 16), BootId(b"1" * 16), port=4022)


@pytest.mark.rule("TRN-46")
@pytest.mark.parametrize("count", [0, 1, MOST_BROKERS])
def test_a_set_comes_out_as_it_went_in_and_fits_the_smallest_frame(count: int) -> None:
    frame = brokers_here(reversed(IDS[:count]))
    data = encode(frame)
    assert frame.broker_ids == tuple(IDS[:count])
    assert decode(data[4], data[5:]) == frame
    assert len(data) - 4 <= LOGIN_LIMIT


@pytest.mark.rule("TRN-46")
def test_of_too_many_the_first_are_named() -> None:
    assert brokers_here(reversed(IDS)) == BrokersHere(tuple(IDS[:MOST_BROKERS]))


@pytest.mark.rule("TRN-46", "BI-F4")
@pytest.mark.parametrize(
    "fields",
    [
        (),
        (b"x" * 16,),
        ([b"x" * 15],),
        (["x" * 16],),
        ([None],),
        (IDS,),
        ({"a": 1},),
        (None,),
    ],
    ids=["none", "bytes", "short", "text", "null", "too many", "map", "nothing"],
)
def test_what_is_malformed_is_refused(fields: Any) -> None:
    with pytest.raises(ProtocolError, match="BROKERS is malformed"):
        decode(Kind.BROKERS, pack(fields))


@pytest.mark.rule("TRN-46", "BI-F5")
def test_what_a_later_version_appends_is_ignored() -> None:
    assert decode(Kind.BROKERS, pack(([], "more"))) == BrokersHere()


@pytest.mark.rule("TRN-46", "TRN-10")
@pytest.mark.parametrize(
    ("mine", "theirs", "both"),
    [
        ({"brokers": True}, {"brokers": True}, True),
        ({"brokers": True}, {}, False),
        ({}, {"brokers": True}, False),
        ({"brokers": True}, {"brokers": "yes"}, False),
        ({"brokers": True}, {"brokers": 2}, False),
    ],
)
def test_both_sides_have_to_offer_it(mine: Any, theirs: Any, both: bool) -> None:
    hello = msgspec.structs.replace(HELLO, options=mine)
    made = Connection(accepting=True, hello=hello, limits=Limits(), authorise=lambda _peer: None)
    assert not made.names_brokers
    made.connected(100.0)
    peer = Hello(InstanceId(b"b" * 16), BootId(b"2" * 16), options=theirs)
    list(made.receive(encode(peer), 101.0))
    assert made.names_brokers is both
    assert made.heard_at == 101.0
