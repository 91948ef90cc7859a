from typing import Any

import pytest
from pyspark.sql import functions as F

from spark_jobs import conservation
from tests.spark.segments import NOON, SECOND, dialog, target

LATER = NOON + 60 * SECOND
OPEN = {"state": "open", "outcome": "open"}


@pytest.fixture
def balance(rows):
    """The directions of the given dialog lines, by from_service, with all counts."""

    def of(*lines):
        numbered = [line | {"seq": seq} for seq, line in enumerate(lines, 1)]
        ways = conservation.directions(conservation.dialogs(rows(*numbered))).collect()
        return {way.from_service: way.asDict() for way in ways}

    return of


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, int]]] = {
    "settled": ({}, {}, {}),
    "lost": ({}, {"received": 9}, {"unaccounted": 1}),
    "doubled": ({}, {"received": 11}, {"doubled": 1}),
    "withdrawn": ({"acknowledged": 6, "undelivered": 4}, {"received": 6}, {"undelivered": 4}),
    "withdrawn, but some had arrived": (
        {"acknowledged": 6, "undelivered": 4},
        {"received": 8},
        {"undelivered": 2},
    ),
    "given up without a trace": (
        {"acknowledged": 6, "undelivered": 2},
        {"received": 6},
        {"undelivered": 2, "unaccounted": 2},
    ),
    "on the way": ({**OPEN, "acknowledged": 7}, {**OPEN, "received": 7}, {"waiting": 3}),
    "arrived, not yet acknowledged": (
        {**OPEN, "acknowledged": 7},
        {**OPEN, "received": 9},
        {"waiting": 1},
    ),
    "acknowledged, but not there": (OPEN, {**OPEN, "received": 9}, {"unaccounted": 1}),
    "receiver's line older": ({**OPEN, "at": LATER}, {**OPEN, "received": 9}, {"later": 1}),
    "receiver closed without it": ({"at": LATER}, {"received": 9}, {"unaccounted": 1}),
    "sender's line older": (OPEN, {**OPEN, "received": 12, "at": LATER}, {"ahead": 2}),
    "sender closed before": ({}, {"received": 12, "at": LATER}, {"doubled": 2}),
}


@pytest.fixture(scope="module")
def judged(rows):
    """Every case as a dialog of its own, balanced in one go: {case: the direction from shop}."""
    lines: list[dict[str, Any]] = []
    for case, (sender, receiver, _) in CASES.items():
        same = {"conversation_id": case, "seq": len(lines)}
        lines += [dialog(**same, **sender), target(sent=0, **same, **receiver)]
    ways = conservation.directions(conservation.dialogs(rows(*lines))).collect()
    return {way.conversation_id: way.asDict() for way in ways if way.from_service == "shop"}


@pytest.mark.rule("REL-31")
@pytest.mark.parametrize("case", CASES)
def test_a_direction_balances_or_says_what_is_wrong(judged, case):
    way = judged[case]
    names = ("undelivered", "waiting", "later", "ahead", "unaccounted", "doubled", "elsewhere")
    assert {name: way[name] for name in names if way[name]} == CASES[case][2]
    explained = sum(way[name] for name in ("undelivered", "waiting", "later", "unaccounted"))
    assert way["sent"] + way["ahead"] + way["doubled"] == way["received"] + explained


@pytest.mark.rule("REL-31")
def test_a_side_that_is_not_in_the_logs_is_not_a_loss(balance):
    closed = {"conversation_id": "closed"}
    waits = {"conversation_id": "open", "service": "till", "acknowledged": 0, "received": 0}
    ways = balance(dialog(**closed), dialog(**OPEN, **waits))
    assert (ways["shop"]["elsewhere"], ways["shop"]["unaccounted"]) == (10, 0)
    assert (ways["warehouse"]["elsewhere"], ways["warehouse"]["doubled"]) == (10, 0)
    assert (ways["till"]["waiting"], ways["till"]["elsewhere"]) == (10, 0)


def test_of_several_lines_the_closed_one_wins_then_the_latest(balance):
    opened = {"conversation_id": "open", "service": "till", "far_service": "bank"}
    lines = [dialog(**OPEN, at=LATER, sent=99), dialog(), dialog(at=NOON - 5, sent=98)]
    lines += [
        dialog(**opened, **OPEN, at=LATER, sent=4),
        dialog(**opened, **OPEN, sent=3, acknowledged=3),
    ]
    ways = balance(*lines)
    assert (ways["shop"]["sent"], ways["till"]["sent"]) == (10, 4)


@pytest.mark.rule("REL-31")
def test_both_directions_are_balanced(balance):
    ways = balance(dialog(received=9), target())
    assert (ways["shop"]["unaccounted"], ways["warehouse"]["unaccounted"]) == (0, 1)


@pytest.fixture(scope="module")
def three(rows):
    """A balanced dialog, one that expired and one whose other side is not there."""
    expired = {"conversation_id": "x", "acknowledged": 8, "undelivered": 2, "outcome": "expired"}
    lines = [dialog(), target(received=9), dialog(seq=2, **expired)]
    lines.append(target(seq=2, conversation_id="x", received=8, discarded_unread=3))
    lines.append(dialog(seq=3, conversation_id="alone", received=0))
    balanced = conservation.directions(conservation.dialogs(rows(*lines)))
    return conservation.books(balanced).cache()


