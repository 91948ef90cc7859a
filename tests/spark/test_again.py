"""Segments that land late, and a landing that is cleared: what is made again, and of what."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from spark_jobs import daily, delta, ingest, lake_tables
from spark_jobs.lake import Lake
from spark_jobs.report import again
from spark_jobs.report import build as report
from spark_jobs.report.again import Again, Input, Made, Report
from spark_jobs.report.days import week_of
from tests.spark.killed import lake as tables
from tests.spark.killed import reports
from tests.spark.month import NEVER, Month, day_of, manifest_of

EARLY, LATE, LAST = day_of(0), day_of(2), day_of(4)
"""What lands late is of the second; the third is the one that is asked for."""

WHEN = NEVER | {"garbage": 2, "twice": 2}


@dataclass
class Before:
    """Three days with reports, of which two segments are held back; `every` has these as well."""

    landing: Path
    every: Path
    root: Path
    held_back: list[Path]


@pytest.fixture(scope="module")
def before(spark, tmp_path_factory):
    """Of the two one has new lines, and the other is a copy that goes before its original."""
    base = tmp_path_factory.mktemp("again")
    made = Before(base / "in", base / "every", base / "before", [])
    Month(made.landing, hours=12, when=WHEN).write([0, 2, 4])
    shutil.copytree(made.landing, made.every)
    east = max((made.landing / LATE).glob("east-*.jsonl.gz"))
    (copy,) = (made.landing / LATE).glob("west-*-again.jsonl.gz")
    made.held_back += [path for one in (east, copy) for path in (one, manifest_of(one))]
    for path in made.held_back:
        path.unlink()
    made.root.mkdir()
    report.build_days(spark, made.landing, made.root, [EARLY, LATE, LAST], lambda _: None)
    return made


@dataclass
class Landed:
    """After the second run, and what that said."""

    landing: Path
    every: Path
    before: Path
    root: Path
    verdicts: dict[str, int]
    said: list[str]


@pytest.fixture(scope="module")
def landed(spark, before, tmp_path_factory):
    """The two land, and all else of their day is removed; then another day is asked for."""
    base = tmp_path_factory.mktemp("landed")
    landing, root = base / "in", base / "root"
    shutil.copytree(before.landing, landing)
    shutil.copytree(before.root, root)
    for path in (landing / LATE).iterdir():
        path.unlink()
    for path in before.held_back:
        shutil.copy(before.every / LATE / path.name, landing / LATE)
    said: list[str] = []
    verdicts = report.build_days(spark, landing, root, [LAST], said.append)
    found = {date: int(one.status) for date, one in verdicts.items()}
    return Landed(landing, before.every, before.root, root, found, said)


def summary(root, date):
    return json.loads((root / date / report.SUMMARY).read_text())


@pytest.mark.rule("BI-L7")
def test_a_page_says_what_it_was_made_of(before):
    """Of its own day and those that it looks back on; it was made once."""
    made = {date: summary(before.root, date)["made"] for date in (EARLY, LATE, LAST)}
    assert {*made[EARLY]["inputs"]} == {EARLY}
    assert {*made[LAST]["inputs"]} == {EARLY, LATE, LAST}
    assert made[LAST]["inputs"][LATE] == made[LATE]["inputs"][LATE]
    assert made[LATE]["inputs"][LATE]["segments"] == 3
    assert [one["again"] for one in made.values()] == [[], [], []]


@pytest.mark.rule("BI-L7")
def test_every_page_of_which_the_input_has_changed_is_made_again_and_says_so(landed):
    own = "2 segments of this day landed late"
    looked_back = f"2 segments of {LATE}, which it looks back on, landed late"
    again_said = [one for one in landed.said if one.startswith(report.MADE_AGAIN)]
    assert again_said == [f"{report.MADE_AGAIN}{LATE}, because {own}"]
    assert set(landed.verdicts) == {LATE, LAST}, "its verdict may be another one now"
    page = (landed.root / LATE / report.PAGE).read_text()
    assert f"Made again as of {LAST}, because {own}." in page
    assert summary(landed.root, LATE)["made"]["again"] == [
        {"as_of": LAST, "days": {LATE: 2}, "gone": 0}
    ]
    assert looked_back not in (landed.root / LAST / report.PAGE).read_text(), "it is the newest"
    week = (landed.root / f"week-{week_of(LATE)}.html").read_text()
    assert f"{LAST}: {own}" in week, "the page of its week is made again, and says so"
    old, new = reports(landed.before), reports(landed.root)
    assert {name for name in new if new[name] == old[name]} >= {
        name for name in old if name.startswith(EARLY)
    }
    assert old[f"{LAST}/{report.PAGE}"] != new[f"{LAST}/{report.PAGE}"], "it looks back on it"


@pytest.mark.rule("BI-L3", "BI-L8")
def test_the_rows_of_a_day_are_what_was_taken_in_and_what_came(landed, spark, tmp_path):
    """The same as if all had landed at once: lines that are there twice, set aside, and counted."""
    at_once, in_parts = Lake(tmp_path / "lake"), Lake(landed.root / report.LAKE)
    change = ingest.plan(landed.every, at_once, [LATE]).days
    ingest.ingest(spark, at_once, change, lambda _: None)
    schemas = {name: one.columns for name, one in lake_tables.TABLES.items()}

    (copied,) = (landed.every / LATE).glob("west-*-again.jsonl.gz")

    def rows(lake, name):
        frame = lake.frame(spark, name, [LATE], schemas[name]).drop("row")
        if name == lake_tables.PLACES:  # of a segment whose copy counts not all are found at once
            frame = frame.where(F.col("file") != copied.name.replace("-again", ""))
        return sorted(
            row.row for row in frame.select(F.to_json(F.struct("*")).alias("row")).collect()
        )

    for name in schemas:
        assert rows(in_parts, name) == rows(at_once, name), name
        assert rows(at_once, name) or name == daily.CHANGES, "there is something to compare"
    assert at_once.current(LATE) == in_parts.current(LATE)


@pytest.mark.rule("BI-L32")
def test_a_day_that_came_in_parts_is_in_each_log_once(landed, spark):
    lake = Lake(landed.root / report.LAKE)
    for name, table in lake_tables.TABLES.items():
        there = {path.split("/")[1] for path in delta.files_of(lake.root / name) if LATE in path}
        now = f"generation={(lake.current(LATE) or {})['generation']}"
        assert there == {now} or name == daily.CHANGES, name
        rows = lake.frame(spark, name, lake.dates(), table.columns).count()
        assert DeltaTable(lake.root / name).count() == rows, name


@pytest.mark.rule("BI-L8")
def test_a_report_that_was_made_of_more_than_there_is_stays_unless_asked_for(
    before, spark, tmp_path
):
    """Its day was removed from the lake, and part of it from the landing."""
    landing, root = tmp_path / "in", tmp_path / "root"
    shutil.copytree(before.landing, landing)
    shutil.copytree(before.root, root)
    (root / report.LAKE / "current" / f"{LATE}.json").unlink()
    for path in (landing / LATE).glob("east-*"):
        path.unlink()
    said: list[str] = []
    with pytest.raises(report.NoReportError, match=f"the lake has less of {LATE}"):
        report.build_days(spark, landing, root, [LATE], said.append)
    assert "made of 3 segments and the lake has 2" in said[-1]
    assert reports(root) == reports(before.root)
    report.build_days(spark, landing, root, [LATE], said.append, forget_removed=True)
    assert summary(root, LATE)["coverage"]["segments"] == 2
    less = f"{report.MADE_AGAIN}{LATE}, because 1 segment of this day is no longer there"
    assert less in said[-1]


@pytest.mark.rule("BI-L8")
def test_a_report_that_was_made_of_more_stays_when_its_neighbour_goes(before, spark, tmp_path):
    """Its link leads nowhere then, and it still is not made again of less; that is said."""
    landing, root = tmp_path / "in", tmp_path / "root"
    shutil.copytree(before.landing, landing)
    shutil.copytree(before.root, root)
    (root / report.LAKE / "current" / f"{LATE}.json").unlink()
    for path in (landing / LATE).glob("east-*"):
        path.unlink()
    shutil.rmtree(root / EARLY)
    said: list[str] = []
    verdicts = report.build_days(spark, landing, root, [LAST], said.append)
    assert {*verdicts} == {LAST}
    assert summary(root, LAST)["made"]["inputs"][LATE]["segments"] == 2, "it was taken in again"
    then, now = reports(before.root), reports(root)
    of_late = {name for name in then if name.startswith(LATE)}
    assert of_late, "there is something to compare"
    assert [name for name in of_late if now[name] != then[name]] == []
    (told,) = (one for one in said if one.startswith(f"{LATE}: "))
    assert "made of 3 segments and the lake has 2" in told


@pytest.mark.rule("BI-L37")
def test_days_before_the_kept_ones_leave_the_lake_and_their_pages_stay(before, spark, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(before.root, root)
    said: list[str] = []
    report.build_days(spark, before.landing, root, [LAST], said.append, keep_days=3)
    lake = Lake(root / report.LAKE)
    assert lake.dates() == [LATE, LAST]
    assert not [*lake.root.glob(f"*/date={EARLY}")]
    assert reports(root) == reports(before.root)
    assert f"{EARLY} removed from the lake, which keeps 3 days" in said


@pytest.mark.rule("BI-L8")
@pytest.mark.parametrize("left", ["no directory", "an empty directory", "a damaged segment"])
def test_a_day_with_nothing_in_the_landing_is_not_forgotten(before, spark, tmp_path, left):
    """There is nothing to make it of; neither it nor the other day named is changed."""
    landing, root = tmp_path / "in", tmp_path / "root"
    shutil.copytree(before.landing, landing)
    shutil.copytree(before.root, root)
    for path in (landing / LATE).iterdir():
        if left != "a damaged segment":
            path.unlink()
        elif path.suffix == ".gz":
            path.write_bytes(b"")
    if left == "no directory":
        (landing / LATE).rmdir()
    nothing = f"nothing of {LATE} that can be used is at"
    with pytest.raises(report.NoReportError, match=nothing) as caught:
        report.build_days(spark, landing, root, [EARLY, LATE], lambda _: None, forget_removed=True)
    assert f"rm -r {root}/lake/*/date=DAY {root}/lake/current/DAY.json" in str(caught.value)
    assert reports(root) == reports(before.root)
    assert tables(root) == tables(before.root)
    lakes = [Lake(one / report.LAKE) for one in (root, before.root)]
    for date in (EARLY, LATE, LAST):
        assert lakes[0].current(date) == lakes[1].current(date) is not None


@pytest.mark.rule("BI-L8")
def test_of_a_lake_that_an_older_version_made_it_is_found_out_what_was_taken_in(
    landed, spark, tmp_path
):
    lake = Lake(tmp_path / "lake")
    shutil.copytree(landed.before / report.LAKE, lake.root)
    said = lake.current(LATE) or {}
    older = {name: said[name] for name in ("generation", "unusable", "segments")}
    lake.say(LATE, older | {"landed": f"{ingest.VERSION}-{said['generation']}", "damaged": False})
    ingest.adopt(spark, lake, lake.dates())
    assert ingest.plan(tmp_path, lake, [LATE]).days == (), "as if it had always said so"
    (day,) = ingest.plan(landed.landing, lake, [LATE]).days
    assert [one.name for one in day.kept] == [name for name, *_ in said["taken"]]
    assert len(day.read) == 2
    found = lake.current(LATE) or {}
    assert {*found} == {*said}
    assert [row[2:] for row in found["taken"]] == [row[2:] for row in said["taken"]]
    assert found["generation"] == said["generation"]


@pytest.mark.rule("BI-L5", "BI-L7", "BI-L8")
def test_a_run_killed_again_and_again_ends_with_the_same_bytes(landed, spark, tmp_path):
    """Where the old rows are in two places, and where one page of two is made."""
    root = tmp_path / "root"
    shutil.copytree(landed.before, root)

    class Killed(Exception):
        pass

    for point in (f"place dialogs of {LATE}", "log dialogs", f"remove what {LATE}", f"draw {LAST}"):

        def die(step, point=point):
            if step.startswith(point):
                raise Killed

        with pytest.raises(Killed):
            report.build_days(spark, landed.landing, root, [LAST], lambda _: None, step=die)
    report.build_days(spark, landed.landing, root, [LAST], lambda _: None)
    assert reports(root) == reports(landed.root)
    assert tables(root) == tables(landed.root)


@pytest.mark.rule("BI-L7")
def test_where_nothing_has_changed_no_page_is_made_again(landed, spark):
    before = reports(landed.root)
    said: list[str] = []
    report.build_days(spark, landed.landing, landed.root, [EARLY], said.append)
    assert reports(landed.root) == before
    assert not [one for one in said if one.startswith(report.MADE_AGAIN)]


NOW = {"2026-10-01": Input("a", 3), "2026-10-02": Input("b", 4)}
THERE = Report("2026-10-02", "2026-10-01", "", segments=4, made=Made(NOW))


@pytest.mark.rule("BI-L7")
@pytest.mark.parametrize(
    ("then", "days"),
    [
        (NOW, {}),
        ({**NOW, "2026-10-02": Input("c", 2)}, {"2026-10-02": 2}),
        ({**NOW, "2026-10-01": Input("c", 3)}, {"2026-10-01": 0}),
        ({"2026-10-02": Input("b", 4)}, {"2026-10-01": 3}),
        ({**NOW, "2026-09-01": Input("d", 5)}, {}),
    ],
    ids=["the same", "its own day", "set aside", "a whole day", "a day that is gone"],
)
def test_a_page_has_changed_input_where_there_is_more_and_not_where_a_day_is_gone(then, days):
    report = replace(THERE, made=Made(then))
    assert report.changes(NOW) == days
    assert report.lacks_days(NOW) == (len(then) > 2)
    found = again.made_now(report, "2026-10-02", NOW, "2026-10-05")
    assert found.inputs == NOW
    assert [one.days for one in found.again] == ([days] if days else [])


@pytest.mark.rule("BI-L7", "BI-L8")
@pytest.mark.parametrize(("segments", "more"), [(3, 1), (4, 0), (5, 0)])
def test_a_page_that_does_not_say_what_it_was_made_of_is_made_again_of_more_only(segments, more):
    report = replace(THERE, segments=segments, made=None)
    assert report.changes(NOW) == ({"2026-10-02": more} if more else {})
    assert not report.lacks_days(NOW), "which days these were it does not say"


@pytest.mark.rule("BI-L7")
def test_a_day_that_is_still_the_newest_is_not_late():
    report = replace(THERE, made=Made({}))
    assert again.made_now(report, "2026-10-02", NOW, "2026-10-02") == Made(NOW)
    assert again.made_now(None, "2026-10-02", NOW, "2026-10-05") == Made(NOW)


@pytest.mark.rule("BI-L7")
def test_what_came_while_the_same_day_was_the_newest_is_said_once():
    first = (Again("2026-10-03", {"2026-10-02": 1}), Again("2026-10-05", {"2026-10-02": 1}))
    report = replace(THERE, made=Made({**NOW, "2026-10-02": Input("c", 2)}, first))
    made = again.made_now(report, "2026-10-02", NOW, "2026-10-05")
    assert made.again == (first[0], Again("2026-10-05", {"2026-10-02": 3}))
    assert again.made_now(report, "2026-10-02", NOW, "2026-10-06").again[:2] == first


@pytest.mark.rule("BI-L7")
def test_the_reason_is_said_in_words():
    def said(days, gone=0):
        return Again("2026-10-09", days, gone).because("2026-10-04")

    assert said({"2026-10-04": 1}) == "1 segment of this day landed late"
    assert said({"2026-10-03": 2, "2026-10-04": 0}) == (
        "other segments of this day are set aside; "
        "2 segments of 2026-10-03, which it looks back on, landed late"
    )
    assert said({"2026-10-04": -2}, 1) == (
        "2 segments of this day are no longer there; 1 day before it is no longer in the lake"
    )
    many = {f"2026-09-{day}": 1 for day in range(10, 14)}
    assert said(many) == "segments of 4 days that it looks back on landed late"
