"""`brokerd report query`: answers about the lake that the job has made, in this process."""

import csv
import io
import json
import shutil
import sys

import duckdb
import pandas
import pyarrow
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from brokerd.cli.main import main
from brokerd.reports.query import LakeUnreadable, QueryFailed, ask, tables
from brokerd.reports.questions import QUESTIONS
from spark_jobs import lake_tables
from spark_jobs.lake import Lake
from tests.spark.month import FEW, HOT, day_of, lost

STORM, LOSING = day_of(FEW["storm"]), day_of(FEW["lost"])
LOST = lost(FEW["lost"])

ANSWERS = {
    "busiest-queues": "SELECT queue FROM answer WHERE received > 1000",
    "slowest-queues": "SELECT queue FROM answer WHERE p50_ms <= p95_ms AND p95_ms <= p99_ms",
    "slowest-hours": "SELECT queue FROM answer WHERE p95_ms > 0",
    "failures": "SELECT 1 FROM answer WHERE subclass = 'retry_scheduled' AND times = 240",
    "one-sided-dialogs": f"SELECT 1 FROM answer WHERE conversation_id = '{LOST}'",
    "dialog": "SELECT 1 FROM answer WHERE sent > 0",
    "largest-groups": f"SELECT 1 FROM answer WHERE \"group\" = '{HOT}'",
    "longest-locks": f"SELECT 1 FROM answer WHERE \"group\" = '{HOT}' AND seconds > 1",
    "readers": "SELECT queue FROM answer WHERE at_ceiling_percent BETWEEN 0 AND 100",
    "stores": "SELECT 1 FROM answer WHERE store_mb > 0",
    "days": f"SELECT 1 FROM answer WHERE date = '{STORM}' AND segments > 1 AND lines > 100",
}
"""For each question a SELECT that has rows if the answer is right."""


@pytest.mark.rule("BI-L35")
@pytest.mark.parametrize("name", ANSWERS)
def test_each_ready_question_is_answered(month, capsys, name):
    needs = [f"{key}={LOST}" for key in QUESTIONS[name].needs]
    assert main(["report", "query", str(month.root), name, *needs, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    answer = pandas.DataFrame(rows)
    duckdb.register("answer", answer)
    assert duckdb.execute(ANSWERS[name]).fetchall(), answer


@pytest.mark.rule("BI-L35")
def test_days_limit_what_is_read(month):
    def days(**limits):
        return [row[0] for row in ask(month.root, QUESTIONS["days"].sql, **limits).rows]

    every = days()
    assert len(every) == 5
    assert days(first=STORM, last=STORM) == [STORM]
    assert days(first=STORM) == every[every.index(STORM) :]


@pytest.mark.rule("BI-L35")
def test_what_a_query_sees_is_what_the_log_of_each_table_has(month):
    for name in lake_tables.TABLES:
        ((count,),) = ask(month.root, f"SELECT count(*) FROM {name}").rows
        assert count == DeltaTable(month.root / "lake" / name).count(), name


@pytest.mark.rule("BI-L31")
def test_the_lake_says_what_its_columns_mean(month, capsys):
    found = tables(month.root)
    assert {*found} == {*lake_tables.TABLES}
    assert main(["report", "query", str(month.root), "--tables"]) == 0
    printed = [one.split() for one in capsys.readouterr().out.splitlines()]
    (line,) = (" ".join(one) for one in printed if one[:2] == ["held", "seen_at"])
    assert "when the lock was last seen" in line


@pytest.fixture
def reports(tmp_path):
    """Reports whose lake has one day without a single row."""
    lake = Lake(tmp_path / "reports" / "lake")
    lake.publish("2026-11-18", {"generation": "a"}, [])
    lake.clean()
    return tmp_path / "reports"


@pytest.mark.rule("BI-L35")
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_lake_without_rows_answers_with_none(reports, name):
    assert ask(reports, QUESTIONS[name].sql, given=dict(QUESTIONS[name].needs)).rows == []


@pytest.mark.rule("BI-L35")
def test_changes_are_answered_with_times(reports, capsys):
    lake = Lake(reports / "lake")
    lake.staging.mkdir()
    rows = [{"at": 1_790_000_000_000_000, "instance": "west", "what": "started", "about": ""}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), lake.staging / "part.parquet")
    lake.publish("2026-11-18", {"generation": "b"}, [("changes", lake.staging)])
    lake.clean()
    assert {*QUESTIONS} - {*ANSWERS} == {"changes"}, "the other questions are asked above"
    assert main(["report", "query", str(reports), "changes"]) == 0
    assert "2026-09-21 14:13:20  west      started" in capsys.readouterr().out


@pytest.mark.rule("BI-L36")
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nothing FROM lines", "nothing"),
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELECT $day", "day"),
        ("SELECT 1; SELECT 2", "one SELECT"),
        ("COPY (SELECT 1) TO 'out.csv'", "one SELECT"),
        ("ATTACH 'other.db'", "one SELECT"),
        ("DROP VIEW lines", "one SELECT"),
        ("SET memory_limit = '1GB'", "one SELECT"),
        ("SELECT * FROM read_text('/etc/hostname')", "Cannot access file"),
    ],
)
def test_sql_that_is_wrong_or_does_more_than_read_is_refused(
    reports, monkeypatch, capsys, sql, said
):
    tmp_path = reports.parent
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.chdir(tmp_path)
    assert main(["report", "query", str(reports), sql]) == 64
    assert said in capsys.readouterr().err
    with pytest.raises(QueryFailed):
        ask(reports, sql)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.rule("BI-L36")
