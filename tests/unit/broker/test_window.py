"""The window knows number and size of its messages at any time, and keeps their order."""

import random

import pytest

from brokerd.broker.state import Live, Taken
from brokerd.broker.window import MESSAGE_COST, Window, WindowOptions
from brokerd.clock import Instant
from tests.unit.broker.queue_records import HOME, conversation, group, holder, message


def window(**options: int) -> Window:
    """Return an empty window."""
    return Window(WindowOptions(**options), lambda: Instant(0))


def cost(lives: list[Live]) -> tuple[int, int]:
    """Return number and bytes of the messages that these conversations have in memory."""
    bodies = [one.body or b"" for live in lives for one in live.ready]
    return len(bodies), sum(map(len, bodies)) + MESSAGE_COST * len(bodies)


@pytest.mark.rule("RCV-15", "REL-25")
@pytest.mark.parametrize("seed", range(20))
def test_number_and_size_are_those_of_the_messages_whatever_happens(seed: int) -> None:
    dice = random.Random(seed)
    one, lives = window(), [conversation(group()) for _ in range(3)]
    received: list[list[Taken]] = []
    for order in range(1, 60):
        live, act = dice.choice(lives), dice.choice(("add", "add", "receive", "undo", "drop"))
        if act == "add":
            one.add(live, message(order, b"x" * dice.randrange(9)))
        elif act == "receive" and live.ready:
            received.append(one.dequeue(live.group, dice.randrange(1, 4), 99)[0])
        elif act == "undo" and received:
            for back in reversed(received.pop()):
                one.put_back(back.live, back.messages)
        elif act == "drop" and order % 7 == 0:
            received = [[got for got in many if got.live is not live] for many in received]
            one.drop(live)
        assert (one.count, one.size) == cost(lives)
        for live in lives:
            assert (live.endpoint.key in live.group.ready) == bool(live.ready)


@pytest.mark.rule("RCV-9")
def test_a_timer_comes_before_an_error_and_both_before_the_rest() -> None:
    one, live = window(), conversation(group())
    for number, sequence in ((1, 7), (2, 8), (3, -1), (4, -2)):
        one.add(live, message(number, sequence=sequence))
    assert [queued.sequence for queued in live.ready] == [-2, -1, 7, 8]


@pytest.mark.rule("RCV-9", "RCV-15")
def test_a_timer_that_came_meanwhile_stays_before_what_a_rollback_returns() -> None:
    one, live = window(), conversation(group())
    one.add(live, message(1))
    (taken,), _ = one.dequeue(live.group, 9, 99)
    one.add(live, message(2, sequence=-2))
    one.put_back(live, taken.messages)
    assert [(queued.sequence, queued.deliveries) for queued in live.ready] == [(-2, 0), (1, 1)]


@pytest.mark.rule("RCV-7")
def test_the_first_message_is_received_however_large_and_none_overtakes() -> None:
    one, live = window(), conversation(group())
    for order, size in ((1, 50), (2, 10), (3, 1)):
        one.add(live, message(order, b"x" * size))
    holder(live.group)
    (first,), count = one.dequeue(live.group, 10, 5)
    assert ([got.order for got in first.messages], first.size, count) == ([1], 50, 1)
    (rest,), count = one.dequeue(live.group, 10, 10)
    assert ([got.order for got in rest.messages], count) == ([2], 1)


def test_messages_of_groups_that_are_set_aside_do_not_fill_the_window() -> None:
    one = window(window_messages=2, locked_factor=1)
    parked, other = conversation(group()), conversation(group())
    for order in range(2):
        one.add(parked, message(order))
    assert one.is_full(HOME)
    parked.group.hold(object())  # type: ignore[arg-type]
    try:
        assert not one.is_full(HOME)
        one.add(other, message(2))
        one.add(other, message(3))
        assert one.is_full(HOME)
    finally:
        parked.group.free()
