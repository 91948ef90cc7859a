"""Figures by the hour beside what is usual: series with their bands, and the hours outside. Pure.

Reads:  `Data` for the page of a day.      Calls: bands, drawings.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spark_jobs.report import bands, drawings, words
from spark_jobs.report.bands import Band, Side
from spark_jobs.report.data import Data, Hour
from spark_jobs.report.hourly import HOURS

LABELS_OF_A_DAY = 3
"""Hours between two labels of a chart of one day."""


@dataclass(frozen=True, slots=True)
class Unusual:
    """Hours in a row that were outside their bands on one side."""

    date: str
    hours: tuple[int, ...]
    side: Side
    value: float
    """The figure farthest from what is usual."""
    usual: float


@dataclass(frozen=True, slots=True)
class Series:
    """A figure of each hour of some days, and the band of each hour; None = not known."""

    dates: tuple[str, ...]
    values: tuple[float | None, ...]
    bands: tuple[Band | None, ...]

    @property
    def has_bands(self) -> bool:
        """Whether it is known of any hour what is usual."""
        return any(self.bands)

    def unusual(self) -> list[Unusual]:
        """Return the stretches of unusual hours, the longest first."""
        out = {
            at: side
            for at, (value, band) in enumerate(zip(self.values, self.bands, strict=True))
            if value is not None and band is not None and (side := band.side(value))
        }
        found = []
        for number, date in enumerate(self.dates):
            first = number * HOURS
            own = [(hour, out[first + hour]) for hour in range(HOURS) if first + hour in out]
            for side, hours in bands.in_a_row(own):
                found.append(self._stretch(date, first, hours, side))
        return sorted(found, key=lambda one: (-len(one.hours), one.date, one.hours))

    def _stretch(self, date: str, first: int, hours: Sequence[int], side: Side) -> Unusual:
        rows = [(self.values[first + hour] or 0.0, self.bands[first + hour]) for hour in hours]
        pairs = [(value, band.usual) for value, band in rows if band is not None]
        value, usual = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
        return Unusual(date, tuple(hours), side, value, usual)


def sent(data: Data) -> Series:
    """Return the messages sent in each hour of the day."""
    return _series(data, lambda hour: hour.sent, bands.counts)


def waits(data: Data) -> Series:
    """Return the p95 of the waits in all queues in each hour of the day, in microseconds."""
    return _series(data, lambda hour: hour.p95_us, bands.durations)


def chart(
    title: str,
    series: Series,
    wording: drawings.Wording,
    *,
    legend: str,
    logarithmic: bool = False,
) -> drawings.Picture | None:
    """Draw a series of one day or several; None if no hour is known."""
    if not any(value is not None for value in series.values):
        return None
    if len(series.dates) == 1:
        ticks = [(hour, f"{hour:02}:00") for hour in range(0, HOURS, LABELS_OF_A_DAY)]
    else:
        days = enumerate(series.dates)
        ticks = [(at * HOURS, words.short_day(date).rsplit(" ", 1)[0]) for at, date in days]
    svg = drawings.banded(series.values, series.bands, ticks, wording, logarithmic=logarithmic)
    signs = drawings.BAND_SIGNS if series.has_bands else ()
    return drawings.Picture(title, "", (legend,), signs, svg)


def _series(
    data: Data,
    figure: Callable[[Hour], int | None],
    banding: Callable[[Sequence[float]], Band | None],
) -> Series:
    own = _by_hour(data.hours, figure)
    before = _by_hour(data.hours_before, figure)
    return Series(
        dates=(data.date,),
        values=tuple(own[hour][0] if own[hour] else None for hour in range(HOURS)),
        bands=tuple(banding(before[hour]) for hour in range(HOURS)),
    )


def _by_hour(hours: Iterable[Hour], figure: Callable[[Hour], int | None]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {hour: [] for hour in range(HOURS)}
    for one in hours:
        value = figure(one)
        if value is not None:
            found[one.hour].append(float(value))
    return found
