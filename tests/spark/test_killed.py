"""A job that is killed with all its processes, and one that is stopped for a while.

Once, where it hurts most; `killed.py` kills a job wherever it can stand: `make report-kill`.
"""

import shutil

import pytest

from spark_jobs.lake import Lake
from spark_jobs.report import build as report
from tests.spark.killed import Point, cut_off, reports
from tests.spark.month import FEW_DAYS, day_of

DATE = day_of(FEW_DAYS[-1])


@pytest.mark.rule("BI-L5")
def test_a_job_killed_with_all_its_processes_and_repeated_gives_the_same_bytes(
    spark, month, tmp_path
):
    """The tables of a day are all in the lake, and the day is not named yet."""
    output = tmp_path / "reports"
    shutil.copytree(month.root, output)
    shutil.rmtree(output / DATE)
    (output / report.LAKE / "current" / f"{DATE}.json").unlink()
    for left in (output / report.LAKE).glob(f"*/date={DATE}"):
        shutil.rmtree(left)
    whole = reports(month.root)
    others = {name: body for name, body in whole.items() if not name.startswith(DATE)}
    cut_off(month.landing, output, DATE, Point(step=f"name {DATE}"))
    assert reports(output) == others
    lake = Lake(output / report.LAKE)
    assert lake.current(DATE) is None
    assert [*lake.root.glob(f"lines/date={DATE}/*")], "it came that far"
    report.build_days(spark, month.landing, output, [DATE], lambda _: None)
    assert reports(output) == whole
    assert {path.name for path in lake.root.glob(f"*/date={DATE}/*")} == {
        f"generation={(lake.current(DATE) or {})['generation']}"
    }


def test_a_machine_that_sleeps_for_days_does_not_end_the_job(spark):
    """Spark takes an executor that is silent for so long for dead, and later Java ends itself."""
    said = spark.conf.get("spark.network.timeout")
    assert said.endswith("d")
    assert int(said[:-1]) >= 7
