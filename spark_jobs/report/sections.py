"""Sections of the page other than the books and the waits, as values for its tables. Pure.

Reads:  `Data`.      Calls: alerts (for the state of queues), drawings, figures.
Never:  more than `SHOWN` rows in a table; the files beside the page have more.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from spark_jobs.dates import DAY_US, midnight
from spark_jobs.latency import HOUR_US, SPAN_HOUR
from spark_jobs.report import drawings, figures, usual, words
from spark_jobs.report.alerts import CERTIFICATES, disk_days
from spark_jobs.report.baseline import slow
from spark_jobs.report.data import Data, Gauge
from spark_jobs.report.drawings import Picture
from spark_jobs.report.groups import Skew, kept, skew, tells_groups
from spark_jobs.report.moves import moves
from spark_jobs.report.slo import levels
from spark_jobs.report.standing import Standing, queues
from spark_jobs.report.trends import disks, trends

SHOWN = 20
LEAST_HOURS = 2
"""Least number of points of a curve over the day; a single hour is only in the table."""

LEAST_NIGHTS = 2
YEARS_DAYS = 3_650
PARTS = {
    "outbox": "outbox_us",
    "wire": "wire_us",
    "queue": "queue_us",
    "retry": "retry_us",
    "handler": "handler_us",
}
"""The stages in which a message waits, in order of travel, with the histogram of each."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The load of the readers of a queue."""

    instance: str
    broker: str
    name: str
    readers: int
    ceiling: int
    at_ceiling_us: int
    idle_us: int
    most_ready: int


@dataclass(frozen=True, slots=True)
class Peer:
    """The traffic of one instance with one destination."""

    instance: str
    name: str
    sent: int
    received: int
    connects: int
    losses: int
    failed: int
    most_waiting: int
    suppressed: bool
    p95_us: int | None
    clock_s: float | None
    """Seconds by which the peer's clock was ahead, as reported last; None: never reported."""
    worst_clock_s: float | None


@dataclass(frozen=True, slots=True)
class Grown:
    """The change of one gauge from the first night known to the last."""

    instance: str
    name: str
    what: str
    first: float | None
    """None: no night before this one is known."""
    last: float
    nights: int


def context(data: Data) -> Mapping[str, object]:
    """Return the values of all sections by the names that the template uses."""
    spread_over = skew(data)
    standing = queues(data)
    sent, waits = usual.sent(data), usual.waits(data)
    return {
        "standing": standing,
        "age_map": _age_map(data, standing),
        "parts": _parts(data),
        "spread": _spread(data),
        "slow": slow(data),
        "failures": data.failures[:SHOWN],
        "busy": _busy(data),
        "readers": _readers(data),
        "peers": peers(data)[:SHOWN],
        "dropped": _dropped(data),
        "grown": _grown(data),
        "has_nights": len({one.date for one in data.nights}) >= LEAST_NIGHTS,
        "disk_days": _disk_days(data),
        "has_certificates": any(one.gauge in CERTIFICATES for one in data.nights),
        "open_dialogs": _open_dialogs(data),
        "flows": _flows(data),
        "kept": kept(data),
        "tells_groups": tells_groups(data),
        "skew": spread_over[:SHOWN],
        "hot": _hot(spread_over),
        "moves": moves(data),
        "compared_days": len([one for one in data.past if one.covered]),
        "disks": disks(data)[:SHOWN],
        "trends": trends(data),
        "levels": levels(data.date, data.kept)[:SHOWN],
        "levels_in_all": len(data.kept),
        "hourly_sent": _hourly("Messages sent, by hour", sent, words.short_number),
        "hourly_waits": _hourly(
            "Waits in all queues, p95, by hour", waits, _microseconds, logarithmic=True
        ),
        "has_bands": sent.has_bands or waits.has_bands,
        "unusual_sent": sent.unusual()[:SHOWN],
        "unusual_waits": waits.unusual()[:SHOWN],
    }


def _hourly(
    title: str, series: usual.Series, wording: drawings.Wording, *, logarithmic: bool = False
) -> Picture | None:
    return usual.chart(title, series, wording, legend="this day", logarithmic=logarithmic)


def _microseconds(value: float) -> str:
    return words.duration(round(value))


def _hot(queues: Iterable[Skew]) -> list[tuple[Skew, str, int]]:
    """Return the groups with the largest parts of their queues' messages."""
    every = [(one, group, count) for one in queues for group, count in one.groups]
    every.sort(key=lambda one: (-one[0].part(one[2]), -one[2], one[0].name, one[1]))
    return every[:SHOWN]


