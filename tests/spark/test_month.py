"""Days with faults planted, from landing to pages: each is named, and nothing else is."""

import errno
import gzip
import json
import re
import shutil
from html.parser import HTMLParser
from typing import Any

import pytest

from spark_jobs import ingest, lake_tables, landing, places
from spark_jobs.lake import Lake, LakeDamagedError
from spark_jobs.report import build as report
from spark_jobs.report.days import Days, week_of
from tests.spark.month import (
    AHEAD_S,
    FEW,
    FEW_DAYS,
    HOT,
    NEVER,
    Month,
    day_of,
    lost,
    manifest_of,
    planted,
)

DAYS = [day_of(number) for number in FEW_DAYS]


def summary(root, date):
    return json.loads((root / date / report.SUMMARY).read_text())


@pytest.mark.rule("BI-L1", "BI-L2", "BI-L3", "REL-31")
@pytest.mark.parametrize("number", FEW_DAYS)
def test_what_is_planted_is_named_on_its_day_and_nothing_else_is_red(month, number):
    said = summary(month.root, day_of(number))
    points = [point["text"] for point in said["points"]]
    expected = planted(FEW, number)
    status = max((one.status for one in expected), default=0)
    assert month.verdicts[day_of(number)].status == status, points
    for one in expected:
        assert sum(one.text in text for text in points) == 1, points
    if not expected:
        assert points == []
    acts = [point["text"] for point in said["points"] if point["status"] == "act"]
    grave = [one.text for one in expected if one.status == 2]
    assert len(acts) == len(grave)
    assert all(text in act for text, act in zip(grave, acts, strict=True))


def test_what_moved_on_a_day_is_named_against_the_same_weekday_before(month):
    assert summary(month.root, day_of(0))["moves"] == [], "the first day has no past"
    found = summary(month.root, day_of(FEW["slow"]))["moves"]
    names = [(one["what"], one["instance"], one["name"]) for one in found]
    assert names[0] == ("way to acknowledged, p95", "east", "TCP://west:4022")
    assert ("most messages parked", "west", "orders") not in names, "three are no matter"
    (slow,) = [one for one in found if one["scope"] == "destination"]
    assert 5 < slow["now"] / slow["usual"] < 40
    assert not [one for one in found if one["scope"] in {"pair", "queue"}], "all else is as ever"


@pytest.mark.parametrize("number", FEW_DAYS)
def test_hot_groups_held_locks_clocks_and_disks_are_on_each_day(month, number):
    said = summary(month.root, day_of(number))
    for queue in said["hot_groups"]:
        (largest, messages), *others = queue["groups"]
        assert largest == HOT
        assert 0.35 < messages / queue["received"] <= 0.4
        assert 0 < len(others) < 20
        assert queue["within"] > 0
    assert {queue["name"] for queue in said["hot_groups"]} == {"orders", "replies"}
    (held,) = said["held"]
    assert (held["group"], held["name"], held["is_held"]) == (HOT, "orders", False)
    assert held["held_us"] >= 1_000_000
    ahead = {one["instance"]: one["ahead_s"] for one in said["clocks"]}
    assert ahead == {"east": AHEAD_S, "west": -AHEAD_S}
    for disk in said["disks"]:
        assert 1_000 < disk["p99_us"] < 9_000
        assert disk["wal_bytes"] >= 4e6
        assert disk["nights"] == 1 + FEW_DAYS.index(number)
    page = (month.root / day_of(number) / report.PAGE).read_text()
    assert HOT in page
    assert page.count('aria-label="Disks: ') == (2 if number else 0)


@pytest.mark.rule("REL-31")
def test_the_dialog_that_lost_a_message_is_named(month):
    said = summary(month.root, day_of(FEW["lost"]))
    (found,) = said["findings"]
    assert (found["conversation_id"], found["finding"], found["messages"]) == (
        lost(FEW["lost"]),
        "lost",
        1,
    )


@pytest.mark.rule("BI-L1")
def test_lines_set_aside_are_kept_with_the_place_where_they_stand(month, spark):
    source, lake = month.landing, Lake(month.root / report.LAKE)
    found = lake.frame(
        spark, lake_tables.PLACES, [day_of(FEW["garbage"])], lake_tables.PLACE_SCHEMA
    ).collect()
    assert {place.fault for place in found} == {"corrupt", "version"}
    for place in found:
        raw = places.open_segment(source / day_of(FEW["garbage"]) / place.file).read()
        assert raw[: place.offset].count(b"\n") == place.line - 1
        line = raw[place.offset :].split(b"\n")[0].decode("utf-8", "replace")
        assert line[:120] == place.sample
    schema = "file string, fault string, instance string"
    aside = lake.frame(spark, "aside", [day_of(FEW["version"])], schema).collect()
    assert sorted({row.fault for row in aside}) == ["corrupt", "version"]
    assert len(aside) == len(found)


