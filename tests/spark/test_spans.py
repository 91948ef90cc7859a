"""Pages of weeks and years, made of days written by hand; no run takes part."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from spark_jobs.report import glance, spans
from spark_jobs.report.days import GLANCE, SUMMARY, Days, days_of_week, days_of_year, week_of
from spark_jobs.report.glance import Found, New, Part, Slowest
from spark_jobs.report.summary import summary
from spark_jobs.report.verdict import judge
from tests.spark.test_alerts import HOSTILE, day, failure, latency
from tests.spark.weeks import a_day, ago, busy_year, put

MONDAY = ago(0)
WEEK = f"week-{week_of(MONDAY)}.html"


def text(root, name=WEEK):
    return (root / name).read_text(encoding="utf-8")


def made(root, *dates):
    return spans.write(root, dates or [MONDAY], lambda _: None)


def weeks_before(*fields: dict[str, Any]):
    """The weeks before this one, and this one with these fields from its Monday on."""
    before = [a_day(ago(number)) for number in range(1, 29)]
    return [*before, *(a_day(ago(-at), **one) for at, one in enumerate(fields))]


@pytest.mark.rule("BI-L50")
def test_a_week_shows_its_days_with_what_was_found_and_links_to_them(tmp_path):
    found = Found("act", "Queue orders at west is stalled.", "brokerd queue show orders")
    new = New("west", "orders", "broker.parking", "ValueError: no price", 240)
    fields = {"status": "act", "points": (found,), "points_in_all": 3, "failures": (new,)}
    late = {"again": ("2026-11-18: 2 segments of this day landed late",)}
    put(tmp_path, *weeks_before(fields, {}, late))
    assert WEEK in made(tmp_path)
    page = text(tmp_path)
    assert "1 day needs action: Mon 16 Nov. Nothing was lost or doubled." in page
    for expected in (found.text, found.command, "2 more", new.fingerprint, late["again"][0]):
        assert expected in page
    for at in range(3):
        assert f'<a href="{ago(-at)}/report.html">' in page
    assert ago(-3) not in page, "it has no report"
    assert f'<a href="week-{week_of(ago(7))}.html">' in page
    assert '<a href="year-2026.html">' in page


@pytest.mark.rule("BI-L50")
def test_a_year_is_a_calendar_with_the_status_of_each_day(tmp_path):
    put(tmp_path, a_day(MONDAY), a_day(ago(1), status="act", sentence="A disk is full."))
    assert "year-2026.html" in made(tmp_path)
    page = text(tmp_path, "year-2026.html")
    assert f'<a class="fine" href="{MONDAY}/report.html"' in page
    assert f'<a class="act" href="{ago(1)}/report.html"' in page
    assert page.count('class="card month"') == 1, "other months have no day"
    assert "A disk is full." in page
    assert f'<a href="{WEEK}"' in page


@pytest.mark.rule("BI-L52")
def test_a_quiet_sunday_is_not_unusual_and_a_slow_tuesday_is(tmp_path):
    tuesday = a_day(ago(-1))
    slow = tuple(
        value // 9 if 8 < at < 14 else value for at, value in enumerate(tuesday.sent_by_hour)
    )
    put(tmp_path, *weeks_before({}, {"sent_by_hour": slow}, {}, {}, {}, {}, {}))
    made(tmp_path)
    page = text(tmp_path)
    unusual = page[page.index("Unusual hours") : page.index("How long did messages wait?")]
    assert "Tue 17 Nov" in unusual
    assert "09:00 to 14:00" in unusual
    assert unusual.count('<th scope="row"') == 1, "neither Sunday nor any other day"


@pytest.mark.rule("BI-L52")
def test_a_week_without_weeks_before_it_has_no_band(tmp_path):
    put(tmp_path, a_day(MONDAY))
    made(tmp_path)
    assert "No band is drawn" in text(tmp_path)
    assert "<polygon" not in text(tmp_path)


@pytest.mark.rule("BI-L51")
def test_a_page_is_made_again_only_if_one_of_its_days_has_changed(tmp_path):
    put(tmp_path, *weeks_before({}))
    assert WEEK in made(tmp_path)
    before = text(tmp_path)
    assert made(tmp_path) == []
    put(tmp_path, a_day(MONDAY, status="look"))
    assert made(tmp_path) == [WEEK, "year-2026.html"]
    put(tmp_path, a_day(MONDAY))
    made(tmp_path)
    assert text(tmp_path) == before, "the same days give the same bytes"
    put(tmp_path, a_day(ago(21), sent_by_hour=(7,) * 24))  # this week is compared with it
    assert WEEK in made(tmp_path)


@pytest.mark.rule("BI-L51")
def test_a_page_links_to_a_week_that_begins_later(tmp_path):
    put(tmp_path, a_day(ago(7)))
    made(tmp_path, ago(7))
    put(tmp_path, a_day(MONDAY))
    last = f"week-{week_of(ago(7))}.html"
    assert made(tmp_path) == [last, WEEK, "year-2026.html"]
    assert f'<a href="{WEEK}">' in text(tmp_path, last)


@pytest.mark.rule("BI-L51")
def test_a_run_that_was_killed_before_its_last_page_leaves_it_to_the_next(tmp_path):
    put(tmp_path, a_day(MONDAY))
    made(tmp_path)
    put(tmp_path, a_day(MONDAY, status="act"))

    class Killed(Exception):
        pass

    def step(name):
        if name == f"place {WEEK}":
            raise Killed

    before = text(tmp_path)
    with pytest.raises(Killed):
        spans.write(tmp_path, [MONDAY], lambda _: None, step)
    assert text(tmp_path) == before
    assert made(tmp_path) == [WEEK, "year-2026.html"]


@pytest.mark.rule("BI-L50")
def test_a_report_of_an_older_version_is_read_by_its_summary(tmp_path):
    data = day(latency=(replace(latency(9, 40_000), span="all", span_at=None),))
    verdict = judge(data)
    home = tmp_path / data.date
    put(tmp_path, glance.glance(data, verdict))
    (home / SUMMARY).write_text(json.dumps(summary(data, verdict)))
    (home / GLANCE).unlink()
    found = Days(tmp_path).get(data.date)
    assert found is not None
    assert (found.status, found.sentence) == (verdict.status.name.lower(), verdict.sentence)
    assert found.longest == Slowest("wait_us", "east", "orders", 100, 40_000)
    assert made(tmp_path, data.date)
    assert "No day of this week tells its hours." in text(
        tmp_path, f"week-{week_of(data.date)}.html"
    )


@pytest.mark.rule("BI-L50")
def test_a_day_is_read_as_it_was_written():
    one = a_day(MONDAY, points=(Found("look", "a", ""),), least=(Part("west", 5),))
    assert glance.read(json.loads(json.dumps(glance.as_said(one)))) == one
    assert glance.read({**glance.as_said(one), "v": glance.VERSION + 1}) is None


@pytest.mark.rule("BI-L50")
def test_a_day_stays_small_however_many_queues_and_failures_it_has():
    lines = [
        replace(latency(9, 1_000 + number), span="all", span_at=None, name=f"queue {number}")
        for number in range(4_000)
    ]
    broken = [
        replace(failure(1, is_new=True), fingerprint=f"{number} " + "x" * 900)
        for number in range(900)
    ]
    data = day(latency=tuple(lines), failures=tuple(broken))
    found = glance.glance(data, judge(data))
    assert len(json.dumps(asdict(found))) < 40_000
    assert found.longest == Slowest("wait_us", "east", "queue 3999", 100, 4_999)
    assert found.failures_in_all == 900


@pytest.mark.rule("BI-L4")
def test_names_are_no_markup_in_a_week_or_a_year(tmp_path):
    hostile = {
        "sentence": HOSTILE,
        "status": "act",
        "points": (Found("act", HOSTILE, HOSTILE),),
        "failures": (New(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1),),
        "slowest": (Slowest("wait_us", HOSTILE, HOSTILE, 1, 9),),
        "least": (Part(HOSTILE, 5),),
        "again": (HOSTILE,),
    }
    put(tmp_path, a_day(MONDAY, **hostile))
    made(tmp_path)
    for name in (WEEK, "year-2026.html"):
        assert "<script" not in text(tmp_path, name)
        assert "\u202e" not in text(tmp_path, name)
        assert "&lt;script&gt;" in text(tmp_path, name)


@pytest.mark.rule("BI-L50")
def test_the_pages_of_a_busy_year_stay_small(tmp_path):
    put(tmp_path, *busy_year())
    made(tmp_path)
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.html")}
    assert max(sizes.values()) < 150_000, sizes


@pytest.mark.parametrize(
    ("week", "first", "last"),
    [("2026-W47", "2026-11-16", "2026-11-22"), ("2026-W53", "2026-12-28", "2027-01-03")],
)
def test_a_week_may_be_in_two_years(week, first, last):
    days = days_of_week(week)
    assert (days[0], days[-1]) == (first, last)
    assert {week_of(one) for one in days} == {week}
    assert len(days_of_year("2028")) == 366
