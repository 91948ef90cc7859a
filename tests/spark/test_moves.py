"""What changed, of values made by hand; no frame takes part."""

from dataclasses import replace
from typing import Any

import pytest

from spark_jobs.dates import DAY_US
from spark_jobs.report import beside, page, words
from spark_jobs.report.data import Data, Past, Total
from spark_jobs.report.moves import SHOWN, Move, moves
from spark_jobs.report.verdict import judge
from tests.spark.test_alerts import HOSTILE, day, latency


def total(what: str, value: float, scope: str = "queue", name: str = "orders") -> Total:
    return Total("east", "main", scope, name, what, value)


def past(*totals: Total, length: float = 1.0, failures: tuple[Total, ...] = ()) -> Past:
    return Past((("east", round(DAY_US * length)),), totals, failures)


def against(now: Past, *before: Past, **fields: Any) -> list[Move]:
    return moves(day(own=now, past=before, **fields))


def received(value: float, name: str = "orders") -> Total:
    return total("received", value, name=name)


def test_half_of_a_million_comes_before_three_times_as_much_of_nearly_nothing() -> None:
    small, large = received(1, "small"), received(1e6, "large")
    some = received(300, "some")
    found = against(
        past(received(3, "small"), received(5e5, "large"), received(1_000, "some")),
        *[past(small, large, some)] * 4,
    )
    assert [one.name for one in found] == ["large", "some"]
    one = found[0]
    assert [one.usual, one.now] == pytest.approx([1e6 / 86_400, 5e5 / 86_400])
    assert words.change(one.usual, one.now) == "-50%"


def test_what_lies_within_the_spread_of_the_days_before_has_not_moved() -> None:
    calm = [past(received(1e5 * factor)) for factor in (0.98, 1.0, 1.02, 1.05)]
    wild = [past(received(1e5 * factor)) for factor in (0.2, 0.9, 1.0, 4.0)]
    assert len(against(past(received(3e5)), *calm)) == 1
    assert against(past(received(3e5)), *wild) == []
    assert against(past(received(1.2e5)), *calm) == []


def test_one_odd_day_before_does_not_make_what_is_usual() -> None:
    (one,) = against(past(received(9e5)), *[past(received(n)) for n in (1e5, 1e5, 1e5, 1.6e5)])
    assert one.usual == pytest.approx(1e5 / 86_400)


def test_a_day_that_is_not_over_is_compared_by_the_time_that_is_covered() -> None:
    whole = past(received(2.4e5))
    assert against(past(received(1e5), length=10 / 24), whole) == []
    (one,) = against(past(received(2e5), length=10 / 24), whole)
    assert words.change(one.usual, one.now) == "+100%"


def test_a_gauge_is_no_rate() -> None:
    waiting = total("ready", 5_000)
    assert against(past(waiting, length=0.5), past(waiting)) == []
    (one,) = against(past(total("ready", 90_000)), past(waiting))
    assert (one.what, one.usual, one.now) == ("most messages waiting", 5_000, 90_000)


def test_what_is_new_and_what_is_gone_is_said() -> None:
    found = against(past(received(1e6, "new")), past(received(1e6, "old")))
    said = {one.name: words.change(one.usual, one.now) for one in found}
    assert said == {"new": "new", "old": "gone"}


def test_an_instance_without_logs_on_the_days_before_has_not_changed() -> None:
    elsewhere = Past((("west", DAY_US),), (replace(received(5), instance="west"),))
    assert against(past(received(1e6)), elsewhere) == []
    assert against(past(received(1e6))) == [], "there is nothing to compare with"
    (one,) = against(past(received(1e6)), elsewhere, past(received(1e5)))
    assert one.usual == pytest.approx(1e5 / 86_400), "of the days that it has logs of"


def test_a_pair_is_said_once_where_both_sides_are_in_the_logs() -> None:
    def pair(what: str, value: float) -> Total:
        return total(what, value, "pair", "shop → warehouse")

    both = against(
        past(pair("sent", 9e5), pair("received", 9e5)),
        past(pair("sent", 1e5), pair("received", 1e5)),
    )
    assert [one.what for one in both] == ["messages sent"]
    (one,) = against(past(pair("received", 9e5)), past(pair("received", 1e5)))
    assert one.what == "messages received"


def test_waits_are_compared_by_their_whole_days() -> None:
    def line(p95: int, *, ago: int = 0, count: int = 100) -> Any:
        return replace(latency(0, p95, ago=ago, count=count), span="all", span_at=None)

    usual = tuple(line(20_000, ago=7 * week) for week in (1, 2, 3))
    known = {"own": past(), "past": (past(),)}
    (one,) = moves(day(latency=(line(90_000),), baseline=usual, **known))
    assert (one.what, one.usual, one.now) == ("wait in the queue, p95", 20_000, 90_000)
    assert moves(day(latency=(line(90_000, count=5),), baseline=usual, **known)) == []
    quick = tuple(line(100, ago=7 * week) for week in (1, 2, 3))
    assert moves(day(latency=(line(5_000),), baseline=quick, **known)) == [], "tiny on both sides"


def test_failures_and_drops_are_compared_by_their_reasons() -> None:
    def fails(times: float) -> tuple[Total, ...]:
        return (total("TimeoutError: N s", times, "broker.activation"),)

    found = against(
        past(total("dropped_no_route", 4_000, "instance", ""), failures=fails(900)),
        past(failures=fails(48)),
    )
    assert {(one.what, one.name) for one in found} == {
        ("failures", "orders: TimeoutError: N s"),
        ("dropped no route", ""),
    }
    assert against(past(failures=fails(6)), past(failures=fails(1))) == []


def test_the_ten_largest_are_shown_in_an_order_that_does_not_change() -> None:
    names = [f"q{number:02}" for number in range(30)]
    now = past(*(received(1e6, name) for name in reversed(names)))
    before = past(*(received(1e5, name) for name in names))
    assert [one.name for one in against(now, before)] == names[:SHOWN]


def hostile() -> Data:
    return day(
        own=past(received(1e6, HOSTILE), received(1e6, "=1+1")),
        past=(past(received(1e3, HOSTILE)),),
    )


@pytest.mark.rule("BI-L4")
def test_no_name_of_a_move_can_act(tmp_path: Any) -> None:
    data = hostile()
    text = page.render(data, judge(data))
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "\u202e" not in text
    beside.write_csv(data, tmp_path)
    said = (tmp_path / "moves.csv").read_text()
    assert "'=1+1" in said
    assert "\u202e" not in said


def test_no_move_is_an_alert() -> None:
    data = hostile()
    before = [point.text for point in judge(day()).points]
    assert [point.text for point in judge(data).points] == before


def test_a_first_day_says_that_there_is_nothing_to_compare_with() -> None:
    for data, said in (
        (day(), "There is no such weekday before"),
        (day(own=past(), past=(past(),)), "No figure is far from what it usually is."),
    ):
        assert said in page.render(data, judge(data))


def test_changes_are_said_as_people_say_them() -> None:
    said = [words.change(2.0, now) for now in (2.5, 1.0, 6.0, 0.0)]
    assert said == ["+25%", "-50%", "3 times", "gone"]
    assert words.change(0.0, 5.0) == "new"
    assert [words.signed(value) for value in (-7.5, 0.000_02, 0)] == ["-7.5 s", "+20 µs", "+0 µs"]
