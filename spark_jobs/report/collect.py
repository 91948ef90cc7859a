"""Collector: turns the tables of one or many days into the plain values that a report is made of.

Reads:  tables as frames: of the requested days and, for comparisons, of days before them.
Calls:  the pure jobs that span several days.      Never: writes files.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs import conservation, coverage, daily
from spark_jobs.coverage import Stretch
from spark_jobs.dates import days_before, weekdays_before
from spark_jobs.latency import SPAN_ALL, percentiles
from spark_jobs.places import Place
from spark_jobs.plans import side_by_side
from spark_jobs.report import compared, hourly
from spark_jobs.report.data import (
    Activation,
    Counter,
    Data,
    Failure,
    Finding,
    Gauge,
    Held,
    HotGroup,
    Hour,
    Kept,
    KeptHour,
    Latency,
    Mark,
    Night,
    Objective,
    Pair,
    Past,
    Rate,
    Seen,
    Segment,
    SetAside,
    Sides,
    values,
)

FINDINGS_SHOWN = 20
MARKS_SHOWN = 200
PLACES_SHOWN = 100
"""Maximum number of unusable lines that the page lists with their place; the lake has more."""

SEEN_DAYS = 7
"""Days for which an instance that writes nothing more is named."""

HISTORY_DAYS = 30
NIGHTLY = (
    *("disk_free_bytes", "store_bytes", "wal_bytes", "parked"),
    *("own_certificate_days", "peer_certificate_days"),
)
"""Gauges that are compared from night to night, in addition to those of dialog endpoints."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Frames:
    """The tables of the requested days and of the days before them."""

    dialogs: DataFrame
    """Dialog lines, with the date of the books they belong to."""
    stretches: DataFrame
    files: DataFrame
    places: DataFrame
    tables: Mapping[str, DataFrame]
    totals: DataFrame | None = None
    """Figures of these days and of those they are compared with; None: no day to compare with."""
    commits: DataFrame | None = None
    """Durations of commits on all days read; None: there is only one day."""
    objectives: Sequence[Objective] = ()
    kept: DataFrame | None = None
    """Messages and late ones by hour and objective, on all days read; None: no objectives."""


@dataclass(frozen=True)
class Aggregates:
    """The tables that are written beside a page as Parquet, for all requested days."""

    conservation: DataFrame
    findings: DataFrame
    sides: DataFrame
    """Contradictions of the two sides of dialogs; not written beside the page."""
    latency: DataFrame
    throughput: DataFrame


def history_of(date: str) -> list[str]:
    """Return the days that a report of this day reads, including the day itself."""
    return [days_before(date, days) for days in range(HISTORY_DAYS, -1, -1)]


def aggregates(frames: Frames) -> Aggregates:
    """Compute the books and the figures, each row with its date."""
    conversations = conservation.dialogs(frames.dialogs)
    booked = conservation.books(conservation.directions(conversations)).cache()
    # Fill the cache here: this plan covers all dialogs and must be compiled, while `collect` runs
    # with interpreted plans.
    booked.count()
    return Aggregates(
        conservation=conservation.pairs(booked).cache(),
        findings=conservation.findings(booked),
        sides=conservation.sides(booked),
        latency=percentiles(frames.tables[daily.HISTOGRAMS]).cache(),
        throughput=frames.tables[daily.STEPS].cache(),
    )


