"""One fault a day, after a week without any: it is named on its day, and nothing else is."""

from dataclasses import dataclass
from functools import reduce

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs import conservation, coverage, daily, ingest
from spark_jobs.dedup import distinct_lines
from spark_jobs.lake import Lake
from spark_jobs.lake_tables import PLACE_SCHEMA, STRETCH_SCHEMA, STRETCHES
from spark_jobs.landing import overlapping, unpacks
from spark_jobs.plans import interpreted
from spark_jobs.report import compared
from spark_jobs.report.collect import Frames, aggregates, collect
from spark_jobs.report.data import Data, SetAside
from spark_jobs.report.verdict import Verdict, judge
from tests.spark.faults import ALONE
from tests.spark.month import NEVER, Month, cut_off, day_of, lost

pytestmark = pytest.mark.timeout(600)  # the first test makes all days

WEEK = 7
"""Days without any fault, to look back on."""

FINDINGS = {
    "doubled": [("doubled", 1)],
    "unheard": [("other side not in these logs", 10)] * 2,
    "unheard overnight": [("other side not in these logs", 10)] * 2,
    "older": [("lost", 1)],
    "overnight": [("lost", 1)],
    "lost": [("lost", 1)],
}
"""What is found of the dialog that is planted, and how many messages that concerns."""


def _days() -> dict[str, int]:
    """Return the last day of each fault; faults follow one another."""
    found: dict[str, int] = {}
    day = WEEK - 1
    for name, fault in ALONE.items():
        day += fault.days
        found[name] = day
        day += fault.rest
    return found


DAYS = _days()
LAST = max(DAYS.values())


@dataclass(frozen=True)
class Judged:
    data: dict[str, Data]
    verdicts: dict[str, Verdict]


@pytest.fixture(scope="module")
def judged(spark, tmp_path_factory):
    """All days from landing to verdict in one run; neither lake nor pages are written."""
    landing = tmp_path_factory.mktemp("alone") / "landing"
    faults = {
        DAYS[name] - back: fault for name, fault in ALONE.items() for back in range(fault.days)
    }
    when = NEVER | {fault.when: DAYS[name] for name, fault in ALONE.items() if fault.when}
    Month(landing, when=when, faults=faults, third=True).write(range(LAST + 1))
    dates = [day_of(number) for number in range(LAST + 1)]
    changes = ingest.plan(landing, Lake(landing / "none"), dates).days
    torn = [one for day in changes for one in day.read if not unpacks(one.path)]
    changes = tuple(day.without(torn) for day in changes)
    unusable = {
        day.date: [SetAside(one.name, one.fault) for one in day.unusable] for day in changes
    }
    with interpreted(spark):
        frames = _frames(spark, [one for day in changes for one in day.segments], dates)
        data = collect(frames, aggregates(frames), dates, step_us=daily.STEP_US, unusable=unusable)
    spark.catalog.clearCache()
    return Judged(data, {date: judge(one) for date, one in data.items()})


def _frames(spark, segments, dates) -> Frames:
    """Return the tables of these segments, as ingestion makes them."""
    once, twice = ingest._lines(spark, segments, None, overlapping(segments))
    assert twice is not None, "a segment is there twice"
    aside = F.col("fault").isNotNull()
    parts = [*once, distinct_lines(twice.where(~aside)), twice.where(aside)]
    lines = reduce(DataFrame.unionByName, parts).coalesce(2).cache()
    good = lines.where(~aside)
    found = coverage.stretches(good, ingest._repeated(None, twice)).collect()
    said = ingest._as_said((coverage.Stretch(**row.asDict()) for row in found), segments)
    rows = [tuple(getattr(one, name) for name in coverage.Stretch.__slots__) for one in said]
    others = good.where(F.col("kind") != "dialog")
    tables = {name: job(others).cache() for name, job in daily.TABLES.items()}
    return Frames(
        dialogs=conservation.of_days(good.where(F.col("kind") == "dialog"), dates),
        stretches=spark.createDataFrame(rows, STRETCH_SCHEMA),
        files=coverage.files(lines.where(aside)),
        places=spark.createDataFrame([], PLACE_SCHEMA),
        tables=tables,
        totals=compared.totals(tables[daily.COUNTERS], tables[daily.GAUGES], dates),
        commits=compared.commits(tables[daily.HISTOGRAMS]),
    )


@pytest.mark.rule("REL-31", "REL-65", "BI-L1", "BI-L2", "BI-L3", "BI-L9", "BI-L10", "BI-L11")
@pytest.mark.rule("BI-L13", "BI-L14", "BI-L15", "BI-L16", "BI-L18", "BI-L19", "BI-L20", "BI-L21")
@pytest.mark.rule("BI-L22", "BI-L23", "BI-L24", "BI-L25", "BI-L26", "BI-L28")
@pytest.mark.parametrize("name", ALONE)
def test_a_fault_is_named_on_its_day_and_nothing_else_is(judged, name):
    fault, verdict = ALONE[name], judged.verdicts[day_of(DAYS[name])]
    points = [point.text for point in verdict.points]
    assert verdict.status == fault.status, points
    for text in fault.texts:
        assert sum(text in point for point in points) == 1, points
    others = [point for point in points if not any(text in point for text in fault.texts)]
    assert others == []
    assert [point.text for point in verdict.points if point.status and not point.command] == []


@pytest.mark.rule("REL-31")
@pytest.mark.parametrize("name", FINDINGS)
def test_the_dialog_that_does_not_balance_is_named(judged, name):
    found = judged.data[day_of(DAYS[name])].findings
    assert [(one.finding, one.messages) for one in found] == FINDINGS[name]
    assert {one.conversation_id for one in found} == {lost(DAYS[name])}


@pytest.mark.rule("REL-31")
def test_a_day_without_a_fault_is_fine(judged):
    for number in range(WEEK):
        date = day_of(number)
        assert judged.verdicts[date].points == (), date
        assert judged.data[date].findings == (), date


@pytest.mark.rule("BI-L9")
def test_a_segment_that_cannot_be_unpacked_is_set_aside_whole_and_the_rest_is_used(spark, tmp_path):
    """Its manifest describes what is there, so only he who reads it notices."""
    landing, lake = tmp_path / "landing", Lake(tmp_path / "lake")
    Month(landing, when=NEVER).write([0])
    (torn,) = (landing / day_of(0)).glob("east-*.jsonl.gz")
    cut_off(torn)

    def take_in():
        changes = ingest.plan(landing, lake, [day_of(0)]).days
        ingest.ingest(spark, lake, changes, lambda _: None)
        return len(changes)

    assert take_in() == 1
    said = lake.current(day_of(0)) or {}
    assert said["unusable"] == [[torn.name, "truncated"]]
    (stretch,) = lake.frame(spark, STRETCHES, [day_of(0)], STRETCH_SCHEMA).collect()
    assert stretch.instance == "west"
    assert take_in() == 0, "it is known"
