"""Coverage of the logs: lines per segment and boot, gaps in their numbers, marks in time.

Reads:  all lines, or the usable ones.      Never: guesses; a gap is a fact about `seq` (BI-L3).
A number missing within a segment is a spoilt line; one missing between two segments of a boot is a
missing segment. So a frame describes each segment, and plain code puts the segments in order.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.read import BACKWARDS_US
from spark_jobs.schema import CORRUPT

GAPS_LISTED = 20
"""Maximum number of gaps listed for one boot; all of them are counted."""

STARTED = "started"
RECOVERED = "recovered"
STOPPED = "stopped"
"""Marks of a boot: it recovers if need be, then starts; only an orderly stop writes `stopped`."""

SAMPLE_LENGTH = 120
"""Number of characters kept of the line quoted for a fault."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The usable lines of one boot in one segment, each counted once; see `stretches`."""

    date: str
    file: str
    instance: str
    boot_id: str
    lines: int
    repeated: int
    first_seq: int
    last_seq: int
    first_at: int
    last_at: int
    began_at: int
    most_at: int
    backwards: int
    intervals: int
    interval_us: int
    started_at: int | None
    recovered: bool
    stopped: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of a boot's numbers that no segment has, between two instants of its clock."""

    first_seq: int
    last_seq: int
    after_at: int
    until_at: int


@dataclass(frozen=True, slots=True)
class Boot:
    """The lines read of one boot of an instance.

    `lines` counts all lines read, `repeated` those of them that had been read before. `missing`
    counts numbers that no segment has, and `spoilt` numbers absent from a segment that has unusable
    lines, which may be theirs. `backwards` counts how often the clock went back. `started_at` is
    None if the log begins later than the boot; `after_crash` is true if the boot before did not
    stop in an orderly way. `is_reused` is true if two boots of the instance have this id: it has
    more lines than numbers, or its numbers begin again.
    """

    instance: str
    boot_id: str
    lines: int
    repeated: int
    first_seq: int
    last_seq: int
    missing: int
    spoilt: int
    gaps: tuple[Gap, ...]
    first_at: int
    last_at: int
    intervals: int
    interval_us: int
    backwards: int
    started_at: int | None
    stopped: bool
    after_crash: bool
    is_reused: bool = False


def files(lines: DataFrame) -> DataFrame:
    """Count the lines per day, segment and fault, with the beginning of one such line (BI-L1)."""
    sample = F.substring(F.min(CORRUPT), 1, SAMPLE_LENGTH)
    counted = lines.groupBy("date", "file", "fault").agg(
        F.count(F.lit(1)).alias("lines"), sample.alias("sample")
    )
    return counted.orderBy("date", "file", F.col("fault").asc_nulls_first())


