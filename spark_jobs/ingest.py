"""Ingestion: takes landed segments into the lake, incrementally by manifest, one or many days.

Reads:  the landing, and the rows in the lake of segments ingested before.
Calls:  the jobs of `daily`, `lake`.
Never:  reads an ingested segment again, except for a new `VERSION`: its rows stay in the lake,
        whatever becomes of the segment in the landing, and a day is rebuilt from these rows and
        those of new segments (BI-L8). Nor drops a line silently: the table `aside` holds each
        unusable line with the reason.
Fails:  may be killed between any two steps and run again: see `lake`.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import coverage, daily, landing, places
from spark_jobs.dedup import distinct_lines, repeated_lines
from spark_jobs.lake import Lake
from spark_jobs.lake_tables import (
    ASIDE,
    DIALOGS,
    FILE_SCHEMA,
    FILES,
    LINES,
    OF_LINES,
    PLACE_SCHEMA,
    PLACES,
    ROW_SCHEMA,
    STRETCH_SCHEMA,
    STRETCHES,
)
from spark_jobs.plans import interpreted, side_by_side
from spark_jobs.read import believed, read_segments
from spark_jobs.schema import CORRUPT

VERSION = 3
"""Incremented when the form of a day's tables changes, so that every day is rebuilt."""

PLACES_LISTED = 100_000
"""Maximum number of unusable lines located in one run; the table `aside` has all of them."""

SMALL_BYTES = 4 * 1024 * 1024
"""Size in bytes below which the staged lines are cached in memory while the tables are built."""

FEW_BYTES = 16 * 1024 * 1024
"""Size in bytes of the staged Parquet lines below which compiling a plan does not pay."""

_OFTEN_NEW = ("conversation_id", "seq", "at", "began_at", "ended_at", "row")
"""Columns whose values hardly ever repeat, so that a Parquet dictionary of them is useless."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Change:
    """A day to rebuild, and its input.

    The rows of the `kept` segments, ingested before, come from the lake. The `read` segments come
    from the landing and match their manifests.
    """

    date: str
    kept: tuple[landing.Segment, ...]
    read: tuple[landing.Segment, ...]
    unusable: tuple[landing.Unusable, ...]

    @property
    def segments(self) -> tuple[landing.Segment, ...]:
        """All segments of the day, sorted by name."""
        return tuple(sorted((*self.kept, *self.read), key=lambda one: (one.name, one.boot_id)))

    @property
    def made_of(self) -> str:
        """A hash of the day's input: it differs if and only if the input differs."""
        said = [[one.name, one.sha256] for one in self.segments]
        said += [[one.name, one.fault] for one in self.unusable]
        return _hash(said)

    @property
    def generation(self) -> str:
        """The name of the tables' generation, which also depends on `VERSION`."""
        return _hash([VERSION, self.made_of])

    def without(self, torn: Collection[landing.Segment]) -> "Change":
        """Return this change with the `torn` segments, which cannot be unpacked, set aside."""
        read = tuple(one for one in self.read if one not in torn)
        aside = [
            landing.Unusable(self.date, one.name, landing.FAULT_TRUNCATED)
            for one in self.read
            if one in torn
        ]
        return replace(self, read=read, unusable=_by_name((*self.unusable, *aside)))


@dataclass(frozen=True, slots=True)
class Plan:
    """The days to rebuild, and the number of days whose input has not changed."""

    days: tuple[Change, ...]
    unchanged: int


def plan(
    source: Path, lake: Lake, dates: Iterable[str], *, forgotten: Collection[str] = ()
) -> Plan:
    """Return the days to rebuild; read their manifests and the segments that are new.

    For `forgotten` days only the segments that are in the landing now count.
    """
    changed: list[Change] = []
    unchanged = 0
    for date in dates:
        said = lake.current(date)
        change = _change(source, date, {} if date in forgotten else said or {})
        if said is None or change.made_of != said["made_of"] or said["version"] != VERSION:
            changed.append(change)
        else:
            unchanged += 1
    return Plan(tuple(changed), unchanged)


