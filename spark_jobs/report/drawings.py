"""Drawings other than line charts, in the colours of the page around them. Pure.

Reads:  numbers and names; every name is escaped and shown without control characters (BI-L4).
Never:  draws a date or a random id: equal numbers give equal bytes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup, escape

from spark_jobs.report.bands import Band
from spark_jobs.report.words import shown
from spark_jobs.schema import HISTOGRAM_BASE

HOURS = 24
_WIDTH = 720.0
_LEFT = 72.0
"""Room for the labels of an axis, enough for a phone, where text is larger in these units."""

_PLOT = 180.0
_COLOURS = ("var(--c1)", "var(--c2)", "var(--c3)", "var(--mark)", "var(--look)")

BAND_SIGNS = (("usual", "usual"), ("unusual", "unusual"))
"""The legend of a banded chart: the classes and texts of its band and of its dots."""

Wording = Callable[[float], str]
Known = TypeVar("Known", float, Band)


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing with its legend, in the form that the page's macro takes."""

    title: str
    note: str
    legend: tuple[str, ...]
    signs: tuple[tuple[str, str], ...]
    svg: Markup


def heat_map(rows: Mapping[str, Sequence[float]], wording: Wording) -> Markup:
    """Draw a row per name with a cell per hour, more opaque for more; its title is the value.

    Not as SVG, so that a phone can show each name above its cells without scrolling.
    """
    most = max((value for row in rows.values() for value in row), default=0.0) or 1.0
    clock = "".join(f"<span>{hour:02}</span>" for hour in range(0, HOURS, 3))
    parts = [f'<div><span></span><div class="clock">{clock}</div></div>']
    for name, row in rows.items():
        called = escape(shown(name))
        cells = []
        for hour, value in enumerate(row):
            # The square root keeps a small wait visible beside a large one.
            depth = 0.08 + 0.92 * (value / most) ** 0.5 if value else 0.04
            said = f"{called}, {hour:02}:00: {escape(wording(value))}"
            cells.append(f'<i style="opacity:{depth:.2f}" title="{said}"></i>')
        parts.append(f'<div><span>{called}</span><div class="cells">{"".join(cells)}</div></div>')
    body = "\n".join(parts)
    return Markup(f'<div class="heat">\n{body}\n</div>')  # noqa: S704  # names are escaped


def stacked(columns: Mapping[str, Sequence[float]], wording: Wording) -> Markup:
    """Draw a bar per hour, stacked from the values of each name, the first at the bottom."""
    totals = [sum(row[hour] for row in columns.values()) for hour in range(HOURS)]
    most = max(totals) or 1.0
    width = (_WIDTH - _LEFT) / HOURS
    parts = _levels(most, wording)
    parts += [_text(_LEFT + hour * width, _PLOT + 31, f"{hour:02}") for hour in range(0, HOURS, 3)]
    for hour in range(HOURS):
        foot = _PLOT + 12
        for colour, (name, row) in zip(_COLOURS, columns.items(), strict=False):
            height = row[hour] / most * _PLOT
            foot -= height
            if height > 0:
                parts.append(
                    f'<rect x="{_LEFT + hour * width:.1f}" y="{foot:.1f}" width="{width - 2:.1f}" '
                    f'height="{height:.1f}" fill="{colour}"><title>{escape(shown(name))}, '
                    f"{hour:02}:00: {escape(wording(row[hour]))}</title></rect>"
                )
    return _svg(_WIDTH, _PLOT + 37, parts)


