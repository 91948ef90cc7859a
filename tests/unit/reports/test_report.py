import sys

import pytest

from brokerd.reports import report
from brokerd.reports.report import (
    Days,
    ReportExtraMissing,
    ReportResult,
    child_environment,
    job_arguments,
    run_report,
)
from brokerd.resources import spark_jobs_dir


@pytest.mark.rule("BI-L5")
def test_what_the_child_says_is_passed_on_with_its_status(tmp_path):
    pytest.importorskip("pyspark")
    heard: list[str] = []
    result = run_report(
        tmp_path / "nowhere", tmp_path / "out", state_dir=tmp_path / "state", say=heard.append
    )
    assert (result.exit_status, result.page, result.verdict) == (2, None, "none")
    assert heard[0].startswith("report: Java ")
    assert heard[1:] == [*result.said]
    assert "there is no directory" in heard[-1]
    assert not (tmp_path / "out").exists()


def test_without_the_extra_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "_NEEDED", ("no_such_package",))
    with pytest.raises(ReportExtraMissing, match="no_such_package"):
        run_report(tmp_path, tmp_path, state_dir=tmp_path, say=lambda _: None)


def test_the_child_is_kept_away_from_other_clusters(tmp_path):
    given = {"SPARK_HOME": "/else", "SPARK_CONF_DIR": "/else", "PYTHONPATH": "/more", "LANG": "C"}
    made = child_environment(given, tmp_path)
    assert {name for name in made if name.startswith("SPARK_")} == {"SPARK_LOCAL_IP"}
    assert made["PYTHONPATH"].split(":") == [str(spark_jobs_dir().parent), "/more"]
    assert (made["JAVA_HOME"], made["PYSPARK_PYTHON"]) == (str(tmp_path), sys.executable)
    assert (spark_jobs_dir() / "report" / "__main__.py").is_file()


@pytest.mark.rule("BI-L7")
def test_the_pages_that_were_made_again_are_known_with_the_reason(tmp_path):
    told = (
        "report: made again: 2026-11-16, because 2 segments of this day landed late",
        "report: 2026-11-16: fine: nothing was lost",
        "report: made again: 2026-11-17, because 1 day before it is gone, because of that",
    )
    result = ReportResult(0, tmp_path, told)
    assert result.made_again == {
        "2026-11-16": "2 segments of this day landed late",
        "2026-11-17": "1 day before it is gone, because of that",
    }
    assert ReportResult(2, None, ()).made_again == {}


@pytest.mark.rule("BI-L8")
def test_what_is_no_longer_in_the_landing_is_forgotten_only_if_asked_for(tmp_path):
    asked, usual = (
        job_arguments(tmp_path, tmp_path, Days("2026-11-16", "2026-11-17", forget_removed=asked))
        for asked in (True, False)
    )
    assert "--forget-removed" not in usual
    assert asked == [*usual, "--forget-removed"]


@pytest.mark.rule("BI-L37", "BI-L38", "BI-L39")
def test_urls_and_the_number_of_days_to_keep_are_passed_on(tmp_path):
    days = Days("2026-11-16", keep_days=400, publish="s3://bucket/reports")
    assert job_arguments("s3://bucket/landing", tmp_path, days) == [
        *("--output", str(tmp_path), "--landing", "s3://bucket/landing", "--date", "2026-11-16"),
        *("--keep-days", "400", "--publish", "s3://bucket/reports"),
    ]
