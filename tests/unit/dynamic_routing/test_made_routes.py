"""Routes that were made because they were asked for: which are known, and which have failed."""

import msgspec
import pytest

from brokerd.clock import Instant
from brokerd.dynamic_routing.made_routes import Made, MadeRoutes
from brokerd.model import Route

NEW = Route("new", "tcp://new:1", "urn:far")
OLD = Route("old", "tcp://old:1", "urn:far")
MADE = Made("main", "new", "urn:far", None, "tcp://new:1")


def made(*routes: Route, before: frozenset[Route] = frozenset({OLD})) -> MadeRoutes:
    known = MadeRoutes(failures=3)
    known.answered("main", before, routes)
    return known


def failed(known: MadeRoutes, count: int, *routes: Route, now: int = 0) -> list[Made]:
    present = {"main": {one.name: one for one in routes}}
    return known.failed(present, {"tcp://new:1": count}.__getitem__, Instant(now))


@pytest.mark.rule("BCN-5", "MON-3")
def test_what_came_with_the_answer_is_dynamic_and_what_was_there_is_not() -> None:
    known = made(OLD, NEW)
    assert (known.has("main", "new"), known.has("main", "old")) == (True, False)
    assert not known.has("other", "new")
    assert made(OLD, before=frozenset()).has("main", "old")


@pytest.mark.rule("BCN-5")
def test_it_is_told_of_at_three_failures_in_a_row_and_again_after_three_more() -> None:
    known = made(NEW)
    assert failed(known, 2, NEW) == []
    assert failed(known, 3, NEW) == [MADE]
    known.reported(MADE, 3)
    assert failed(known, 5, NEW) == []
    assert failed(known, 6, NEW) == [MADE]
    known.reported(MADE, 6)
    assert failed(known, 0, NEW) == []  # it was reached in between
    assert failed(known, 3, NEW) == [MADE]


@pytest.mark.rule("BCN-5")
@pytest.mark.parametrize(
    "now",
    [
        (),
        (msgspec.structs.replace(NEW, address="tcp://elsewhere:1"),),
        (msgspec.structs.replace(NEW, expires_at=Instant(5)),),
    ],
)
def test_one_that_is_gone_altered_or_over_is_forgotten(now: tuple[Route, ...]) -> None:
    known = made(NEW)
    assert failed(known, 9, *now, now=5) == []
    assert not known.has("main", "new")
    assert failed(known, 9, NEW) == []


@pytest.mark.rule("BCN-5", "RTE-51")
def test_a_mirrored_one_has_failed_where_neither_is_reached() -> None:
    both = msgspec.structs.replace(NEW, mirror="tcp://other:1")
    known = made(both)
    present = {"main": {"new": both}}
    counts = {"tcp://new:1": 5, "tcp://other:1": 0}
    assert known.failed(present, counts.__getitem__, Instant(0)) == []
    counts["tcp://other:1"] = 4
    assert known.failed(present, counts.__getitem__, Instant(0)) == [MADE]


@pytest.mark.rule("BCN-5")
def test_no_more_are_known_than_there_may_be() -> None:
    known = MadeRoutes(failures=1, most_known=1)
    known.answered("main", frozenset(), (OLD, NEW))
    assert (known.has("main", "old"), known.has("main", "new")) == (True, False)
