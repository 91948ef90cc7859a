"""Who kept a conversation group from everybody else, and for how long.

Reads:  interval lines of queues that name locks, one per (boot_id, seq).
Never:  knows more than was seen as the lines were written: a lock is one from the first line that
        names it to the last.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.read import EARLIEST_US

KEPT = 20
"""Locks of a day that are kept: so many of the longest, and of those seen last."""


def held(lines: DataFrame) -> DataFrame:
    """Per queue, group and begin: when the lock was seen last, and who had it then."""
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
    # So few rows that to send them where their day is looked at costs less than to do so twice.
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
