"""Dates at which other programs have failed: leap seconds, changes of the hour, 2038, 2100."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from brokerd.clock import SECOND, Instant, as_datetime, show_instant
from brokerd.telemetry.segments import day_of

DATES = (
    datetime(2016, 12, 31, 23, 59, 59, 999_999, UTC),  # before a leap second
    datetime(2017, 1, 1, tzinfo=UTC),
    datetime(2026, 3, 29, 1, 30, tzinfo=UTC),  # clocks go forward in Berlin
    datetime(2026, 10, 25, 0, 30, tzinfo=UTC),  # and back: an hour comes twice
    datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
    datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC),  # the last second of 31 bits
    datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
    datetime(2100, 2, 28, 23, 59, 59, tzinfo=UTC),  # no leap year
    datetime(2106, 2, 7, 6, 28, 16, tzinfo=UTC),  # beyond 32 bits
)


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/St_Johns"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.rule("FC-5")
@pytest.mark.parametrize("date", DATES, ids=str)
def test_an_instant_is_the_same_wherever_and_whenever_it_is(zone: str, date: datetime) -> None:
    assert os.environ["TZ"] == zone
    delta = date - datetime(1970, 1, 1, tzinfo=UTC)
    at = Instant((delta.days * 86_400 + delta.seconds) * SECOND + delta.microseconds)
    assert as_datetime(at) == date
    assert show_instant(at) == date.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert day_of(at) == date.date().isoformat()


@pytest.mark.rule("FC-5")
def test_instants_around_a_change_of_the_hour_keep_their_order_and_distance(zone: str) -> None:
    assert os.environ["TZ"] == zone
    begin = int(datetime(2026, 10, 24, 23, tzinfo=UTC).timestamp())
    texts = [show_instant(Instant((begin + hour * 3600) * SECOND)) for hour in range(6)]
    assert texts == sorted(set(texts))
