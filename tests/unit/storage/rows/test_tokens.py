"""Clients forgotten early: the answer is unknown, not a guess."""

import pytest

from brokerd.clock import SECOND, Instant
from brokerd.ids import ClientId
from brokerd.storage.rows.tokens import KEPT, NOBODY, Tokens


def client(n):
    return ClientId(b"%016d" % n)


@pytest.mark.rule("REL-2", "CLP-53")
def test_above_the_limit_the_client_idle_longest_goes_and_its_outcomes_are_unknown():
    tokens = Tokens(most_clients=2)
    for n in range(3):
        tokens.flush({client(n): [7]}, Instant(n * SECOND))
    gone, told = tokens.prune(Instant(3 * SECOND))
    assert gone == [client(0)]
    assert told[0][0] == NOBODY
    later = Instant(3 * SECOND)
    assert tokens.outcome(client(0), 7, later) == "unknown"
    assert tokens.outcome(client(1), 7, later) == "committed"
    assert tokens.outcome(client(1), 8, later) == "not_committed"
    assert tokens.outcome(client(9), 1, Instant(KEPT)) == "not_committed"


@pytest.mark.rule("REL-2")
def test_a_hundred_thousand_clients_are_kept():
    tokens = Tokens()
    for n in range(100_001):
        tokens.flush({client(n): [1]}, Instant(n))
    gone, _ = tokens.prune(Instant(100_001))
    assert gone == [client(0)]


@pytest.mark.rule("REL-2")
def test_client_with_a_commit_on_its_way_is_not_forgotten():
    tokens = Tokens(most_clients=0)
    tokens.flush({client(1): [7]}, Instant(0))
    tokens.joined(client(1), [8])
    assert tokens.prune(Instant(2 * KEPT)) == ([], [])
    assert tokens.durable({client(1): [8]}) == [client(1)]
    assert tokens.prune(Instant(2 * KEPT))[0] == [client(1)]


@pytest.mark.rule("REL-2")
def test_row_of_a_flush_says_nothing_of_what_gathers_behind_it():
    tokens = Tokens()
    tokens.joined(client(1), [1])
    tokens.joined(client(1), [2])
    ((_, highest, committed, *_),) = tokens.flush({client(1): [1]}, Instant(0))
    assert isinstance(committed, bytes)
    assert (highest, int.from_bytes(committed, "little")) == (1, 1)
    assert tokens.highest(client(1)) == 2
