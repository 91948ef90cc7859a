import pytest

from spark_jobs import places
from spark_jobs.read import read_lines
from spark_jobs.report import main as report
from spark_jobs.report.data import Segment
from tests.spark.segments import interval, mark, write
from tests.spark.test_read import WRONG


def test_the_second_reading_sets_aside_what_the_first_did(spark, tmp_path):
    path = write(tmp_path / "deep", "a", [line for line, _ in WRONG.values()])
    first = [row.fault for row in read_lines(spark, tmp_path).collect()]
    (batch,) = places.batches(tmp_path, {path.name})
    found = places.places(spark.createDataFrame(batch, places.RAW)).collect()
    expected = [(line, fault) for line, fault in enumerate(first, 1) if fault]
    assert [(row.line, row.fault) for row in found] == expected
    raw = path.read_bytes()
    assert {row.file for row in found} == {"deep/a.jsonl"}
    for row in found:
        assert raw[: row.offset].count(b"\n") == row.line - 1
        assert row.offset == 0 or raw[row.offset - 1 :].startswith(b"\n")


def test_blank_lines_count_and_a_long_line_is_read_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "LONGEST", 8)
    write(tmp_path, "a", [b"", b"x" * 20, b"one\rtwo\r", b"last"])
    ((*found,),) = places.batches(tmp_path, {"a.jsonl"})
    assert [(raw.line, raw.offset, raw.text) for raw in found] == [
        (2, 1, "x" * 8),
        (3, 22, "one"),
        (3, 26, "two"),
        (4, 31, "last"),
    ]


@pytest.mark.parametrize("batch_bytes", [1, 10_000])
def test_no_more_is_read_and_listed_than_the_bounds_allow(
    spark, tmp_path, monkeypatch, batch_bytes
):
    monkeypatch.setattr(places, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(report, "PLACES_LISTED", 3)
    write(tmp_path, "a", [b"bad", mark()])
    write(tmp_path, "b", [interval(), *[b"bad"] * 5])
    segments = [Segment(f"{name}.jsonl", "corrupt", 1, None) for name in "ab"]
    found = report._places(spark, tmp_path, segments)
    assert [(place.file, place.line) for place in found] == [
        ("a.jsonl", 1),
        ("b.jsonl", 2),
        ("b.jsonl", 3),
    ]
    monkeypatch.setattr(places, "READ_AGAIN_BYTES", 3)
    assert [place.file for place in report._places(spark, tmp_path, segments)] == ["a.jsonl"]
