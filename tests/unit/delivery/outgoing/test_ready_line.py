"""Whose turn it is to send: by level, then in order, and nobody starves."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.delivery.outgoing.ready_line import Turns


class Line:
    """Turns with a clock that is moved by hand, and dialogs that are names with a level."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = Turns(now=lambda: self.now, starvation=10)

    def join(self, name: str, level: int = 5) -> Any:
        out: Any = SimpleNamespace(name=name, level=level)
        self.turns.append(out)
        return out

    def take(self) -> str:
        first: Any = self.turns.first()
        self.turns.leave()
        return str(first.name)

    def take_all(self) -> list[str]:
        taken = []
        while self.turns:
            taken.append(self.take())
        return taken


@pytest.mark.rule("OBJ-59")
def test_levels_descend_and_within_one_it_is_first_come_first_served() -> None:
    line = Line()
    for name, level in (("a", 5), ("b", 1), ("c", 10), ("d", 5), ("e", 10)):
        line.join(name, level)
    assert line.take_all() == ["c", "e", "a", "d", "b"]


@pytest.mark.rule("MAN-3", "OBJ-59")
def test_whoever_may_not_send_any_more_leaves_and_the_others_keep_their_places() -> None:
    line = Line()
    gone = [line.join("a"), line.join("b", 9), line.join("d")]
    line.join("c")
    line.turns.drop({id(one) for one in gone})
    line.join("e", 7)
    assert line.take_all() == ["e", "c"]


@pytest.mark.rule("OBJ-57")
def test_a_new_level_counts_from_the_next_turn_on() -> None:
    line = Line()
    low = line.join("low", 1)
    line.join("usual", 5)
    low.level = 10
    assert line.take() == "usual"
    assert line.turns.first() is low
    line.turns.leave()
    line.turns.append(low)
    line.join("usual", 5)
    assert line.take_all() == ["low", "usual"]


@pytest.mark.rule("OBJ-59", "PBT-16", "TRN-42")
def test_what_waits_long_overtakes_endless_traffic_of_the_highest_level() -> None:
    line = Line()
    line.join("low", 1)
    while True:
        line.join("high", 10)
        if line.take() == "low":
            break
        line.now += 1
    assert 80 <= line.now <= 100


@pytest.mark.rule("TRN-42")
@pytest.mark.parametrize(("waited", "gained"), [(0, 0), (9.9, 0), (10, 1), (19.9, 1), (20, 2)])
def test_each_ten_seconds_of_waiting_are_a_level_and_no_more(waited: float, gained: int) -> None:
    line = Line()
    line.join("low", 4)
    line.now = waited
    assert line.turns.level == 4 + gained
    line.join("usual", 5)
    assert line.turns.first().name == ("low" if gained else "usual")  # type: ignore[attr-defined]
    assert line.turns.elevation == gained


def test_the_one_whose_turn_it_was_leaves_even_if_time_has_passed() -> None:
    line = Line()
    line.join("low", 1)
    line.join("high", 2)
    assert line.turns.first().name == "high"  # type: ignore[attr-defined]
    line.now = 30
    line.turns.leave()
    assert line.take_all() == ["low"]
