"""The eight steps of finding a level."""

from itertools import product

import pytest

from brokerd.broker.priorities import PriorityIndex
from brokerd.model import Priority

STEPS = [
    ("c", "l", "r"),
    ("c", "l", None),
    ("c", None, "r"),
    ("c", None, None),
    (None, "l", "r"),
    (None, "l", None),
    (None, None, "r"),
    (None, None, None),
]


@pytest.mark.rule("OBJ-50")
@pytest.mark.parametrize("first", range(8))
def test_the_first_step_that_fits_wins(first: int) -> None:
    levels = [10, 9, 8, 7, 6, 4, 3, 2]
    given = [Priority(f"p{at}", *STEPS[at], level=levels[at]) for at in reversed(range(first, 8))]
    assert PriorityIndex(given).level("c", "l", "r") == levels[first]


@pytest.mark.rule("OBJ-50")
def test_without_a_step_that_fits_the_level_is_five() -> None:
    assert PriorityIndex().level("c", "l", "r") == 5
    others = [
        Priority(str(at), *criteria, level=9)
        for at, criteria in enumerate(product(("C", None), ("L", None), ("R", None)))
        if any(criteria)
    ]
    assert PriorityIndex(others).level("c", "l", "r") == 5


@pytest.mark.rule("OBJ-49", "OBJ-52")
def test_local_and_remote_are_compared_byte_by_byte_and_not_exchanged() -> None:
    index = PriorityIndex([Priority("p", None, "shop", "d\u00e9sk", level=9)])
    assert index.level("c", "shop", "d\u00e9sk") == 9
    assert index.level("c", "shop", "de\u0301sk") == 5
    assert index.level("c", "d\u00e9sk", "shop") == 5
