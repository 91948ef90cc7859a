"""Hours of a day over all instances: messages sent and received, and how long they waited.

Reads:  the tables of counters and histograms, as frames, and collected rows.
Never:  collects more than a row an hour and day, or averages percentiles: histograms are merged.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.dates import midnight
from spark_jobs.latency import HOUR_US, SPAN_HOUR, percentiles
from spark_jobs.report.data import Hour, Objective
from spark_jobs.schema import HISTOGRAM_BASE

WAIT = "wait_us"
"""The histogram of a queue's waits, from enqueue to committed receive."""

HOURS = 24
LEAST_COVERED = 0.5
"""The part of an hour that the logs of some instance must cover for its figures to be known."""

Row = dict[str, Any]


def traffic(counters: DataFrame) -> DataFrame:
    """Return the messages that all services sent and received, per day and hour."""
    pairs = counters.where(F.col("scope") == "pair")

    def total(counter: str) -> Column:
        return F.sum(F.when(F.col("counter") == counter, F.col("total")).otherwise(0))

    return pairs.groupBy("date", "hour_at").agg(
        total("sent").alias("sent"), total("received").alias("received")
    )


def waits(histograms: DataFrame) -> DataFrame:
    """Return count and percentiles of the waits in all queues together, per day and hour."""
    hours = histograms.where((F.col("measure") == WAIT) & (F.col("span") == SPAN_HOUR))
    merged = hours.groupBy("date", "measure", "span", "span_at", "bucket").agg(
        F.sum("count").alias("count")
    )
    for name in ("instance", "broker", "scope", "name"):
        merged = merged.withColumn(name, F.lit(""))
    return percentiles(merged)


def kept(histograms: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    """Return the messages, and those that were late, per day, hour and number of the objective."""
    hours = histograms.where(F.col("span") == SPAN_HOUR)
    found = [_kept(hours, number, one) for number, one in enumerate(objectives)]
    return reduce(DataFrame.unionByName, found)


def _kept(hours: DataFrame, number: int, one: Objective) -> DataFrame:
    wanted = (
        (F.col("scope") == one.scope)
        & (F.col("measure") == one.measure)
        & (F.col("name") == one.name)
    )
    if one.instance:
        wanted &= F.col("instance") == one.instance
    # As with percentiles, the value of a bucket is its middle.
    last = math.floor(math.log(one.within_us, HISTOGRAM_BASE) - 0.5)
    is_late = F.col("bucket") > last
    return (
        hours.where(wanted)
        .groupBy("date", F.col("span_at").alias("hour_at"))
        .agg(
            F.lit(number).alias("number"),
            F.sum("count").alias("total"),
            F.sum(F.when(is_late, F.col("count")).otherwise(0)).alias("late"),
        )
    )


def hours(
    date: str, traffic: Iterable[Row], waits: Iterable[Row], stretches: Iterable[Row]
) -> tuple[Hour, ...]:
    """Return the hours of a day that the logs cover; the others are not known."""
    went = {row["hour_at"]: row for row in traffic}
    waited = {row["span_at"]: row for row in waits}
    spans = [(row["began_at"], row["most_at"]) for row in stretches if row["lines"]]
    found = []
    for hour in range(HOURS):
        at = midnight(date) + hour * HOUR_US
        if at in went or at in waited or _is_covered(at, spans):
            found.append(_hour(date, hour, went.get(at, {}), waited.get(at, {})))
    return tuple(found)


def _is_covered(at: int, spans: Iterable[tuple[int, int]]) -> bool:
    end = at + HOUR_US
    return any(min(most, end) - max(began, at) >= LEAST_COVERED * HOUR_US for began, most in spans)


def _hour(date: str, hour: int, went: Mapping[str, Any], waited: Mapping[str, Any]) -> Hour:
    return Hour(
        date=date,
        hour=hour,
        sent=went.get("sent", 0),
        received=went.get("received", 0),
        waits=waited.get("count", 0),
        p50_us=waited.get("p50_us"),
        p95_us=waited.get("p95_us"),
    )
