"""Hours of a day beside what is usual, as its page draws them; no frame takes part."""

from typing import Any

import pytest

from spark_jobs.report import page, usual
from spark_jobs.report.bands import Side
from spark_jobs.report.data import Data, Hour
from spark_jobs.report.verdict import judge
from tests.spark.month import day_of
from tests.spark.test_alerts import TODAY, day

WEEKS = tuple(day_of(TODAY - 7 * week) for week in (4, 3, 2, 1))


def hour(number: int, sent: int, *, p95: int | None = 20_000, date: str = day_of(TODAY)) -> Hour:
    return Hour(date, number, sent=sent, received=sent, waits=sent, p50_us=p95, p95_us=p95)


def data(today: tuple[Hour, ...], weeks: tuple[str, ...] = WEEKS, **fields: Any) -> Data:
    before = (hour(number, 1_000 + number, date=date) for date in weeks for number in range(24))
    return day(hours=today, hours_before=tuple(before), **fields)


def shown(one: Data) -> str:
    return page.render(one, judge(one))


@pytest.mark.rule("BI-L52")
def test_hours_outside_the_band_are_named_and_drawn_as_dots():
    quiet = tuple(hour(number, 40 if number in {9, 10} else 1_000) for number in range(24))
    (found,) = usual.sent(data(quiet)).unusual()
    assert (found.hours, found.side, found.value) == ((9, 10), Side.BELOW, 40)
    text = shown(data(quiet))
    traffic = text[text.index('aria-label="Traffic by hour') :]
    assert "09:00 to 11:00" in traffic
    assert traffic.count("<circle") == 2
    assert "<polygon" in traffic


@pytest.mark.rule("BI-L52")
def test_slow_hours_are_named_beside_their_usual_wait():
    slow = tuple(
        hour(number, 1_000, p95=90_000 if number == 14 else 20_000) for number in range(24)
    )
    (found,) = usual.waits(data(slow)).unusual()
    assert (found.hours, round(found.usual)) == ((14,), 20_000)
    text = shown(data(slow))
    waits = text[text.index('aria-label="Waits by hour') : text.index("<h2>How much went through?")]
    assert "14:00 to 15:00" in waits
    assert "90 ms" in waits


@pytest.mark.rule("BI-L52")
def test_an_hour_that_the_logs_do_not_cover_is_not_an_hour_without_messages():
    gap = tuple(hour(number, 1_000) for number in range(24) if number != 3)
    series = usual.sent(data(gap))
    assert series.values[3] is None
    assert series.unusual() == []


@pytest.mark.rule("BI-L52")
def test_a_day_with_two_weeks_before_it_has_no_band():
    series = usual.sent(data((hour(9, 0),), WEEKS[:2]))
    assert not series.has_bands
    text = shown(data((hour(9, 0),), WEEKS[:2]))
    assert "No band is drawn" in text
    assert "<polygon" not in text