def test_neighbouring_days_lead_to_each_other(month):
    page = (month.root / DAYS[2] / report.PAGE).read_text()
    links = re.findall(r'<a href="([^"]*)"', page)
    assert links[:2] == [f"../{DAYS[1]}/report.html", f"../{DAYS[3]}/report.html"]


@pytest.mark.rule("BI-L50")
def test_a_day_leads_to_its_week_and_its_year_and_they_lead_to_it(month):
    page = (month.root / DAYS[-1] / report.PAGE).read_text()
    links = re.findall(r'<a href="\.\./((?:week|year)-[^"]*)"', page)
    assert links == [f"week-{week_of(DAYS[-1])}.html", f"year-{DAYS[-1][:4]}.html"]
    for name in links:
        assert f'href="{DAYS[-1]}/report.html"' in (month.root / name).read_text()
    assert len([*month.root.glob("week-*.html")]) == len({week_of(date) for date in DAYS})


@pytest.mark.rule("REL-76")
def test_a_service_level_is_on_each_day_with_its_messages(month):
    (said,) = summary(month.root, day_of(0))["service_levels"]
    assert (said["total"], said["late"], said["met"], said["left"]) == (24 * 60, 0, 1.0, 1.0)
    for date in DAYS:
        assert "Were the service levels kept?" in (month.root / date / report.PAGE).read_text()


@pytest.mark.rule("BI-L50")
def test_a_glance_has_what_the_lines_of_each_hour_say(month):
    days = Days(month.root)
    for number, date in zip(FEW_DAYS, DAYS, strict=True):
        found = days.get(date)
        assert found is not None
        assert found.status == month.verdicts[date].status.name.lower()
        assert found.instances == 2
        missing = number == FEW["hour"]
        # Each service sends 60 messages an hour.
        expected = [60 if missing and hour == 3 else 120 for hour in range(24)]
        if number not in {FEW["clock"], FEW["garbage"]}:
            assert list(found.sent_by_hour) == expected
            assert all(us is not None and 2_000 < us < 60_000 for us in found.p95_by_hour)
        # A clock that went back two hours has lines of 22.
        short = {"east"} if missing else {"west"} if number == FEW["clock"] else set()
        assert {one.instance for one in found.least} == short
        assert {one.measure for one in found.slowest} == {
            *("wait_us", "handler_us", "wire_us", "outbox_us")
        }


