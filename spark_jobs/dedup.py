"""Deduplication: removes lines read twice, of a segment copied twice or shipped under two names.

Reads:  usable lines.      Never: drops a line that was written once (BI-L3), or sorts lines that
        cannot occur twice: those of segments whose numbers overlap with no other segment's.
"""

from collections.abc import Collection

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def distinct_lines(lines: DataFrame, suspects: Collection[str] | None = None) -> DataFrame:
    """Return one line per (boot_id, seq) of a day (BI-L3), the same one in every run.

    Lines of two instances, or of two instants, are never one line: they show a boot id that was
    used twice (BI-L23).


    `suspects`: the segments in which a line can occur twice; None means all.
    """
    if suspects is None:
        return _numbered(lines).where("copy = 1").drop("copy")
    if not suspects:
        return lines
    suspected = F.col("file").isin(sorted(suspects))
    return lines.where(~suspected).unionByName(distinct_lines(lines.where(suspected)))


def repeated_lines(lines: DataFrame) -> DataFrame:
    """Count the lines of each segment and boot that `distinct_lines` drops."""
    dropped = _numbered(lines).where("copy > 1")
    keys = ("date", "boot_id", "file", "instance")
    return dropped.groupBy(*keys).agg(F.count(F.lit(1)).alias("repeated"))


def _numbered(lines: DataFrame) -> DataFrame:
    same = Window.partitionBy("date", "instance", "boot_id", "seq", "at")
    order = same.orderBy("file", "kind", "conversation_id")
    return lines.withColumn("copy", F.row_number().over(order))
