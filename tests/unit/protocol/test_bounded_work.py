"""What one read, one frame and one header may cost at most, whatever is in it (REL-32)."""

import tracemalloc

import msgpack
import pytest

from brokerd.errors import ProtocolError
from brokerd.ids import BootId, BrokerId, ConversationId, InstanceId
from brokerd.protocol import client_frames
from brokerd.protocol.client_readers import AT_ONCE as CLIENT_AT_ONCE
from brokerd.protocol.client_readers import RequestReader
from brokerd.protocol.connection import AT_ONCE, Connection
from brokerd.protocol.connection_effects import Breathe, Limits, Received, Write
from brokerd.protocol.frames import (
    Ack,
    AckOnly,
    BadItem,
    Hop,
    boxcar,
    decode_boxcar,
    encode_item,
)
from brokerd.protocol.neighbour import Hello, Ping, Pong, Verdict, encode
from brokerd.protocol.wire import (
    FRAME_LIMIT,
    MAX_EXTRAS,
    MAX_ITEMS,
    MAX_VALUES,
    PLAIN_LIMIT,
    unpack_payload,
)

HERE = BrokerId(b"b" * 16)
ACK = AckOnly(
    ConversationId(b"c" * 16), True, "a", "b", HERE, Ack(0, 0, 0, 0, HERE), Hop(b"", 1, 1, 0)
)
BAD = msgpack.packb([9, 0])
HELLO = Hello(InstanceId(b"a" * 16), BootId(bytes(16)))


def online() -> Connection:
    limits = Limits(login=10, ping_after=20, ping_timeout=10, arbitration_ping=5, goodbye=5)
    made = Connection(accepting=True, hello=HELLO, limits=limits, authorise=lambda _: None)
    made.connected(0)
    list(made.receive(encode(Hello(InstanceId(b"b" * 16), BootId(bytes(16)))), 0))
    made.arbitrated(Verdict.WON, 0)
    return made


@pytest.mark.rule("TRN-33")
def test_the_limits_are_those_of_the_rule() -> None:
    assert (FRAME_LIMIT, PLAIN_LIMIT) == (1024 * 1024, 128 * 1024)
    assert (MAX_ITEMS, MAX_VALUES, MAX_EXTRAS, AT_ONCE) == (1024, 4096, 128, 1024)


