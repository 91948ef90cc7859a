"""What is usual at an hour of a weekday; no frame takes part."""

import pytest

from spark_jobs.report import bands
from spark_jobs.report.bands import Band, Side, counts, durations, in_a_row

SUNDAYS = (130, 110, 150, 120)
TUESDAYS = (9_800, 10_400, 10_100, 9_900)
WAITS = (40_000.0, 55_000.0, 48_000.0, 44_000.0)


def band(found: Band | None) -> Band:
    assert found is not None
    return found


@pytest.mark.rule("BI-L52")
@pytest.mark.parametrize(
    ("before", "now", "side"),
    [
        pytest.param(SUNDAYS, 115, None, id="a quiet Sunday is as quiet as others"),
        pytest.param(TUESDAYS, 115, Side.BELOW, id="a Tuesday as quiet as a Sunday is not"),
        pytest.param(TUESDAYS, 6_500, Side.BELOW, id="a slow Tuesday"),
        pytest.param(TUESDAYS, 9_000, None, id="a Tuesday like others"),
        pytest.param(TUESDAYS, 0, Side.BELOW, id="a Tuesday without traffic"),
        pytest.param(SUNDAYS, 1_500, Side.ABOVE, id="a Sunday with ten times its traffic"),
        pytest.param((10, 12, 11), 0, None, id="a handful of messages that are missing"),
        pytest.param((0, 0, 0, 0), 40, None, id="a handful of messages in an hour without any"),
        pytest.param((0, 0, 0, 0), 400, Side.ABOVE, id="many in an hour without any"),
        pytest.param((10_000, 10_000, 10_000), 8_000, None, id="equal weeks have a margin as well"),
    ],
)
def test_an_hour_is_compared_with_the_same_hour_of_its_weekday(before, now, side):
    assert band(counts(before)).side(now) is side


@pytest.mark.rule("BI-L52")
@pytest.mark.parametrize(
    ("before", "now", "side"),
    [
        pytest.param(WAITS, 90_000, None, id="nearly twice"),
        pytest.param(WAITS, 130_000, Side.ABOVE, id="three times"),
        pytest.param(WAITS, 1, None, id="nothing is too quick"),
        pytest.param((200.0, 210.0, 190.0), 9_000, None, id="below ten milliseconds"),
        pytest.param((10_000.0, 80_000.0, 600_000.0), 900_000, None, id="waits that always vary"),
    ],
)
def test_a_wait_is_compared_by_factors(before, now, side):
    assert band(durations(before)).side(now) is side


@pytest.mark.rule("BI-L52")
@pytest.mark.parametrize("of", [counts, durations])
def test_before_enough_weeks_are_known_nothing_is_unusual(of):
    assert of([100.0] * (bands.LEAST_WEEKS - 1)) is None
    assert of([100.0] * bands.LEAST_WEEKS) is not None


@pytest.mark.rule("BI-L52")
def test_one_odd_week_does_not_hide_the_next():
    holiday = band(counts((9_800, 0, 10_100, 9_900)))
    assert holiday.side(0) is Side.BELOW
    assert holiday.usual == 9_850


@pytest.mark.rule("BI-L52")
def test_hours_in_a_row_on_one_side_are_one_stretch():
    found = in_a_row(
        [(5, Side.BELOW), (3, Side.ABOVE), (4, Side.ABOVE), (6, Side.BELOW), (9, Side.BELOW)]
    )
    assert found == [(Side.ABOVE, [3, 4]), (Side.BELOW, [5, 6]), (Side.BELOW, [9])]
