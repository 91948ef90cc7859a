"""Throughput: messages over time, per queue and per service pair, in steps that fit the span.

Reads:  interval lines, one per (boot_id, seq).
Never:  adds fractions: each interval's count is divided into whole thousandths of a message over
        the steps it covers, so that sums do not depend on the order of adding.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.latency import subject_name

SECOND_US = 1_000_000

_WIDTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 86400)
_STEPS_WANTED = 96


def fitting_step(span_us: int, interval_us: int) -> int:
    """Return the width of a step, in microseconds, that gives a readable curve over `span_us`.

    At most about a hundred steps, none shorter than 0.9 of the usual interval between two lines.
    """
    least = max(span_us / _STEPS_WANTED, interval_us * 0.9)
    fitting = (width * SECOND_US for width in _WIDTHS_S if width * SECOND_US >= least)
    return next(fitting, _WIDTHS_S[-1] * SECOND_US)


def throughput(lines: DataFrame, *, step_us: int) -> DataFrame:
    """Count the `thousandths` of messages per step, for each counter of queues and pairs."""
    chosen = lines.where((F.col("kind") == "interval") & F.col("scope").isin("queue", "pair"))
    length = F.greatest(F.col("at") - F.col("from_at"), F.lit(1))
    counted = chosen.select(
        "date",
        "instance",
        F.coalesce("broker", F.lit("")).alias("broker"),
        "scope",
        subject_name().alias("name"),
        "from_at",
        (F.col("from_at") + length).alias("to_at"),
        F.explode("counters").alias("counter", "messages"),
    ).where(F.col("messages") > 0)
    first = F.col("from_at") - F.col("from_at") % F.lit(step_us)
    steps = F.sequence(first, F.col("to_at") - 1, F.lit(step_us))
    cut = counted.withColumn("step_at", F.explode(steps))
    overlap = F.least(F.col("to_at"), F.col("step_at") + step_us) - F.greatest("from_at", "step_at")
    share = F.col("messages") * 1000.0 * overlap / (F.col("to_at") - F.col("from_at"))
    return (
        cut.withColumn("thousandths", F.round(share).cast("long"))
        .groupBy("date", "instance", "broker", "scope", "name", "counter", "step_at")
        .agg(F.sum("thousandths").alias("thousandths"))
    )
