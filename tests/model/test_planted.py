"""The machines find bugs that are planted, one of each kind (reliability section 8, PLANT).

`python -m tests.model.planted` plants them all, which takes some ten seconds.
"""

import pytest

from tests.model.planted import finds, with_bug
from tests.model.replay import replay


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("group_given_to_two", marks=pytest.mark.rule("GRP-14")),
        pytest.param("newest_group_first", marks=pytest.mark.rule("GRP-15")),
        pytest.param("retained_too_long", marks=pytest.mark.rule("RCV-32")),
    ],
)
def test_a_planted_bug_is_found(name: str) -> None:
    found = finds(name)
    assert found is not None
    replay(found.shown)  # it was the bug that was found
    with with_bug(name), pytest.raises(AssertionError) as again:
        replay(found.shown)
    assert str(again.value).splitlines()[0] == found.difference
