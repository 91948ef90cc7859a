"""A landing on an S3 server: what is fetched of it, and that the report is the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.reports.shipping import landing_at, ship
from spark_jobs import ingest, landing
from spark_jobs.lake import Lake
from spark_jobs.remote import RemoteError, RemoteLanding, RemotePages
from spark_jobs.report import build
from spark_jobs.report import main as job
from tests.spark import s3
from tests.spark.killed import reports
from tests.spark.month import NEVER, Month, day_of

URL = f"s3://{s3.BUCKET}/brokerd"
PAGES = f"s3://{s3.BUCKET}/pages"
FIRST, SECOND = day_of(0), day_of(1)


@pytest.fixture
def system(monkeypatch):
    with s3.running(monkeypatch) as found:
        yield found


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two days of two instances."""
    source = tmp_path_factory.mktemp("written")
    Month(source, hours=6, when=NEVER).write([0, 1])
    return source


def fetched(tmp_path, lake, first=FIRST, last=SECOND, anew=()):
    """The names of what is fetched into a new directory."""
    directory = tmp_path / f"fetched-{len([*tmp_path.iterdir()])}"
    remote = RemoteLanding(URL, directory)
    count = remote.fetch(lake, first, last, version=ingest.VERSION, anew=anew)
    found = {str(one.relative_to(directory)) for one in directory.rglob("*") if one.is_file()}
    assert count == sum(name.endswith(landing.PACKED) for name in found)
    return found


def names(source: Path, day: str = "") -> set[str]:
    return {
        str(path.relative_to(source))
        for path in source.rglob("*.*")
        if path.is_file() and path.parent.name.startswith(day)
    }


def taken(lake, source, day):
    """Record in the lake that all of a day was taken in."""
    (change,) = ingest.plan(source, lake, [day]).days
    lake.say(day, ingest.said_of(change))


@pytest.mark.rule("BI-L38")
def test_what_was_shipped_to_s3_is_fetched_as_it_was(system, written, tmp_path):
    assert ship(written, landing_at(URL)).damaged == []
    everything = names(written)
    assert {
        one.removeprefix(f"{s3.BUCKET}/brokerd/") for one in system.find(s3.BUCKET)
    } == everything
    lake = Lake(tmp_path / "lake")
    assert fetched(tmp_path, lake) == everything
    assert fetched(tmp_path, lake, last=FIRST) == names(written, FIRST)


@pytest.mark.rule("BI-L38")
def test_what_the_lake_has_is_not_fetched_again_unless_it_is_to_be_read_anew(
    system, written, tmp_path
):
    system.put(str(written), f"{s3.BUCKET}/brokerd", recursive=True)
    lake = Lake(tmp_path / "lake")
    taken(lake, written, FIRST)
    assert fetched(tmp_path, lake) == names(written, SECOND)
    assert fetched(tmp_path, lake, anew=[FIRST]) == names(written)
    lake.say(FIRST, (lake.current(FIRST) or {}) | {"version": ingest.VERSION - 1})
    assert fetched(tmp_path, lake) == names(written)


@pytest.mark.rule("BI-L38")
def test_only_the_landing_and_the_days_of_a_run_are_listed(system, written, tmp_path, caplog):
    system.put(str(written), f"{s3.BUCKET}/brokerd", recursive=True)
    caplog.set_level("INFO", "werkzeug")
    caplog.clear()
    remote = RemoteLanding(URL, tmp_path / "fetched")
    remote.fetch(Lake(tmp_path / "lake"), SECOND, SECOND, version=ingest.VERSION, anew=())
    asked = [one.getMessage() for one in caplog.records]
    listed = [text.split("prefix=")[1].split("&")[0] for text in asked if "list-type" in text]
    assert listed == ["brokerd/", f"brokerd/{SECOND}/"]
    assert landing.days(tmp_path / "fetched") == [FIRST, SECOND], "which days there are is known"


@pytest.mark.rule("BI-L38")
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://nowhere/brokerd", "there is nothing at s3://nowhere/brokerd"),
        ("teleport://bucket", "teleport://bucket cannot be used: Protocol not known: teleport"),
    ],
)
def test_a_landing_that_cannot_be_used_is_named(system, tmp_path, capsys, url, said):
    output = tmp_path / "out"
    assert job.main(["--landing", url, "--output", str(output)]) == 2
    assert said in capsys.readouterr().err
    with pytest.raises(RemoteError, match=said):
        RemoteLanding(url, tmp_path / "fetched")
    assert {path.name for path in output.iterdir()} == {".lock"}


def published(system) -> dict[str, bytes]:
    system.invalidate_cache()
    home = f"{s3.BUCKET}/pages/"
    return {path.removeprefix(home): system.cat_file(path) for path in system.find(home)}


@pytest.mark.rule("BI-L39")
def test_reports_that_have_changed_are_published_and_the_summary_last(system, tmp_path, caplog):
    for date, text in ((FIRST, "one"), (SECOND, "two"), (".new-x", "of a killed run")):
        (tmp_path / date).mkdir()
        for name in (build.PAGE, build.SUMMARY, "findings.csv"):
            (tmp_path / date / name).write_text(f"{name} of {text}")
    (tmp_path / "week-2026-W47.html").write_text("a week")
    pages = RemotePages(PAGES)

    def publish():
        return pages.publish(tmp_path, build.PAGE, build.SUMMARY)

    assert publish() == [FIRST, SECOND]
    assert {*published(system)} == {
        "week-2026-W47.html",
        *(
            f"{date}/{name}"
            for date in (FIRST, SECOND)
            for name in (build.PAGE, build.SUMMARY, "findings.csv")
        ),
    }
    (tmp_path / "week-2026-W47.html").write_text("7 days")
    assert publish() == []
    assert published(system)["week-2026-W47.html"] == b"7 days"
    system.rm(f"{s3.BUCKET}/pages/{FIRST}/{build.SUMMARY}")  # as if a run had been killed
    (tmp_path / SECOND / build.PAGE).write_text("a page of a later version")
    caplog.set_level("INFO", "werkzeug")
    caplog.clear()
    assert publish() == [FIRST, SECOND]
    put = [text for one in caplog.records if '"PUT ' in (text := one.getMessage())]
    assert [f"/{FIRST}/{build.SUMMARY}" in text for text in put[:3]] == [False, False, True]
    assert published(system)[f"{SECOND}/{build.PAGE}"] == b"a page of a later version"


@pytest.mark.rule("BI-L38", "BI-L39")
def test_a_report_from_s3_has_the_bytes_of_one_from_a_directory(system, spark, written, tmp_path):
    system.put(str(written), f"{s3.BUCKET}/brokerd", recursive=True)
    output, local = tmp_path / "remote", tmp_path / "local"
    words = ["--landing", URL, "--date", SECOND, "--output", str(output), "--publish", PAGES]
    done = subprocess.run(
        [sys.executable, "-m", "spark_jobs.report", *words],
        env=os.environ | {"PYTHONPATH": str(Path(build.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    count = len(names(written)) // 2
    assert f"fetched {count} segments from {URL}" in done.stdout, done.stderr
    local.mkdir()
    build.build_days(spark, written, local, [SECOND], lambda _: None)
    assert reports(output) == reports(local)
    assert published(system) == {name: body for name, (body,) in reports(local).items()}
    assert not [*output.glob(".spark-*")], "what was fetched is removed"