def _age_map(data: Data, standing: Iterable[Standing]) -> Picture | None:
    """Draw the age of the oldest message of each queue by the hour; None if none waited."""
    ages: dict[str, list[float]] = {}
    wanted = {(one.instance, one.broker, one.name) for one in standing if one.worst_oldest_s}
    for gauge in data.gauges:
        key = (gauge.instance, gauge.broker, gauge.name)
        if gauge.scope == "queue" and gauge.gauge == "oldest_s" and key in wanted:
            row = ages.setdefault(f"{gauge.name} ({gauge.instance})", [0.0] * drawings.HOURS)
            hour = gauge.hour_at % DAY_US // HOUR_US
            row[hour] = max(row[hour], gauge.most)
    if not ages:
        return None
    worst = sorted(ages, key=lambda name: (-max(ages[name]), name))[:SHOWN]
    svg = drawings.heat_map({name: ages[name] for name in worst}, _seconds)
    return Picture("Oldest message by queue and hour", "stronger is older", (), (), svg)


def _seconds(value: float) -> str:
    return words.duration(round(value * 1e6))


def _parts(data: Data) -> Picture | None:
    """Draw the waits of messages by the hour: for each stage the mean of its medians.

    The medians are weighted by the messages of their queue or peer. None if nothing waited.
    """
    totals = {name: [0.0] * drawings.HOURS for name in PARTS}
    counts = {name: [0] * drawings.HOURS for name in PARTS}
    named = {measure: name for name, measure in PARTS.items()}
    for line in data.latency:
        name = named.get(line.measure)
        if name is not None and line.span == SPAN_HOUR and line.span_at is not None:
            hour = line.span_at % DAY_US // HOUR_US
            totals[name][hour] += float(line.p50_us) * line.count
            counts[name][hour] += line.count
    found = {
        name: [
            total / count if count else 0.0 for total, count in zip(row, counts[name], strict=True)
        ]
        for name, row in totals.items()
    }
    if not any(any(row) for row in found.values()):
        return None
    svg = drawings.stacked(found, _microseconds)
    return Picture("What messages waited for", "medians, by hour", tuple(found), (), svg)


def _spread(data: Data) -> Picture | None:
    if not data.spread:
        return None
    svg = drawings.spread(data.spread, data.spread_before, _microseconds)
    before = "no such weekday before" if not data.spread_before else "same weekday, four weeks"
    return Picture("Part of the messages that waited less", before, ("today",), (), svg)


def _busy(data: Data) -> list[Busy]:
    found: dict[tuple[str, str, str], list[float]] = {}
    for one in data.activation:
        row = found.setdefault((one.instance, one.broker, one.name), [0.0] * 5)
        row[0] = max(row[0], one.most_readers)
        row[1] = max(row[1], one.max_readers)
        row[2] += one.ceiling_us
        row[3] += one.idle_us
        row[4] = max(row[4], one.most_ready)
    rows = [Busy(*key, *(round(value) for value in row)) for key, row in found.items()]
    rows.sort(key=lambda one: (-one.at_ceiling_us, -one.most_ready, one.name, one.instance))
    return rows[:SHOWN]