def collect(
    frames: Frames,
    made: Aggregates,
    dates: Sequence[str],
    *,
    step_us: int,
    unusable: Mapping[str, Sequence[SetAside]] | None = None,
) -> dict[str, Data]:
    """Return the values of each of these days; earlier days only serve comparisons."""
    wanted = F.col("date").isin(list(dates))
    tables = frames.tables
    optional = {"totals": frames.totals, "commits": frames.commits, "kept": frames.kept}
    rows = side_by_side(
        lambda _, frame: _by_date(frame),
        {
            "stretches": frames.stretches,
            "pairs": made.conservation,
            "findings": made.findings,
            "sides": made.sides,
            "percentiles": made.latency,
            "rates": made.throughput.where(wanted),
            "files": frames.files.where(wanted),
            "places": frames.places.where(wanted),
            "gauges": tables[daily.GAUGES].where(wanted),
            "nights": _last_of_day(tables[daily.GAUGES]),
            "counters": tables[daily.COUNTERS].where(wanted),
            "enqueued": _enqueued(tables[daily.COUNTERS]),
            "activation": tables[daily.ACTIVATION].where(wanted),
            "failures": tables[daily.FAILURES],
            "changes": tables[daily.CHANGES].where(wanted),
            "spread": _spread(tables[daily.HISTOGRAMS]),
            "groups": tables[daily.GROUPS].where(wanted),
            "held": tables[daily.HELD].where(wanted),
            "traffic": hourly.traffic(tables[daily.COUNTERS]),
            "waits": hourly.waits(tables[daily.HISTOGRAMS]),
        }
        | {name: one for name, one in optional.items() if one is not None},
    )
    stretches, files, nights = rows["stretches"], rows["files"], rows["nights"]
    failures, percentile, spread = rows["failures"], rows["percentiles"], rows["spread"]
    history = sorted(stretches)
    found: dict[str, Data] = {}
    for date in dates:
        window = history_of(date)[:-1] if date else []
        earlier = [one for one in window if one in stretches]
        alike = set(weekdays_before(date)) & set(history) if date else set()
        boots = _boots(
            stretches.get(date, []), [stretches[one] for one in earlier], files.get(date, [])
        )
        found[date] = Data(
            date=date,
            segments=_segments(stretches.get(date, []), files.get(date, [])),
            places=_values(Place, rows["places"].get(date, []), ("file", "line"))[:PLACES_SHOWN],
            boots=tuple(boots),
            marks=_values(Mark, rows["changes"].get(date, []), ("at", "instance", "what"))[
                :MARKS_SHOWN
            ],
            pairs=tuple(_pair(row) for row in _sorted(rows["pairs"].get(date, []), _PAIR)),
            findings=_findings(rows["findings"].get(date, [])),
            sides=_values(Sides, rows["sides"].get(date, []), _PAIR),
            findings_in_all=len(rows["findings"].get(date, [])),
            latency=_values(Latency, percentile.get(date, []), _LATENCY),
            rates=_values(Rate, rows["rates"].get(date, []), (*_SUBJECT, "counter", "step_at")),
            step_us=step_us,
            gauges=_values(Gauge, rows["gauges"].get(date, []), (*_SUBJECT, "gauge", "hour_at")),
            nights=_values(
                Gauge,
                [row for one in [*earlier, date] for row in nights.get(one, [])],
                (*_SUBJECT, "gauge", "date"),
            ),
            counters=_values(
                Counter, rows["counters"].get(date, []), (*_SUBJECT, "counter", "hour_at")
            ),
            activation=_values(
                Activation,
                rows["activation"].get(date, []),
                ("instance", "broker", "name", "hour_at"),
            ),
            failures=_failures(
                failures.get(date, []),
                [row for one in earlier for row in failures.get(one, [])],
                is_first=not earlier,
            ),
            baseline=_values(
                Latency,
                [row for one in sorted(alike) for row in percentile.get(one, [])],
                (*_LATENCY, "date"),
            ),
            spread=_summed(spread.get(date, [])),
            spread_before=_summed([row for one in alike for row in spread.get(one, [])]),
            unusable=tuple((unusable or {}).get(date, ())),
            groups=_values(HotGroup, rows["groups"].get(date, []), (*_QUEUE, "messages", "group")),
            held=_values(Held, rows["held"].get(date, []), (*_QUEUE, "since_at", "group")),
            commits=_values(
                Night,
                [row for one in [*earlier, date] for row in rows.get("commits", {}).get(one, [])],
                ("instance", "broker", "date"),
            ),
            kept=_kept(
                frames.objectives,
                [row for one in [*earlier, date] for row in rows.get("kept", {}).get(one, [])],
            ),
            own=_past(rows, date),
            past=tuple(_past(rows, one) for one in sorted(alike)),
            hours=_hours(rows, date),
            hours_before=tuple(hour for one in sorted(alike) for hour in _hours(rows, one)),
            enqueued_before=tuple(
                _values(Counter, rows["enqueued"].get(one, []), (*_SUBJECT, "hour_at"))
                for one in sorted(alike) or earlier[-1:]
                if not date or one in alike or one == days_before(date, 1)
            ),
            seen=_seen(
                row
                for one in earlier
                if one >= days_before(date, SEEN_DAYS)
                for row in stretches[one]
            ),
        )
    return found


def with_neighbours(found: Mapping[str, Data], known: Iterable[str]) -> dict[str, Data]:
    """Set the neighbours of each day: the nearest days before and after that have a report."""
    every = sorted({*found, *known})
    places = {date: at for at, date in enumerate(every)}
    return {
        date: replace(
            data,
            before=every[places[date] - 1] if places[date] else "",
            after=every[places[date] + 1] if places[date] + 1 < len(every) else "",
        )
        for date, data in found.items()
    }


_SUBJECT = ("instance", "broker", "scope", "name")
_LATENCY = (*_SUBJECT, "measure", "span", "span_at")
_PAIR = ("from_service", "to_service", "contract")
_QUEUE = ("instance", "broker", "name")


def _past(rows: Mapping[str, Mapping[str, list[Row]]], date: str) -> Past:
    one = {name: of_days.get(date, []) for name, of_days in rows.items()}
    return compared.past(one["stretches"], one.get("totals", []), one["failures"])


