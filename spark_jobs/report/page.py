"""Page of the report: one self-contained HTML file.

Reads:  `Data` and `Verdict`, the template and style sheet beside this module.
Never:  lets a name act as markup (BI-L4): everything is escaped, control characters are shown.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spark_jobs.coverage import RECOVERED, STARTED, Boot
from spark_jobs.latency import SPAN_ALL, SPAN_HOUR, SPAN_STEP
from spark_jobs.report import figures, moves, sections, words
from spark_jobs.report.behind import TITLES, behind
from spark_jobs.report.data import Data, Latency, Pair, Rate
from spark_jobs.report.days import week_of, year_of
from spark_jobs.report.hourly import WAIT
from spark_jobs.report.verdict import Verdict

PANELS_SHOWN = 8
STARTS_DRAWN = 50
"""Maximum number of starts drawn in one chart; a daemon that fails at once may restart for ever."""

LEAST_COVERED = 0.5
"""The part of a step that the logs must cover for its rate to be drawn."""

POINTS_FILLED = 3_000
"""Number of steps up to which a curve is drawn as zero in steps without a count."""

AFTER_CRASH = "started after a crash"
"""Text shown for a boot whose predecessor wrote no orderly stop."""

SECTIONS = {
    "books": "Was anything lost or doubled?",
    "queues": "Is anybody stuck?",
    "waits": "How long did messages wait?",
    "levels": "Were the service levels kept?",
    "traffic": "How much went through?",
    "failures": "What failed?",
    "readers": "Were there enough readers?",
    "peers": "How were the peers?",
    "soon": "Will it break soon?",
    "coverage": "Coverage",
}
"""The sections that a finding may be about, by id."""

_SECOND_US = 1_000_000
_INSIDE = {
    "commit_us": "commit with its sync",
    "flush_us": "whole flush: statements, then the commit with its sync",
    "hop_us": "hop to the writer: from the loop to the thread that writes, and back",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """A small chart: `legend` names its curves in order, `signs` pairs a class with a text."""

    title: str
    note: str
    legend: tuple[str, ...]
    signs: tuple[tuple[str, str], ...]
    svg: Markup


def environment() -> Environment:
    """Return the environment of all templates: it escapes every value, with filters for figures."""
    made = Environment(
        loader=PackageLoader("spark_jobs.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=shown,
    )
    made.filters.update(
        number=words.number,
        duration=words.duration,
        at=words.day_and_time,
        time=words.time_of_day,
        counted=words.counted,
        hours=words.hours_of,
        size=words.size,
        signed=words.signed,
        change=words.change,
        figure=_figure,
        short_day=words.short_day,
    )
    made.globals["raw"] = _raw(made)
    return made


def render(data: Data, verdict: Verdict) -> str:
    """Return the whole document; equal data give equal text."""
    waits = sorted(_waits(data, SPAN_ALL), key=lambda one: (-one.p95_us, one.instance, one.name))
    shown_waits = waits[: sections.SHOWN]
    queues = {(one.instance, one.broker, one.name) for one in shown_waits}
    hours = [
        one for one in _waits(data, SPAN_HOUR) if (one.instance, one.broker, one.name) in queues
    ]
    inside = _inside(data)
    context: Mapping[str, object] = {
        "data": data,
        "verdict": verdict,
        "span": data.date or words.span(data.first_at, data.last_at),
        "total": _totals(data),
        "extras": _extra_columns(data),
        "behind": behind(data),
        "kinds": TITLES,
        "titles": SECTIONS,
        "points": verdict.points[: sections.SHOWN],
        "pairs": sorted(data.pairs, key=_pair_rank)[: sections.SHOWN],
        "boots": sorted(data.boots, key=_boot_rank)[: sections.SHOWN],
        "slowest": waits[0] if waits else None,
        "waits": shown_waits,
        "waits_in_all": len(waits),
        "hours": hours if len({line.span_at for line in hours}) > 1 else [],
        "inside": inside[: sections.SHOWN],
        "inside_in_all": len(inside),
        "wait_panels": _wait_panels(data),
        "rate_panels": [*_pair_panels(data), *_queue_panels(data)],
        "set_aside": [part for part in data.segments if part.fault],
        "bad_lines": sum(part.lines for part in data.segments if part.fault),
        "segments": len({part.file for part in data.segments}),
        "lines": sum(part.lines for part in data.segments),
        "after_crash": AFTER_CRASH,
        "crashes": sum(boot.after_crash for boot in data.boots),
        "step": words.duration(data.step_us),
        "week": week_of(data.date) if data.date else "",
        "year": year_of(data.date),
        **sections.context(data),
    }
    return environment().get_template("page.html.j2").render(context)


def shown(value: object) -> object:
    """Make control and formatting characters of text visible; return other values unchanged."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return words.shown(value)


