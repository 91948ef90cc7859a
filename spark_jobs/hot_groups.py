"""Hot groups: the conversation groups with the most messages of a queue in a day.

Reads:  interval lines of queues that name groups, one per (boot_id, seq).
Never:  claims more than was counted. The daemon's windows are merged by adding their counts and,
        under the name `NOBODY`, the undercount that each window allows for. A listed group has had
        at most its count plus that sum, and an unlisted one at most that sum.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

KEPT = 20
"""Number of groups kept of each queue and day."""

NOBODY = ""
"""The name of the row with the number of messages by which a group may be undercounted."""

_QUEUE = ("date", "instance", "broker", "name")


def hot_groups(lines: DataFrame) -> DataFrame:
    """Return the groups with the most messages per queue, with the least number they had."""
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
    # The rows are few: sending them to the task of their day once costs less than an exchange for
    # each grouping and the window.
    by_day = told.where(F.col("one.value") > 0).repartition("date")
    counted = by_day.groupBy(*_QUEUE, F.col("one.key").alias("group"))
    summed = counted.agg(F.sum("one.value").alias("messages"))
    largest = Window.partitionBy(*_QUEUE, F.col("group") == NOBODY).orderBy(
        F.desc("messages"), "group"
    )
    ranked = summed.withColumn("place", F.row_number().over(largest))
    return ranked.where(F.col("place") <= KEPT).drop("place")