def _change(source: Path, date: str, said: Mapping[str, Any]) -> Change:
    """Return the input of the day if it were rebuilt now; `said` is the lake's record of it."""
    there = landing.read_day(source, date)
    taken = [_segment(source, date, row) for row in said.get("taken", ())]
    again: list[landing.Segment] = []
    if said.get("version", VERSION) != VERSION:
        # This version may get more out of the lines than the one that ingested them, so read again
        # every segment that is still in the landing unchanged (the hash "" is that of `adopt`). One
        # that is damaged or gone stays `kept`: the lake has the only copy of its rows (BI-L8).
        names = {one.name: one.sha256 for one in taken}
        same = (one for one in there.segments if names.get(one.name) in {one.sha256, ""})
        again = list(landing.verified(replace(there, segments=tuple(same), unusable=())).segments)
    read_again = {one.name for one in again}
    kept = tuple(one for one in taken if one.name not in read_again)
    names_taken = {one.name for one in taken}
    new = tuple(one for one in there.segments if one.name not in names_taken)
    found = landing.verified(replace(there, segments=new))
    aside: dict[str, str] = dict(said.get("unusable", ()))
    # A manifest of another day is found again below while it lies in this directory; once it has
    # been moved to the right one, nothing of this day is missing.
    aside = {name: fault for name, fault in aside.items() if fault != landing.FAULT_DAY}
    torn = [
        one
        for one in found.segments
        if aside.get(one.name) == landing.FAULT_TRUNCATED and not landing.unpacks(one.path)
    ]
    change = Change(date, kept, (*again, *found.segments), ())
    aside |= {one.name: one.fault for one in found.unusable}
    good = {one.name for one in change.segments}
    unusable = (landing.Unusable(date, *one) for one in aside.items() if one[0] not in good)
    return replace(change, unusable=_by_name(unusable)).without(torn)


def ingest(spark: SparkSession, lake: Lake, days: Sequence[Change], say: Say) -> None:
    """Rebuild these days in the lake."""
    lake.clean()
    made = [one for one in days if one.read]
    if made:
        say(f"reading {sum(len(one.read) for one in made)} segments of {len(made)} days")
    try:
        staged = _staged(spark, lake, days, say)
    except Exception:
        lake.remove_staged()  # they may be what has filled the disk
        raise
    for day in staged:
        lake.publish(day.date, *_published(lake, day))
    lake.clean()


def _staged(spark: SparkSession, lake: Lake, days: Sequence[Change], say: Say) -> Sequence[Change]:
    """Stage the days that have segments to read; set aside segments that cannot be unpacked.

    Return the days as they were staged.
    """
    made = [one for one in days if one.read]
    if not made:
        return days
    try:
        _stage(spark, lake, made, say)
    except Exception:
        # A torn segment fails the whole job. `unpacks` reads a segment to its end, so the torn ones
        # are searched for only now, and staging starts again without them.
        torn = [one for day in made for one in day.read if not landing.unpacks(one.path)]
        if not torn:
            raise
        say(f"{len(torn)} segments cannot be unpacked to their end and are set aside whole")
        lake.remove_staged()
        return _staged(spark, lake, [day.without(torn) for day in days], say)
    return days


def _published(lake: Lake, day: Change) -> tuple[dict[str, object], list[tuple[str, Path]]]:
    """Return the lake's new record of a day, and its staged tables.

    No tables if only kept segments remain: those of the current generation are still right.
    """
    said = said_of(day)
    current = lake.current(day.date)
    if current is not None and day.kept and not day.read:
        return said | {"generation": current["generation"]}, []
    return said, _parts(lake.staging, day.date)


def said_of(day: Change) -> dict[str, object]:
    """Return the lake's record of a day: the segments it was built from, and those set aside."""
    return {
        "version": VERSION,
        "generation": day.generation,
        "made_of": day.made_of,
        "taken": [_row(one) for one in day.segments],
        "unusable": [[one.name, one.fault] for one in day.unusable],
        "segments": len({one.name for one in day.segments}),
    }


def adopt(spark: SparkSession, lake: Lake, dates: Iterable[str]) -> None:
    """Complete records of an older version with the segments that their days were built from.

    The hashes of these segments are not known, and are left empty.
    """
    for date in dates:
        said = lake.current(date)
        if said is None or "taken" in said:
            continue
        rows = lake.frame(spark, STRETCHES, [date], STRETCH_SCHEMA).collect()
        taken = [[row.file, "", *(row[name] for name in _OF_ROW)] for row in rows]
        kept = tuple(_segment(lake.root, date, row) for row in taken)
        unusable = tuple(landing.Unusable(date, *one) for one in said["unusable"])
        version, _, _ = str(said["landed"]).partition("-")
        as_said = said_of(Change(date, kept, (), unusable))
        same = {"version": int(version), "generation": said["generation"]}
        lake.say(date, as_said | same)


_OF_ROW = ("instance", "boot_id", "first_seq", "last_seq", "first_at", "last_at")


