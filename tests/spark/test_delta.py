"""Logs of the lake's tables: what other programs read by them, and what a kill leaves.

Only the tests that compare with Spark start it; for the others pyarrow writes the files.
"""

import shutil
import sys
from dataclasses import replace

import duckdb
import pandas
import pyarrow
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql.types import AtomicType, LongType, StructField, StructType

from spark_jobs import daily, delta, lake_tables
from spark_jobs.lake import Lake, LogsNotKeptError
from spark_jobs.report.build import LAKE

COUNTERS = lake_tables.TABLES["counters"]
DAY, NEXT = "2026-11-18", "2026-11-19"


class Killed(Exception):
    """The run ends here."""


def staged(lake, name, *times, instance=None, more=None):
    """A directory with one file of a table, of so many rows."""
    home = lake.staging / name
    home = home if instance is None else home / f"instance={instance}"
    home.mkdir(parents=True)
    rows = {
        "hour_at": [*times],
        **{key: [value] * len(times) for key, value in (more or {}).items()},
    }
    parquet.write_table(pyarrow.table(rows), home / "part-0 of=1.parquet")
    return lake.staging / name


def published(lake, date, generation, *parts):
    lake.publish(date, {"generation": generation}, parts)


def seen(lake, name="counters", column="hour_at"):
    """What DuckDB and pandas see of a table by its log: the same."""
    log = DeltaTable(lake.root / name)
    times = sorted(log.to_pandas(columns=[column])[column].dropna().astype(int))
    files = log.file_uris()
    if not files:
        assert times == []
        return []
    asked = f"SELECT {column} FROM read_parquet(?, union_by_name = true) ORDER BY 1"
    found = [row[0] for row in duckdb.execute(asked, [files]).fetchall()]
    assert [one for one in found if one is not None] == times
    return times


@pytest.mark.rule("BI-L32", "BI-L34")
@pytest.mark.parametrize("name", [one for one in lake_tables.TABLES if one != daily.CHANGES])
def test_duckdb_and_pandas_read_the_rows_that_spark_reads(spark, month, name):
    lake, table = Lake(month.root / LAKE), lake_tables.TABLES[name]
    flat = [one.name for one in table.columns if isinstance(one.dataType, AtomicType)]
    frame = lake.frame(spark, name, lake.dates(), table.columns).select(flat)
    wanted = sorted(repr(tuple(row)) for row in frame.collect())
    log = DeltaTable(lake.root / name)
    columns = ", ".join(f'"{one}"' for one in flat)
    types = ", ".join(f"{one}: VARCHAR" for one in table.by)
    asked = f"SELECT {columns} FROM read_parquet(?, union_by_name = true, hive_types = {{{types}}})"
    files = log.file_uris()
    assert sorted(repr(row) for row in duckdb.execute(asked, [files]).fetchall()) == wanted
    found = log.to_pandas(types_mapper=pandas.ArrowDtype)
    assert [*found.columns] == table.columns.fieldNames()
    rows = found[flat].astype(object).itertuples(index=False, name=None)
    read = (tuple(None if one is pandas.NA else one for one in row) for row in rows)
    assert sorted(map(repr, read)) == wanted
    assert wanted, "there is something to compare"


@pytest.mark.rule("BI-L32")
def test_a_day_is_in_the_log_once_after_it_was_replaced(tmp_path):
    lake = Lake(tmp_path)
    published(lake, DAY, "a", ("counters", staged(lake, "counters", 1, 2)))
    published(lake, NEXT, "b", ("counters", staged(lake, "counters", 3)))
    lake.clean()
    assert seen(lake) == [1, 2, 3]
    published(lake, DAY, "c", ("counters", staged(lake, "counters", 1, 2, 4)))
    lake.clean()
    assert seen(lake) == [1, 2, 3, 4]
    assert [path.name for path in (lake.root / "counters" / f"date={DAY}").iterdir()] == [
        "generation=c"
    ]
    versions = DeltaTable(lake.root / "counters").version()
    lake.clean()
    assert DeltaTable(lake.root / "counters").version() == versions, "there was nothing to follow"


@pytest.mark.rule("BI-L32")
def test_every_table_has_a_log_with_its_columns_even_without_rows(tmp_path):
    lake = Lake(tmp_path)
    published(lake, DAY, "a")
    lake.clean()
    for name, table in lake_tables.TABLES.items():
        log = DeltaTable(lake.root / name)
        assert [field.name for field in log.schema().fields] == table.columns.fieldNames()
        assert log.metadata().partition_columns == [*table.by]
        assert log.file_uris() == []


@pytest.mark.rule("BI-L32", "BI-L5")
def test_a_run_killed_before_any_step_leaves_readers_the_old_day_or_the_new(tmp_path):
    old, new = {"counters": [1, 2], "gauges": [5]}, {"counters": [1, 2, 3], "gauges": [6]}

    def parts(lake, rows):
        return [(name, staged(lake, name, *times)) for name, times in rows.items()]

    def build(root, step):
        lake = Lake(root, step)
        lake.clean()
        if lake.current(DAY) == {"generation": "a"}:
            lake.publish(DAY, {"generation": "b"}, parts(lake, new))
            lake.clean()

    steps: list[str] = []
    for number in range(100):
        root = tmp_path / str(number)
        lake = Lake(root)
        lake.publish(DAY, {"generation": "a"}, parts(lake, old))
        lake.clean()

        def step(name, number=number, taken=[]):  # noqa: B006  # of this call alone
            taken.append(name)
            if len(taken) > number:
                raise Killed

        try:
            build(root, step)
        except Killed:
            pass
        else:
            break
        for name, times in old.items():
            assert seen(lake, name) in (times, new[name]), number
        steps.append(str(number))
        build(root, lambda _: None)
        assert {name: seen(lake, name) for name in new} == new, number
        assert len([*root.glob(f"*/date={DAY}/*")]) == len(new), number
    assert len(steps) == 7, "two tables placed, the day named, two logs, two removals"


