"""Held locks: which transactions held the lock of a conversation group for long.

Reads:  interval lines of queues that name locks, one per (boot_id, seq).
Never:  knows more than the lines show: the lock of a group since one instant is one lock, seen for
        the last time in the last line that names it.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.read import EARLIEST_US

KEPT = 20
"""Number of locks kept of a day, of the longest and of those seen last: this many of each kind."""


def held(lines: DataFrame) -> DataFrame:
    """Return the instant at which each lock was last seen, and its holder at that instant.

    A lock is one queue, group and beginning."""
    told = lines.where((F.col("scope") == "queue") & F.col("held").isNotNull()).select(
        "date",
        "instance",
        F.coalesce("broker", F.lit("")).alias("broker"),
        F.col("queue").alias("name"),
        "at",
        F.inline("held"),
    )
    known = told.where(
        F.col("group").isNotNull() & F.col("since_at").between(F.lit(EARLIEST_US), F.col("at"))
    )
    latest = F.max(
        F.struct(
            "at",
            F.coalesce("by", F.lit("")).alias("by"),
            F.coalesce("conversation_id", F.lit("")).alias("conversation_id"),
        )
    )
    keys = ("date", "instance", "broker", "name", "group", "since_at")
    # The rows are few: sending them to the task of their day once costs less than an exchange for
    # the grouping and another one for the windows.
    locks = known.repartition("date").groupBy(*keys).agg(latest.alias("seen"))
    found = locks.select(
        *keys, F.col("seen.at").alias("seen_at"), "seen.by", "seen.conversation_id"
    )
    day, order = Window.partitionBy("date"), ("instance", "broker", "name", "group", "since_at")
    longest = day.orderBy(F.desc(F.col("seen_at") - F.col("since_at")), *order)
    newest = day.orderBy(F.desc("seen_at"), "since_at", *order)
    ranked = found.withColumn(
        "place", F.least(F.row_number().over(longest), F.row_number().over(newest))
    )
    return ranked.where(F.col("place") <= KEPT).drop("place")
