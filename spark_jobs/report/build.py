"""Build: makes one report of a directory of segments, or a report of each day that has landed.

Reads:  segments, or the landing and the lake.
Calls:  the jobs, `ingest`, `collect`, `verdict`, `page`.
Never:  touches an earlier report before the new one is complete (BI-L5): every file is written
        aside and then takes its place by one rename, last the summary, which names the input of
        the page. Nor keeps a page whose input has changed (BI-L7).
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import conservation, coverage, daily, ingest, landing, places
from spark_jobs.dates import days_before, weekdays_before
from spark_jobs.dedup import distinct_lines, repeated_lines
from spark_jobs.lake import Lake, Step, no_step
from spark_jobs.lake_tables import (
    DIALOG_SCHEMA,
    DIALOGS,
    FILE_SCHEMA,
    FILES,
    PLACE_SCHEMA,
    PLACES,
    STRETCH_SCHEMA,
    STRETCHES,
)
from spark_jobs.latency import bucket_counts
from spark_jobs.plans import interpreted, side_by_side
from spark_jobs.read import NO_DATE, read_lines, sealed_segments, usable
from spark_jobs.report import again, beside, compared, glance, hourly, page, slo, spans
from spark_jobs.report.again import Input, Report
from spark_jobs.report.collect import (
    HISTORY_DAYS,
    Aggregates,
    Frames,
    aggregates,
    collect,
    history_of,
    with_neighbours,
)
from spark_jobs.report.data import Data, Objective, SetAside
from spark_jobs.report.days import GLANCE, PAGE, SUMMARY, has_report
from spark_jobs.report.spans import ASIDE
from spark_jobs.report.summary import summary
from spark_jobs.report.verdict import Verdict, judge
from spark_jobs.throughput import fitting_step, throughput

LAKE = "lake"
HALVES_SENT = 500_000
"""Maximum number of dialogs that are broadcast to every task; more are joined by sorting them with
a month of others."""

MADE_AGAIN = "made again: "
"""Beginning of the output line about a page that was made again because its input had changed."""

PLACES_LISTED = 100
"""Maximum number of unusable lines that are located if there is no lake."""

Say = Callable[[str], None]


class NoReportError(Exception):
    """No report can be made of the input; the text gives the reason and the way out."""


def build(spark: SparkSession, source: Path, output: Path, say: Say) -> Verdict:
    """Make one report of all segments below `source` in `output`, an existing directory."""
    with tempfile.TemporaryDirectory(prefix=ASIDE, dir=output) as name:
        aside = Path(name)
        objectives = slo.read(output / slo.FILE)
        frames, step_us, torn = _read_directory(spark, source, objectives, say)
        say("balancing both sides of every dialog, merging histograms")
        made = aggregates(frames)
        data = collect(frames, made, [NO_DATE], step_us=step_us, unusable={NO_DATE: torn})
        verdicts = _write(made, data, {NO_DATE: output}, aside, say)
    return verdicts[NO_DATE]


def build_days(
    spark: SparkSession,
    source: Path,
    root: Path,
    dates: Sequence[str],
    say: Say,
    *,
    forget_removed: bool = False,
    keep_days: int | None = None,
    step: Step = no_step,
) -> dict[str, Verdict]:
    """Ingest the segments landed since the last run, and make the reports of days in `root`/<day>.

    Reports of other days are made again if their input has changed, or if they do not link to their
    neighbours. With `forget_removed` the requested days are built from what is in the landing now:
    rows of segments no longer there are removed, and a day with nothing usable there is refused.
    With `keep_days` the lake keeps that many days, up to the newest; pages stay. `step` is called
    before each change. Only one run at a time may work in `root`.

    Return the verdicts of the requested days, and of those whose input had changed.
    """
    objectives = slo.read(root / slo.FILE)
    lake = Lake(root / LAKE, step)
    if forget_removed:
        _refuse_empty(source, lake, dates)
    pages = {home.name for home in root.glob("????-??-??") if has_report(home)}
    since = days_before(min(dates), HISTORY_DAYS)
    known = {date: _report(root / date) for date in pages if date >= since}
    looked_back = {one for date in (*dates, *known) for one in history_of(date) if one >= since}
    _ingest(spark, source, lake, looked_back, say, forgotten=dates if forget_removed else ())
    there = set(lake.dates())
    missing = [date for date in dates if date not in there]
    wanted = [date for date in dates if date in there]
    if not wanted:
        raise NoReportError(f"nothing of {span_of(missing)} has landed at {source}")
    as_of = max({*landing.days(source), *there})
    now = again.inputs({date: lake.current(date) or {} for date in there})
    # A page may have been made from a lake that has since been lost: rather keep it than make it
    # again of less (BI-L8).
    kept = _made_of_more(known, now, say, asked=dates if forget_removed else ())
    if kept >= {*wanted}:
        raise NoReportError(f"the lake has less of {span_of(wanted)} than the report was made of")
    wanted = [date for date in wanted if date not in kept]
    input_of = {
        date: {one: now[one] for one in history_of(date) if one in now}
        for date in ({*wanted, *known} & there) - kept
    }
    changed = [date for date in input_of if date in known and known[date].changes(input_of[date])]
    every = sorted({*wanted, *changed, *_leading(pages, known, input_of, wanted)})
    say(f"comparing {len(every)} days with those before")
    step("balance the dialogs")
    frames = _read_lake(spark, lake, every, objectives)
    made = aggregates(frames)
    step("collect what the pages show")
    unusable = _unusable(lake, every)
    with interpreted(spark):
        data = collect(frames, made, every, step_us=daily.STEP_US, unusable=unusable)
    empty = [date for date, one in data.items() if not one.boots]
    for date in empty:
        say(f"{date}: no line can be used, so there is no report")
        del data[date]
    if not data:
        raise NoReportError(f"none of the lines of {span_of(every)} can be used")
    data = {
        date: replace(one, made=again.made_now(known.get(date), date, input_of[date], as_of))
        for date, one in with_neighbours(data, pages).items()
    }
    homes = {date: root / date for date in data}
    for left in root.glob(f"{ASIDE}*"):  # left by killed runs; only this run works in `root`
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=ASIDE, dir=root) as name, interpreted(spark):
        verdicts = _write(made, data, homes, Path(name), say, step=step)
    spans.write(root, {*known, *data}, say, step)
    for date in sorted({*verdicts} & {*known}):
        before = known[date].made
        if before is None or data[date].made.again != before.again:
            for one in data[date].made.again[-1:]:
                say(f"{MADE_AGAIN}{date}, because {one.because(date)}")
    _forget_old(lake, keep_days, say)
    return {date: one for date, one in verdicts.items() if date in wanted or date in changed}


def _forget_old(lake: Lake, keep_days: int | None, say: Say) -> None:
    """Remove the days before the last `keep_days` from the lake; None: keep all (BI-L37)."""
    if keep_days is None:
        return
    old = lake.forget_before(days_before(max(lake.dates()), keep_days - 1))
    if old:
        say(f"{span_of(old)} removed from the lake, which keeps {keep_days} days")


def _refuse_empty(source: Path, lake: Lake, dates: Collection[str]) -> None:
    """Refuse to forget days with nothing usable in the landing, as when it is not mounted."""
    empty = [
        date
        for date in lake.dates()
        if date in dates and not landing.verified(landing.read_day(source, date)).segments
    ]
    if empty:
        raise NoReportError(
            f"nothing of {', '.join(empty)} that can be used is at {source}, so --forget-removed "
            f"would leave nothing to make a page of; nothing was changed. To have the lake forget "
            f"a day: rm -r {lake.root}/*/date=DAY {lake.root}/current/DAY.json"
        )


def _ingest(
    spark: SparkSession,
    source: Path,
    lake: Lake,
    dates: Collection[str],
    say: Say,
    *,
    forgotten: Collection[str] = (),
) -> None:
    """Ingest the landed segments of these days; for `forgotten` days, keep no other segments."""
    ingest.adopt(spark, lake, lake.dates())
    landed = [date for date in landing.days(source) if date in dates]
    plan = ingest.plan(source, lake, landed, forgotten=forgotten)
    if plan.days:
        say(f"{len(plan.days)} days have changed, {plan.unchanged} have not")
        ingest.ingest(spark, lake, plan.days, say)
    else:
        lake.clean()  # a run may have been killed after it had named the day's new generation


def _write(
    made: Aggregates,
    data: Mapping[str, Data],
    homes: Mapping[str, Path],
    aside: Path,
    say: Say,
    *,
    step: Step = no_step,
) -> dict[str, Verdict]:
    new = {date: aside / (date or "all") for date in data}
    for path in new.values():
        path.mkdir()

    def write(name: str, _order: object) -> None:
        step(f"write {name}.parquet")
        beside.write_parquet(getattr(made, name), name, list(data), new, aside)

    side_by_side(write, beside.ORDERS)
    verdicts: dict[str, Verdict] = {}
    for number, (date, one) in enumerate(data.items(), 1):
        say(f"drawing the page {number} of {len(data)}" if date else "drawing the page")
        step(f"draw {date}")
        verdict = verdicts[date] = judge(one)
        beside.write_csv(one, new[date], verdict.points)
        _write_json(new[date] / SUMMARY, summary(one, verdict))
        if date:
            _write_json(new[date] / GLANCE, glance.as_said(glance.glance(one, verdict)))
        (new[date] / PAGE).write_text(page.render(one, verdict), encoding="utf-8")
        _publish(new[date], homes[date], step)
    return verdicts


def _write_json(path: Path, said: Mapping[str, object]) -> None:
    text = json.dumps(said, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _publish(aside: Path, output: Path, step: Step) -> None:
    output.mkdir(exist_ok=True)
    # The summary comes last. It names the input of the page: if the process dies between two
    # renames, the old summary still makes the next run replace the page.
    last = {PAGE: 1, SUMMARY: 2}
    files = sorted(aside.glob("*"), key=lambda path: (last.get(path.name, 0), path.name))
    for path in files:
        step(f"place {path.name} in {output.name}")
        os.replace(path, output / path.name)


def _read_directory(
    spark: SparkSession, source: Path, objectives: Sequence[Objective], say: Say
) -> tuple[Frames, int, list[SetAside]]:
    """Read the tables of all segments below `source` as if they were of one day.

    Return them with the width of a step in microseconds, and the segments that are left out because
    they cannot be unpacked to their end (BI-L27).
    """
    lines = read_lines(spark, source).cache()
    torn: list[SetAside] = []
    try:
        lines.count()
    except Exception:
        # A torn segment fails the whole job; only then is it worth reading each one for it.
        segments = sealed_segments(source)
        whole = [path for path in segments if path.suffix != ".gz" or landing.unpacks(path)]
        if len(whole) == len(segments):
            raise
        torn = [SetAside(one.name, landing.FAULT_TRUNCATED) for one in segments if one not in whole]
        say(f"{len(torn)} segments cannot be unpacked to their end and are left out")
        if not whole:
            raise NoReportError("none of the segments can be unpacked to its end") from None
        lines = read_lines(spark, source, whole).cache()
    files = coverage.files(lines.where(F.col("fault").isNotNull())).cache()
    good = usable(lines)
    once = distinct_lines(good).cache()
    stretches = coverage.stretches(once, repeated_lines(good)).cache()
    found = [coverage.Stretch(**row.asDict()) for row in stretches.collect()]
    boots = coverage.boots(found)
    if not boots:
        total = sum(row.lines for row in files.collect())
        raise NoReportError(f"none of the {total} lines can be used; is this a metrics log?")
    say(f"{sum(boot.lines for boot in boots)} lines of {len(boots)} boots")
    step_us = _step(boots)
    own = {
        daily.HISTOGRAMS: bucket_counts(once, step_us=step_us),
        daily.STEPS: throughput(once, step_us=step_us),
    }
    tables = {name: own[name] if name in own else job(once) for name, job in daily.TABLES.items()}
    listed = [] if files.isEmpty() else places.numbered(lines, PLACES_LISTED).collect()
    paths = {(NO_DATE, path.name): path for path in sealed_segments(source)}
    placed = places.locate((places.Bad(**row.asDict()) for row in listed), paths)
    rows = [tuple(getattr(one, name) for name in places.Place.__slots__) for one in placed]
    return (
        Frames(
            dialogs=once,
            stretches=stretches,
            files=files,
            places=spark.createDataFrame(rows, PLACE_SCHEMA),
            tables=tables,
            objectives=objectives,
            kept=hourly.kept(tables[daily.HISTOGRAMS], objectives) if objectives else None,
        ),
        step_us,
        torn,
    )


def _read_lake(
    spark: SparkSession, lake: Lake, dates: Sequence[str], objectives: Sequence[Objective] = ()
) -> Frames:
    """Read the tables of these days, and the tables of earlier days that comparisons need."""
    history = sorted({one for date in dates for one in history_of(date)})
    alike = sorted({*dates, *(one for date in dates for one in weekdays_before(date))})
    spans = {daily.HISTOGRAMS: alike, daily.GAUGES: history, daily.FAILURES: history}
    spans[daily.COUNTERS] = sorted({*alike, *(days_before(date, 1) for date in dates)})
    dialogs = lake.frame(spark, DIALOGS, history, DIALOG_SCHEMA)
    there = {*lake.dates()} & {*history}
    is_first = not any(date < max(dates) for date in there)
    tables = {
        name: lake.frame(spark, name, spans.get(name, dates), schema)
        for name, schema in daily.SCHEMAS.items()
    }
    counters, gauges = tables[daily.COUNTERS], tables[daily.GAUGES]
    past = there & {one for date in dates for one in weekdays_before(date)}
    totals = compared.totals(counters, gauges, past | {*dates}) if past else None
    commits, kept = None, None
    if len(there) > 1 or objectives:
        whole = lake.frame(spark, daily.HISTOGRAMS, history, daily.SCHEMAS[daily.HISTOGRAMS])
        commits = compared.commits(whole) if len(there) > 1 else None
        kept = hourly.kept(whole, objectives) if objectives else None
    return Frames(
        dialogs=conservation.of_days(dialogs, dates, _halves(dialogs, dates, is_first=is_first)),
        stretches=lake.frame(spark, STRETCHES, history, STRETCH_SCHEMA).cache(),
        files=lake.frame(spark, FILES, dates, FILE_SCHEMA),
        places=lake.frame(spark, PLACES, dates, PLACE_SCHEMA),
        tables=tables,
        totals=totals,
        commits=commits,
        objectives=objectives,
        kept=kept,
    )


def _halves(dialogs: DataFrame, dates: Sequence[str], *, is_first: bool) -> DataFrame:
    """Return the dialogs to search for in the days before: nearly always few enough to broadcast.

    The frame is empty if `is_first`: the lake has no day before.
    """
    if is_first:
        return dialogs.where(F.lit(False)).select(F.col("date").alias("day"), "conversation_id")
    found = conservation.one_sided(dialogs, dates).cache()
    return F.broadcast(found) if found.count() <= HALVES_SENT else found


def _unusable(lake: Lake, dates: Iterable[str]) -> dict[str, list[SetAside]]:
    said = ((date, lake.current(date)) for date in dates)
    return {
        date: [SetAside(name, fault) for name, fault in one["unusable"]]
        for date, one in said
        if one is not None
    }


def _made_of_more(
    known: Mapping[str, Report], now: Mapping[str, Input], say: Say, *, asked: Collection[str]
) -> set[str]:
    """Return the days whose reports stay, because they were made of more than the lake has (BI-L8).

    Leave out the days `asked`: their reports are to be made of the segments that the lake has.
    """
    found = set()
    for date, report in sorted(known.items()):
        if date in now and date not in asked and report.segments > now[date].segments:
            say(
                f"{date}: its report stays, for it was made of {report.segments} segments and "
                f"the lake has {now[date].segments}; with --forget-removed it is made of these"
            )
            found.add(date)
    return found


def _leading(
    pages: Collection[str],
    known: Mapping[str, Report],
    now: Mapping[str, Mapping[str, Input]],
    wanted: Collection[str],
) -> list[str]:
    """Return the days whose pages do not link to their neighbours and can be made again.

    Leave out a day whose page was made of days that the lake no longer has.
    """
    every = sorted({*pages, *wanted})
    found = []
    for before, date, after in zip(["", *every], every, [*every[1:], ""], strict=False):
        report = known.get(date)
        if report is None or date not in now or report.lacks_days(now[date]):
            continue
        if (report.before, report.after) != (before, after):
            found.append(date)
    return found


def _report(home: Path) -> Report:
    return again.report_of(json.loads((home / SUMMARY).read_text(encoding="utf-8")))


def _step(boots: Sequence[coverage.Boot]) -> int:
    span = max(boot.last_at for boot in boots) - min(boot.first_at for boot in boots)
    intervals = sum(boot.intervals for boot in boots)
    usual = sum(boot.interval_us for boot in boots) // intervals if intervals else 0
    return fitting_step(span, usual)


def span_of(dates: Sequence[str]) -> str:
    """Return the first and the last of these days in words."""
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