def test_pairs_are_sums_with_the_reasons_of_what_was_withdrawn(three):
    by_sender = {row.from_service: row for row in conservation.pairs(three).collect()}
    shop = by_sender["shop"]
    assert (shop.dialogs, shop.sent, shop.received, shop.undelivered) == (3, 30, 17, 2)
    assert [tuple(reason) for reason in shop.undelivered_by] == [("expired", 2)]
    assert (shop.discarded_unread, by_sender["warehouse"].undelivered_by) == (3, [])


def test_findings_name_the_dialog(three):
    found = conservation.findings(three).collect()
    assert {(row.finding, row.conversation_id, row.messages) for row in found} == {
        (conservation.FINDING_LOST, dialog()["conversation_id"], 1),
        (conservation.FINDING_ELSEWHERE, "alone", 10),
    }


@pytest.mark.rule("REL-31")
def test_both_ways_of_a_service_that_talks_to_itself_are_findings_of_their_own(rows):
    itself = {"service": "shop", "far_service": "shop", "instance": "east"}
    lines = [dialog(**itself, sent=10, received=7), target(**itself, sent=10, received=8, seq=2)]
    balanced = conservation.directions(conservation.dialogs(rows(*lines)))
    found = conservation.findings(conservation.books(balanced)).collect()
    assert sorted((row.finding, row.messages) for row in found) == [
        (conservation.FINDING_LOST, 2),
        (conservation.FINDING_LOST, 3),
    ]


DAY = 86_400 * SECOND
YESTERDAY, TODAY = "2026-11-18", "2026-11-19"
MIDNIGHT = NOON + DAY // 2
"""Between the two."""


@pytest.fixture(scope="module")
def nights(rows):
    """Dialogs around midnight, balanced for both days, by date and dialog: the way from shop."""
    before, after = MIDNIGHT - 60 * SECOND, MIDNIGHT + 60 * SECOND
    lines = [
        dialog(conversation_id="over midnight", at=before),
        target(conversation_id="over midnight", sent=0, at=after),
        dialog(conversation_id="never heard of", at=before),
        dialog(conversation_id="settled before", at=before),
        target(conversation_id="settled before", sent=0, at=before + SECOND),
        dialog(conversation_id="half in the night", at=NOON),
        target(conversation_id="half in the night", sent=0, at=before),
        dialog(conversation_id="long ago", at=NOON),
        target(conversation_id="long ago", sent=0, at=MIDNIGHT + DAY // 2),
        dialog(conversation_id="clocks differ", at=after, **OPEN),
        target(conversation_id="clocks differ", sent=0, received=9, at=before + SECOND, **OPEN),
        dialog(conversation_id="lost", at=MIDNIGHT + DAY // 2),
        target(conversation_id="lost", sent=0, received=9, at=MIDNIGHT + DAY // 2),
    ]
    dated = rows(*(line | {"seq": seq} for seq, line in enumerate(lines))).drop("date")
    day = F.when(F.col("at") < MIDNIGHT, YESTERDAY).otherwise(TODAY)
    chosen = conservation.of_days(dated.withColumn("date", day), [YESTERDAY, TODAY])
    ways = conservation.directions(conservation.dialogs(chosen)).collect()
    return {(way.date, way.conversation_id): way for way in ways if way.from_service == "shop"}


AROUND_MIDNIGHT = {
    (YESTERDAY, "over midnight"): "later",
    (TODAY, "over midnight"): None,
    (YESTERDAY, "never heard of"): "later",
    (TODAY, "never heard of"): "elsewhere",
    (YESTERDAY, "long ago"): "elsewhere",
    (TODAY, "long ago"): None,
    (YESTERDAY, "clocks differ"): None,
    (TODAY, "clocks differ"): "later",
    (TODAY, "lost"): "unaccounted",
}


@pytest.mark.rule("REL-31", "BI-L3")
@pytest.mark.parametrize("case", AROUND_MIDNIGHT, ids=" ".join)
def test_a_dialog_over_midnight_is_judged_once_both_sides_can_have_spoken(nights, case):
    way = nights.get(case)
    names = ("later", "ahead", "unaccounted", "doubled", "elsewhere")
    found = [name for name in names if way is not None and way[name]]
    assert found == ([AROUND_MIDNIGHT[case]] if AROUND_MIDNIGHT[case] else [])


@pytest.mark.rule("REL-31")
@pytest.mark.parametrize("settled", ["settled before", "half in the night"])
def test_what_was_settled_before_midnight_is_in_the_books_of_that_day_alone(nights, settled):
    assert [date for date, name in nights if name == settled] == [YESTERDAY]


@pytest.mark.rule("BI-L6")
def test_one_hot_dialog_is_one_row_before_anything_is_shuffled(rows):
    """Its lines are summed up where they are read, so that none has to hold them all."""
    lines = [dialog(seq=seq, at=NOON + seq, sent=seq, received=0, **OPEN) for seq in range(3000)]
    conversations = conservation.dialogs(rows(*lines))
    (found,) = conversations.collect()
    assert found.initiator.sent == 2999
    plan = conversations._jdf.queryExecution().executedPlan().toString()
    assert "partial_max" in plan.split("Exchange")[-1], "nearest to where the lines are read"
