"""Latency: percentiles from histograms that merge by adding.

Reads:  interval lines, one per (boot_id, seq).
Never:  averages percentiles. Counts of a bucket are added over any grouping, which is exact, and
        the percentile is read from the sum; its value is right to within the bucket, 1 %.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.schema import HISTOGRAM_BASE

HOUR_US = 3_600_000_000

SPAN_ALL = "all"
SPAN_HOUR = "hour"
SPAN_STEP = "step"

_SUBJECT = ("date", "instance", "broker", "scope", "name", "measure")
_GROUP = (*_SUBJECT, "span", "span_at")


def latency(lines: DataFrame, *, step_us: int) -> DataFrame:
    """Return count, p50, p95 and p99 in microseconds, per subject and histogram, for three spans.

    Spans are the whole time (`span_at` null), each UTC hour, and each step of `step_us` for the
    plot. An interval belongs to the span in which it began. `name` is the queue, the pair or the
    destination; empty for the instance itself.
    """
    return percentiles(bucket_counts(lines, step_us=step_us))


def bucket_counts(lines: DataFrame, *, step_us: int = 0) -> DataFrame:
    """Return the histograms as one row per bucket and span, with the merged count.

    The spans have no steps if `step_us` is 0.
    """
    measured = lines.where((F.col("kind") == "interval") & F.col("histograms").isNotNull())
    named = measured.select(
        "date",
        "instance",
        F.coalesce("broker", F.lit("")).alias("broker"),
        "scope",
        subject_name().alias("name"),
        "from_at",
        F.explode("histograms").alias("measure", "buckets"),
    )
    spans = [_span(SPAN_ALL, F.lit(None).cast("long")), _span(SPAN_HOUR, _floor(HOUR_US))]
    if step_us:
        spans.append(_span(SPAN_STEP, _floor(step_us)))
    spread = named.withColumn("where", F.explode(F.array(*spans))).select(
        *_SUBJECT, "where.*", F.explode("buckets").alias("bucket", "count")
    )
    numbered = spread.withColumn("bucket", F.col("bucket").try_cast("int"))
    kept = numbered.where(F.col("bucket").isNotNull() & (F.col("count") > 0))
    return kept.groupBy(*_GROUP, "bucket").agg(F.sum("count").alias("count"))


def percentiles(counts: DataFrame) -> DataFrame:
    """Return the values of each group at the ranks of 50, 95 and 99 percent, rounded up."""
    group = Window.partitionBy(*_GROUP)
    upwards = group.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = counts.withColumn("below", F.sum("count").over(upwards)).withColumn(
        "total", F.sum("count").over(group)
    )
    return ranked.groupBy(*_GROUP).agg(
        F.max("total").alias("count"),
        _value_at(50).alias("p50_us"),
        _value_at(95).alias("p95_us"),
        _value_at(99).alias("p99_us"),
    )


def subject_name() -> Column:
    """Return the subject of an interval line as one text."""
    pair = F.concat_ws(" → ", "from_service", "to_service")
    return (
        F.when(F.col("scope") == "queue", F.col("queue"))
        .when(F.col("scope") == "pair", pair)
        .when(F.col("scope") == "destination", F.col("destination"))
        .otherwise("")
    )


def _value_at(percent: int) -> Column:
    reached = F.col("below") * 100 >= F.col("total") * percent
    bucket = F.min(F.when(reached, F.col("bucket")))
    return F.round(F.pow(F.lit(HISTOGRAM_BASE), bucket + F.lit(0.5))).cast("long")


def _span(name: str, at: Column) -> Column:
    return F.struct(F.lit(name).alias("span"), at.alias("span_at"))


def _floor(width_us: int) -> Column:
    return F.col("from_at") - F.col("from_at") % F.lit(width_us)
