"""What the logs cover: lines per segment and boot, gaps in their numbers, marks in time.

Reads:  all lines, or the usable ones.      Never: guesses; a gap is a fact about `seq` (BI-L3).
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.schema import CORRUPT

GAPS_LISTED = 20
"""Gaps listed for one boot; all of them are counted."""

STARTED = "started"
RECOVERED = "recovered"
STOPPED = "stopped"
"""Marks of a boot; it recovers, then starts, and only an orderly stop writes the last."""

BACKWARDS_US = 60_000_000
"""Lines are written in batches, so this much disorder in time is nothing to mention."""

SAMPLE_LENGTH = 120
"""Characters kept of the line quoted for a fault."""


def files(lines: DataFrame) -> DataFrame:
    """Per segment and fault: lines, and the beginning of one line at fault (BI-L1)."""
    sample = F.substring(F.min(CORRUPT), 1, SAMPLE_LENGTH)
    counted = lines.groupBy("file", "fault").agg(
        F.count(F.lit(1)).alias("lines"), sample.alias("sample")
    )
    return counted.orderBy("file", F.col("fault").asc_nulls_first())


def boots(lines: DataFrame) -> DataFrame:
    """Per boot of an instance: the lines read, those repeated, those missing in between.

    `lines` are usable ones, repeated ones included. `missing` counts numbers between the first
    and the last that were read; `backwards` counts how often the clock went back. `started_at` is
    null where the log begins later; `after_crash` says that the boot before ended in disorder.
    """
    numbered = _numbered(lines)
    gap = F.col("seq") - F.col("previous_seq") > 1
    span = F.struct(
        (F.col("previous_seq") + 1).alias("first_seq"),
        (F.col("seq") - 1).alias("last_seq"),
        F.col("previous_at").alias("after_at"),
    )
    gaps = F.slice(F.sort_array(F.collect_list(F.when(gap, span))), 1, GAPS_LISTED)
    per_boot = numbered.groupBy("instance", "boot_id").agg(
        F.sum("copies").alias("lines"),
        F.sum(F.col("copies") - 1).alias("repeated"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.coalesce(F.sum(F.when(gap, F.col("seq") - F.col("previous_seq") - 1)), F.lit(0)).alias(
            "missing"
        ),
        gaps.alias("gaps"),
        F.min(F.least("at", "from_at")).alias("first_at"),
        F.max("at").alias("last_at"),
        F.count("interval_us").alias("intervals"),
        F.coalesce(F.sum("interval_us"), F.lit(0)).alias("interval_us"),
        F.count(F.when(F.col("previous_at") - F.col("at") > BACKWARDS_US, 1)).alias("backwards"),
        F.min(F.when(F.col("what").isin(STARTED, RECOVERED), F.col("at"))).alias("started_at"),
        _has(RECOVERED).alias("recovered"),
        _has(STOPPED).alias("stopped"),
    )
    judged = per_boot.withColumn("after_crash", _after_crash())
    return judged.orderBy("instance", "first_at", "boot_id")


def marks(lines: DataFrame) -> DataFrame:
    """Starts, stops and recoveries in order of time."""
    chosen = lines.where(F.col("kind") == "mark").select("at", "instance", "boot_id", "what")
    return chosen.orderBy("at", "instance", "boot_id", "what")


def _after_crash() -> Column:
    """The boot before wrote no orderly stop.

    Of the first boot in the logs only it itself can tell: it recovers what a dead one left.
    """
    order = Window.partitionBy("instance").orderBy("first_at", "boot_id")
    return F.coalesce(~F.lag("stopped").over(order), F.col("recovered"))


def _has(what: str) -> Column:
    return F.coalesce(F.max(F.col("what") == what), F.lit(False))


def _numbered(lines: DataFrame) -> DataFrame:
    once = lines.groupBy("instance", "boot_id", "seq").agg(
        F.count(F.lit(1)).alias("copies"),
        F.min("at").alias("at"),
        F.min("from_at").alias("from_at"),
        F.min(F.col("at") - F.col("from_at")).alias("interval_us"),
        F.min("what").alias("what"),
    )
    order = Window.partitionBy("instance", "boot_id").orderBy("seq")
    return once.withColumn("previous_seq", F.lag("seq").over(order)).withColumn(
        "previous_at", F.lag("at").over(order)
    )
