"""Takes what has landed into the lake: incremental by manifest, a day at a time, or many at once.

Reads:  the landing.      Calls: the jobs of `daily`, the lake.
Never:  reads a day whose manifests are those it was made of; late segments change them, and the
        day is made anew. Nor drops a line silently: `aside` has each with the reason.
Fails:  may be killed between any two steps and run again: see `lake`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import coverage, daily, landing, places
from spark_jobs.dedup import distinct_lines, repeated_lines
from spark_jobs.lake import Lake
from spark_jobs.plans import interpreted, side_by_side
from spark_jobs.read import believed, read_segments, usable
from spark_jobs.schema import CORRUPT

VERSION = 2
"""Rises when the tables of a day change, so that every day is made anew."""

PLACES_LISTED = 100_000
"""Lines set aside of one run whose places are looked up; `aside` has them all."""

SMALL_BYTES = 4 * 1024 * 1024
"""So much of packed segments is kept in memory while the tables are made of it."""

FEW_BYTES = 16 * 1024 * 1024
"""Of lines, as they are kept, that are too few for a plan to be compiled."""

STRETCHES = "stretches"
PLACES = "places"
FILES = "files"
DIALOGS = "dialogs"

STRETCH_SCHEMA = (
    "date string, file string, instance string, boot_id string, lines long, repeated long, "
    "first_seq long, last_seq long, first_at long, last_at long, began_at long, most_at long, "
    "backwards long, intervals long, interval_us long, started_at long, recovered boolean, "
    "stopped boolean"
)
PLACE_SCHEMA = "date string, file string, line long, offset long, fault string, sample string"
FILE_SCHEMA = "date string, file string, fault string, lines long, sample string"

_KEPT_LINES = "lines"
_ASIDE = "aside"
_LINES = (_KEPT_LINES, DIALOGS, _ASIDE)

_OFTEN_NEW = ("conversation_id", "seq", "at", "began_at", "ended_at", "row")
"""Columns whose values hardly ever come again, so that a dictionary of them is made in vain."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The days that have changed since they were ingested."""

    days: tuple[landing.Day, ...]
    unchanged: int


def plan(source: Path, lake: Lake, dates: Iterable[str]) -> Plan:
    """Which of these days have to be made anew; reads their manifests, and no segment."""
    changed: list[landing.Day] = []
    unchanged = 0
    for date in dates:
        day = landing.read_day(source, date)
        said = lake.current(date)
        if said is not None and said["landed"] == _landed(day) and not said["damaged"]:
            unchanged += 1
        else:
            changed.append(day)
    return Plan(tuple(changed), unchanged)


def ingest(spark: SparkSession, lake: Lake, days: Sequence[landing.Day], say: Say) -> None:
    """Make these days anew from what has landed."""
    lake.clean()
    good = [landing.verified(day) for day in days]
    segments = [one for day in good for one in day.segments]
    if segments:
        say(f"reading {len(segments)} segments of {len(days)} days")
        try:
            _stage(spark, lake, segments, say)
        except Exception:
            lake.clean()  # what was staged may be what has filled the disk
            raise
    for day, wanted in zip(good, days, strict=True):
        lake.publish(day.date, said_of(day, wanted), _parts(lake.staging, day.date))
    lake.clean()


def said_of(day: landing.Day, wanted: landing.Day) -> dict[str, object]:
    """What the lake is to remember of a day: what it was made of, and what had landed."""
    return {
        "generation": day.generation,
        "landed": _landed(wanted),
        "damaged": any(one.fault == landing.FAULT_DAMAGED for one in day.unusable),
        "unusable": [[one.name, one.fault] for one in day.unusable],
        "segments": len(day.segments),
    }


def _landed(day: landing.Day) -> str:
    return f"{VERSION}-{day.generation}"


def _stage(spark: SparkSession, lake: Lake, segments: Sequence[landing.Segment], say: Say) -> None:
    staging = lake.staging
    # An instance called 2026 or 1e5 is still a name.
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    suspects = landing.overlapping(segments)
    doubtful = [one.path for one in segments if one.name in suspects]
    lake.step("write lines")
    _write_lines(
        spark, staging, [one.path for one in segments if one.name not in suspects], doubtful
    )
    raw = spark.read.option("basePath", _uri(staging / "raw")).parquet(_uri(staging / "raw"))
    if sum(one.path.stat().st_size for one in segments) < SMALL_BYTES:
        raw = raw.cache()
    say("making the tables of each day")
    lake.step(f"write {PLACES}")
    _write_places(spark, raw, staging, segments)
    repeated = repeated_lines(usable(read_segments(spark, doubtful))) if doubtful else None
    found = coverage.stretches(raw.where(F.col("table") != _ASIDE), repeated).collect()
    said = _as_said((coverage.Stretch(**row.asDict()) for row in found), segments)
    rows = [tuple(getattr(one, name) for name in coverage.Stretch.__slots__) for one in said]
    lake.step(f"write {STRETCHES}")
    _write(spark.createDataFrame(rows, STRETCH_SCHEMA), staging / STRETCHES)
    others = raw.where(F.col("table") == _KEPT_LINES)
    kept = sum(path.stat().st_size for path in staging.glob(f"raw/table={_KEPT_LINES}/*/*/*"))

    def make(name: str, job: Callable[[DataFrame], DataFrame]) -> None:
        lake.step(f"write {name}")
        _write(job(others), staging / name)

    with interpreted(spark, when=kept < FEW_BYTES):
        side_by_side(make, daily.TABLES)
    raw.unpersist()