def _figure(value: float, unit: str) -> str:
    """Format a figure of a move in its unit."""
    match unit:
        case moves.RATE:
            return words.rate(value)
        case moves.TIME:
            return words.duration(round(value))
        case moves.SIZE:
            return words.size(value)
        case _:
            return words.number(round(value))


def _raw(environment: Environment) -> object:
    def read(name: str) -> Markup:
        assert environment.loader is not None
        return Markup(environment.loader.get_source(environment, name)[0])  # noqa: S704  # our own

    return read


def _pair_rank(pair: Pair) -> tuple[object, ...]:
    """Return the sort key of a pair: those that do not balance first, then the busiest."""
    name = (pair.from_service, pair.to_service, pair.contract)
    return -(pair.unaccounted + pair.doubled), -pair.elsewhere, -pair.sent, *name


def _boot_rank(boot: Boot) -> tuple[object, ...]:
    """Return the sort key of a boot: those with gaps first, then those after a crash."""
    return -boot.missing, -boot.backwards, not boot.after_crash, boot.instance, boot.first_at


def _totals(data: Data) -> dict[str, int]:
    names = ("dialogs", "open", "sent", "received", "waiting", "later", "unaccounted", "doubled")
    return {name: sum(getattr(pair, name) for pair in data.pairs) for name in names}


def _extra_columns(data: Data) -> list[tuple[str, str, str]]:
    """Return the columns of the balance that are shown only if some pair's value is not zero."""
    columns = [
        ("undelivered", "withdrawn", "taken back by the sender when the dialog ended"),
        ("later", "not yet seen", "the receiver's line is older than the sender's"),
        ("ahead", "sent since", "the sender's line is older than the receiver's"),
        ("doubled", "doubled", "received beyond those sent"),
        ("elsewhere", "not judged", "the other side is not in these logs"),
        ("discarded_unread", "unread", "received, and discarded when the dialog ended"),
    ]
    return [each for each in columns if any(getattr(pair, each[0]) for pair in data.pairs)]


def _waits(data: Data, span: str) -> list[Latency]:
    return [line for line in data.latency if line.measure == WAIT and line.span == span]


def _inside(data: Data) -> list[tuple[str, Latency]]:
    whole = [line for line in data.latency if line.span == SPAN_ALL and line.scope == "instance"]
    whole.sort(key=lambda line: (-line.p99_us, line.instance, line.broker, line.measure))
    return [(_INSIDE.get(line.measure, line.measure.removesuffix("_us")), line) for line in whole]


def _wait_panels(data: Data) -> list[Panel]:
    steps: dict[tuple[str, str, str], list[Latency]] = defaultdict(list)
    for line in _waits(data, SPAN_STEP):
        steps[line.instance, line.broker, line.name].append(line)
    busiest = sorted(steps, key=lambda key: (-sum(line.count for line in steps[key]), key))
    return [_wait_panel(data, key, steps[key]) for key in busiest[:PANELS_SHOWN]]


def _wait_panel(data: Data, key: tuple[str, str, str], steps: Sequence[Latency]) -> Panel:
    at = [_middle(data, line.span_at or 0) for line in steps]
    curves = [
        list(zip(at, (float(getattr(line, name)) for line in steps), strict=True))
        for name in ("p50_us", "p95_us", "p99_us")
    ]
    instance, broker, name = key
    marks = _marks(data, instance)
    drawn = figures.chart(
        curves,
        frame=_frame(data),
        marks=marks,
        wording=lambda value: words.duration(round(value)),
        logarithmic=True,
    )
    legend = ("p50", "p95", "p99")
    place = _place(instance, broker)
    return Panel(name, place, legend, _signs(marks), Markup(drawn))  # noqa: S704  # titles escaped


def _pair_panels(data: Data) -> list[Panel]:
    steps: dict[tuple[str, str, str], list[Rate]] = defaultdict(list)
    for step in data.rates:
        if step.scope == "pair":
            steps["", "", step.name].append(step)
    return _rate_panels(data, steps, ("sent", "received"))


def _queue_panels(data: Data) -> list[Panel]:
    steps: dict[tuple[str, str, str], list[Rate]] = defaultdict(list)
    for step in data.rates:
        if step.scope == "queue":
            steps[step.instance, step.broker, step.name].append(step)
    return _rate_panels(data, steps, ("enqueued", "received"))


