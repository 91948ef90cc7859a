"""The ready groups say whose turn is next; an entry of a group that was locked since is stale."""

import pytest

from brokerd.broker.ready_groups import ReadyGroups
from brokerd.broker.state import Live
from brokerd.clock import Instant
from tests.unit.broker.queue_records import HOME, conversation, group, holder, message


def ready_groups() -> ReadyGroups:
    """Return the ready groups of a queue that has none."""
    return ReadyGroups(HOME, lambda: Instant(0))


def waiting(*orders: int, priority: int = 5) -> Live:
    """Return a conversation, alone in its group, with messages of these orders."""
    live = conversation(group(), priority)
    live.ready.extend(message(order) for order in orders)
    live.group.has_ready(live)
    return live


@pytest.mark.rule("GRP-15")
def test_the_highest_level_is_first_and_in_it_the_oldest_message() -> None:
    ready = ready_groups()
    lives = [waiting(3), waiting(1), waiting(4, priority=9), waiting(2)]
    for live in lives:
        ready.put(live.group)
    turns = []
    while (first := ready.first()) is not None:
        turns.append(next(iter(first[2].ready.values())).ready[0].order)
        holder(first[2])
    assert turns == [4, 1, 2, 3]


@pytest.mark.rule("RCV-3")
def test_a_transaction_may_have_the_best_group_itself() -> None:
    ready, mine, other = ready_groups(), waiting(1), waiting(2)
    tx = holder(mine.group)
    ready.put(other.group)
    assert ready.best(tx) is mine.group
    assert ready.best(tx, {mine.group}) is other.group
    mine.ready.clear()
    del mine.group.ready[mine.endpoint.key]
    assert ready.best(tx) is other.group
    assert not tx.ready, "a group without messages is not looked at again"


def test_a_locked_group_counts_no_more_until_it_has_a_place_again() -> None:
    ready, live = ready_groups(), waiting(1)
    ready.put(live.group)
    tx = holder(live.group)
    assert (ready.count(9), ready.next_up(), ready.oldest_by_level()) == (0, [], {})
    live.group.release()
    ready.put(live.group)
    assert (ready.count(9), set(ready.next_up())) == (1, {live.group})
    assert ready.oldest_by_level() == {5: Instant(1)}
    assert tx.locked == []


@pytest.mark.rule("GRP-15")
def test_an_older_message_moves_a_group_forward_and_a_younger_one_does_not() -> None:
    ready, one, other = ready_groups(), waiting(5), waiting(3)
    for live in (one, other):
        ready.put(live.group)
    before = one.group.entry
    one.ready.append(message(6))
    ready.put(one.group)
    assert one.group.entry is before
    one.ready.appendleft(message(1))
    ready.put(one.group)
    assert ready.first() == one.group.entry
