"""The page of values made by hand; no frame takes part."""

import errno
import re
from typing import Any

import pytest

from spark_jobs.coverage import Boot
from spark_jobs.report import beside, build, page
from spark_jobs.report.data import Data, Latency, Rate
from spark_jobs.report.verdict import judge
from tests.spark.segments import NOON, SECOND

SUBJECT: dict[str, Any] = {"instance": "east", "broker": "east", "scope": "queue", "name": "orders"}


def boot(**fields):
    values: dict[str, Any] = {
        "instance": "east",
        "boot_id": "a0",
        "lines": 3,
        "repeated": 0,
        "missing": 0,
        "spoilt": 0,
    }
    values |= {"first_seq": 0, "last_seq": 2, "gaps": (), "backwards": 0}
    values |= {"first_at": NOON, "last_at": NOON + SECOND, "intervals": 1, "interval_us": SECOND}
    return Boot(**(values | {"started_at": NOON, "stopped": True, "after_crash": False} | fields))


def data_of(*boots, **fields):
    names = ("segments", "places", "marks", "pairs", "findings", "latency", "rates")
    values: dict[str, Any] = dict.fromkeys(names, ())
    return Data(**(values | {"boots": boots, "findings_in_all": 0, "step_us": SECOND} | fields))


def rendered(*boots, **fields):
    data = data_of(*boots, **fields)
    return page.render(data, judge(data))


def points(text, kind):
    """Where the dots of the one chart of a kind lie, and the size of its picture."""
    (figure,) = re.findall(rf'<figure [^>]*aria-label="{kind}.*?</figure>', text, re.DOTALL)
    ((width, height),) = re.findall(r'<svg viewBox="0 0 (\S+) (\S+)"', figure)
    dots = re.findall(r'<use [^>]*x="(\S+)" y="(\S+)" style="fill: var\(--c1\); stroke', figure)
    return [(float(x), float(y)) for x, y in dots], float(width), float(height)


@pytest.mark.parametrize(
    ("first_at", "last_at", "step_us"),
    [
        (NOON, NOON + SECOND, SECOND),
        (NOON, NOON + SECOND // 5, 10 * SECOND),
        (NOON + 9 * SECOND, NOON + 11 * SECOND, 10 * SECOND),
        (NOON, NOON, SECOND),
    ],
    ids=["a whole step", "much less than a step", "parts of two steps", "no time at all"],
)
def test_a_series_of_one_point_is_a_dot_within_the_picture(first_at, last_at, step_us):
    step_at = first_at - first_at % step_us
    percentiles: dict[str, Any] = {"p50_us": 900, "p95_us": 950, "p99_us": 990}
    wait = Latency(
        **SUBJECT, measure=page.WAIT, span="step", span_at=step_at, count=4, **percentiles
    )
    rate = Rate(**SUBJECT, counter="enqueued", step_at=step_at, thousandths=4_000)
    whole = Latency(**SUBJECT, measure=page.WAIT, span="all", span_at=None, count=4, **percentiles)
    text = rendered(
        boot(first_at=first_at, last_at=last_at),
        latency=(whole, wait),
        rates=(rate,),
        step_us=step_us,
    )
    for kind in ("Wait over time", "Throughput"):
        dots, width, height = points(text, kind)
        assert dots
        assert all(0 < x < width and 0 < y < height for x, y in dots), kind


def test_a_count_in_the_last_part_of_a_step_is_drawn():
    rate = Rate(**SUBJECT, counter="enqueued", step_at=NOON + 10 * SECOND, thousandths=4_000)
    long = boot(last_at=NOON + 13 * SECOND)
    text = rendered(long, rates=(rate,), step_us=10 * SECOND)
    assert len({y for _, y in points(text, "Throughput")[0]}) == 2
    assert "busiest 10 s: 1.33/s" in text


def test_a_boot_without_interval_lines_is_listed_and_says_so():
    text = rendered(boot(), boot(boot_id="short", intervals=0, interval_us=0))
    whole, short = re.findall(r'<tr><th scope="row">east</th>.*?</tr>', text, re.DOTALL)
    assert "wrote no interval lines" in short
    assert 'title="short"' in short
    assert "wrote no interval lines" not in whole


def test_waits_that_a_killed_daemon_did_not_write_are_spoken_of():
    wait = Latency(
        **SUBJECT,
        measure=page.WAIT,
        span="all",
        span_at=None,
        count=4,
        p50_us=1,
        p95_us=1,
        p99_us=1,
    )
    said = "1 start came after a crash. What a daemon"
    assert said in rendered(boot(), boot(boot_id="next", after_crash=True), latency=(wait,))
    assert "came after a crash" not in rendered(boot(), boot(boot_id="next"), latency=(wait,))


@pytest.mark.rule("BI-L5")
def test_a_disk_that_is_full_half_way_leaves_the_earlier_report_as_it_is(tmp_path, monkeypatch):
    days = ("2026-11-18", "2026-11-19")
    homes = {date: tmp_path / date for date in days}
    names = (build.PAGE, build.SUMMARY, "failures.csv")
    for home in homes.values():
        home.mkdir()
        for name in names:
            (home / name).write_text("earlier")
    (tmp_path / "aside").mkdir()

    def render(data, _):
        if data.date == days[1]:
            raise OSError(errno.ENOSPC, "no space left")
        return "new"

    monkeypatch.setattr(beside, "ORDERS", {})  # what Spark writes lies aside until then
    monkeypatch.setattr(page, "render", render)
    found = {date: data_of(boot(), date=date) for date in days}
    nothing: Any = None
    with pytest.raises(OSError, match="no space"):
        build._write(nothing, found, homes, tmp_path / "aside", lambda _: None)
    assert (homes[days[0]] / build.PAGE).read_text() == "new"
    assert {(homes[days[1]] / name).read_text() for name in names} == {"earlier"}
