"""Growth of figures, as an SVG picture that stands alone. PURE: the same numbers, the same bytes.

A panel shows one measure, with its series as lines over a logarithmic axis shared by all panels.
"""

from collections.abc import Mapping, Sequence
from math import log10
from typing import Final
from xml.sax.saxutils import escape

import msgspec

_WIDTH, _HEIGHT = 360.0, 220.0
"""Width and height of a panel."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 14.0, 34.0, 34.0
_COLOURS: Final = ("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c")
_COLUMNS = 2
_LEVELS = 4


class Panel(msgspec.Struct, frozen=True):
    """One measure; each series has a value for each point."""

    title: str
    series: Mapping[str, Sequence[float]]


def growth(title: str, across: str, points: Sequence[int], panels: Sequence[Panel]) -> str:
    """Return the picture. `across`: the quantity of which the `points`, at least 1, are values."""
    rows = -(-len(panels) // _COLUMNS)
    width, height = _COLUMNS * _WIDTH, rows * _HEIGHT + 44
    parts = [_text(12, 20, title, size=14, anchor="start")]
    for number, panel in enumerate(panels):
        row, column = divmod(number, _COLUMNS)
        inside = "\n".join(_panel(panel, points))
        parts.append(
            f'<g transform="translate({column * _WIDTH:.0f} {row * _HEIGHT + 26:.0f})">\n'
            f"{inside}\n</g>"
        )
    parts.append(_text(width / 2, height - 6, across, anchor="middle"))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        f"{body}\n</svg>\n"
    )


def short(value: float) -> str:
    """Return a number in its short form: 950, 1.5k, 20M."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def top_of(most: float) -> float:
    """Return the end of an axis with room for `most`: 1, 2, 4, 6 or 10 times a power of ten."""
    if most <= 0:
        return 1.0
    power = 10.0 ** int(log10(most) // 1)
    return next(step * power for step in (1, 2, 4, 6, 10) if step * power >= most * (1 - 1e-9))


def _panel(panel: Panel, points: Sequence[int]) -> list[str]:
    top = top_of(max((value for row in panel.series.values() for value in row), default=0.0))
    low, high = log10(min(points)), log10(max(points))

    def x(point: int) -> float:
        part = (log10(point) - low) / (high - low) if high > low else 0.5
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_text(_LEFT, 16, panel.title, size=12, anchor="start")]
    for level in range(_LEVELS + 1):
        value = top * level / _LEVELS
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            'stroke="#d0d7de"/>'
        )
        parts.append(_text(_LEFT - 6, y(value) + 4, short(value), anchor="end"))
    parts += [_text(x(point), _HEIGHT - _BOTTOM + 16, short(point)) for point in points]
    for number, (name, row) in enumerate(panel.series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(x(point), y(value)) for point, value in zip(points, row, strict=True)]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in places]
        if len(panel.series) > 1:
            at = _WIDTH - _RIGHT - 60 * (len(panel.series) - 1 - number)
            parts.append(_text(at, 16, name, anchor="end", colour=colour))
    return parts


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 11,
    anchor: str = "middle",
    colour: str = "#24292f",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )
