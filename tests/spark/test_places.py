import gzip

import pytest

from spark_jobs import places
from spark_jobs.read import read_lines
from tests.spark.segments import interval, mark, write
from tests.spark.test_read import WRONG


def located(spark, directory, *paths, limit=100):
    bad = places.numbered(read_lines(spark, directory).cache(), limit).collect()
    by_name = {("", path.name): path for path in paths}
    return places.locate((places.Bad(**row.asDict()) for row in bad), by_name)


@pytest.mark.rule("BI-L1")
@pytest.mark.parametrize("is_packed", [True, False])
def test_each_line_set_aside_is_found_again(spark, tmp_path, is_packed):
    path = write(tmp_path, "a", [b"", *(line for line, _ in WRONG.values()), mark()])
    raw = path.read_bytes()
    if is_packed:
        path.unlink()
        path = path.with_suffix(".jsonl.gz")
        path.write_bytes(gzip.compress(raw))
    found = located(spark, tmp_path, path)
    expected = [
        (line, fault) for line, (_, fault) in enumerate(WRONG.values(), 2) if fault is not None
    ]
    assert [(place.line, place.fault) for place in found] == expected
    for place in found:
        assert raw[: place.offset].count(b"\n") == place.line - 1
        assert raw[place.offset - 1 :].startswith(b"\n")


def test_blank_lines_count_and_a_long_line_is_read_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "LONGEST", 8)
    path = write(tmp_path, "a", [b"", b"x" * 20, b"one\rtwo\r", b"last"])
    with places.open_segment(path) as opened:
        assert list(places._seen(opened)) == [
            (2, 1, b"x" * 8),
            (3, 22, b"one"),
            (3, 26, b"two"),
            (4, 31, b"last"),
        ]


def test_no_more_are_looked_up_than_the_limit_allows(spark, tmp_path):
    paths = [
        write(tmp_path, "a", [b"bad", mark()]),
        write(tmp_path, "b", [interval(), *[b"bad"] * 5]),
    ]
    found = located(spark, tmp_path, *paths, limit=3)
    assert [(place.file, place.line) for place in found] == [
        ("a.jsonl", 1),
        ("b.jsonl", 2),
        ("b.jsonl", 3),
    ]


def test_a_line_that_is_not_where_it_was_counted_has_no_place(tmp_path):
    path = write(tmp_path, "a", [b"one", b"two"])
    bad = [places.Bad("", "a.jsonl", 1, "corrupt", "three"), places.Bad("", "b", 0, "time", None)]
    found = places.locate(bad, {("", "a.jsonl"): path})
    assert [(place.line, place.offset, place.sample) for place in found] == [
        (None, None, "three"),
        (None, None, ""),
    ]