@pytest.mark.rule("TRN-33", "REL-32")
@pytest.mark.parametrize("item", [BAD, encode_item(ACK)], ids=["bad", "good"])
def test_a_boxcar_has_so_many_items_and_no_more_are_looked_at(item: bytes) -> None:
    headers: list[tuple[object, ...]] = []
    assert len(decode_boxcar(item * MAX_ITEMS)) == MAX_ITEMS
    with pytest.raises(ProtocolError, match=f"more than {MAX_ITEMS} items"):
        decode_boxcar(item * ((FRAME_LIMIT - 1) // len(item)), headers)
    assert len(headers) == MAX_ITEMS


@pytest.mark.rule("BI-F4", "REL-32", "TRN-33")
@pytest.mark.parametrize(("more", "is_good"), [(0, True), (1, False)])
def test_the_fields_that_a_later_version_adds_have_so_many_values(more: int, is_good: bool) -> None:
    fields = msgpack.unpackb(encode_item(ACK))
    added = [1] * (MAX_EXTRAS - 3 + more)  # beside the two arrays and a text
    (item,) = decode_boxcar(msgpack.packb([*fields, ["later"], *added]))
    (long,) = decode_boxcar(msgpack.packb([*fields, [1] * (MAX_EXTRAS - 2 + more)]))
    for one in (item, long):
        assert (one == ACK) if is_good else isinstance(one, BadItem)


@pytest.mark.rule("BI-F4", "REL-32", "TRN-33")
@pytest.mark.parametrize(
    "payload",
    [[1] * 4 + [[1] * 1000] * 5, ["x" * PLAIN_LIMIT], [[[1] * 1000] * 120]],
    ids=["values", "bytes", "both"],
)
def test_a_frame_that_is_no_boxcar_has_so_many_values_and_bytes(payload: list[object]) -> None:
    with pytest.raises(ProtocolError):
        unpack_payload(msgpack.packb(payload))


@pytest.mark.rule("TRN-33")
def test_a_frame_that_is_no_boxcar_may_have_as_many() -> None:
    inside = [[1] * 1000] * 4 + [[1] * (MAX_VALUES - 4000 - 6 - 1)]
    assert unpack_payload(msgpack.packb([*inside, 1][:5]))
    assert unpack_payload(msgpack.packb(["x" * (PLAIN_LIMIT - 6)]))


@pytest.mark.rule("REL-32", "TRN-33")
def test_a_read_full_of_small_frames_is_taken_in_turns() -> None:
    count = 3 * AT_ONCE + 5
    effects = list(online().receive(encode(Ping(7)) * count, 1, 9))
    at = [number for number, one in enumerate(effects) if type(one) is Breathe]
    assert at == [AT_ONCE, 2 * AT_ONCE + 1, 3 * AT_ONCE + 2]
    assert [one for one in effects if type(one) is Write] == [Write(encode(Pong(7, 9)))] * count


@pytest.mark.rule("REL-32")
@pytest.mark.parametrize("frame", [encode(Pong(7)), b"".join(boxcar([]))], ids=["pong", "boxcar"])
def test_frames_that_nothing_comes_of_take_turns_as_well(frame: bytes) -> None:
    effects = list(online().receive(frame * (2 * AT_ONCE), 1))
    assert sum(type(one) is Breathe for one in effects) == 2


@pytest.mark.rule("REL-32")
def test_items_count_like_frames() -> None:
    some = b"".join(boxcar([encode_item(ACK)] * (AT_ONCE // 2)))
    effects = list(online().receive(some * 4, 1))
    assert [type(one) for one in effects] == [Received, Received, Breathe] * 2


@pytest.mark.rule("REL-32")
def test_nothing_more_is_taken_once_the_connection_closed_while_others_had_their_turn() -> None:
    machine = online()
    effects = machine.receive(b"".join(boxcar([encode_item(ACK)] * AT_ONCE)) * 2, 1)
    assert [type(next(effects)) for _ in range(2)] == [Received, Breathe]
    machine.broken("reset by peer")
    assert list(effects) == []


@pytest.mark.rule("REL-32")
def test_requests_of_one_read_are_given_in_turns_and_in_order() -> None:
    reader = RequestReader()
    count = 2 * CLIENT_AT_ONCE + 1
    data = b"".join(client_frames.encode_ping(number) for number in range(count))
    given = reader.feed(data[:-1])
    assert len(given) == CLIENT_AT_ONCE
    while reader.has_more:
        more = reader.feed(b"")
        assert len(more) <= CLIENT_AT_ONCE
        given += more
    given += reader.feed(data[-1:])
    assert given == [client_frames.Ping(number) for number in range(count)]
    assert not reader.has_more


@pytest.mark.rule("CLP-22", "REL-32")
@pytest.mark.parametrize("data", [b"", b"xy"])
def test_the_shortest_parts_cost_no_more_than_they_carry(data: bytes) -> None:
    reader = RequestReader(span_limit=1 << 20)
    reader.login_done()
    payload = msgpack.packb([client_frames.PART_UP, 1, data])
    part = len(payload).to_bytes(4, "big") + payload
    tracemalloc.start()
    try:
        for _ in range(50):
            assert reader.feed(part * 1000) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * 50_000 * len(data) + 100_000


@pytest.mark.rule("CLP-5")
def test_a_part_before_welcome_is_a_violation() -> None:
    payload = msgpack.packb([client_frames.PART_UP, 1, b"x"])
    (found,) = RequestReader().feed(len(payload).to_bytes(4, "big") + payload)
    assert found == client_frames.Violation("a PART before WELCOME")