def _readers(data: Data) -> list[Picture]:
    """Draw readers and their ceiling over the day, for the queues that reached it for longest."""
    pictures = []
    for busy in _busy(data)[:4]:
        hours = [
            one
            for one in data.activation
            if (one.instance, one.broker, one.name) == (busy.instance, busy.broker, busy.name)
        ]
        if len(hours) < LEAST_HOURS:
            continue
        middles = [one.hour_at + HOUR_US // 2 for one in hours]
        curves = [
            list(zip(middles, (one.most_readers for one in hours), strict=True)),
            list(zip(middles, (one.max_readers for one in hours), strict=True)),
        ]
        svg = figures.chart(
            curves,
            # The middle of an hour may be outside the time of the logs.
            frame=figures.Frame(min(data.first_at, middles[0]), max(data.last_at, middles[-1])),
            marks=(),
            wording=lambda value: f"{value:g}",
        )
        legend = ("most readers", "ceiling")
        pictures.append(Picture(busy.name, busy.instance, legend, (), Markup(svg)))  # noqa: S704  # no names in it
    return pictures


def peers(data: Data) -> list[Peer]:
    """Return every pair of an instance and a destination that has a counter."""
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in data.counters:
        if one.scope == "destination":
            counts[one.instance, one.name][one.counter] += one.total
    waiting: dict[tuple[str, str], float] = defaultdict(float)
    suppressed: set[tuple[str, str]] = set()
    for gauge in data.gauges:
        key = (gauge.instance, gauge.name)
        if gauge.scope == "destination" and gauge.gauge == "dialogs_waiting":
            waiting[key] = max(waiting[key], gauge.most)
        if gauge.scope == "destination" and gauge.gauge == "suppressed":
            suppressed.add(key)
    clocks = _clocks(data)
    wire = {
        (line.instance, line.name): line.p95_us
        for line in data.latency
        if line.measure == "wire_us" and line.span == "all"
    }
    return [
        Peer(
            *key,
            sent=found["fragments_sent"],
            received=found["fragments_received"],
            connects=found["connects"],
            losses=found["losses"],
            failed=sum(count for name, count in found.items() if name.startswith("failed_")),
            most_waiting=round(waiting[key]),
            suppressed=key in suppressed,
            p95_us=wire.get(key),
            clock_s=clocks[key][-1] if key in clocks else None,
            worst_clock_s=max(clocks[key], key=abs) if key in clocks else None,
        )
        for key, found in sorted(counts.items())
    ]


def _clocks(data: Data) -> dict[tuple[str, str], list[float]]:
    """Return the last clock difference of each hour, by instance and peer, in order of time."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    told = (one for one in data.gauges if one.gauge == "clock_ahead_s")
    for gauge in sorted(told, key=lambda one: one.hour_at):
        found[gauge.instance, gauge.name].append(gauge.last)
    return found


def _dropped(data: Data) -> list[tuple[str, str, int]]:
    """Count the duplicates, retransmits and drops of instances: (instance, what, count)."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for one in data.counters:
        is_wanted = one.counter in {"duplicates", "retransmitted"} or "dropped_" in one.counter
        if one.scope == "instance" and is_wanted:
            found[one.instance, one.counter.replace("_", " ")] += one.total
    return [(*key, count) for key, count in sorted(found.items())][:SHOWN]


_NIGHTLY = {
    "endpoints": "dialog endpoints",
    "store_bytes": "store",
    "parked": "parked messages",
    "disk_free_bytes": "disk left",
}


def _grown(data: Data) -> list[Grown]:
    by_subject: dict[tuple[str, str, str], list[Gauge]] = defaultdict(list)
    for gauge in data.nights:
        if gauge.gauge in _NIGHTLY:
            by_subject[gauge.gauge, gauge.instance, gauge.name or gauge.broker].append(gauge)
    found = []
    for what, said in _NIGHTLY.items():
        for (gauge_name, instance, name), rows in sorted(by_subject.items()):
            if gauge_name == what and rows[-1].date == data.date:
                nights = len({row.date for row in rows})
                first = rows[0].last if nights >= LEAST_NIGHTS else None
                found.append(Grown(instance, name, said, first, rows[-1].last, nights))
    return found[:SHOWN]


def _disk_days(data: Data) -> dict[str, int]:
    """Return the days until the filling disks are full; leave out those that last for years."""
    return {name: round(days) for name, days in disk_days(data).items() if days < YEARS_DAYS}


def _open_dialogs(data: Data) -> Picture | None:
    """Draw the dialog endpoints by state over the last nights, for all instances together."""
    if not data.date:
        return None
    states: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for gauge in data.nights:
        if gauge.gauge.startswith("endpoints_"):
            at = midnight(gauge.date) + DAY_US
            states[gauge.gauge.removeprefix("endpoints_")][at] += gauge.last
    if len({at for nights in states.values() for at in nights}) < LEAST_NIGHTS:
        return None
    largest = sorted(states, key=lambda state: (-max(states[state].values()), state))[:3]
    instants = [at for state in largest for at in states[state]]
    svg = figures.chart(
        [sorted(states[state].items()) for state in largest],
        frame=figures.Frame(min(instants), max(instants)),
        marks=(),
        wording=lambda value: words.number(round(value)),
    )
    note = f"{len(set(instants))} nights"
    return Picture("Dialog endpoints by state", note, tuple(largest), (), Markup(svg))  # noqa: S704  # no names in it


def _flows(data: Data) -> Picture | None:
    sent = [(pair.from_service, pair.to_service, pair.sent) for pair in data.pairs if pair.sent]
    if not sent:
        return None
    largest = sorted(sent, key=lambda one: (-one[2], one[0], one[1]))[:SHOWN]
    return Picture("Who sent to whom", "messages", (), (), drawings.flows(largest))