def banded(
    values: Sequence[float | None],
    bands: Sequence[Band | None],
    ticks: Sequence[tuple[int, str]],
    wording: Wording,
    *,
    logarithmic: bool = False,
) -> Markup:
    """Draw a curve in front of the band of what is usual; a point outside its band is a dot.

    None leaves the curve, or the band, out. A tick is an index of `values` and its label.
    """
    scale = _Scale.over(values, bands, logarithmic=logarithmic)
    width = (_WIDTH - _LEFT - 6) / max(len(values) - 1, 1)

    def across(index: int) -> float:
        return _LEFT + index * width

    parts = []
    for level in scale.levels():
        y = scale.height(level)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
        )
        parts.append(_text(_LEFT - 6, y + 4, wording(level), anchor="end"))
    for index, label in ticks:
        x = across(index)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="12" y2="{_PLOT + 12:.0f}" stroke="var(--line)"/>'
        )
        parts.append(_text(x, _PLOT + 31, label))
    for run in _runs(bands):
        edges = [(across(at), scale.height(band.high)) for at, band in run]
        edges += [(across(at), scale.height(band.low)) for at, band in reversed(run)]
        parts.append(f'<polygon points="{_points(edges)}" fill="var(--c1)" fill-opacity=".16"/>')
        usual = [(across(at), scale.height(band.usual)) for at, band in run]
        parts.append(
            f'<polyline points="{_points(usual)}" fill="none" stroke="var(--mark)" '
            f'stroke-dasharray="3 3"/>'
        )
    for line in _runs(values):
        ends = [(across(at), scale.height(value)) for at, value in line]
        if len(ends) == 1:
            ends = [(ends[0][0] - 1, ends[0][1]), (ends[0][0] + 1, ends[0][1])]
        parts.append(
            f'<polyline points="{_points(ends)}" fill="none" stroke="var(--c1)" stroke-width="2"/>'
        )
    for index, (value, band) in enumerate(zip(values, bands, strict=True)):
        if value is not None and band is not None and band.side(value):
            parts.append(
                f'<circle cx="{across(index):.1f}" cy="{scale.height(value):.1f}" r="4" '
                f'fill="var(--look)"><title>{escape(wording(value))}; '
                f"{escape(wording(band.usual))} is usual</title></circle>"
            )
    return _svg(_WIDTH, _PLOT + 37, parts)


