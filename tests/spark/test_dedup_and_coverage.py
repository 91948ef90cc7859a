from dataclasses import replace
from typing import Any

import pytest

from spark_jobs import coverage
from spark_jobs.dedup import distinct_lines, repeated_lines
from spark_jobs.read import read_lines
from tests.spark.segments import NOON, SECOND, dialog, interval, mark, write


def boots(good):
    """The boots of usable lines, those that were read twice among them."""
    found = coverage.stretches(distinct_lines(good), repeated_lines(good)).collect()
    return coverage.boots(coverage.Stretch(**row.asDict()) for row in found)


@pytest.mark.rule("BI-L3")
def test_a_line_read_twice_counts_once(rows):
    lines = [interval(), interval(file="copy"), interval(seq=2), interval(boot_id="b1")]
    kept = distinct_lines(rows(*lines)).orderBy("boot_id", "seq").collect()
    assert [(row.boot_id, row.seq, row.file) for row in kept] == [
        ("b0", 1, "copy.jsonl"),
        ("b0", 2, "one.jsonl"),
        ("b1", 1, "one.jsonl"),
    ]


@pytest.mark.rule("BI-L3")
def test_gaps_repeats_and_a_clock_going_back_are_found_per_boot(rows):
    numbers = [(4, 0), (5, 1), (5, 1), (9, 2), (10, -3600)]
    lines = [mark(seq=seq, at=NOON + at * SECOND) for seq, at in numbers]
    parts = [line | {"file": f"part {min(line['seq'], 9)}"} for line in lines]
    east, west = boots(rows(*parts, interval(seq=7)))
    assert (east.lines, east.repeated, east.missing, east.spoilt) == (5, 1, 3, 0)
    assert east.backwards == 1
    assert [(gap.first_seq, gap.last_seq, gap.after_at) for gap in east.gaps] == [
        (6, 8, NOON + SECOND)
    ]
    assert (west.first_seq, west.last_seq, west.missing, west.gaps) == (7, 7, 0, ())
    assert (west.first_at, west.last_at, west.interval_us) == (NOON, NOON + SECOND, SECOND)


@pytest.mark.rule("BI-L1")
def test_faults_are_counted_by_segment_with_the_beginning_of_a_line(spark, tmp_path):
    write(tmp_path, "a", [mark()])
    write(tmp_path, "b", [b"z" * 500, b"y" * 500, mark()])
    found = coverage.files(read_lines(spark, tmp_path).cache()).collect()
    assert [tuple(row) for row in found] == [
        ("", "a.jsonl", None, 1, None),
        ("", "b.jsonl", None, 1, None),
        ("", "b.jsonl", "corrupt", 2, "y" * 120),
    ]


def test_marks_come_in_order_of_time(rows):
    lines = rows(mark(at=NOON + 1, what="stopped"), mark(at=NOON), interval())
    assert [row.what for row in coverage.marks(lines).collect()] == ["started", "stopped"]


def boot(instance, boot_id, second, *words):
    """The marks of one boot, a second apart; without words it is a line of another kind."""
    same = {"instance": instance, "boot_id": boot_id}
    if not words:
        return [interval(at=NOON + (second + 1) * SECOND, from_at=NOON + second * SECOND, **same)]
    return [
        mark(seq=seq, at=NOON + (second + seq) * SECOND, what=word, **same)
        for seq, word in enumerate(words)
    ]


def test_a_boot_knows_whether_the_one_before_it_was_stopped_in_order(rows):
    lines = rows(
        *boot("east", "stopped", 0, "started", "stopped"),
        *boot("east", "killed", 10, "started"),
        *boot("east", "recovers", 20, "recovered", "started", "stopped"),
        *boot("east", "last", 30, "recovered", "started"),
        *boot("west", "left a segment", 0, "recovered", "started"),
        *boot("north", "begins before the logs", 0),
        *boot("north", "no start line", 10),
    )
    found = {row.boot_id: row for row in boots(lines)}
    assert {name for name, row in found.items() if row.after_crash} == {
        "recovers",
        "left a segment",
        "no start line",
    }
    starts = {name: row.started_at for name, row in found.items() if row.started_at is not None}
    assert (len(starts), starts["recovers"]) == (5, NOON + 20 * SECOND)


def test_a_boot_of_dialog_lines_alone_is_covered(rows):
    lines = [dialog(boot_id="short", seq=seq, at=NOON + seq) for seq in (1, 2)]
    short, usual = boots(rows(*lines, interval()))
    assert (short.boot_id, short.lines, short.intervals, short.interval_us) == ("short", 2, 0, 0)
    assert (short.first_at, short.last_at, usual.intervals) == (NOON + 1, NOON + 2, 1)


