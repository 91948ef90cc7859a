import json

import pytest

from spark_jobs import read
from tests.spark.segments import dialog, interval, mark, write


def _raw(**given):
    """A line with values that are no JSON, or without a field."""
    fields = {name: json.dumps(value) for name, value in interval().items()} | given
    told = (f'"{name}":{value}' for name, value in fields.items() if value is not None)
    return f"{{{','.join(told)}}}".encode()


WRONG = {
    "torn": (b'{"v":1,"kind":"interv', "corrupt"),
    "nothing but NUL": (b"\x00\x00\x00", "corrupt"),
    "not UTF-8": (b"\xff\xfe{", "corrupt"),
    "no object": (b"null", "corrupt"),
    "next version": (interval(v=2), "version"),
    "next version in another shape": ({"v": 2, "kind": ["new"], "counters": "x"}, "version"),
    "number as text": (interval(seq="1"), "corrupt"),
    "huge number": (interval(seq=10**30), "corrupt"),
    "no number": (_raw(seq="NaN"), "corrupt"),
    "no number as a gauge": (_raw(gauges='{"ready": NaN}'), "corrupt"),
    "Infinity as a counter": (_raw(counters='{"received": Infinity}'), "corrupt"),
    "UTF-16, which the parser knows": (json.dumps(interval()).encode("utf-16-be"), None),
    "renamed field": (_raw(boot_id=None, boot='"b0"'), "incomplete"),
    "no boot": (interval(boot_id=None), "incomplete"),
    "no queue": (interval(queue=None), "incomplete"),
    "half a pair": (interval(scope="pair", from_service="a"), "incomplete"),
    "dialog without a count": (dialog(sent=None), "incomplete"),
    "mark without a word": (mark(what=None), "incomplete"),
    "unknown kind": (mark(kind="surprise"), "incomplete"),
    "time of 1970": (mark(at=5), "time"),
    "negative counter": (interval(counters={"enqueued": 3, "received": -1}), "negative"),
    "negative count of a bucket": (interval(histograms={"wait_us": {"7": -1}}), "negative"),
    "negative count of a group": (interval(groups={"a": -1}), "negative"),
    "negative count of a dialog": (dialog(received=-1), "negative"),
    "negative gauge": (interval(gauges={"clock_ahead_s": -1.5}), None),
    "more fields": (interval(more="fields"), None),
    "scope of a later day": (interval(scope="planet"), None),
    "as it should be": (interval(), None),
}


@pytest.fixture(scope="module")
def faults(spark, tmp_path_factory):
    """The fault found in each of the lines above, read as one segment."""
    directory = tmp_path_factory.mktemp("wrong")
    write(directory, "west-b0-0000000001", [line for line, _ in WRONG.values()])
    found = read.read_lines(spark, directory).collect()
    return dict(zip(WRONG, (row.fault for row in found), strict=True))


@pytest.mark.rule("BI-L1", "BI-L2", "BI-L21")
@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_of_the_schema_is_set_aside_by_name_and_the_rest_is_used(faults, name):
    assert faults[name] == WRONG[name][1]


@pytest.mark.rule("BI-L1")
def test_half_a_line_without_an_end_is_set_aside(spark, tmp_path):
    path = write(tmp_path, "a", [interval()])
    path.write_bytes(path.read_bytes() + b'{"v":1,"kind":"mark","wh')
    assert [row.fault for row in read.read_lines(spark, tmp_path).collect()] == [None, "corrupt"]


@pytest.mark.rule("BI-L2")
def test_values_survive_reading(spark, tmp_path):
    write(tmp_path, "a", [interval(counters={"enqueued": 3}, histograms={"wait_us": {"7": 2}})])
    (row,) = read.usable(read.read_lines(spark, tmp_path)).collect()
    assert (row.counters, row.histograms) == ({"enqueued": 3}, {"wait_us": {"7": 2}})
    assert (row.file, row.at - row.from_at) == ("a.jsonl", 1_000_000)


def test_only_sealed_segments_are_read_wherever_they_lie(spark, tmp_path):
    source = tmp_path / "with [odd] {name}"
    write(source / "east", "a", [mark()])
    write(source, "b", [mark(), mark(seq=2)])
    (source / "c.jsonl.open").write_bytes(b"{}\n")
    write(source / ".hidden", "d", [mark()])
    assert [path.name for path in read.sealed_segments(source)] == ["b.jsonl", "a.jsonl"]
    assert read.read_lines(spark, source).count() == 3


@pytest.mark.rule("BI-L3")
def test_an_interval_that_ends_before_it_begins_takes_no_time(spark, tmp_path):
    write(tmp_path, "a", [interval(from_at=interval()["at"] + 1)])
    (row,) = read.usable(read.read_lines(spark, tmp_path)).collect()
    assert row.from_at == row.at


@pytest.mark.rule("BI-L1")
def test_a_line_without_end_is_one_bad_line(spark, tmp_path):
    """24 MiB, beyond what the parser takes for a text; in quotes, so that it has to be read."""
    endless = b'{"v":1,"kind":"' + b"x" * (24 << 20) + b'"}'
    write(tmp_path, "a", [mark(), endless, mark(seq=2)])
    lines = read.read_lines(spark, tmp_path).select("seq", "fault", "row")
    assert sorted((row.fault or "", row.seq) for row in lines.collect())[:2] == [("", 1), ("", 2)]