class Checker(HTMLParser):
    """Collects what a browser would ask for, and tags that are not closed."""

    def __init__(self):
        super().__init__()
        self.asked, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.asked += [value for name, value in attrs if name in {"src", "href"} and tag != "a"]
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.asked += [value for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("number", FEW_DAYS)
def test_a_page_is_whole_and_asks_nobody_for_anything(month, number):
    text = (month.root / day_of(number) / report.PAGE).read_text()
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert all(asked.startswith("#") for asked in checker.asked)
    for question in ("lost or doubled", "stuck", "wait", "failed", "changed", "readers", "peers"):
        assert question in "".join(re.findall(r"<h2>(.*?)</h2>", text)), question


def test_what_has_not_changed_is_not_read_again(month):
    lake = Lake(month.root / report.LAKE)
    assert ingest.plan(month.landing, lake, DAYS) == ingest.Plan((), len(DAYS))


@pytest.mark.rule("BI-L3", "BI-L8")
def test_what_comes_late_opens_its_day_again_and_no_other(tmp_path):
    """A day is made anew when there is more than it was made of."""
    source, lake = tmp_path / "landing", Lake(tmp_path / "lake")
    Month(source).write([0, 4])
    (held_back,) = (source / DAYS[0]).glob("west-*.manifest")
    held_back.rename(tmp_path / held_back.name)

    def changed():
        return [day.date for day in ingest.plan(source, lake, DAYS[:2]).days]

    def take_in():
        for day in ingest.plan(source, lake, DAYS[:2]).days:
            lake.publish(day.date, ingest.said_of(day), [])

    assert changed() == DAYS[:2]
    take_in()
    assert changed() == []
    (tmp_path / held_back.name).rename(held_back)
    assert changed() == DAYS[:1]
    take_in()
    assert changed() == []


@pytest.mark.rule("BI-L8")
def test_what_was_taken_in_stays_whatever_becomes_of_it_in_the_landing(tmp_path):
    source, lake = tmp_path / "landing", Lake(tmp_path / "lake")
    Month(source).write([0])
    (day,) = ingest.plan(source, lake, DAYS[:1]).days
    east, west = day.read
    lake.publish(day.date, ingest.said_of(day), [])

    def planned(*forgotten):
        return ingest.plan(source, lake, DAYS[:1], forgotten=forgotten)

    whole = west.path.read_bytes()
    for spoilt in (b"", whole[:-9], gzip.compress(b"{}")):
        west.path.write_bytes(spoilt)
        assert planned().days == ()
    manifest_of(west.path).write_text("rubbish")
    assert planned().days == ()
    west.path.unlink()
    manifest_of(west.path).unlink()
    assert planned().days == ()
    (less,) = planned(day.date).days
    assert (less.kept, less.read) == ((), (east,)), "asked for"
    shutil.rmtree(source / day.date)
    assert planned().days == ()


@pytest.mark.rule("BI-L3", "BI-L8")
def test_what_was_damaged_and_is_shipped_again_is_taken_in(tmp_path):
    source, lake = tmp_path / "landing", Lake(tmp_path / "lake")
    Month(source).write([0])
    segment = next((source / DAYS[0]).glob("east-*.jsonl.gz"))
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-9])
    (day,) = ingest.plan(source, lake, DAYS[:1]).days
    assert [(one.name, one.fault) for one in day.unusable] == [(segment.name, "damaged")]
    assert len(day.read) == 1
    lake.publish(day.date, ingest.said_of(day), [])
    assert ingest.plan(source, lake, DAYS[:1]).days == (), "it still is"
    segment.write_bytes(whole)
    (day,) = ingest.plan(source, lake, DAYS[:1]).days
    assert ([one.name for one in day.read], day.unusable) == ([segment.name], ())
    assert len(day.kept) == 1


@pytest.mark.rule("BI-L8")
def test_a_later_version_reads_again_what_is_there_and_keeps_the_rest(tmp_path, monkeypatch):
    source, lake = tmp_path / "landing", Lake(tmp_path / "lake")
    Month(source).write([0])
    (day,) = ingest.plan(source, lake, DAYS[:1]).days
    east, west = day.read
    said = ingest.said_of(day)
    lake.publish(day.date, said, [])
    west.path.unlink()
    monkeypatch.setattr(ingest, "VERSION", ingest.VERSION + 1)
    (anew,) = ingest.plan(source, lake, DAYS[:1]).days
    assert (anew.kept, anew.read, anew.made_of) == ((west,), (east,), day.made_of)
    assert ingest.said_of(anew)["generation"] != said["generation"], "none is written over"


@pytest.mark.rule("BI-L9")
def test_a_segment_of_another_day_is_set_aside_whole(tmp_path):
    Month(tmp_path, when=NEVER).write([0, 4])
    for path in (tmp_path / DAYS[0]).glob("west-*"):
        shutil.copy(path, tmp_path / DAYS[1] / path.name)
    name = next((tmp_path / DAYS[0]).glob("west-*.gz")).name
    day = landing.read_day(tmp_path, DAYS[1])
    assert [(one.name, one.fault) for one in day.unusable] == [(name, "of another day")]
    assert len(day.segments) == 2
    lake = Lake(tmp_path / "lake")
    (first,) = ingest.plan(tmp_path, lake, DAYS[1:2]).days
    lake.publish(DAYS[1], ingest.said_of(first), [])
    for path in (tmp_path / DAYS[0]).glob("west-*"):
        (tmp_path / DAYS[1] / path.name).unlink()
    (without,) = ingest.plan(tmp_path, lake, DAYS[1:2]).days
    assert (len(without.kept), without.read, without.unusable) == (2, (), ()), "once it is removed"


class Killed(Exception):
    """The process died here."""


