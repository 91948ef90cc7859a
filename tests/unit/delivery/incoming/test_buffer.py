"""Arrivals of one dialog: put in order, held while early, dropped without harm."""

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.delivery.incoming.arrival_memory import EarlyShares
from brokerd.delivery.incoming.buffer import FRAGMENT_COST, MAX_RANGES, Arrivals, weight
from brokerd.ids import InstanceId
from brokerd.protocol.frames import Fragment
from tests.unit.protocol.endpoints import fragment

PARTS = [
    fragment(0, fragments=2, body=b"ab"),
    fragment(0, fragment=1, fragments=2, body=b"c"),
    fragment(1, body=b"defg"),
    fragment(2, body=b""),
]


def arrive(one: Arrivals, item: Fragment, tick: int = 0) -> None:
    """What the dispatcher does with a fragment."""
    place = one.place(item)
    if place == 0:
        one.append(item)
    elif place > 0:
        one.keep_early(item, tick)


@pytest.mark.rule("DLP-35", "DLP-34")
@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_whatever_the_order_the_run_is_consecutive(order: tuple[int, ...]) -> None:
    one = Arrivals(0, 0)
    for number in order:
        arrive(one, PARTS[number])
        arrive(one, PARTS[number])  # a duplicate changes nothing
    assert one.run == PARTS
    assert (one.early, one.size, one.highest_seen) == (0, 7 + 4 * FRAGMENT_COST, 2)
    assert (one.sequence, one.fragment) == (3, 0)


@pytest.mark.rule("DLP-33")
def test_what_is_stored_or_waits_is_known() -> None:
    one = Arrivals(1, 0)
    assert one.place(PARTS[1]) < 0
    arrive(one, PARTS[2])
    assert one.place(PARTS[2]) < 0
    assert one.place(PARTS[3]) == 0


@pytest.mark.rule("DSP-3")
def test_a_batch_leaves_in_order_and_the_rest_waits() -> None:
    one = Arrivals(0, 0)
    for item in PARTS:
        arrive(one, item)
    assert one.dequeue_run(3) == PARTS[:3]
    assert one.busy
    assert one.run == [PARTS[3]]
    one.stored(3)
    assert one.dequeue_run(3) == [PARTS[3]]
    one.stored(1)
    assert one.is_empty
    assert one.size == 0


@pytest.mark.rule("DSP-3", "DLP-16")
def test_what_did_not_wait_is_held_until_it_is_stored_like_a_batch() -> None:
    one = Arrivals(0, 0)
    one.pass_on(fragment(0))
    one.pass_on(fragment(1))
    assert (one.busy, one.nothing_waits) == (True, True)
    assert one.place(fragment(1)) < 0
    assert one.place(fragment(2)) == 0
    assert (one.highest_seen, one.ranges()) == (1, ((0, 0, 1, 0),))
    arrive(one, fragment(2))
    assert (one.busy, one.nothing_waits) == (True, False)
    one.stored(1)
    assert one.busy
    assert one.ranges() == ((1, 0, 2, 0),)
    one.stored(1)
    assert one.dequeue_run(5) == [fragment(2)]


@pytest.mark.rule("DSP-9")
def test_an_early_fragment_stays_for_one_full_tick() -> None:
    one = Arrivals(0, 0)
    one.keep_early(PARTS[3], 5)
    one.keep_early(PARTS[2], 6)
    assert one.purge_early(6) == []
    assert len(one.purge_early(7)) == 1
    assert one.ranges() == ((1, 0, 1, 0),)
    assert len(one.purge_early(8)) == 1
    assert (one.early, one.size) == (0, 0)


