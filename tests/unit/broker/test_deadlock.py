"""A circle of waits is found by following holders, however long the lines are (GRP-12)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.broker.deadlock import deadlock_of, ends_by_itself
from brokerd.broker.state import Group, LockWait


class Holder:
    """A transaction that counts how often a search looks at what it waits for."""

    looked_at = 0

    def __init__(self, opened: int = 0) -> None:
        self.opened = opened
        self.locked: list[Group] = []
        self.ready: dict[Group, None] = {}
        self.idle, self.receiving = False, None
        self._waits_for: Group | None = None

    @property
    def waits_for(self) -> Group | None:
        """The group whose lock it waits for."""
        Holder.looked_at += 1
        return self._waits_for

    @waits_for.setter
    def waits_for(self, group: Group | None) -> None:
        self._waits_for = group

    def took(self, group: Group) -> None:
        """It has a lock now."""
        self.locked.append(group)


def group() -> Any:
    made = Group.__new__(Group)
    made.holder, made.line, made.entry, made.ready = None, [], None, {}
    return made


def stand(holder: Any, one: Any) -> LockWait:
    return one.wait(holder, lambda: None)  # type: ignore[no-any-return]


@pytest.mark.rule("GRP-12")
def test_two_that_wait_for_each_other_are_a_circle() -> None:
    a, b, first, second = Holder(), Holder(), group(), group()
    first.lock(a)
    second.lock(b)
    stand(a, second)
    assert deadlock_of(a) == []  # type: ignore[arg-type]  # all that the search needs
    stand(b, first)
    assert deadlock_of(b) == [b, a]  # type: ignore[arg-type, comparison-overlap]  # as above


@pytest.mark.rule("GRP-12")
def test_the_circle_has_only_those_that_are_on_it() -> None:
    holders = [Holder() for _ in range(5)]
    groups = [group() for _ in holders]
    for one, its in zip(holders, groups, strict=True):
        its.lock(one)
    bystander = Holder()
    stand(bystander, groups[1])
    for at in (0, 1, 2):
        stand(holders[at], groups[at + 1])
    stand(holders[3], groups[1])  # behind the bystander, and a circle with 1 and 2
    found: list[Any] = deadlock_of(holders[3])  # type: ignore[arg-type]  # as above
    assert found == [holders[3], holders[1], holders[2]]


@pytest.mark.rule("GRP-11")
@pytest.mark.parametrize(
    ("last", "ends"), [("works", True), ("is idle", False), ("waits for a message", False)]
)
@pytest.mark.parametrize("between", [0, 1, 3])
def test_it_is_the_last_that_is_waited_for_who_decides(last: str, ends: bool, between: int) -> None:
    """A holder that waits for a lock ends by itself if the holder of that one does."""
    holders: list[Any] = [Holder() for _ in range(between + 1)]
    groups = [group() for _ in holders]
    for one, its in zip(holders, groups, strict=True):
        its.lock(one)
    for one, wanted in zip(holders[:-1], groups[1:], strict=True):
        stand(one, wanted)
    holders[-1].idle = last == "is idle"
    holders[-1].receiving = object() if last == "waits for a message" else None
    assert ends_by_itself(holders[0]) is ends


@pytest.mark.rule("GRP-11")
def test_an_idle_one_on_the_way_is_enough() -> None:
    first, last, lock = Holder(), Holder(), group()
    lock.lock(last)
    stand(first, lock)
    first.idle = True
    assert not ends_by_itself(first)  # type: ignore[arg-type]  # as above


@pytest.mark.rule("GRP-12", "REL-32")
def test_a_search_does_not_grow_with_the_line() -> None:
    wanted, holder = group(), Holder()
    wanted.lock(holder)
    waiting = [Holder() for _ in range(1000)]
    for one in waiting:
        stand(one, wanted)
    Holder.looked_at = 0
    assert deadlock_of(waiting[-1]) == []  # type: ignore[arg-type]  # as above
    assert Holder.looked_at < 10
