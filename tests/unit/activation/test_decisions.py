"""What is said of the decisions of a queue monitor, and how much of it is kept (VIEW-15)."""

import pytest

from brokerd.activation.decisions import (
    KEPT,
    MANY_GROUPS,
    Decisions,
    Ready,
    limit_reached,
    why_started,
)
from brokerd.activation.monitor import Limits, QueueFacts, Why
from brokerd.clock import Instant

FACTS = QueueFacts(ready=True, waiting=1)


@pytest.mark.rule("VIEW-15")
@pytest.mark.parametrize(
    ("why", "ready", "running", "said"),
    [
        (Why.BACKLOG, Ready(groups=412), 2, "412 groups ready, 2 readers, no empty receive for"),
        (Why.BACKLOG, Ready(groups=1), 1, "1 group ready, 1 reader, no empty receive for 5 s"),
        (Why.BACKLOG, Ready(), 1, "no unlocked group ready, 1 reader"),
        (Why.ARRIVAL, Ready(groups=1), 0, "a message arrived and no reader was known to run"),
        (Why.FOUND, Ready(groups=MANY_GROUPS, is_more=True), 0, "at least 1000 groups ready"),
    ],
)
def test_a_start_is_explained_by_its_figures(
    why: Why, ready: Ready, running: int, said: str
) -> None:
    assert said in why_started(why, ready, FACTS, running, Limits())


@pytest.mark.rule("VIEW-15")
def test_every_reason_has_words() -> None:
    assert len({why_started(why, Ready(), FACTS, 1, Limits()) for why in Why}) == len(Why)


@pytest.mark.rule("VIEW-15", "ACT-17")
def test_what_repeats_itself_is_one_row_and_the_rows_are_bounded() -> None:
    kept = Decisions("main", "shop")
    kept.add("started", "started reader 1", Instant(1))
    for at in range(2, 1002):
        kept.add("limit reached", limit_reached(Ready(), 1, Limits()), Instant(at))
    _, limit = kept.rows()
    assert (limit.times, limit.at, limit.last_at) == (1000, Instant(2), Instant(1001))
    for at in range(1000):
        kept.add("started", "started", Instant(at))
    rows = kept.rows()
    assert len(rows) == KEPT
    assert [row.number for row in rows] == list(range(1003 - KEPT, 1003))
