"""Which groups have most of a queue's messages, counted in bounded room."""

import random
from collections import Counter

import pytest

from brokerd.broker.hot_groups import KEPT, LISTED, MOST, HotGroups
from brokerd.ids import GroupId, show


def group(number: int) -> GroupId:
    return GroupId(number.to_bytes(16, "big"))


def counted(receives: list[tuple[int, int]]) -> tuple[HotGroups, Counter[str]]:
    """What is remembered of receives (group, messages), and the truth."""
    hot, truth = HotGroups(), Counter[str]()
    rest = [(group(number), messages) for number, messages in receives]
    while rest:  # as many receives at once as a transaction may have had
        together, rest = rest[:7], rest[7:]
        hot.add(together)
    for number, messages in receives:
        truth[show(group(number))] += messages
    return hot, truth


def test_few_groups_are_counted_exactly() -> None:
    hot, truth = counted([(1, 5), (2, 90), (1, 5), (3, 1)])
    window = hot.collect()
    assert window is not None
    assert window.groups == dict(truth.most_common(2)), "the third has less than a hundredth"
    assert list(window.groups) == [show(group(2)), show(group(1))], "the largest first"
    assert window.within == 1
    assert hot.collect() is None


@pytest.mark.parametrize("seed", range(5))
def test_no_group_has_more_than_is_said_of_it_and_the_hot_ones_are_named(seed: int) -> None:
    rng = random.Random(seed)
    hot_ones = {number: rng.randrange(300, 900) for number in range(12)}
    receives = [(number, 1) for number, times in hot_ones.items() for _ in range(times)]
    receives += [(rng.randrange(100, 10**9), rng.randrange(1, 4)) for _ in range(20_000)]
    rng.shuffle(receives)
    hot, truth = counted(receives)
    window = hot.collect()
    assert window is not None
    total = sum(truth.values())
    assert len(window.groups) <= LISTED
    for name, count in truth.items():
        told = window.groups.get(name, 0)
        assert told <= count <= told + window.within
    bound = total // (KEPT + 1)
    sure = [number for number, times in hot_ones.items() if times - bound >= total / 100]
    assert {show(group(number)) for number in sure} <= set(window.groups)
    assert sure


def test_what_is_forgotten_is_bounded_and_so_is_the_room() -> None:
    hot = HotGroups()
    for number in range(50 * MOST):
        hot.add([(group(number), 1)])
        assert len(hot._counts) <= MOST
    assert hot._within <= 50 * MOST // (KEPT + 1)
    window = hot.collect()
    assert window is not None
    assert window.groups == {}, "nobody has a hundredth"
    assert window.within >= 1


def test_two_windows_are_merged_by_adding() -> None:
    rng = random.Random(9)
    receives = [(rng.choice([1, 2, 3, rng.randrange(10, 5_000)]), 1) for _ in range(40_000)]
    first, _ = counted(receives[:20_000])
    second, _ = counted(receives[20_000:])
    _, truth = counted(receives)
    windows = [first.collect(), second.collect()]
    merged, within = Counter[str](), 0
    for window in windows:
        assert window is not None
        merged.update(window.groups)
        within += window.within
    assert [name for name, _ in merged.most_common(3)] == [name for name, _ in truth.most_common(3)]
    for name, count in truth.items():
        assert merged[name] <= count <= merged[name] + within