class _Scale:
    """The vertical axis of a banded chart."""

    def __init__(self, low: float, high: float, *, logarithmic: bool) -> None:
        self._low, self._high, self._logarithmic = low, high, logarithmic

    @classmethod
    def over(
        cls,
        values: Sequence[float | None],
        bands: Sequence[Band | None],
        *,
        logarithmic: bool,
    ) -> "_Scale":
        known = [value for value in values if value is not None]
        known += [edge for band in bands if band for edge in (band.high, band.usual)]
        high = max(known, default=0.0) or 1.0
        if not logarithmic:
            return cls(0.0, high, logarithmic=False)
        low = min((value for value in known if value > 0), default=1.0)
        whole = 10.0 ** math.ceil(math.log10(high))
        return cls(min(10.0 ** math.floor(math.log10(low)), whole / 10), whole, logarithmic=True)

    def levels(self) -> list[float]:
        if not self._logarithmic:
            return [self._high * part for part in (0.0, 0.5, 1.0)]
        decades = round(math.log10(self._high / self._low))
        step = max(1, decades // 3)
        return [self._low * 10**power for power in range(0, decades + 1, step)]

    def height(self, value: float) -> float:
        if self._logarithmic:
            part = math.log(max(value, self._low) / self._low) / math.log(self._high / self._low)
        else:
            part = (value - self._low) / (self._high - self._low)
        return _PLOT + 12 - part * _PLOT


def _runs(values: Sequence[Known | None]) -> Iterator[list[tuple[int, Known]]]:
    """Yield the known values in a row, each with its index."""
    run: list[tuple[int, Known]] = []
    for index, value in enumerate(values):
        if value is not None:
            run.append((index, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def spread(
    today: Sequence[tuple[int, int]], before: Sequence[tuple[int, int]], wording: Wording
) -> Markup:
    """Draw the cumulative distributions of two histograms: today, and the days before."""
    buckets = [bucket for bucket, _ in (*today, *before)]
    low, high = min(buckets), max(*buckets, min(buckets) + 1)

    def across(bucket: float) -> float:
        return _LEFT + (bucket - low) / (high - low) * (_WIDTH - _LEFT - 10)

    parts = _levels(1.0, lambda part: f"{part:.0%}")
    step = max((high - low) // 5, 1)
    for bucket in range(low, high + 1, step):
        value = HISTOGRAM_BASE ** (bucket + 0.5)
        is_last = across(bucket) > _WIDTH - 40  # no room for the second half of a centred label
        x, anchor = (_WIDTH, "end") if is_last else (across(bucket), "middle")
        anchor = "start" if bucket == low else anchor  # centred, it would overlap the label of 0 %
        parts.append(_text(x, _PLOT + 31, wording(value), anchor=anchor))
    for colour, curve in ((_COLOURS[3], before), (_COLOURS[0], today)):
        total = sum(count for _, count in curve)
        below, points = 0, []
        for bucket, count in curve:
            below += count
            points.append(f"{across(bucket):.1f},{_PLOT + 12 - below / total * _PLOT:.1f}")
        if points:
            parts.append(
                f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" '
                f'stroke-width="2"/>'
            )
    return _svg(_WIDTH, _PLOT + 37, parts)


def flows(pairs: Sequence[tuple[str, str, int]]) -> Markup:
    """Draw a band from the sender on the left to the receiver on the right for each pair."""
    total = sum(count for _, _, count in pairs) or 1
    senders = _places([(name, count) for name, _, count in pairs], total)
    receivers = _places([(name, count) for _, name, count in pairs], total)
    left, right = 190.0, _WIDTH - 190.0
    parts = []
    at_left = {name: top for name, (top, _) in senders.items()}
    at_right = {name: top for name, (top, _) in receivers.items()}
    for number, (sender, receiver, count) in enumerate(pairs):
        height = max(count / total * _PLOT, 1.0)
        a, b = at_left[sender], at_right[receiver]
        at_left[sender] += height
        at_right[receiver] += height
        middle = (left + right) / 2
        path = (
            f"M{left} {a:.1f}C{middle} {a:.1f} {middle} {b:.1f} {right} {b:.1f}"
            f"V{b + height:.1f}C{middle} {b + height:.1f} {middle} {a + height:.1f} "
            f"{left} {a + height:.1f}Z"
        )
        parts.append(
            f'<path d="{path}" fill="{_COLOURS[number % 3]}" fill-opacity="0.45"><title>'
            f"{escape(shown(sender))} → {escape(shown(receiver))}: {count:,}</title></path>"
        )
    for names, x, anchor in ((senders, left - 8, "end"), (receivers, right + 8, "start")):
        for name, (top, height) in names.items():
            parts.append(_text(x, top + height / 2 + 4, _short(name), title=name, anchor=anchor))
    depth = max(top + height for top, height in (*senders.values(), *receivers.values()))
    return _svg(_WIDTH, depth + 8, parts)


def _places(named: Sequence[tuple[str, int]], total: int) -> dict[str, tuple[float, float]]:
    """Return the top and height of each name, in the order of first appearance."""
    found: dict[str, tuple[float, float]] = {}
    heights: dict[str, float] = {}
    for name, count in named:
        heights[name] = heights.get(name, 0.0) + max(count / total * _PLOT, 1.0)
    top = 8.0
    for name, height in heights.items():
        found[name] = (top, height)
        top += max(height, 12.0) + 8
    return found


def _levels(most: float, wording: Wording) -> list[str]:
    parts = []
    for part in (0.0, 0.5, 1.0):
        y = _PLOT + 12 - part * _PLOT
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
        )
        parts.append(_text(_LEFT - 6, y + 4, wording(most * part), anchor="end"))
    return parts


def _text(x: float, y: float, text: str, *, title: str = "", anchor: str = "start") -> str:
    said = f"<title>{escape(shown(title))}</title>" if title else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" fill="var(--muted)" '
        f'text-anchor="{anchor}">{said}{escape(shown(text))}</text>'
    )


def _short(name: str, length: int = 22) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _svg(width: float, height: float, parts: Sequence[str]) -> Markup:
    body = "\n".join(parts)
    return Markup(f'<svg viewBox="0 0 {width:.0f} {height:.0f}">\n{body}\n</svg>')  # noqa: S704  # names are escaped
