from typing import Any

import pytest
from pyspark.sql import functions as F

from spark_jobs import conservation
from tests.spark.segments import NOON, SECOND, dialog, interval, target

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
    "sender's line older, and yet lost": (
        OPEN,
        {**OPEN, "received": 9, "at": LATER},
        {"unaccounted": 1},
    ),
    "sender's line older, and the rest on the way": (
        {**OPEN, "acknowledged": 8},
        {**OPEN, "received": 7, "at": LATER},
        {"waiting": 2, "unaccounted": 1},
    ),
    "sender's line newer, and yet more arrived": (
        {**OPEN, "at": LATER},
        {**OPEN, "received": 12},
        {"doubled": 2},
    ),
    "more arrived at the same instant": (OPEN, {**OPEN, "received": 12}, {"doubled": 2}),
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
        target(**OPEN, at=LATER, received=7),
        target(),
        target(at=NOON - 5, received=8),
    ]
    ways = balance(*lines)
    assert (ways["shop"]["sent"], ways["till"]["sent"]) == (10, 4)
    assert ways["shop"]["received"] == 10


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


def test_only_lines_of_dialogs_are_conversations(rows):
    lines = [dialog(), dialog(conversation_id="other", seq=2), interval()]
    found = conservation.dialogs(rows(*lines)).collect()
    assert sorted(row.conversation_id for row in found) == [dialog()["conversation_id"], "other"]


@pytest.mark.rule("REL-31")
def test_what_only_the_receiver_tells_of_is_in_the_books_with_no_open_sender(rows):
    alone = conservation.directions(conservation.dialogs(rows(target(sent=0, received=10))))
    booked = conservation.books(alone)
    (pair,) = conservation.pairs(booked).collect()
    assert (pair.from_service, pair.to_service, pair.open) == ("shop", "warehouse", 0)
    assert (pair.dialogs, pair.sent, pair.received, pair.elsewhere) == (1, 0, 10, 10)
    (found,) = conservation.findings(booked).collect()
    assert (found.finding, found.messages) == (conservation.FINDING_ELSEWHERE, 10)
    assert (found.sender_at, found.receiver_at) == ("", "west")


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


BEFORE, AFTER, TEN_TO = MIDNIGHT - 60 * SECOND, MIDNIGHT + 60 * SECOND, MIDNIGHT - 600 * SECOND
MIDDAY = MIDNIGHT + DAY // 2


def said(sender=None, receiver=None):
    """The lines of both sides, or of one: when each was written, and what it says."""
    lines = []
    if sender is not None:
        at, fields = sender
        lines.append(dialog(at=at, **fields))
    if receiver is not None:
        at, fields = receiver
        lines.append(target(at=at, sent=0, **fields))
    return lines


LACKS, EXTRA = {"received": 9}, {"received": 12}
NIGHTS: dict[str, tuple[list[dict[str, Any]], dict[str, str | None]]] = {
    "over midnight": (
        said(sender=(BEFORE, {}), receiver=(AFTER, {})),
        {YESTERDAY: "later", TODAY: None},
    ),
    "over midnight, the receiver first": (
        said(sender=(AFTER, {}), receiver=(BEFORE, {})),
        {YESTERDAY: None, TODAY: None},
    ),
    "never heard of": (said(sender=(BEFORE, {})), {YESTERDAY: "later", TODAY: "elsewhere"}),
    "heard of by its receiver": (
        said(receiver=(BEFORE, {})),
        {YESTERDAY: None, TODAY: "elsewhere"},
    ),
    "at ten to twelve": (said(sender=(TEN_TO, {})), {YESTERDAY: "later", TODAY: "elsewhere"}),
    "before ten to twelve": (said(sender=(TEN_TO - 1, {})), {YESTERDAY: "elsewhere"}),
    "before ten to twelve, by its receiver": (
        said(receiver=(TEN_TO - 1, {})),
        {YESTERDAY: "elsewhere"},
    ),
    "in the evening": (said(sender=(MIDNIGHT + DAY - SECOND, {})), {TODAY: "later"}),
    "two nights ago": (said(sender=(BEFORE - DAY, {})), {YESTERDAY: "elsewhere"}),
    "settled before": (
        said(sender=(BEFORE, {}), receiver=(BEFORE + SECOND, {})),
        {YESTERDAY: None},
    ),
    "half in the night": (said(sender=(NOON, {}), receiver=(BEFORE, {})), {YESTERDAY: None}),
    "lost in the night": (
        said(sender=(BEFORE, {}), receiver=(BEFORE + SECOND, LACKS)),
        {YESTERDAY: "unaccounted"},
    ),
    "doubled in the night": (
        said(sender=(BEFORE, {}), receiver=(BEFORE + SECOND, EXTRA)),
        {YESTERDAY: "doubled"},
    ),
    "sent long ago": (
        said(sender=(NOON, {}), receiver=(MIDDAY, {})),
        {YESTERDAY: "elsewhere", TODAY: None},
    ),
    "sent long ago, and lost": (
        said(sender=(NOON, {}), receiver=(MIDDAY, LACKS)),
        {YESTERDAY: "elsewhere", TODAY: "unaccounted"},
    ),
    "received long ago": (
        said(sender=(MIDDAY, {}), receiver=(NOON, {})),
        {YESTERDAY: "elsewhere", TODAY: None},
    ),
    "received long ago, and doubled": (
        said(sender=(MIDDAY, {}), receiver=(NOON, EXTRA)),
        {YESTERDAY: "elsewhere", TODAY: "doubled"},
    ),
    "sent thirty days ago": (
        said(sender=(MIDDAY - 30 * DAY, {}), receiver=(MIDDAY, {})),
        {TODAY: None},
    ),
    "sent thirty-one days ago": (
        said(sender=(MIDDAY - 31 * DAY, {}), receiver=(MIDDAY, {})),
        {TODAY: "elsewhere"},
    ),
    "clocks differ": (
        said(sender=(AFTER, OPEN), receiver=(BEFORE + SECOND, {**LACKS, **OPEN})),
        {YESTERDAY: None, TODAY: "later"},
    ),
    "clocks differ, the receiver's is ahead": (
        said(sender=(MIDDAY, OPEN), receiver=(MIDDAY + 119 * SECOND, {**LACKS, **OPEN})),
        {TODAY: "later"},
    ),
    "the receiver spoke later": (
        said(sender=(MIDDAY, OPEN), receiver=(MIDDAY + 120 * SECOND, {**LACKS, **OPEN})),
        {TODAY: "unaccounted"},
    ),
    "clocks differ, the sender's is ahead": (
        said(sender=(MIDDAY + 119 * SECOND, OPEN), receiver=(MIDDAY, {**EXTRA, **OPEN})),
        {TODAY: "ahead"},
    ),
    "the sender spoke later": (
        said(sender=(MIDDAY + 120 * SECOND, OPEN), receiver=(MIDDAY, {**EXTRA, **OPEN})),
        {TODAY: "doubled"},
    ),
    "lost": (said(sender=(MIDDAY, {}), receiver=(MIDDAY, LACKS)), {TODAY: "unaccounted"}),
    "doubled": (said(sender=(MIDDAY, {}), receiver=(MIDDAY, EXTRA)), {TODAY: "doubled"}),
}
"""Dialogs by name: their lines, and what is found of each in the books of which days."""


