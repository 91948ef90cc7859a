"""Line charts as SVG that takes its colours and font from the page around it.

Reads:  numbers and instants; the only names in a picture are the titles of its upright lines, which
        are escaped.
Never:  draws a random id or the date of drawing: equal numbers give equal bytes.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import matplotlib as mpl
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from spark_jobs.report.words import moment

_SECOND_US = 1_000_000
POINTS_OF_A_LINE = 3
"""A curve with fewer points than this shows each as a dot."""

_MINUTE_S = 60
_DAY_S = 86_400
_SIZE_INCHES = (5.2, 2.15)
_TIME_STEPS_S = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600)
_TIME_LABELS = 6

# Placeholder colours, replaced by CSS variables when the picture is finished.
_INK, _GRID, _MARK, _CRASH = "#010101", "#020202", "#030303", "#070707"
COLOURS = ("#040404", "#050505", "#060606")
_VARIABLES = {
    _INK: "var(--muted)",
    _GRID: "var(--line)",
    _MARK: "var(--mark)",
    _CRASH: "var(--act)",
    COLOURS[0]: "var(--c1)",
    COLOURS[1]: "var(--c2)",
    COLOURS[2]: "var(--c3)",
}
_FONT = "DejaVu Sans"
_STYLE: dict[str, object] = {
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": _FONT,
    "font.size": 9,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",
    "xtick.color": _INK,
    "xtick.major.size": 3,
    "ytick.color": _INK,
    "ytick.major.size": 0,
}

Curve = Sequence[tuple[int, float]]
_UPRIGHT = "upright-"


class Sign(Enum):
    """The meaning of an upright line; the value is its class in the page's style sheet."""

    START = "start"
    CRASH = "crash"
    OTHER = "other"


_STROKES: dict[Sign, tuple[str, tuple[int, tuple[int, ...]] | str]] = {
    Sign.START: (_MARK, "solid"),
    Sign.CRASH: (_CRASH, (0, (4, 2))),
    Sign.OTHER: (_MARK, (0, (1, 2))),
}


@dataclass(frozen=True, slots=True)
class Upright:
    """A thin line at an instant, with the title that a pointer resting on it shows."""

    at: int
    sign: Sign
    title: str


@dataclass(frozen=True, slots=True)
class Frame:
    """The time shown, which the charts of a report share."""

    first_at: int
    last_at: int


def chart(
    curves: Sequence[Curve],
    *,
    frame: Frame,
    marks: Sequence[Upright],
    wording: Callable[[float], str],
    logarithmic: bool = False,
) -> str:
    """Return an `<svg>` with up to three curves over time, and thin upright lines at `marks`.

    A point is (UTC microseconds, value); `wording` formats a value of the vertical axis.
    """
    name = f"{frame}{curves}{marks}{logarithmic}"
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)  # type: ignore[arg-type]  # its keys are literals
        mpl.rcParams["svg.hashsalt"] = name
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        axes.grid(visible=True, axis="y")
        for number, mark in enumerate(marks):
            colour, dashes = _STROKES[mark.sign]
            line = axes.axvline(mark.at, color=colour, linewidth=1, linestyle=dashes)
            line.set_gid(f"{_UPRIGHT}{number}")
        for colour, curve in zip(COLOURS, curves, strict=False):
            _draw(axes, curve, colour, ground=not logarithmic and colour == COLOURS[0])
        _time_axis(axes, frame)
        _value_axis(axes, curves, wording, logarithmic=logarithmic)
        return _as_part_of_page(figure, [mark.title for mark in marks])


def _draw(axes: Axes, curve: Curve, colour: str, *, ground: bool) -> None:
    """Draw a curve; a `ground` curve is broad and filled, so that others show in front of it."""
    x = [at for at, _ in curve]
    y = [value for _, value in curve]
    marker = "o" if len(curve) < POINTS_OF_A_LINE else None
    width = 3.2 if ground else 1.5
    axes.plot(x, y, color=colour, linewidth=width, marker=marker, markersize=4, clip_on=False)
    if ground:
        axes.fill_between(x, y, color=colour, alpha=0.12, linewidth=0)


def _value_axis(
    axes: Axes, curves: Sequence[Curve], wording: Callable[[float], str], *, logarithmic: bool
) -> None:
    known = [value for curve in curves for _, value in curve]
    if logarithmic:
        axes.set_yscale("log")
        low, high = min(known), max(known)
        axes.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.01)))
        axes.yaxis.set_major_locator(LogLocator(base=10, numticks=6))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, max(*known, 0.001) * 1.08)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: wording(value)))


def _time_axis(axes: Axes, frame: Frame) -> None:
    span_s = max((frame.last_at - frame.first_at) / _SECOND_US, 1)
    days = math.ceil(span_s / _TIME_LABELS / _DAY_S) * _DAY_S
    step_s = next((step for step in _TIME_STEPS_S if span_s / step <= _TIME_LABELS), days)
    step_us = step_s * _SECOND_US
    first = -(-frame.first_at // step_us) * step_us
    last = max(frame.last_at, frame.first_at + _SECOND_US)
    axes.set_xlim(frame.first_at, last)
    axes.xaxis.set_major_locator(FixedLocator(list(range(first, last + 1, step_us))))
    clock = "%H:%M" if step_s >= _MINUTE_S else "%H:%M:%S"
    pattern = "%m-%d" if step_s >= _DAY_S else clock
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: moment(int(at)).strftime(pattern)))


def _as_part_of_page(figure: Figure, titles: Sequence[str]) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    for number, title in enumerate(titles):
        opening = f'<g id="{_UPRIGHT}{number}">'
        text = text.replace(opening, f"<g>\n<title>{escape(title)}</title>")
    used = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([\w-]+)"', lambda m: m[0] if m[1] in used else "", text)
    text = re.sub(r'(<svg)[^>]*?(viewBox="[^"]*")[^>]*>', r"\1 \2>", text, count=1)
    text = text.replace("xlink:href", "href").replace(f"'{_FONT}'", "inherit")
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return re.sub(r"\n\s*", "\n", text).strip()
