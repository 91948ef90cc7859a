"""Months with one fault each: it is named on its day, and no other day is red."""

from dataclasses import dataclass

import pytest

from spark_jobs import daily, ingest
from spark_jobs.lake import Lake
from spark_jobs.lake_tables import STRETCH_SCHEMA, STRETCHES
from spark_jobs.report import build as report
from spark_jobs.report.collect import aggregates, collect
from spark_jobs.report.data import Data
from spark_jobs.report.verdict import Verdict, judge
from tests.spark.month import FAULTS, LOST, NEVER, Month, cut_off, day_of

FINDINGS = {
    "doubled": [("doubled", 1)],
    "unheard": [("other side not in these logs", 10)] * 2,
    "unheard overnight": [("other side not in these logs", 10)] * 2,
    "older": [("lost", 1)],
    "overnight": [("lost", 1)],
}
"""What is found of the dialog that is planted, and how many messages that concerns."""

APART = 40
"""Days between two months, so that none looks back on another."""

FIRSTS = {name: number * APART for number, name in enumerate(("none", *FINDINGS), 1)}


@dataclass(frozen=True)
class Judged:
    data: dict[str, Data]
    verdicts: dict[str, Verdict]


@pytest.fixture(scope="module")
def judged(spark, tmp_path_factory):
    """Three days of each month, the fault on the second; their pages are not drawn."""
    base = tmp_path_factory.mktemp("alone")
    landing, lake = base / "landing", Lake(base / "lake")
    for name, first in FIRSTS.items():
        when = NEVER if name == "none" else NEVER | {name: first + 1}
        Month(landing, when=when).write(range(first, first + 3))
    dates = [day_of(first + number) for first in FIRSTS.values() for number in range(3)]
    report._ingest(spark, landing, lake, dates, lambda _: None)
    frames = report._read_lake(spark, lake, dates)
    data = collect(frames, aggregates(frames), dates, step_us=daily.STEP_US)
    return Judged(data, {date: judge(one) for date, one in data.items()})


@pytest.mark.rule("REL-31")
@pytest.mark.parametrize("name", FINDINGS)
def test_the_finding_is_named_on_its_day(judged, name):
    date = day_of(FIRSTS[name] + 1)
    verdict = judged.verdicts[date]
    (point,) = verdict.points
    assert (verdict.status, FAULTS[name].text in point.text) == (FAULTS[name].status, True)
    found = judged.data[date].findings
    assert [(one.finding, one.messages) for one in found] == FINDINGS[name]
    assert {one.conversation_id for one in found} == {LOST}


@pytest.mark.rule("REL-31")
@pytest.mark.parametrize("name", FIRSTS)
def test_no_other_day_is_anything_but_fine(judged, name):
    faulty = {FIRSTS[one] + 1 for one in FINDINGS}
    for number in {FIRSTS[name] + day for day in range(3)} - faulty:
        assert judged.verdicts[day_of(number)].points == (), day_of(number)
        assert judged.data[day_of(number)].findings == ()


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
