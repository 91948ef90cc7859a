"""Comparison figures: those of the same weekday before, and the durations of commits.

Reads:  tables of several days as frames, and collected rows.
Never:  splits a counter by hour: a day is one number here, with the time that its logs cover.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.latency import SPAN_ALL, percentiles
from spark_jobs.report.data import Past, Total

COUNTERS = ("sent", "received", "rolled_back", "losses", "duplicates", "retransmitted")
"""Counters that are compared, in addition to those of failures and drops by reason."""

GAUGES = ("ready", "dialogs_waiting", "parked", "endpoints", "store_bytes", "wal_bytes")
"""Gauges whose maximum of a day is compared."""

COMMIT = "commit_us"
"""Measure of a store's commits; almost all of this duration is the sync of its disk."""

Row = dict[str, Any]
_SUBJECT = ("date", "instance", "broker", "scope", "name")


def totals(counters: DataFrame, gauges: DataFrame, dates: Collection[str]) -> DataFrame:
    """Return the totals of counters and the maxima of gauges per day: `what` and its `value`."""
    day = F.col("date").isin(sorted(dates))
    why = F.col("counter").startswith("failed_") | F.col("counter").contains("dropped_")
    counted = (
        counters.where(day & (F.col("counter").isin(*COUNTERS) | why))
        .groupBy(*_SUBJECT, F.col("counter").alias("what"))
        .agg(F.sum("total").cast("double").alias("value"))
    )
    stood = (
        gauges.where(day & F.col("gauge").isin(*GAUGES))
        .groupBy(*_SUBJECT, F.col("gauge").alias("what"))
        .agg(F.max("most").alias("value"))
    )
    return counted.unionByName(stood)


def commits(histograms: DataFrame) -> DataFrame:
    """Return the percentiles of the durations of commits per day and store."""
    is_commit = (F.col("measure") == COMMIT) & (F.col("scope") == "instance")
    return percentiles(histograms.where(is_commit & (F.col("span") == SPAN_ALL)))


def past(stretches: Iterable[Row], totals: Iterable[Row], failures: Iterable[Row]) -> Past:
    """Build the figures of one day from the rows of its tables."""
    covered: dict[str, int] = defaultdict(int)
    for row in stretches:
        if row["lines"]:
            covered[row["instance"]] += max(row["most_at"] - row["began_at"], 0)
    failed: dict[Total, float] = defaultdict(float)
    for row in failures:
        where = (row["instance"], row["broker"], row["event"], row["name"])
        failed[Total(*where, row["fingerprint"], 0.0)] += row["times"]
    summed = (replace(one, value=times) for one, times in failed.items())
    return Past(
        covered=tuple(sorted(covered.items())),
        totals=tuple(sorted((Total(**_without_date(row)) for row in totals), key=_order)),
        failures=tuple(sorted(summed, key=_order)),
    )


def _order(total: Total) -> tuple[str, ...]:
    return total.instance, total.broker, total.scope, total.name, total.what


def _without_date(row: Mapping[str, Any]) -> Row:
    return {name: value for name, value in row.items() if name != "date"}
