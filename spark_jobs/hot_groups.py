"""Whose messages a queue received: the conversation groups that had most of them in a day.

Reads:  interval lines of queues that name groups, one per (boot_id, seq).
Never:  claims more than was counted: windows of the daemon are merged by adding what they counted
        and, under no group's name, what each of them may have lacked. No group has had more than
        both together, and one that is not named no more than the second.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

KEPT = 20
"""Groups of a queue and day that are kept."""

NOBODY = ""
"""The name under which stands how many messages more a group may have had."""

_QUEUE = ("date", "instance", "broker", "name")


def hot_groups(lines: DataFrame) -> DataFrame:
    """Per queue the groups with most messages, and how many these were at least."""
    within = F.coalesce("groups_within", F.lit(0).cast("long")).alias("value")
    named = F.map_entries(F.coalesce("groups", F.create_map().cast("map<string, long>")))
    lacking = F.array(F.struct(F.lit(NOBODY).alias("key"), within))
    is_window = F.col("groups").isNotNull() | F.col("groups_within").isNotNull()
    told = lines.where((F.col("scope") == "queue") & is_window).select(
        "date",
        "instance",
        F.coalesce("broker", F.lit("")).alias("broker"),
        F.col("queue").alias("name"),
        F.explode(F.concat(named, lacking)).alias("one"),
    )
    # So few rows that to send them where their day is counted costs less than to do so twice.
    by_day = told.where(F.col("one.value") > 0).repartition("date")
    counted = by_day.groupBy(*_QUEUE, F.col("one.key").alias("group"))
    summed = counted.agg(F.sum("one.value").alias("messages"))
    largest = Window.partitionBy(*_QUEUE, F.col("group") == NOBODY).orderBy(
        F.desc("messages"), "group"
    )
    ranked = summed.withColumn("place", F.row_number().over(largest))
    return ranked.where(F.col("place") <= KEPT).drop("place")