@pytest.fixture(scope="module")
def dated(rows):
    """All lines of `NIGHTS`, each under its day."""
    named = [line | {"conversation_id": name} for name, (of, _) in NIGHTS.items() for line in of]
    lines = rows(*(line | {"seq": seq} for seq, line in enumerate(named))).drop("date")
    day = F.date_format(F.timestamp_micros("at"), "yyyy-MM-dd")
    return lines.withColumn("date", day).cache()


@pytest.fixture(scope="module")
def nights(dated):
    """They are balanced for both days: the way from shop, by dialog and date."""
    chosen = conservation.of_days(dated, [YESTERDAY, TODAY])
    ways = conservation.directions(conservation.dialogs(chosen)).collect()
    return {(way.conversation_id, way.date): way for way in ways if way.from_service == "shop"}


@pytest.mark.rule("REL-31", "BI-L3")
@pytest.mark.parametrize("name", NIGHTS)
def test_a_dialog_over_midnight_is_judged_once_both_sides_can_have_spoken(nights, name):
    """And it is in the books of no other day."""
    names = ("undelivered", "waiting", "later", "ahead", "unaccounted", "doubled", "elsewhere")
    found = {
        date: [one for one in names if way[one]]
        for (dialog, date), way in nights.items()
        if dialog == name
    }
    expected = {date: [one] if one else [] for date, one in NIGHTS[name][1].items()}
    assert found == expected


@pytest.mark.rule("REL-31")
def test_the_books_hold_no_day_that_was_not_asked_for(nights):
    assert {date for _, date in nights} == {YESTERDAY, TODAY}


@pytest.mark.rule("REL-31")
def test_only_dialogs_with_one_side_are_looked_for_in_the_days_before(dated):
    """Of a day, or of the night before it."""
    found = conservation.one_sided(dated, [TODAY]).collect()
    assert {row.day for row in found} == {TODAY}
    sides = {
        name: {line["is_initiator"] for line in lines if TEN_TO <= line["at"] < MIDNIGHT + DAY}
        for name, (lines, _) in NIGHTS.items()
    }
    expected = sorted(name for name, found in sides.items() if len(found) == 1)
    assert sorted(row.conversation_id for row in found) == expected


@pytest.mark.rule("BI-L6")
def test_one_hot_dialog_is_one_row_before_anything_is_shuffled(rows):
    """Its lines are summed up where they are read, so that none has to hold them all."""
    lines = [dialog(seq=seq, at=NOON + seq, sent=seq, received=0, **OPEN) for seq in range(3000)]
    conversations = conservation.dialogs(rows(*lines))
    (found,) = conversations.collect()
    assert found.initiator.sent == 2999
    plan = conversations._jdf.queryExecution().executedPlan().toString()
    assert "partial_max" in plan.split("Exchange")[-1], "nearest to where the lines are read"