@pytest.mark.rule("BI-L3")
def test_a_number_missing_within_a_segment_is_spoilt_and_no_gap(rows):
    good = rows(*(mark(seq=seq, at=NOON + seq) for seq in (1, 2, 5)))
    found = [coverage.Stretch(**row.asDict()) for row in coverage.stretches(good).collect()]
    for set_aside, expected in ((0, (2, 0)), (1, (1, 1)), (9, (0, 2))):
        (boot,) = coverage.boots(found, set_aside={"one.jsonl": set_aside})
        assert (boot.missing, boot.spoilt) == expected
        assert boot.gaps == ()


def stretch(first, last, at, boot_id="a"):
    values: dict[str, Any] = {"date": "", "file": str(first), "instance": "east"}
    values |= {"boot_id": boot_id}
    values |= {"lines": last - first + 1, "repeated": 0, "first_seq": first, "last_seq": last}
    values |= dict.fromkeys(("first_at", "last_at", "began_at", "most_at"), at)
    values |= {"backwards": 0, "intervals": 0, "interval_us": 0, "started_at": None}
    return coverage.Stretch(**values, recovered=False, stopped=False)


@pytest.mark.rule("BI-L3")
def test_a_boot_goes_on_from_the_day_before():
    (alone,) = coverage.boots([stretch(10, 19, NOON)])
    assert alone.missing == 0
    (boot,) = coverage.boots([stretch(10, 19, NOON)], {("east", "a"): stretch(0, 4, NOON - SECOND)})
    assert boot.missing == 5
    assert boot.gaps == (coverage.Gap(5, 9, NOON - SECOND, NOON),)


@pytest.mark.rule("BI-L3")
def test_the_first_lines_of_a_boot_are_missed_where_the_boot_before_it_is_known():
    """The logs may begin in the middle of the first boot, but not of the second."""
    late = stretch(10, 19, NOON, "late")
    gap = coverage.Gap(0, 9, NOON - SECOND, NOON)
    earlier = stretch(7, 9, NOON - SECOND, "early")
    first, second = coverage.boots([late, earlier])
    assert (first.boot_id, first.missing, first.gaps) == ("early", 0, ())
    assert (second.boot_id, second.missing, second.gaps) == ("late", 10, (gap,))
    (boot,) = coverage.boots([late], {("east", "early"): earlier})
    assert (boot.missing, boot.gaps) == (10, (gap,))
    (spoilt,) = coverage.boots([late], {("east", "early"): earlier}, {late.file: 10})
    assert (spoilt.missing, spoilt.gaps) == (0, ())


@pytest.mark.rule("BI-L3")
def test_a_clock_that_went_back_where_a_segment_begins_went_back_once(rows):
    """The times of the two segments show it, and an interval of the second does."""
    back = NOON - 7200 * SECOND
    lines = [
        interval(file="1", seq=1),
        interval(file="2", seq=2, from_at=NOON + SECOND, at=back),
        interval(file="2", seq=3, from_at=back, at=back + SECOND),
    ]
    (boot,) = boots(rows(*lines))
    assert boot.backwards == 1


@pytest.mark.rule("BI-L23")
def test_a_boot_id_that_is_used_twice_is_noticed_and_no_line_is_dropped(rows):
    """As of a machine that was set back: the numbers begin again at a later time."""
    first = [interval(seq=number, file="one") for number in range(3)]
    later = {"at": NOON + 9 * SECOND, "from_at": NOON + 8 * SECOND}
    second = [interval(seq=number, file="two", **later) for number in range(3)]
    lines = rows(*first, *second)
    assert distinct_lines(lines).count() == 6
    (boot,) = boots(distinct_lines(lines))
    assert (boot.lines, boot.is_reused) == (6, True)
    (once,) = boots(distinct_lines(rows(*first, *(line | {"file": "two"} for line in first))))
    assert (once.lines, once.is_reused) == (3, False)


@pytest.mark.rule("BI-L23")
def test_a_boot_that_starts_again_on_a_later_day_is_noticed():
    before = {("east", "a"): stretch(0, 99, NOON)}
    (boot,) = coverage.boots([replace(stretch(0, 9, 2 * NOON), started_at=2 * NOON)], before)
    assert boot.is_reused
    (boot,) = coverage.boots([stretch(100, 109, 2 * NOON)], before)
    assert not boot.is_reused
