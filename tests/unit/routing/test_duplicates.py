"""Which instances name one broker, since when, and when that makes a duplicate (RTE-70 on)."""

import pytest

from brokerd.ids import BrokerId, InstanceId
from brokerd.routing.duplicates import MOST_AWAY, Duplicate, Namers

ME, EAST, WEST, NORTH = (InstanceId(letter * 16) for letter in (b"m", b"e", b"w", b"n"))
SHOP, DESK = BrokerId(b"s" * 16), BrokerId(b"d" * 16)
PATIENCE, GONE = 30.0, 120.0
PAIR = Duplicate(SHOP, EAST, WEST)


class Heard:
    """Namers, and when something was heard of whom."""

    def __init__(self) -> None:
        self.namers = Namers(ME, patience=PATIENCE, gone_after=GONE)
        self.at: dict[InstanceId, float] = {}

    def said(self, instance: InstanceId, *names: BrokerId, now: float) -> None:
        self.at[instance] = now
        self.namers.replace_names(instance, frozenset(names), now)

    def judged(self, now: float, *alive: InstanceId) -> tuple[list[Duplicate], list[Duplicate]]:
        """What is new and what is over, when these have answered just now."""
        self.at.update(dict.fromkeys(alive, now))
        return self.namers.evaluate(now, lambda one: self.at.get(one, 0.0))


def both(now: float = 100.0) -> Heard:
    """East says first that the shop is its own, then west."""
    heard = Heard()
    heard.said(EAST, SHOP, now=now - 50)
    heard.said(WEST, SHOP, DESK, now=now)
    return heard


@pytest.mark.rule("RTE-71")
def test_two_are_a_duplicate_after_more_than_a_keepalive_once() -> None:
    heard = both()
    assert heard.judged(100 + PATIENCE, EAST, WEST) == ([], [])
    assert heard.judged(101 + PATIENCE, EAST, WEST) == ([PAIR], [])
    assert heard.judged(102 + PATIENCE, EAST, WEST) == ([], [])
    assert list(heard.namers.found) == [PAIR]


@pytest.mark.rule("RTE-71")
@pytest.mark.parametrize("silent", [EAST, WEST])
def test_one_that_is_not_heard_again_proves_nothing(silent: InstanceId) -> None:
    heard = both()
    (other,) = {EAST, WEST} - {silent}
    assert heard.judged(1_000, other) == ([], [])
    assert heard.judged(1_001, silent) == ([PAIR], [])


@pytest.mark.rule("RTE-71")
@pytest.mark.parametrize("leaver", [EAST, WEST])
def test_it_counts_only_while_both_are_online(leaver: InstanceId) -> None:
    heard = both()
    heard.namers.left(leaver, 120)
    assert heard.judged(200, EAST, WEST) == ([], [])
    assert sorted(heard.namers.contested()) == [EAST, WEST]
    assert heard.namers.is_away(leaver)
    heard.said(leaver, SHOP, now=210)
    assert heard.judged(210 + PATIENCE, EAST, WEST) == ([], [])
    assert heard.judged(211 + PATIENCE, EAST, WEST) == ([PAIR], [])  # east is the earlier still


@pytest.mark.rule("RTE-70", "RTE-73")
def test_what_is_said_replaces_what_was_said_before() -> None:
    heard = both()
    heard.said(WEST, DESK, now=110)
    assert list(heard.namers.contested()) == []
    heard.said(WEST, SHOP, now=120)
    assert heard.judged(121 + PATIENCE, EAST, WEST) == ([PAIR], [])
    heard.said(EAST, now=160)
    assert heard.judged(160, EAST, WEST) == ([], [PAIR])
    assert heard.namers.known() == {WEST}
    heard.said(EAST, SHOP, now=170)
    later = Duplicate(SHOP, WEST, EAST)
    assert heard.judged(171 + PATIENCE, EAST, WEST) == ([later], [])


@pytest.mark.rule("TRN-46")
def test_saying_it_again_changes_nothing() -> None:
    heard = both()
    for moment in range(101, 131):
        heard.said(EAST, SHOP, now=moment)
        heard.said(WEST, SHOP, DESK, now=moment)
    assert heard.judged(101 + PATIENCE, EAST, WEST) == ([PAIR], [])


@pytest.mark.rule("RTE-73")
def test_one_that_is_gone_for_long_ends_it_and_counts_as_new_when_it_comes_back() -> None:
    heard = both()
    assert heard.judged(101 + PATIENCE, EAST, WEST) == ([PAIR], [])
    heard.namers.left(EAST, 200)
    assert heard.judged(199 + GONE) == ([], [])
    assert heard.namers.is_party(EAST)
    assert heard.judged(200 + GONE) == ([], [PAIR])
    assert not heard.namers.is_party(EAST)
    heard.said(EAST, SHOP, now=400)
    assert heard.judged(401 + PATIENCE, EAST, WEST) == ([Duplicate(SHOP, WEST, EAST)], [])


@pytest.mark.rule("RTE-70", "RTE-72")
def test_the_observer_itself_is_never_the_later_one_and_needs_not_be_heard() -> None:
    heard = Heard()
    heard.said(EAST, SHOP, now=10)
    heard.namers.replace_names(ME, frozenset({SHOP}), 50)
    assert list(heard.namers.contested()) == [EAST]
    assert heard.judged(51 + PATIENCE, EAST) == ([Duplicate(SHOP, ME, EAST)], [])


@pytest.mark.rule("RTE-71", "RTE-72")
def test_of_three_the_first_is_the_earlier_for_both_others() -> None:
    heard = both()
    heard.said(NORTH, SHOP, now=110)
    north = Duplicate(SHOP, EAST, NORTH)
    assert heard.judged(200, EAST, WEST, NORTH) == ([PAIR, north], [])
    heard.namers.forget(EAST)
    assert heard.judged(201, WEST, NORTH) == ([Duplicate(SHOP, WEST, NORTH)], [PAIR, north])


@pytest.mark.rule("RTE-70")
def test_of_those_that_are_not_online_the_latest_are_remembered() -> None:
    heard = Heard()
    many = [InstanceId(number.to_bytes(16, "big")) for number in range(MOST_AWAY + 2)]
    for number, one in enumerate(many):
        heard.said(one, BrokerId(bytes(one)), now=number)
    for number, one in enumerate(many):
        heard.namers.left(one, 5_000 + number)
    assert heard.namers.known() == set(many[2:])
    heard.namers.left(ME, 9_000)  # who named nothing is not remembered
    assert heard.namers.known() == set(many[2:])