def _row(segment: landing.Segment) -> list[object]:
    return [segment.name, segment.sha256, *(getattr(segment, name) for name in _OF_ROW)]


def _segment(source: Path, date: str, row: Sequence[Any]) -> landing.Segment:
    name, sha256, *rest = row
    facts = dict(zip(_OF_ROW, rest, strict=True))
    return landing.Segment(date, name, sha256=sha256, path=source / date / name, **facts)


def _by_name(unusable: Iterable[landing.Unusable]) -> tuple[landing.Unusable, ...]:
    return tuple(sorted(unusable, key=lambda one: one.name))


def _hash(said: object) -> str:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _stage(spark: SparkSession, lake: Lake, days: Sequence[Change], say: Say) -> None:
    staging = lake.staging
    # Partition values stay text: an instance may be called 2026 or 1e5.
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    segments = [one for day in days for one in day.segments]
    kept = _Kept(spark, lake, days)
    read = [one for day in days for one in day.read]
    once, twice = _lines(spark, read, kept.lines(), landing.overlapping(segments))
    lake.step("write lines")
    _write_lines(staging, once, twice)
    raw = spark.read.option("basePath", _uri(staging / "raw")).parquet(_uri(staging / "raw"))
    if sum(path.stat().st_size for path in staging.glob("raw/*/*/*/*")) < SMALL_BYTES:
        raw = raw.cache()
    say("making the tables of each day")
    lake.step(f"write {PLACES}")
    _write_places(spark, raw, staging, read, kept.places())
    repeated = _repeated(kept.repeated(), twice)
    found = coverage.stretches(raw.where(F.col("table") != ASIDE), repeated).collect()
    said = _as_said((coverage.Stretch(**row.asDict()) for row in found), segments)
    rows = [tuple(getattr(one, name) for name in coverage.Stretch.__slots__) for one in said]
    lake.step(f"write {STRETCHES}")
    _write(spark.createDataFrame(rows, STRETCH_SCHEMA), staging / STRETCHES)
    others = raw.where(F.col("table") == LINES)
    size = sum(path.stat().st_size for path in staging.glob(f"raw/table={LINES}/*/*/*"))

    def make(name: str, job: Callable[[DataFrame], DataFrame]) -> None:
        lake.step(f"write {name}")
        _write(job(others), staging / name)

    with interpreted(spark, when=size < FEW_BYTES):
        side_by_side(make, daily.TABLES)
    raw.unpersist()


class _Kept:
    """The rows in the lake of the kept segments; None for a table where no segment is kept."""

    def __init__(self, spark: SparkSession, lake: Lake, days: Sequence[Change]) -> None:
        self._spark, self._lake = spark, lake
        self._files: dict[str, list[str]] = {}
        """The names of the kept segments by day; empty if every segment in the lake is kept."""
        for day in days:
            names = {one.name for one in day.kept}
            said = lake.current(day.date)
            if said is not None and names:
                self._files[day.date] = sorted(names) if len(names) < said["segments"] else []
        self._dates = sorted(self._files)

    def lines(self) -> DataFrame | None:
        """Return every line, including unusable ones; None if no segment is kept."""
        if not self._dates:
            return None
        frames = [self._lake.frame(self._spark, name, self._dates, ROW_SCHEMA) for name in OF_LINES]
        return reduce(DataFrame.unionByName, frames).where(self._is_kept())

    def repeated(self) -> DataFrame | None:
        """Return the counts of lines dropped as repeats at ingestion, like `repeated_lines`.

        None if no segment is kept.
        """
        if not self._dates:
            return None
        found = self._lake.frame(self._spark, STRETCHES, self._dates, STRETCH_SCHEMA)
        return found.where(self._is_kept() & (F.col("repeated") > 0)).select(*_REPEATED)

    def places(self) -> list[tuple[object, ...]]:
        """Return the places of the unusable lines."""
        if not self._dates:
            return []
        found = self._lake.frame(self._spark, PLACES, self._dates, PLACE_SCHEMA)
        chosen = found.where(self._is_kept()).select(*places.Place.__slots__)
        return [tuple(row) for row in chosen.collect()]

    def _is_kept(self) -> Column:
        chosen = F.lit(False)
        for date, names in self._files.items():
            of_day = F.col("date") == date
            chosen |= of_day & F.col("file").isin(names) if names else of_day
        return chosen


_REPEATED = ("date", "boot_id", "file", "instance", "repeated")