def _rate_panels(
    data: Data, steps: Mapping[tuple[str, str, str], list[Rate]], counters: tuple[str, ...]
) -> list[Panel]:
    def amount(key: tuple[str, str, str]) -> int:
        return sum(step.thousandths for step in steps[key] if step.counter in counters)

    busiest = sorted((key for key in steps if amount(key)), key=lambda key: (-amount(key), key))
    return [_rate_panel(data, key, steps[key], counters) for key in busiest[:PANELS_SHOWN]]


def _rate_panel(
    data: Data, key: tuple[str, str, str], steps: Iterable[Rate], counters: tuple[str, ...]
) -> Panel:
    counted: dict[str, dict[int, float]] = {name: defaultdict(float) for name in counters}
    for step in steps:
        if step.counter in counted:
            counted[step.counter][step.step_at] += step.thousandths / 1000
    present = tuple(name for name in counters if counted[name])
    curves = [_filled(data, counted[name]) for name in present]
    instance, broker, name = key
    marks = _marks(data, instance or None)
    drawn = figures.chart(curves, frame=_frame(data), marks=marks, wording=words.rate)
    peak = max((value for curve in curves for _, value in curve), default=0.0)
    place = _place(instance, broker)
    # A point of the curve is the mean of a step, so the peak is named with the step's width.
    most = f"busiest {words.duration(data.step_us)}: {words.rate(peak)}"
    note = f"{place}, {most}" if place else most
    return Panel(name, note, present, _signs(marks), Markup(drawn))  # noqa: S704  # titles escaped


def _filled(data: Data, known: Mapping[int, float]) -> list[tuple[int, float]]:
    """Return messages per second at the middle of each step, zero in steps without a count."""
    first = data.first_at - data.first_at % data.step_us
    every = range(first, data.last_at + 1, data.step_us)
    steps = sorted(known) if len(every) > POINTS_FILLED else every
    well = {at for at in steps if _covered_us(data, at) >= data.step_us * LEAST_COVERED}
    # If every count lies in a step that the end of the logs cuts short, draw those steps too.
    drawn = well if well & known.keys() else well | known.keys()
    return [
        (_middle(data, at), known.get(at, 0.0) / _covered_us(data, at) * _SECOND_US)
        for at in sorted(drawn)
    ]


def _middle(data: Data, step_at: int) -> int:
    """Return the instant of a step's point, which is within the chart however short the logs."""
    end = min(step_at + data.step_us, data.last_at)
    return (max(step_at, data.first_at) + end) // 2


def _covered_us(data: Data, step_at: int) -> int:
    """Return how many microseconds of a step are in the time of the logs, at least 1."""
    end = min(step_at + data.step_us, data.last_at)
    return max(end - max(step_at, data.first_at), 1)


def _frame(data: Data) -> figures.Frame:
    return figures.Frame(data.first_at, data.last_at)


def _marks(data: Data, instance: str | None) -> list[figures.Upright]:
    """Return a line for each boot and each mark other than a start, of one instance or all."""
    boots = [boot for boot in data.boots if instance in {None, boot.instance}]
    starts = sorted((_start(data, boot) for boot in boots), key=lambda mark: (mark.at, mark.title))
    others = [
        _upright(mark.at, figures.Sign.OTHER, f"{mark.instance} {mark.what}")
        for mark in data.marks
        if instance in {None, mark.instance} and mark.what not in {STARTED, RECOVERED}
    ]
    return [*others[:STARTS_DRAWN], *starts[:STARTS_DRAWN]]


def _start(data: Data, boot: Boot) -> figures.Upright:
    """Return the line of a boot; an instance's first boot may have begun before the logs do."""
    at = boot.first_at if boot.started_at is None else boot.started_at
    if boot.after_crash:
        return _upright(at, figures.Sign.CRASH, f"{boot.instance} {AFTER_CRASH}")
    first = next(each for each in data.boots if each.instance == boot.instance)
    if boot.started_at is None and boot is first:
        return _upright(at, figures.Sign.OTHER, f"{boot.instance}: the first line in the logs")
    return _upright(at, figures.Sign.START, f"{boot.instance} started")


def _upright(at: int, sign: figures.Sign, title: str) -> figures.Upright:
    return figures.Upright(at, sign, f"{shown(title)}, {words.day_and_time(at)}")


def _signs(marks: Iterable[figures.Upright]) -> tuple[tuple[str, str], ...]:
    """Return the legend of the upright lines, each kind once."""
    there = {mark.sign for mark in marks}
    texts = {figures.Sign.START: STARTED, figures.Sign.CRASH: AFTER_CRASH}
    return tuple((sign.value, text) for sign, text in texts.items() if sign in there)


def _place(instance: str, broker: str) -> str:
    return f"{instance}/{broker}" if broker and broker != instance else instance