def _hours(rows: Mapping[str, Mapping[str, list[Row]]], date: str) -> tuple[Hour, ...]:
    if not date:
        return ()
    one = {name: rows[name].get(date, []) for name in ("traffic", "waits", "stretches")}
    return hourly.hours(date, one["traffic"], one["waits"], one["stretches"])


def _kept(objectives: Sequence[Objective], rows: list[Row]) -> tuple[Kept, ...]:
    return tuple(
        Kept(
            objective,
            _values(KeptHour, [row for row in rows if row["number"] == number], ("hour_at",)),
        )
        for number, objective in enumerate(objectives)
    )


def _last_of_day(gauges: DataFrame) -> DataFrame:
    chosen = gauges.where(F.col("gauge").isin(*NIGHTLY) | F.col("gauge").startswith("endpoints"))
    said = F.max(F.struct("last_at", "hour_at", "last")).alias("said")
    keys = ("date", *_SUBJECT, "gauge")
    latest = chosen.groupBy(*keys).agg(F.max("most").alias("most"), said)
    return latest.select(*keys, "most", "said.hour_at", "said.last", "said.last_at")


def _enqueued(counters: DataFrame) -> DataFrame:
    return counters.where((F.col("scope") == "queue") & (F.col("counter") == "enqueued"))


def _spread(histograms: DataFrame) -> DataFrame:
    waits = histograms.where((F.col("measure") == "wait_us") & (F.col("span") == SPAN_ALL))
    return waits.groupBy("date", "bucket").agg(F.sum("count").alias("count"))


def _summed(rows: Iterable[Row]) -> tuple[tuple[int, int], ...]:
    summed: dict[int, int] = defaultdict(int)
    for row in rows:
        summed[row["bucket"]] += row["count"]
    return tuple(sorted(summed.items()))


def _boots(today: list[Row], earlier: list[list[Row]], files: list[Row]) -> list[coverage.Boot]:
    """Return the boots of a day; one that ran on earlier days continues its last stretch."""
    before: dict[tuple[str, str], Stretch] = {}
    for rows in earlier:
        for row in rows:
            one = Stretch(**row)
            boot = one.instance, one.boot_id
            known = before.get(boot)
            if one.lines and (known is None or one.last_seq > known.last_seq):
                before[boot] = one
    set_aside: dict[str, int] = defaultdict(int)
    for row in files:
        set_aside[row["file"]] += row["lines"]
    return coverage.boots((Stretch(**row) for row in today), before, set_aside)


def _seen(earlier: Iterable[Row]) -> tuple[Seen, ...]:
    """Return the last line of each instance on these days."""
    last: dict[str, Row] = {}
    for row in earlier:
        if row["lines"]:
            known = last.get(row["instance"])
            if known is None or row["most_at"] > known["most_at"]:
                last[row["instance"]] = row
    return tuple(
        Seen(name, row["most_at"], stopped=row["stopped"]) for name, row in sorted(last.items())
    )


def _segments(stretches: list[Row], files: list[Row]) -> tuple[Segment, ...]:
    """Return the numbers of usable and unusable lines by segment."""
    good: dict[str, int] = defaultdict(int)
    for row in stretches:
        good[row["file"]] += row["lines"] + row["repeated"]
    sound = [Segment(file, None, lines, None) for file, lines in sorted(good.items())]
    return (*sound, *_values(Segment, files, ("file", "fault")))


def _findings(rows: list[Row]) -> tuple[Finding, ...]:
    rank = {finding: number for number, finding in enumerate(conservation.FINDINGS)}
    keys = ("finding", "conversation_id", "from_service", "to_service")
    rows = sorted(rows, key=lambda row: (rank[row["finding"]], *(row[key] for key in keys)))
    return values(Finding, rows[:FINDINGS_SHOWN])


def _failures(today: list[Row], earlier: list[Row], *, is_first: bool) -> tuple[Failure, ...]:
    keys = ("event", "subclass", "name", "fingerprint")
    known = {tuple(row[key] for key in keys) for row in earlier}
    judged = [
        {**row, "is_new": not is_first and tuple(row[key] for key in keys) not in known}
        for row in today
    ]
    judged.sort(key=lambda row: (-row["times"], *(row[key] for key in keys), row["instance"]))
    return values(Failure, judged)


def _pair(row: Row) -> Pair:
    named = tuple((one["outcome"], one["undelivered"]) for one in row["undelivered_by"])
    return values(Pair, [{**row, "undelivered_by": named}])[0]


def _values(kind: type[Any], rows: list[Row], keys: Sequence[str]) -> tuple[Any, ...]:
    return values(kind, _sorted(rows, keys))


def _sorted(rows: list[Row], keys: Sequence[str]) -> list[Row]:
    return sorted(rows, key=lambda row: tuple((row[key] is not None, row[key]) for key in keys))


def _by_date(frame: DataFrame) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in frame.collect():
        found[row["date"]].append(row.asDict(recursive=True))
    return found
