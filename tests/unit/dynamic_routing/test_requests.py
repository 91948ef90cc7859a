"""Requests for routes: how many there are at a time, and which come next (BCN-8, BCN-9)."""

import pytest

from brokerd.dynamic_routing.requests import UNUSED, Key, Requests
from brokerd.routing.reasons import Reason


def key(name: str) -> Key:
    return Key("main", name, None)


@pytest.mark.rule("BCN-8")
def test_no_more_than_so_many_are_open_and_the_others_come_in_their_turn() -> None:
    requests = Requests(most_open=2)
    assert [requests.missing(key(name), 0.0) for name in "abcda"] == [True, True] + [False] * 3
    assert [requests.waits_for_others(key(name)) for name in "abcd"] == [False, False, True, True]
    assert requests.next() == []
    assert requests.due(1.0) == []

    requests.ended(key("a"), failed=False)
    assert requests.next() == [key("c")]
    assert requests.next() == []
    requests.ended(key("b"), failed=True)
    requests.ended(key("c"), failed=True)
    requests.missing(key("b"), 2.0)
    assert requests.next() == [key("d")]  # before those that are asked for again
    assert requests.due(3.0) == [key("b")]
    assert not requests.waits_for_others(key("d"))


def test_a_name_too_many_is_not_remembered_and_says_that_it_waits() -> None:
    requests = Requests(most_known=1)
    assert requests.missing(key("a"), 0.0)
    assert not requests.missing(key("b"), 0.0)
    assert len(requests) == 1
    assert requests.waits_for_others(key("b"))
    assert requests.reason(key("b")) is Reason.BCN_PENDING

    requests.ended(key("a"), failed=False)
    requests.due(UNUSED)
    assert requests.missing(key("b"), UNUSED)
