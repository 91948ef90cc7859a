import pytest

from spark_jobs import coverage
from spark_jobs.dedup import distinct_lines
from spark_jobs.read import read_lines
from tests.spark.segments import NOON, SECOND, interval, mark, write


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
    east, west = coverage.boots(rows(*lines, interval(seq=7))).collect()
    assert (east.lines, east.repeated, east.missing, east.backwards) == (5, 1, 3, 1)
    assert [tuple(gap) for gap in east.gaps] == [(6, 8, NOON + SECOND)]
    assert (west.first_seq, west.last_seq, west.missing, west.gaps) == (7, 7, 0, [])
    assert (west.first_at, west.last_at, west.interval_us) == (NOON, NOON + SECOND, SECOND)


@pytest.mark.rule("BI-L1")
def test_faults_are_counted_by_segment_with_the_beginning_of_a_line(spark, tmp_path):
    write(tmp_path, "a", [mark()])
    write(tmp_path, "b", [b"z" * 500, b"y" * 500, mark()])
    found = coverage.files(read_lines(spark, tmp_path).cache()).collect()
    assert [tuple(row) for row in found] == [
        ("a.jsonl", None, 1, None),
        ("b.jsonl", None, 1, None),
        ("b.jsonl", "corrupt", 2, "y" * 120),
    ]


def test_marks_come_in_order_of_time(rows):
    lines = rows(mark(at=NOON + 1, what="stopped"), mark(at=NOON), interval())
    assert [row.what for row in coverage.marks(lines).collect()] == ["started", "stopped"]
