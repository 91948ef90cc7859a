import hashlib
import json
import re
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs import footers
from spark_jobs.report import build as making
from spark_jobs.report import main as report
from spark_jobs.report import session
from tests.spark.month import NEVER, Month, cut_off
from tests.spark.segments import demo_run, interval, write

HOSTILE = '<script>alert("1")</script>\u202e=cmd'


def spoiled(boots):
    """Plant a lost message, a dialog without its other side, and a gap."""
    west = boots["west", 1].lines
    ended = [line for line in west if line["kind"] == "dialog"]
    ended[0]["received"] -= 1
    west.remove(ended[1])


def files_of(output):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in output.iterdir()
        if path.name != report.LOG
    }


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory):
    """The report of a small run with planted faults: (its directory, its verdict, its input)."""
    base = tmp_path_factory.mktemp("report")
    source, output = base / "in", base / "out"
    demo_run(source, seconds=8, dialogs=20, orders=200, spoil=spoiled)
    first = min((source / "east").iterdir())
    (source / "again.jsonl").write_bytes(first.read_bytes())
    write(source, "zz", [b'{"v":1,"kind', {"v": 2}, interval(boot_id="h", queue=HOSTILE)])
    output.mkdir()
    verdict = making.build(spark, source, output, lambda _: None)
    return output, verdict, source


@pytest.mark.rule("REL-31")
def test_planted_faults_are_named_and_nothing_else(made):
    output, verdict, _ = made
    assert verdict.status == 2
    found = json.loads((output / "summary.json").read_text())
    assert found["sentence"] == "1 message is unaccounted for."
    assert [point["status"] for point in found["points"]] == ["act", *["look"] * 5, "fine"]
    totals = {name: count for name, count in found["totals"].items() if count}
    assert totals == {"sent": 390, "received": 389, "unaccounted": 1, "elsewhere": 20}
    assert found["findings"][0]["finding"] == "lost"
    missing = {boot["boot_id"][0]: boot["missing"] for boot in found["coverage"]["boots"]}
    assert missing == {"a": 0, "b": 0, "c": 1, "h": 0}
    assert {part["fault"] for part in found["coverage"]["set_aside"]} == {"corrupt", "version"}


def test_every_start_is_drawn_and_one_after_a_crash_is_told_apart(made):
    page = (made[0] / making.PAGE).read_text()
    pair, *_ = re.findall(
        r'<figure [^>]*aria-label="Throughput: shop .*?</figure>', page, re.DOTALL
    )
    assert re.findall(r"<title>(.*?), 2026", pair) == [
        "east stopped",
        "west stopped",
        "east started",
        "west started after a crash",
        "west started",
        "west started after a crash",
    ]
    assert 'class="sign-crash"' in pair
    (east,) = re.findall(
        r'<figure [^>]*aria-label="Throughput: replies".*?</figure>', page, re.DOTALL
    )
    assert "<title>east started" in east
    assert "crash" not in east
    assert page.count("<small>started after a crash</small>") == 2


@pytest.mark.rule("BI-L1")
def test_the_place_of_each_line_set_aside_is_named(made):
    found = json.loads((made[0] / "summary.json").read_text())["coverage"]["places"]
    assert [(place["file"], place["line"], place["offset"], place["fault"]) for place in found] == [
        ("zz.jsonl", 1, 0, "corrupt"),
        ("zz.jsonl", 2, 13, "version"),
    ]
    page = (made[0] / making.PAGE).read_text()
    assert "Where they stand" in page
    assert '<th scope="row">zz.jsonl</th><td class="n">2</td><td class="n">13</td>' in page


@pytest.mark.rule("BI-L3")
def test_a_segment_read_twice_changes_no_figure(made):
    found = json.loads((made[0] / "summary.json").read_text())
    east = next(boot for boot in found["coverage"]["boots"] if boot["instance"] == "east")
    assert east["repeated"] > 0
    assert east["lines"] == 2 * east["repeated"]


@pytest.mark.rule("BI-L4")
def test_names_cannot_act_as_markup(made):
    page = (made[0] / making.PAGE).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page


def test_the_page_asks_nobody_for_anything(made):
    page = (made[0] / making.PAGE).read_text()
    assert not re.findall(r"(?:src|href)=[\"'](?!#)|@import|url\((?!#)", page)
    assert "default-src 'none'" in page


def test_the_same_input_gives_the_same_bytes(made, spark, tmp_path):
    output, _, source = made
    making.build(spark, source, tmp_path, lambda _: None)
    assert files_of(tmp_path) == files_of(output)
    for path in output.glob("*.parquet"):
        raw = path.read_bytes()
        assert footers.in_order(raw) == raw, "of another Java as well"
    assert set(files_of(output)) == {
        "boots.csv",
        "conservation.csv",
        "failures.csv",
        "findings.csv",
        "groups.csv",
        "held.csv",
        "latency.csv",
        "moves.csv",
        "points.csv",
        "conservation.parquet",
        "findings.parquet",
        "latency.parquet",
        "throughput.parquet",
        "report.html",
        "summary.json",
    }


