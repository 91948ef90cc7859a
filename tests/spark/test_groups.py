"""Hot groups, held locks, clocks and disks on the page, of values made by hand."""

from dataclasses import replace
from typing import Any

import pytest

from spark_jobs.hot_groups import NOBODY
from spark_jobs.latency import HOUR_US
from spark_jobs.report import beside, page
from spark_jobs.report.data import Counter, Data, Held, HotGroup, Night
from spark_jobs.report.groups import kept, skew
from spark_jobs.report.sections import peers
from spark_jobs.report.summary import summary
from spark_jobs.report.trends import disks, trends
from spark_jobs.report.verdict import judge
from tests.spark.month import day_of, midnight
from tests.spark.test_alerts import BOOT, HOSTILE, TODAY, day, gauge

NOON = midnight(TODAY) + 12 * HOUR_US


def hot(group: str, messages: int, name: str = "orders") -> HotGroup:
    return HotGroup("east", "main", name, group, messages)


def received(count: int, name: str = "orders") -> Counter:
    return Counter("east", "main", "queue", name, "received", NOON, count)


def lock(group: str, since_at: int, seen_at: int, **fields: Any) -> Held:
    found = Held("east", "main", "orders", group, since_at, seen_at, "client 1", "")
    return replace(found, **fields)


def test_the_part_of_a_hot_group_has_its_bound() -> None:
    rows = (hot("a", 600), hot("b", 100), hot(NOBODY, 50))
    (one,) = skew(day(groups=rows, counters=(received(1_000),)))
    assert (one.received, one.named, one.groups) == (1_000, 700, (("a", 600), ("b", 100)))
    assert (one.part(600), one.largest_most, one.part(one.named)) == (0.6, 650, 0.7)


def test_a_queue_has_received_at_least_what_its_groups_have() -> None:
    (one,) = skew(day(groups=(hot("a", 600), hot(NOBODY, 50)), counters=(received(400),)))
    assert (one.received, one.largest_most) == (600, 600), "lines are missing"


def test_a_queue_of_which_no_group_stands_out_is_not_listed() -> None:
    assert skew(day(groups=(hot(NOBODY, 3),), counters=(received(1_000),))) == []


def test_the_most_lopsided_queue_comes_first() -> None:
    rows = (hot("a", 500), hot("b", 90, "small"))
    counters = (received(10_000), received(100, "small"))
    assert [one.name for one in skew(day(groups=rows, counters=counters))] == ["small", "orders"]


def test_what_is_still_held_comes_first_then_the_longest() -> None:
    last = BOOT.last_at
    rows = (
        lock("short", last - HOUR_US, last - HOUR_US + 5_000_000),
        lock("long", last - HOUR_US, last - 600_000_000),
        lock("now", last - 20_000_000, last - 10_000_000),
    )
    found = kept(day(held=rows))
    assert [(one.group, one.is_held) for one in found] == [
        ("now", True),
        ("long", False),
        ("short", False),
    ]
    assert found[1].held_us == HOUR_US - 600_000_000


def test_nothing_is_held_of_an_instance_that_has_stopped() -> None:
    stopped = replace(BOOT, stopped=True)
    rows = (lock("a", BOOT.first_at, BOOT.last_at),)
    assert [one.is_held for one in kept(day(held=rows, boots=(stopped,)))] == [False]


def test_the_clock_of_a_peer_is_said_with_the_worst_of_the_day() -> None:
    def clock(hour: int, ahead: float) -> Any:
        return gauge("clock_ahead_s", ahead, hour=hour, scope="destination", name="TCP://west:1")

    connects = Counter("east", "", "destination", "TCP://west:1", "connects", NOON, 1)
    data = day(gauges=(clock(9, -7.0), clock(2, 0.1), clock(23, 0.2)), counters=(connects,))
    (one,) = peers(data)
    assert (one.clock_s, one.worst_clock_s) == (0.2, -7.0)
    text = page.render(data, judge(data))
    assert "+200 ms<small>up to -7 s</small>" in text
    (silent,) = peers(day(counters=(connects,)))
    assert silent.clock_s is None
    assert summary(data, judge(data))["clocks"] == [
        {"instance": "east", "peer": "TCP://west:1", "ahead_s": 0.2, "worst_s": -7.0}
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ["No line names a group that was held", "No line names a group that had"]),
        (
            {"groups": (hot(NOBODY, 3),)},
            ["No group was held for a second or longer", "No group had a hundredth"],
        ),
        ({"held": (lock("a", NOON, NOON + 5),)}, ["No group had a hundredth"]),
    ],
    ids=["lines of an older version", "nothing stands out", "one is held"],
)
def test_it_is_said_that_there_is_none_or_that_nothing_is_known(
    fields: dict[str, Any], said: list[str]
) -> None:
    data = day(counters=(received(1_000),), **fields)
    text = page.render(data, judge(data))
    every = ["No line names a group that was held", "No line names a group that had"]
    every += ["No group was held for a second or longer", "No group had a hundredth"]
    assert [one for one in every if one in text] == said


def night(ago: int, p99: int) -> Night:
    return Night(day_of(TODAY - ago), "east", "main", "commit_us", 100, p99)


def wal(ago: int, most: float) -> Any:
    return gauge("wal_bytes", most, ago=ago, scope="instance", name="", last=1.0)


def test_disks_are_followed_over_the_nights() -> None:
    data = day(commits=(night(2, 900), night(0, 4_000)), nights=(wal(1, 5e6), wal(0, 7e6)))
    (one,) = disks(data)
    assert (one.p99_us, one.first_p99_us) == (4_000, 900)
    assert (one.wal_bytes, one.first_wal_bytes) == (7e6, 5e6), "the most of a day"
    assert one.nights == 3
    assert len(trends(data)) == 2
    assert page.render(data, judge(data)).count('aria-label="Disks: ') == 2


def test_one_night_is_no_trend_and_a_store_that_is_gone_no_row() -> None:
    alone = day(commits=(night(0, 900),), nights=(wal(0, 5e6),))
    assert trends(alone) == []
    (one,) = disks(alone)
    assert (one.first_p99_us, one.first_wal_bytes) == (None, None), "there is no night before it"
    assert disks(day(commits=(night(1, 900),), nights=(wal(1, 5e6),))) == []


def full() -> Data:
    return day(
        groups=(hot(HOSTILE, 9), hot("=1+1", 5), hot(NOBODY, 1)),
        counters=(received(20),),
        held=(lock(HOSTILE, NOON, NOON + 5, by="=1+1", conversation_id=HOSTILE),),
        commits=(replace(night(1, 5), broker=HOSTILE), replace(night(0, 5), broker=HOSTILE)),
        gauges=(gauge("clock_ahead_s", 1.0, scope="destination", name=HOSTILE),),
    )


@pytest.mark.rule("BI-L4")
def test_no_name_can_act(tmp_path: Any) -> None:
    data = full()
    text = page.render(data, judge(data))
    assert text.count("&lt;script&gt;") >= 5
    assert "<script" not in text
    assert "\u202e" not in text
    beside.write_csv(data, tmp_path)
    for name in ("groups.csv", "held.csv"):
        said = (tmp_path / name).read_text()
        assert "'=1+1" in said
        assert "\u202e" not in said


def test_none_of_it_is_an_alert() -> None:
    before = [point.text for point in judge(day()).points]
    assert [point.text for point in judge(full()).points] == before
