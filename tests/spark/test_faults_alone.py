"""One fault a day, after a week without any: it is named on its day, and nothing else is."""

from dataclasses import dataclass

import pytest

from spark_jobs import daily, ingest
from spark_jobs.lake import Lake
from spark_jobs.lake_tables import STRETCH_SCHEMA, STRETCHES
from spark_jobs.report import build as report
from spark_jobs.report.collect import aggregates, collect
from spark_jobs.report.data import Data
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
    return found


DAYS = _days()
LAST = max(DAYS.values())


@dataclass(frozen=True)
class Judged:
    data: dict[str, Data]
    verdicts: dict[str, Verdict]


@pytest.fixture(scope="module")
def judged(spark, tmp_path_factory):
    """All days from landing to verdict in one run; their pages are not drawn."""
    base = tmp_path_factory.mktemp("alone")
    landing, lake = base / "landing", Lake(base / "lake")
    faults = {
        DAYS[name] - back: fault for name, fault in ALONE.items() for back in range(fault.days)
    }
    when = NEVER | {fault.when: DAYS[name] for name, fault in ALONE.items() if fault.when}
    Month(landing, when=when, faults=faults, third=True).write(range(LAST + 1))
    dates = [day_of(number) for number in range(LAST + 1)]
    report._ingest(spark, landing, lake, dates, lambda _: None)
    frames = report._read_lake(spark, lake, dates)
    unusable = report._unusable(lake, dates)
    with report.interpreted(spark):
        data = collect(frames, aggregates(frames), dates, step_us=daily.STEP_US, unusable=unusable)
    return Judged(data, {date: judge(one) for date, one in data.items()})


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.rule(ALONE[one].rule)) for one in ALONE]
)
def test_a_fault_is_named_on_its_day_and_nothing_else_is(judged, name):
    fault, verdict = ALONE[name], judged.verdicts[day_of(DAYS[name])]
    points = [point.text for point in verdict.points]
    assert verdict.status == fault.status, points
    for text in fault.texts:
        assert sum(text in point for point in points) == 1, points
    others = [point for point in points if not any(text in point for text in fault.texts)]
    assert others == []


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
