"""One Spark session for all tests in this directory, with a Java found as the product finds it."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from brokerd.reports.java import find_java
from spark_jobs.read import read_lines, usable
from spark_jobs.report import build, session, slo
from spark_jobs.report.verdict import Verdict
from tests.spark.month import FEW, FEW_DAYS, Month, day_of
from tests.spark.segments import write

PROMISED = """
[[slo]]
from = "shop"
to = "warehouse"
queue = "orders"
within = "1h"
part = 0.99
"""
"""A service level that every day of the month keeps."""


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("spark")
    os.environ["JAVA_HOME"] = str(find_java(environ=os.environ, state_dir=scratch).home)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with session.errors_into(scratch / "spark.log"):
        made = session.start(scratch, small=True)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def rows(spark, tmp_path_factory):
    """Lines given as dictionaries as usable rows, by way of a segment and the real reader."""

    def make(*lines):
        directory = tmp_path_factory.mktemp("rows")
        for name in sorted({line.get("file", "one") for line in lines}):
            write(directory, name, [line for line in lines if line.get("file", "one") == name])
        return usable(read_lines(spark, directory))

    return make


@dataclass(frozen=True)
class Made:
    """Where all has landed, where the reports are, and what was said of each day."""

    landing: Path
    root: Path
    verdicts: dict[str, Verdict]


@pytest.fixture(scope="session")
def month(spark, tmp_path_factory):
    """Few days with everything planted, from landing to pages."""
    base = tmp_path_factory.mktemp("month")
    landing, root = base / "landing", base / "reports"
    Month(landing, when=FEW).write(FEW_DAYS)
    root.mkdir()
    (root / slo.FILE).write_text(PROMISED)
    days = [day_of(number) for number in FEW_DAYS]
    return Made(landing, root, build.build_days(spark, landing, root, days, lambda _: None))