@pytest.mark.rule("DLP-16")
def test_ranges_tell_what_is_held_and_not_stored() -> None:
    one = Arrivals(0, 0)
    arrive(one, fragment(3))
    arrive(one, fragment(4, fragments=3))
    arrive(one, fragment(4, fragment=2, fragments=3))
    arrive(one, fragment(6))
    assert one.ranges() == ((3, 0, 4, 0), (4, 2, 4, 2), (6, 0, 6, 0))
    arrive(one, fragment(0))
    one.dequeue_run(10)
    arrive(one, fragment(1))
    assert one.ranges()[0] == (0, 0, 1, 0)
    one.stored(1)
    assert one.ranges()[0] == (1, 0, 1, 0)


@pytest.mark.rule("DLP-16")
def test_so_many_ranges_and_no_more() -> None:
    one = Arrivals(0, 0)
    for number in range(1, 60, 2):
        arrive(one, fragment(number))
    assert len(one.ranges()) == MAX_RANGES
    assert one.ranges()[0] == (1, 0, 1, 0)


@pytest.mark.rule("DLP-13")
def test_the_fragments_of_a_message_agree_on_their_number() -> None:
    def of(sequence: int, fragments: int, number: int) -> Fragment:
        return fragment(sequence, fragment=number, fragments=fragments)

    one = Arrivals(0, 0)
    for item in (of(0, 3, 0), of(5, 3, 1)):  # the next one, and an early one
        assert one.agrees(item)
        arrive(one, item)
    for sequence in (0, 5):
        assert [one.agrees(of(sequence, count, 0)) for count in (1, 2, 3, 4)] == [
            False,
            False,
            True,
            False,
        ]
    one.dequeue_run(1)
    one.purge_early(9)
    assert one.agrees(of(5, 2, 0))  # nothing of it is here any more
    assert not one.agrees(of(0, 2, 1))  # of this one a fragment is being stored
    for number in (1, 2):
        arrive(one, of(0, 3, number))
    assert one.agrees(of(1, 2, 0))
    one.drop_run(0, 1)
    arrive(one, of(0, 3, 1))
    one.drop_run(0, 1)
    assert not one.agrees(of(0, 2, 1))


@pytest.mark.rule("DSP-16")
def test_a_peer_may_hold_as_much_early_as_it_leaves_free() -> None:
    shares = EarlyShares(100)
    near, other = InstanceId(b"n" * 16), InstanceId(b"o" * 16)

    def hold(neighbour: InstanceId, size: int) -> Any:
        one = SimpleNamespace(
            arrivals=SimpleNamespace(early_size=size), neighbour=neighbour, early_counted=(0, None)
        )
        shares.update(one)  # type: ignore[arg-type]
        return one

    assert (shares.has_room(near, 50), shares.has_room(near, 51)) == (True, False)
    first = hold(near, 50)
    assert (shares.has_room(near, 1), shares.has_room(other, 25)) == (False, True)
    assert not shares.has_room(other, 26)
    hold(other, 25)
    first.arrivals.early_size = 0  # the gap has closed
    shares.update(first)
    assert (shares.has_room(other, 12), shares.has_room(other, 26)) == (True, False)
    assert (shares.has_room(near, 37), shares.has_room(near, 38)) == (True, False)


@pytest.mark.rule("DSP-14")
def test_what_was_dropped_is_expected_again() -> None:
    one = Arrivals(0, 0)
    for item in (PARTS[0], PARTS[2]):
        arrive(one, item)
    assert len(one.drop_run(0, 0)) == 2
    assert (one.size, one.run, one.early) == (0, [], 0)
    for item in PARTS:
        arrive(one, item)
    assert one.run == PARTS


@pytest.mark.rule("DSP-3")
@pytest.mark.parametrize(("size", "taken"), [(1000, 40), (100_000, 5), (2_000_000, 1)])
def test_a_round_takes_about_half_a_mebibyte_of_a_dialog(size: int, taken: int) -> None:
    buffer = Arrivals(0, 0)
    for sequence in range(40):
        buffer.append(fragment(sequence, body=bytes(size)))
    held = buffer.size
    run = buffer.dequeue_run(256)
    assert [item.sequence for item in run] == list(range(taken))
    assert len(buffer.run) == 40 - taken
    assert buffer.size == held - sum(map(weight, run))