@pytest.mark.rule("BI-L5")
@pytest.mark.parametrize("at", ["place lines", "place histograms", "name", "remove what"])
def test_a_run_that_is_killed_and_repeated_gives_what_an_undisturbed_one_gives(tmp_path, at):
    """Between any two steps of taking a day in; what Spark does before that is staged only."""
    lake = Lake(tmp_path / "lake")

    def stage(text):
        for name in ("lines", "histograms"):
            (lake.staging / name).mkdir(parents=True)
            (lake.staging / name / "part").write_text(text)
        return [(name, lake.staging / name) for name in ("lines", "histograms")]

    def visible():
        current = lake.current("2026-10-01")
        if current is None:
            return None
        home = f"date=2026-10-01/generation={current['generation']}"
        return [(lake.root / name / home / "part").read_text() for name in ("lines", "histograms")]

    lake.publish("2026-10-01", {"generation": "one"}, stage("old"))

    def die(step):
        if step.startswith(at):
            raise Killed

    killed = Lake(lake.root, die)
    with pytest.raises(Killed):  # noqa: PT012  # either may end it
        killed.publish("2026-10-01", {"generation": "two"}, stage("new"))
        killed.clean()
    assert visible() in (["old", "old"], ["new", "new"]), "all of one or all of the other"
    lake.clean()
    if visible() == ["old", "old"]:
        lake.publish("2026-10-01", {"generation": "two"}, stage("new"))
    lake.clean()
    assert visible() == ["new", "new"]
    assert {path.name for path in lake.root.glob("*/date=*/*")} == {"generation=two"}


@pytest.mark.rule("BI-L5")
def test_what_a_killed_run_has_left_goes_although_nothing_has_changed(tmp_path):
    """Killed between naming a day and removing what the day was."""
    source, lake = tmp_path / "landing", Lake(tmp_path / "lake")
    Month(source).write([0])
    (day,) = ingest.plan(source, lake, DAYS[:1]).days

    def publish(lake, said):
        lake.staging.mkdir(parents=True)
        lake.publish(DAYS[0], said, [("lines", lake.staging)])

    def die(step):
        if step.startswith("remove what"):
            raise Killed

    publish(lake, {"generation": "old", "taken": []})
    publish(lake, ingest.said_of(day))
    with pytest.raises(Killed):
        Lake(lake.root, die).clean()
    assert len(list(lake.root.glob("lines/date=*/*"))) == 2
    nothing_to_read: Any = None  # so no Spark
    report._ingest(nothing_to_read, source, lake, DAYS[:1], pytest.fail)
    (left,) = lake.root.glob("lines/date=*/*")
    assert left.name == f"generation={day.generation}"


@pytest.mark.rule("BI-L5")
@pytest.mark.parametrize("text", ["", '{"generation', "1"])
def test_what_is_said_of_a_day_and_is_damaged_is_named(tmp_path, text):
    lake = Lake(tmp_path)
    lake.publish(DAYS[0], {"generation": "one"}, [])
    path = tmp_path / "current" / f"{DAYS[0]}.json"
    path.write_text(text)
    with pytest.raises(LakeDamagedError, match=f"{path} cannot be read; put it back"):
        lake.current(DAYS[0])


@pytest.mark.rule("BI-L5")
def test_what_has_filled_the_disk_is_given_back(tmp_path, monkeypatch):
    source, lake = tmp_path / "landing", Lake(tmp_path / "lake")
    Month(source).write([0])

    def stage(_spark, lake, _segments, _say):
        lake.staging.mkdir(parents=True)
        (lake.staging / "part").write_text("as far as it came")
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(ingest, "_stage", stage)
    nothing: Any = None
    with pytest.raises(OSError, match="no space"):
        ingest.ingest(nothing, lake, ingest.plan(source, lake, DAYS[:1]).days, lambda _: None)
    assert list(lake.root.iterdir()) == []


@pytest.mark.rule("BI-L5")
def test_a_java_that_outlives_its_run_writes_nowhere_where_the_next_one_does(tmp_path):
    """One whose Python alone was killed writes on for a moment."""
    killed, lake = Lake(tmp_path, pid=1), Lake(tmp_path)
    killed.staging.mkdir()
    lake.clean()
    lake.staging.mkdir()
    killed.staging.mkdir()
    (killed.staging / "part").write_text("late")
    assert list(lake.staging.iterdir()) == []
    lake.clean()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule("BI-L3")
def test_a_damaged_segment_is_set_aside_whole_until_it_is_shipped_again(tmp_path):
    Month(tmp_path, hours=24).write(range(1))
    path = next(tmp_path.glob("*/east-*.jsonl.gz"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    day = landing.read_day(tmp_path, DAYS[0])
    assert [one.fault for one in landing.verified(day).unusable] == ["damaged"]
    assert len(landing.verified(day).segments) == len(day.segments) - 1
    path.write_bytes(whole)
    assert landing.verified(day) == day
