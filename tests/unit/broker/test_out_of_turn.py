"""What came in out of turn is known until all in front of it has come, and no longer."""

import pytest

from brokerd.broker.backlog import OutOfTurn
from brokerd.ids import EndpointKey

ONE, OTHER = EndpointKey(1), EndpointKey(2)


@pytest.mark.rule("REL-25")
def test_each_conversation_has_its_own() -> None:
    known = OutOfTurn()
    known.add(ONE, [5, 9])
    known.add(OTHER, [7])
    known.add(ONE, [11])
    assert known.of_endpoint(ONE) == {5, 9, 11}
    assert known.of_endpoint(OTHER) == {7}
    assert known.of_endpoint(EndpointKey(3)) == set()
    assert known.orders == {5, 7, 9, 11}


@pytest.mark.rule("REL-25")
def test_those_behind_the_cursor_stay() -> None:
    known = OutOfTurn()
    known.add(ONE, [5, 9])
    known.add(OTHER, [7])
    known.forget(7)
    assert known.orders == {9}
    assert known.of_endpoint(ONE) == {9}
    assert known.of_endpoint(OTHER) == set()


@pytest.mark.rule("REL-25")
def test_what_was_passed_is_no_more_than_what_is_left_however_many_pages_come() -> None:
    known = OutOfTurn()
    most = 0
    for page in range(1000):
        known.add(EndpointKey(page), range(page * 100, page * 100 + 100))
        known.passed(page * 100)
        most = max(most, len(known.orders))
    assert most < 10_000
    assert known.orders >= set(range(99_901, 100_000))