def test_where_there_is_no_lake_or_it_is_damaged_that_is_said(reports, tmp_path, capsys):
    assert main(["report", "query", str(tmp_path), "days"]) == 74
    assert f"there is no lake in {tmp_path}" in capsys.readouterr().err
    (reports / "lake" / "current" / "2026-11-18.json").write_text("{")
    with pytest.raises(LakeUnreadable, match=r"2026-11-18\.json cannot be read"):
        ask(reports, "SELECT 1")
    (reports / "lake" / "tables.json").unlink()
    with pytest.raises(LakeUnreadable, match="as in older versions"):
        ask(reports, "SELECT 1")
    shutil.rmtree(reports / "lake" / "current")
    with pytest.raises(LakeUnreadable, match="there is no lake"):
        ask(reports, "SELECT 1")


@pytest.mark.rule("BI-L36")
def test_without_the_package_it_is_named(reports, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert main(["report", "query", str(reports), "days"]) == 69
    assert "brokerd[lake]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing-known"], "no question named nothing-known"),
        (["dialog"], "the question dialog needs conversation_id=VALUE"),
        (["days", "select"], "select is no NAME=VALUE"),
        (["days", "--csv", "--json"], "choose one"),
        (["days", "--date", "last"], "--date last is for"),
        (["days", "--date", "2026-11-31"], "2026-11-31 is no day"),
    ],
)
def test_wrong_words_of_a_query_are_named(reports, capsys, words, said):
    assert main(["report", "query", str(reports), *words]) == 64
    assert said in capsys.readouterr().err


@pytest.mark.rule("BI-L4")
def test_csv_has_texts_that_no_spreadsheet_runs(reports, capsys):
    sql = "SELECT '=1+1' AS text, 7 AS number, '-' || $name AS given"
    assert main(["report", "query", str(reports), sql, "name=x", "--csv"]) == 0
    rows = [*csv.reader(io.StringIO(capsys.readouterr().out))]
    assert rows == [["text", "number", "given"], ["'=1+1", "7", "'-x"]]


def test_a_long_answer_is_cut_on_the_screen_alone(reports, capsys):
    sql = "SELECT range AS n FROM range(205)"
    assert main(["report", "query", str(reports), sql]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 202
    assert "5 more rows: --json and --csv print them all" in printed.err
    assert main(["report", "query", str(reports), sql, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 205


def test_without_a_question_the_ready_ones_are_listed(reports, capsys):
    assert main(["report", "query", str(reports)]) == 0
    printed = capsys.readouterr().out
    assert all(one.about in printed for one in QUESTIONS.values())
    assert "dialog conversation_id=VALUE" in printed
