"""Values of single keys: numbers and durations with their limits."""

from datetime import timedelta
from typing import Any

import pytest

from brokerd.objects.keys import read_duration, read_number

SECOND = timedelta(seconds=1)


@pytest.mark.rule("PSN-14")
@pytest.mark.parametrize(
    ("value", "number"), [(1, 1), (9, 9), (0, 5), (10, 5), (True, 5), ("7", 5), (None, 5)]
)
def test_a_number_outside_its_limits_is_reported_and_replaced(value: Any, number: int) -> None:
    found: list[str] = []
    assert read_number(value, found.append, least=1, most=9, usual=5, problem="bad") == number
    assert found == ([] if value in (1, 9) and value is not True else ["bad"])


@pytest.mark.rule("PBT-3", "PBT-16")
@pytest.mark.parametrize(
    ("value", "or_off", "duration", "problem"),
    [
        ("1s", False, 1_000_000, ""),
        ("1d", False, 86_400_000_000, ""),
        (None, False, None, ""),
        ("OFF", True, None, ""),
        (False, True, None, ""),
        ("999ms", False, None, "1s to 1d (PBT-3)"),
        ("2d", True, None, "off, or 1s to 1d (PBT-3)"),
    ],
)
def test_a_duration_is_read_in_microseconds(
    value: Any, or_off: bool, duration: int | None, problem: str
) -> None:
    found: list[str] = []
    read = read_duration(value, found.append, least=SECOND, rule="PBT-3", or_off=or_off)
    assert read == duration
    assert found == ([problem] if problem else [])


@pytest.mark.rule("PBT-16")
@pytest.mark.parametrize("or_off", [True, False])
def test_what_is_no_duration_is_reported_with_the_reason(or_off: bool) -> None:
    found: list[str] = []
    assert read_duration("soon", found.append, least=SECOND, or_off=or_off) is None
    assert len(found) == 1
    assert found[0].startswith("off, or a duration: " if or_off else "a duration: ")