def _lines(
    spark: SparkSession,
    read: Sequence[landing.Segment],
    kept: DataFrame | None,
    suspects: Collection[str],
) -> tuple[list[DataFrame], DataFrame | None]:
    """Return the lines that occur once, and those of the `suspects`, which may occur twice.

    None in place of the second frame if there are no suspects.
    """
    doubtful = F.col("file").isin(sorted(suspects))
    once: list[DataFrame] = []
    twice: list[DataFrame] = []
    for frames, is_suspect in ((once, False), (twice, True)):
        paths = [one.path for one in read if (one.name in suspects) == is_suspect]
        if paths:
            frames.append(believed(read_segments(spark, paths)))
        if kept is not None and (suspects or not is_suspect):
            frames.append(kept.where(doubtful if is_suspect else ~doubtful) if suspects else kept)
    return once, reduce(DataFrame.unionByName, twice) if twice else None


def _repeated(before: DataFrame | None, twice: DataFrame | None) -> DataFrame | None:
    """Count the repeated lines of each segment: those `before`, at its ingestion, and those now.

    None if neither frame is given.
    """
    found = [] if before is None else [before]
    if twice is not None:
        found.append(repeated_lines(twice.where(F.col("fault").isNull())).select(*_REPEATED))
    if not found:
        return None
    every = reduce(DataFrame.unionByName, found)
    return every.groupBy(*_REPEATED[:-1]).agg(F.sum("repeated").alias("repeated"))


def _write_lines(staging: Path, once: Sequence[DataFrame], twice: DataFrame | None) -> None:
    """Write all lines in one pass, to three tables: usable lines, dialogs, and lines set aside."""
    parts = [*once]
    if twice is not None:
        parts.append(distinct_lines(twice.where(F.col("fault").isNull())))
        parts.append(twice.where(F.col("fault").isNotNull()))
    every = reduce(DataFrame.unionByName, parts)
    table = (
        F.when(F.col("fault").isNotNull(), ASIDE)
        .when(F.col("kind") == "dialog", DIALOGS)
        .otherwise(LINES)
    )
    # Text that is not UTF-8 would make other programs refuse the whole file.
    valid = every.withColumn(CORRUPT, F.make_valid_utf8(CORRUPT))
    writer = valid.withColumn("table", table).write
    for name in _OFTEN_NEW:
        writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
    writer.partitionBy("table", "date", "instance").parquet(_uri(staging / "raw"))


def _as_said(
    found: Iterable[coverage.Stretch], segments: Sequence[landing.Segment]
) -> list[coverage.Stretch]:
    """Widen each stretch to the sequence numbers that its segment's manifest names.

    So an unusable line at either end of a segment counts as spoilt, not as a gap between segments.
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
    """Return a stretch without lines: a segment with no usable line still exists."""
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
    spark: SparkSession,
    raw: DataFrame,
    staging: Path,
    read: Sequence[landing.Segment],
    known: Sequence[tuple[object, ...]],
) -> None:
    """Write the unusable lines counted by segment, and their places.

    `known` are the places in the kept segments, which are not read now.
    """
    every = raw.select("date", "file", "row", "fault", CORRUPT)
    counted = coverage.files(every.where(F.col("fault").isNotNull())).collect()
    if not counted:
        return
    _write(spark.createDataFrame(counted, FILE_SCHEMA), staging / FILES)
    paths = {(one.date, one.name): one.path for one in read}
    new = {(row.date, row.file) for row in counted} & {*paths}
    found: list[places.Place] = []
    if new:
        concerned = every.where(F.col("file").isin(sorted({name for _, name in new})))
        numbered = places.numbered(concerned, PLACES_LISTED).collect()
        bad = (places.Bad(**row.asDict()) for row in numbered if (row.date, row.file) in new)
        found = places.locate(bad, paths)
    rows = [tuple(getattr(one, name) for name in places.Place.__slots__) for one in found]
    _write(spark.createDataFrame([*known, *rows], PLACE_SCHEMA), staging / PLACES)


def _write(frame: DataFrame, path: Path) -> None:
    ordered = frame.repartition("date").sortWithinPartitions("date", *frame.columns)
    ordered.write.partitionBy("date").parquet(_uri(path))


def _parts(staging: Path, date: str) -> list[tuple[str, Path]]:
    day = f"date={date}"
    lines = [(name, staging / "raw" / f"table={name}" / day) for name in OF_LINES]
    made = [(name, staging / name / day) for name in (STRETCHES, FILES, PLACES, *daily.TABLES)]
    return lines + made


def _uri(path: Path) -> str:
    return f"file:{path.resolve()}"
