"""Gauges and counters by the hour, and how busy the readers of each queue were.

Reads:  interval lines, one per (boot_id, seq).
Never:  averages the gauges of an hour; it keeps the maximum and the last value.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.latency import HOUR_US, subject_name

_SUBJECT = ("date", "instance", "broker", "scope", "name", "hour_at")


def gauges(lines: DataFrame) -> DataFrame:
    """Return the maximum, and the last value with its instant, per subject, gauge and hour."""
    spread = _intervals(lines).select(*_SUBJECT, "at", "seq", F.explode("gauges"))
    said = F.struct("at", "seq", "value")
    return spread.groupBy(*_SUBJECT, F.col("key").alias("gauge")).agg(
        F.max("value").alias("most"),
        F.max(said).getField("value").alias("last"),
        F.max("at").alias("last_at"),
    )


def counters(lines: DataFrame) -> DataFrame:
    """Return the total per subject, counter and hour."""
    spread = _intervals(lines).select(*_SUBJECT, F.explode("counters"))
    summed = spread.where(F.col("value") > 0).groupBy(*_SUBJECT, F.col("key").alias("counter"))
    return summed.agg(F.sum("value").alias("total"))


def activation(lines: DataFrame) -> DataFrame:
    """Return how long each activated queue was watched per hour, and how busy its readers were.

    Durations are in microseconds. `ceiling_us`: time for which the maximum number of readers ran
    while messages waited. `idle_us`: time for which readers ran while no message waited.
    """
    queues = _intervals(lines).where((F.col("scope") == "queue") & (_gauge("max_readers") > 0))
    length = F.col("at") - F.col("from_at")
    ready, readers = _gauge("ready"), _gauge("readers")
    full = (readers >= _gauge("max_readers")) & (ready > 0)
    return queues.groupBy(*_SUBJECT).agg(
        F.sum(length).alias("watched_us"),
        F.sum(F.when(full, length).otherwise(0)).alias("ceiling_us"),
        F.sum(F.when((readers > 0) & (ready <= 0), length).otherwise(0)).alias("idle_us"),
        F.max(readers).alias("most_readers"),
        F.max(_gauge("max_readers")).alias("max_readers"),
        F.max(ready).alias("most_ready"),
    )


def _intervals(lines: DataFrame) -> DataFrame:
    named = lines.where(F.col("kind") == "interval")
    return (
        named.withColumn("broker", F.coalesce("broker", F.lit("")))
        .withColumn("name", subject_name())
        .withColumn("hour_at", F.col("from_at") - F.col("from_at") % F.lit(HOUR_US))
    )


def _gauge(name: str) -> Column:
    """Return a gauge of the line, zero if the line does not have it."""
    return F.coalesce(F.col("gauges")[name], F.lit(0.0))