@pytest.mark.rule("BI-L5")
def test_without_input_the_reason_is_said_and_the_earlier_report_stays(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / making.PAGE).write_text("earlier")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl.open").write_text("{}\n")
    for source in ("in", "nowhere"):
        arguments = ["--input", str(tmp_path / source), "--output", str(tmp_path / "out")]
        assert report.main(arguments) == 2
        assert f"{source}" in capsys.readouterr().err
    assert files_of(tmp_path / "out") == {making.PAGE: hashlib.sha256(b"earlier").hexdigest()}


@pytest.mark.rule("BI-L5")
def test_days_of_which_nothing_has_landed_are_said_at_once(tmp_path, capsys):
    """Before Spark starts, with what there is; days in the lake are there, landed or not."""
    (tmp_path / "in" / "2026-10-08").mkdir(parents=True)
    arguments = ["--landing", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert report.main([*arguments, "--date", "2026-10-09", "--to", "2026-11-01"]) == 2
    said = capsys.readouterr()
    assert "nothing of 2026-10-09 to 2026-11-01 has landed" in said.err
    assert "the newest day there is 2026-10-08" in said.err
    assert said.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--date", "2026-10-32"], "2026-10-32 is no day"),
        (["--date", "2026-10-08", "--to", "last"], "last is no day"),
        (["--date", "2026-10-08", "--to", "2026-10-07"], "--to 2026-10-07 is before --date"),
        (["--day", "2026-10-08"], "--day"),
        (["--keep-days", "34"], "--keep-days is at least 35"),
        (["--publish", "/srv/www"], "--publish /srv/www is no URL"),
        (["--output", "s3://bucket/reports"], "s3://bucket/reports is a URL"),
    ],
)
@pytest.mark.rule("BI-L30")
def test_wrong_arguments_are_no_verdict(tmp_path, capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        report.main(["--landing", str(tmp_path), "--output", str(tmp_path / "out"), *words])
    assert ended.value.code == 64
    assert said in capsys.readouterr().err


@pytest.mark.rule("BI-L5")
def test_two_runs_at_once_are_refused(tmp_path, capsys):
    (tmp_path / "in" / "2026-10-08").mkdir(parents=True)
    arguments = ["--landing", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    (tmp_path / "out").mkdir()
    with report._alone(tmp_path / "out"):
        assert report.main(arguments) == 2
    assert f"another run is making reports in {tmp_path / 'out'}" in capsys.readouterr().err


def test_what_a_killed_run_has_sorted_goes_with_the_next(tmp_path):
    (tmp_path / ".spark-killed" / "local" / "blockmgr").mkdir(parents=True)
    with report._scratch(tmp_path) as scratch:
        assert [path.name for path in tmp_path.iterdir()] == [scratch.name]
        (scratch / "local").mkdir()
    assert list(tmp_path.iterdir()) == []


def test_of_what_spark_raises_the_cause_is_said_in_a_line(spark, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Exception) as raised:  # noqa: PT011  # Spark's own, of several classes
        spark.range(1).write.parquet(f"file:{tmp_path}/file/below")
    reason = session.reason_of(raised.value)
    assert str(tmp_path / "file") in reason
    assert "\n" not in reason
    assert len(str(raised.value).splitlines()) > 20
    assert session.reason_of(ValueError("first\nsecond")) == "first"
    assert session.reason_of(ValueError()) == "ValueError"


@pytest.mark.parametrize(("number", "word"), [(9, "was killed"), (15, "status -15")])
def test_how_java_ended_is_said(spark, number, word):
    """What a call of it raises is that nobody listens."""
    assert session.death_of(spark) == ""
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(number)
    dead: Any = SimpleNamespace(_gateway=SimpleNamespace(proc=process))
    assert word in session.death_of(SimpleNamespace(sparkContext=dead))  # type: ignore[arg-type]


@pytest.mark.rule("BI-L5")
def test_an_output_that_cannot_be_written_is_said(tmp_path, capsys):
    write(tmp_path / "in", "a", [interval()])
    (tmp_path / "out").write_text("a file is in the way")
    arguments = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert report.main(arguments) == 2
    assert "no report was made" in capsys.readouterr().err


@pytest.mark.rule("BI-L5")
def test_when_no_line_can_be_used_the_earlier_report_stays(spark, tmp_path):
    write(tmp_path / "in", "a", [b"rubbish", b"more"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / making.PAGE).write_text("earlier")
    with pytest.raises(making.NoReportError, match="none of the 2 lines"):
        making.build(spark, tmp_path / "in", tmp_path / "out", lambda _: None)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [making.PAGE]


@pytest.mark.rule("BI-L27")
def test_a_segment_that_cannot_be_unpacked_is_left_out_and_named(spark, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    Month(source, when=NEVER).write([0])
    (torn,) = source.glob("*/east-*.jsonl.gz")
    cut_off(torn)
    output.mkdir()
    said: list[str] = []
    verdict = making.build(spark, source, output, said.append)
    assert f"1 segment was set aside whole: {torn.name} (truncated)." in {
        point.text for point in verdict.points
    }
    assert "1 segments cannot be unpacked to their end and are left out" in said
    (boot,) = json.loads((output / "summary.json").read_text())["coverage"]["boots"]
    assert boot["instance"] == "west"
    for path in source.glob("*/west-*.jsonl.gz"):
        cut_off(path)
    with pytest.raises(making.NoReportError, match="none of the segments can be unpacked"):
        making.build(spark, source, output, said.append)
