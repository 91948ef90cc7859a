import sys

import pytest

from brokerd.admin import report
from brokerd.admin.report import ReportExtraMissing, child_environment, run_report
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
