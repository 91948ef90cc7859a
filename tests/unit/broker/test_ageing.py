"""Levels that rise with time: a table, and what is watched stays small (PBT-16)."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.broker.ageing import Ageing
from brokerd.clock import Instant


class Moment:
    """A clock that is set."""

    def __init__(self) -> None:
        self.at = 0

    def __call__(self) -> Instant:
        return Instant(self.at)


def waiting(since: int) -> Any:
    """A group with one message, ready to be chosen."""
    live = SimpleNamespace(ready=[SimpleNamespace(enqueued_at=since)])
    group: Any = type("Group", (), {})()
    group.ready, group.entry = {1: live}, (0, 0, None)
    return group


@pytest.mark.rule("PBT-16")
@pytest.mark.parametrize(
    ("level", "waited", "counts_as"),
    [
        (1, 0, 1),
        (1, 9, 1),
        (1, 10, 2),
        (5, 49, 9),
        (5, 50, 10),
        (1, 1000, 10),
        (10, 1000, 10),
        (3, -20, 3),  # a clock that was set back takes nothing away
    ],
)
def test_a_level_rises_by_one_for_each_interval(level: int, waited: int, counts_as: int) -> None:
    now = Moment()
    now.at = 1000 + waited
    assert Ageing(10, now).level(level, 1000) == counts_as


@pytest.mark.rule("PBT-16")
def test_groups_are_told_of_when_they_have_risen() -> None:
    now = Moment()
    now.at = 5
    ageing = Ageing(10, now)
    first, second, locked = waiting(0), waiting(4), waiting(1)
    for group in (first, second, locked, first):
        ageing.watch(group)
    assert list(ageing.risen()) == []
    now.at = 12
    locked.entry = None
    assert list(ageing.risen()) == [first]
    now.at = 14
    assert list(ageing.risen()) == [second]
    ageing.watch(first)
    now.at = 20
    assert list(ageing.risen()) == [first]


@pytest.mark.rule("PBT-16")
def test_groups_that_are_gone_are_not_kept() -> None:
    now = Moment()
    ageing = Ageing(10**12, now)
    stays = waiting(0)
    ageing.watch(stays)
    for _ in range(20_000):
        group = waiting(0)
        ageing.watch(group)
        group.entry = None
    assert len(ageing._due) <= 1001
    now.at = 10**12
    assert list(ageing.risen()) == [stays]