def _write_lines(
    spark: SparkSession, staging: Path, sound: Sequence[Path], doubtful: Sequence[Path]
) -> None:
    """All lines in one pass: those that count, dialogs apart, and those that are set aside."""
    parts = []
    if sound:
        parts.append(believed(read_segments(spark, sound)))
    if doubtful:
        read = believed(read_segments(spark, doubtful))
        parts.append(distinct_lines(read.where(F.col("fault").isNull())))
        parts.append(read.where(F.col("fault").isNotNull()))
    every = reduce(DataFrame.unionByName, parts)
    table = (
        F.when(F.col("fault").isNotNull(), _ASIDE)
        .when(F.col("kind") == "dialog", DIALOGS)
        .otherwise(_KEPT_LINES)
    )
    writer = every.withColumn("table", table).write
    for name in _OFTEN_NEW:
        writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
    writer.partitionBy("table", "date", "instance").parquet(_uri(staging / "raw"))


def _as_said(
    found: Iterable[coverage.Stretch], segments: Sequence[landing.Segment]
) -> list[coverage.Stretch]:
    """What was found in each segment, with the numbers that its manifest says it has.

    A line at either end that cannot be used is spoilt, and no gap between two segments.
    """
    manifests = {(one.date, one.name, one.boot_id): one for one in segments}
    merged: list[coverage.Stretch] = []
    for one in found:
        segment = manifests.pop((one.date, one.file, one.boot_id), None)
        if segment is not None and one.lines:
            first = min(one.first_seq, segment.first_seq)
            last = max(one.last_seq, segment.last_seq)
            merged.append(replace(one, first_seq=first, last_seq=last))
        else:
            merged.append(one)
    merged += [_nothing_in(segment) for segment in manifests.values()]
    return merged


def _nothing_in(segment: landing.Segment) -> coverage.Stretch:
    """A segment of which no line can be used still is there."""
    return coverage.Stretch(
        date=segment.date,
        file=segment.name,
        instance=segment.instance,
        boot_id=segment.boot_id,
        lines=0,
        repeated=0,
        first_seq=segment.first_seq,
        last_seq=segment.last_seq,
        first_at=segment.first_at,
        last_at=segment.last_at,
        began_at=segment.first_at,
        most_at=segment.last_at,
        backwards=0,
        intervals=0,
        interval_us=0,
        started_at=None,
        recovered=False,
        stopped=False,
    )


def _write_places(
    spark: SparkSession, raw: DataFrame, staging: Path, segments: Sequence[landing.Segment]
) -> None:
    every = raw.select("date", "file", "row", "fault", CORRUPT)
    counted = coverage.files(every.where(F.col("fault").isNotNull())).collect()
    if not counted:
        return
    _write(spark.createDataFrame(counted, FILE_SCHEMA), staging / FILES)
    names = {row.file for row in counted}
    concerned = every.where(F.col("file").isin(sorted(names)))
    bad = [
        places.Bad(**row.asDict()) for row in places.numbered(concerned, PLACES_LISTED).collect()
    ]
    paths = {(one.date, one.name): one.path for one in segments}
    found = places.locate(bad, paths)
    rows = [tuple(getattr(one, name) for name in places.Place.__slots__) for one in found]
    _write(spark.createDataFrame(rows, PLACE_SCHEMA), staging / PLACES)


def _write(frame: DataFrame, path: Path) -> None:
    ordered = frame.repartition("date").sortWithinPartitions("date", *frame.columns)
    ordered.write.partitionBy("date").parquet(_uri(path))


def _parts(staging: Path, date: str) -> list[tuple[str, Path]]:
    day = f"date={date}"
    lines = [(name, staging / "raw" / f"table={name}" / day) for name in _LINES]
    made = [(name, staging / name / day) for name in (STRETCHES, FILES, PLACES, *daily.TABLES)]
    return lines + made


def _uri(path: Path) -> str:
    return f"file:{path.resolve()}"
