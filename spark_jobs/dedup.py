"""Removes lines that were read twice: a segment copied twice, or shipped under two names.

Reads:  usable lines.      Never: drops a line that was written once (BI-L3).
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def distinct_lines(lines: DataFrame) -> DataFrame:
    """One line per (boot_id, seq), BI-L3; which one is the same in every run."""
    same = Window.partitionBy("boot_id", "seq").orderBy("file", "at", "kind", "conversation_id")
    return lines.withColumn("copy", F.row_number().over(same)).where("copy = 1").drop("copy")