@pytest.mark.rule("BI-L32")
def test_a_day_that_is_no_longer_in_the_lake_leaves_the_logs(tmp_path):
    lake = Lake(tmp_path)
    for date, at in ((DAY, 1), (NEXT, 2)):
        published(lake, date, "a", ("counters", staged(lake, "counters", at)))
    lake.clean()
    (lake.root / "current" / f"{DAY}.json").unlink()
    lake.clean()
    assert seen(lake) == [2]
    assert not [*lake.root.glob(f"counters/date={DAY}/*")]


@pytest.mark.rule("BI-L37")
def test_days_before_the_kept_ones_leave_tables_logs_and_records(tmp_path):
    """Also where the run is killed between forgetting a day and removing its files."""

    def die(step):
        if step.startswith(("log", "remove")):
            raise Killed

    lake, dying = Lake(tmp_path), Lake(tmp_path, die)
    for time, date in enumerate(("2026-10-01", "2026-10-02", DAY, NEXT)):
        published(lake, date, "a", ("counters", staged(lake, "counters", time)))
    lake.clean()
    assert lake.forget_before("2026-10-02") == ["2026-10-01"]
    assert seen(lake) == [1, 2, 3]
    with pytest.raises(Killed):
        dying.forget_before(DAY)
    assert seen(lake) == [1, 2, 3], "the files are there until the log has followed"
    lake.clean()
    assert seen(lake) == [2, 3]
    assert lake.dates() == [DAY, NEXT]
    assert {path.name for path in lake.root.glob("*/date=*")} == {f"date={DAY}", f"date={NEXT}"}
    assert lake.forget_before(DAY) == []


@pytest.mark.rule("BI-L32")
@pytest.mark.parametrize("damage", ["cut short", "of another schema"])
def test_a_log_that_cannot_be_followed_is_made_anew(tmp_path, damage):
    lake = Lake(tmp_path)
    published(lake, DAY, "a", ("counters", staged(lake, "counters", 1)))
    home = lake.root / "counters"
    lake.clean()
    if damage == "cut short":
        newest = max((home / delta.LOG).glob("*.json"))
        newest.write_bytes(newest.read_bytes()[:40])
    else:
        other = replace(COUNTERS, columns=StructType([StructField("by", LongType())]))
        shutil.rmtree(home / delta.LOG)
        delta.follow(home, replace(other, by=()), {}, lambda: None)
    lake.clean()
    assert seen(lake) == [1]


@pytest.mark.rule("BI-L31", "BI-L32")
def test_a_column_of_a_new_version_has_no_value_in_days_of_before(tmp_path):
    lake = Lake(tmp_path)
    published(lake, DAY, "a", ("counters", staged(lake, "counters", 1)))
    lake.clean()
    published(lake, NEXT, "b", ("counters", staged(lake, "counters", 2, more={"depth": 7})))
    wider = StructType([*COUNTERS.columns.fields, StructField("depth", LongType())])
    named = {DAY: "generation=a", NEXT: "generation=b"}
    delta.follow(lake.root / "counters", replace(COUNTERS, columns=wider), named, lambda: None)
    assert seen(lake) == [1, 2]
    assert seen(lake, column="depth") == [7]
    found = DeltaTable(lake.root / "counters").to_pandas()
    assert sorted(found["date"]) == [DAY, NEXT]


@pytest.mark.rule("BI-L32")
@pytest.mark.parametrize(
    ("directory", "instance"),
    [("west", "west"), ("we%3Ast%2F%25 é", "we:st/% é"), ("__HIVE_DEFAULT_PARTITION__", None)],
)
def test_names_of_instances_are_in_the_log_as_they_are(tmp_path, directory, instance):
    lake = Lake(tmp_path)
    for time, generation in enumerate(("a", "b")):
        part = ("lines", staged(lake, "lines", time, instance=directory))
        published(lake, DAY, generation, part)
        lake.clean()
    log = DeltaTable(lake.root / "lines")
    assert log.to_pyarrow_table()["instance"].to_pylist() == [instance]
    assert log.count() == 1, "the log says how many rows there are"


@pytest.mark.rule("BI-L33")
def test_without_the_package_a_lake_without_logs_is_plain_parquet(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    lake = Lake(tmp_path)
    published(lake, DAY, "a", ("counters", staged(lake, "counters", 1)))
    published(lake, DAY, "b", ("counters", staged(lake, "counters", 1, 2)))
    lake.clean()
    assert {path.name for path in lake.root.iterdir()} == {"current", "counters", "tables.json"}
    assert [path.name for path in lake.root.glob("counters/*/*")] == ["generation=b"]


@pytest.mark.rule("BI-L33")
def test_without_the_package_a_lake_with_logs_is_refused(tmp_path, monkeypatch):
    """Else the logs would name files that are removed."""
    lake = Lake(tmp_path)
    published(lake, DAY, "a", ("counters", staged(lake, "counters", 1)))
    lake.clean()
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(LogsNotKeptError, match=r"brokerd\[lake\]"):
        lake.clean()
    monkeypatch.undo()
    assert seen(lake) == [1]