def stretches(lines: DataFrame, repeated: DataFrame | None = None) -> DataFrame:
    """Return what each segment has of each boot, as rows like `Stretch`.

    `lines` are usable and distinct; `repeated` counts, by date, boot_id, file and instance, the
    lines that were dropped because they had been read before.
    """
    found = lines.groupBy("date", "file", "instance", "boot_id").agg(
        F.count(F.lit(1)).alias("lines"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min_by("at", "seq").alias("first_at"),
        F.max_by("at", "seq").alias("last_at"),
        F.min(F.least("at", "from_at")).alias("began_at"),
        F.max("at").alias("most_at"),
        F.count_distinct(F.when(F.col("jumped"), F.col("at"))).alias("backwards"),
        F.count(F.col("at") - F.col("from_at")).alias("intervals"),
        F.coalesce(F.sum(F.col("at") - F.col("from_at")), F.lit(0)).alias("interval_us"),
        F.min(F.when(F.col("what").isin(STARTED, RECOVERED), F.col("at"))).alias("started_at"),
        _has(RECOVERED).alias("recovered"),
        _has(STOPPED).alias("stopped"),
    )
    if repeated is None:
        return found.withColumn("repeated", F.lit(0).cast("long"))
    keys = ["date", "boot_id", "file", "instance"]
    joined = found.join(repeated, keys, "outer")
    # A segment with nothing but repeats has no row in `found`: -1 marks it for `_boot`.
    numbers = [name for name, kind in joined.dtypes if kind == "bigint" and name != "started_at"]
    return joined.fillna(-1, ["last_seq"]).fillna(0, numbers).fillna(value=False)


def marks(lines: DataFrame) -> DataFrame:
    """Return starts, stops and recoveries in order of time."""
    chosen = lines.where(F.col("kind") == "mark").select(
        "date", "at", "instance", "boot_id", "what"
    )
    return chosen.orderBy("at", "instance", "boot_id", "what")


def boots(
    found: Iterable[Stretch],
    before: Mapping[tuple[str, str], Stretch] | None = None,
    set_aside: Mapping[str, int] | None = None,
) -> list[Boot]:
    """Return the boots of all these segments by instance and time, with their gaps.

    `before`: the last stretch of each boot on an earlier day, by instance and boot id, which this
    day's may continue.
    `set_aside`: the number of unusable lines of each segment.
    """
    unusable = set_aside or {}
    by_boot: dict[tuple[str, str], list[Stretch]] = defaultdict(list)
    for one in found:
        by_boot[one.instance, one.boot_id].append(one)
    earlier = before or {}
    ended: dict[str, int] = {}
    for one in earlier.values():
        ended[one.instance] = max(ended.get(one.instance, 0), one.most_at)
    made: list[Boot] = []
    for (instance, boot_id), parts in sorted(by_boot.items(), key=_began):
        if any(part.lines for part in parts):
            parts.sort(key=lambda one: (one.first_seq, one.file))
            last = earlier.get((instance, boot_id))
            boot = _boot(parts, last, unusable, ended.get(instance))
            ended[instance] = max(ended.get(instance, 0), boot.last_at)
            made.append(boot)
    made.sort(key=lambda boot: (boot.instance, boot.first_at, boot.boot_id))
    return list(_in_order(made))


def _began(boot: tuple[tuple[str, str], list[Stretch]]) -> tuple[str, int, str]:
    (instance, boot_id), parts = boot
    return instance, min(part.began_at for part in parts), boot_id


def _boot(
    every: list[Stretch],
    before: Stretch | None,
    set_aside: Mapping[str, int],
    ended: int | None,
) -> Boot:
    """Merge the stretches of one boot, and find the gaps between them.

    `ended`: the instant of the last line of the boot before this one; None if no earlier boot is
    known. If one is known, absent first lines of this boot are missing; if none is, the logs may
    simply begin later than the boot.
    """
    parts = [part for part in every if part.last_seq >= 0]  # -1: the segment has only repeats
    gaps: list[Gap] = []
    missing = spoilt = backwards = 0
    reached = before
    if before is None and ended is not None:
        missing = max(parts[0].first_seq - set_aside.get(parts[0].file, 0), 0)
        if missing:
            until = parts[0].began_at
            gaps.append(Gap(0, parts[0].first_seq - 1, min(ended, until), until))
    for part in parts:
        absent = max(part.last_seq - part.first_seq + 1 - part.lines, 0)
        spoilt += min(absent, set_aside.get(part.file, 0))
        missing += max(absent - set_aside.get(part.file, 0), 0)
        back = part.backwards or int(part.most_at - part.last_at > BACKWARDS_US)
        if reached is not None:
            # A step back between two segments shows twice, in the times and in an interval of the
            # second segment, and is counted once.
            back = max(back, int(reached.last_at - part.first_at > BACKWARDS_US))
            if part.first_seq > reached.last_seq + 1:
                missing += part.first_seq - reached.last_seq - 1
                span = (reached.last_seq + 1, part.first_seq - 1)
                until = max(reached.last_at, min(part.first_at, part.began_at))
                gaps.append(Gap(*span, reached.last_at, until))
        backwards += back
        # Segments may overlap, so the last one need not reach the furthest.
        if reached is None or part.last_seq > reached.last_seq:
            reached = part
    assert reached is not None, "a boot has a segment"
    started = [part.started_at for part in parts if part.started_at is not None]
    return Boot(
        instance=parts[0].instance,
        boot_id=parts[0].boot_id,
        lines=sum(part.lines + part.repeated for part in every),
        repeated=sum(part.repeated for part in every),
        first_seq=parts[0].first_seq,
        last_seq=max(part.last_seq for part in parts),
        missing=missing,
        spoilt=spoilt,
        gaps=tuple(gaps[:GAPS_LISTED]),
        first_at=min(part.began_at for part in parts),
        last_at=max(part.most_at for part in parts),
        intervals=sum(part.intervals for part in parts),
        interval_us=sum(part.interval_us for part in parts),
        backwards=backwards,
        started_at=min(started, default=None),
        stopped=any(part.stopped for part in parts),
        after_crash=any(part.recovered for part in parts),
        is_reused=_is_reused(parts, before),
    )


def _is_reused(parts: list[Stretch], before: Stretch | None) -> bool:
    """Return whether two boots share these stretches, in order of their numbers (BI-L23)."""
    numbers, reached = 0, -1
    for part in parts:
        numbers += max(part.last_seq - max(part.first_seq, reached + 1) + 1, 0)
        reached = max(reached, part.last_seq)
    begins_again = before is not None and parts[0].first_seq <= before.last_seq
    has_begun = any(part.started_at is not None for part in parts)
    return sum(part.lines for part in parts) > numbers or (begins_again and has_begun)


def _in_order(made: list[Boot]) -> Iterator[Boot]:
    """Set `after_crash` of each boot whose predecessor wrote no orderly stop.

    The first boot of an instance has no predecessor in the logs: its own recovery mark decides.
    """
    last: Boot | None = None
    for boot in made:
        crashed = boot.after_crash
        if last is not None and last.instance == boot.instance:
            crashed = not last.stopped
        last = boot
        values = {name: getattr(boot, name) for name in Boot.__slots__}
        yield Boot(**(values | {"after_crash": crashed}))


def _has(what: str) -> Column:
    return F.coalesce(F.max(F.col("what") == what), F.lit(False))
