"""Bands: what is usual at an hour of a weekday, from the same hours of the weeks before. Pure.

Reads:  figures of earlier hours.
Never:  compares a Sunday with a Tuesday, takes a fixed threshold for what is usual, or draws a band
        from fewer than `LEAST_WEEKS` weeks: nothing is unusual before something is usual (BI-L52).

A band is the median of the earlier figures and a margin on both sides. The margin is three times
their spread (the median distance from the median, scaled to that of a normal distribution), so one
odd week among four does not widen it. It has a floor: figures that happen to be equal say little.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

LEAST_WEEKS = 3
SPREADS = 3.0
_NORMAL = 1.4826
"""The spread of a normal distribution over the median distance from its median."""

LEAST_PART = 0.25
"""The margin of a count is at least this part of the median,"""

LEAST_FACTOR = 2.0
"""and that of a duration at least this factor."""

LEAST_COUNT = 50.0
"""A count this close to the usual one is not unusual, however small both are."""

LEAST_US = 10_000.0
"""A duration of at most this many microseconds is never unusual."""


class Side(Enum):
    """The position of a figure outside its band."""

    BELOW = "below"
    ABOVE = "above"


@dataclass(frozen=True, slots=True)
class Band:
    """The range of usual figures."""

    low: float
    usual: float
    high: float

    def side(self, value: float) -> Side | None:
        """Return the side on which a figure is outside the band; None = the figure is usual."""
        if value < self.low:
            return Side.BELOW
        return Side.ABOVE if value > self.high else None


def counts(before: Sequence[float]) -> Band | None:
    """Return the band of a count per hour; None if too few weeks are known."""
    if len(before) < LEAST_WEEKS:
        return None
    usual = median(before)
    # A count varies by its square root even if nothing has changed.
    noise = math.sqrt(usual)
    spread = max(_spread(before, usual), noise)
    margin = max(SPREADS * spread, LEAST_PART * usual, LEAST_COUNT)
    return Band(max(usual - margin, 0.0), usual, usual + margin)


def durations(before: Sequence[float]) -> Band | None:
    """Return the band of a duration in microseconds; None if too few weeks are known.

    Durations differ by factors, so the margin is one. No duration is too short, so the band begins
    at zero.
    """
    if len(before) < LEAST_WEEKS:
        return None
    logarithms = [math.log(max(value, 1.0)) for value in before]
    usual = median(logarithms)
    factor = max(math.exp(SPREADS * _spread(logarithms, usual)), LEAST_FACTOR)
    return Band(0.0, math.exp(usual), max(math.exp(usual) * factor, LEAST_US))


def in_a_row(hours: Iterable[tuple[int, Side]]) -> list[tuple[Side, list[int]]]:
    """Return the hours outside their bands, joined where one follows another on the same side."""
    found: list[tuple[Side, list[int]]] = []
    for hour, side in sorted(hours, key=lambda one: one[0]):
        if found and found[-1][0] is side and found[-1][1][-1] == hour - 1:
            found[-1][1].append(hour)
        else:
            found.append((side, [hour]))
    return found


def _spread(values: Sequence[float], middle: float) -> float:
    return _NORMAL * median(abs(value - middle) for value in values)
