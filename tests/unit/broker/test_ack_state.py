"""What an acknowledgement says, and what is owed until it is sent."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.broker.ack_state import AckState
from brokerd.ids import BrokerId
from brokerd.protocol.dialog import WHOLE
from brokerd.protocol.frames import Ack

BROKER_ID = BrokerId(b"b" * 16)


def state(sequence: int = 0, fragment: int = 0, **fields: Any) -> AckState:
    """Return the state of a dialog that expects this fragment next."""
    given = {"last_message": None, "first_acked": False, "is_initiator": True} | fields
    endpoint: Any = SimpleNamespace(receive_sequence=sequence, receive_fragment=fragment, **given)
    return AckState(endpoint)


def fragment(sequence: int, number: int = 0, count: int = 1) -> Any:
    return SimpleNamespace(
        sequence=sequence, fragment=number, fragments=count, message_id=b"%16d" % sequence
    )


def built(acks: AckState) -> Ack:
    return acks.build(base_sequence=0, broker_id=BROKER_ID)


@pytest.mark.rule("DLP-15")
@pytest.mark.parametrize(
    ("expected", "stored"),
    [((0, 0), (-1, -1)), ((3, 0), (2, WHOLE)), ((3, 2), (3, 1))],
)
def test_an_ack_begins_with_what_the_endpoint_has(
    expected: tuple[int, int], stored: tuple[int, int]
) -> None:
    ack = built(state(*expected))
    assert (ack.sequence, ack.fragment) == stored
    assert ack.highest_seen == stored[0]


@pytest.mark.rule("DLP-15", "DLP-16")
def test_what_is_held_is_reported_and_not_acknowledged() -> None:
    acks = state()
    acks.buffered(((2, 0, 4, 0),), 4)
    ack = built(acks)
    assert (ack.sequence, ack.highest_seen, ack.ranges) == (-1, 4, ((2, 0, 4, 0),))
    acks.dropped(())
    assert (built(acks).ranges, built(acks).highest_seen) == ((), 4)


def test_the_highest_sequence_seen_never_falls() -> None:
    acks = state()
    acks.buffered((), 7)
    acks.buffered((), 3)
    acks.stored(fragment(1))
    assert built(acks).highest_seen == 7


@pytest.mark.rule("DLP-15")
def test_what_became_durable_is_acknowledged() -> None:
    acks = state()
    acks.stored(fragment(0, 0, 3))
    assert (built(acks).sequence, built(acks).fragment) == (0, 0)
    acks.stored(fragment(0, 2, 3))
    assert (built(acks).sequence, built(acks).fragment) == (0, WHOLE)


@pytest.mark.rule("DLP-18", "DLP-19")
def test_an_ack_is_owed_until_it_is_sent() -> None:
    acks = state()
    assert [acks.owe(2), acks.owe(3)] == [2, 5]
    acks.due(1.5)
    assert acks.is_owing
    acks.ack_sent()
    assert (acks.is_owing, acks.due_at, acks.owed) == (False, None, 0)


@pytest.mark.rule("DLP-3", "NBT-1")
def test_what_a_neighbour_did_not_take_is_owed_again() -> None:
    acks = state()
    acks.owe(2)
    acks.due(1.5)
    acks.owe_error(-8494, "refused")
    before = acks.owed, acks.due_at, acks.errors
    assert acks.errors_sent() == [(-8494, "refused")]
    acks.ack_sent()
    assert not acks.is_owing
    acks.unsent(*before)
    assert (acks.owed, acks.due_at, acks.errors) == (2, 1.5, [(-8494, "refused")])


@pytest.mark.rule("DLP-57")
def test_first_acked_is_sent_only_once_it_is_durable() -> None:
    acks = state()
    acks.ack_sent()
    assert (built(acks).first_acked, acks.first_acked_sent) == (False, False)
    acks.first_ack_stored()
    acks.ack_sent()
    assert (built(acks).first_acked, acks.first_acked_sent) == (True, True)
    assert not built(state(first_acked=True, is_initiator=False)).first_acked


@pytest.mark.rule("NBT-1")
def test_a_missing_route_back_is_reported_once() -> None:
    acks = state()
    assert [acks.warn_once(), acks.warn_once()] == [True, False]
