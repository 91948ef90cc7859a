"""Daily tables: everything that is computed from the lines of one day alone, as reports need it.

Reads:  usable, distinct lines with their `date`.   Calls: the jobs.
Never:  reads or writes files: `ingest` does, and `report.build` if there is no lake.
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame

from spark_jobs import failures, gauges, held, hot_groups
from spark_jobs.latency import bucket_counts
from spark_jobs.throughput import throughput

STEP_US: Final = 900_000_000
"""Width of the steps of a day's curves, in microseconds."""

HISTOGRAMS: Final = "histograms"
STEPS: Final = "steps"
GAUGES: Final = "gauges"
COUNTERS: Final = "counters"
ACTIVATION: Final = "activation"
FAILURES: Final = "failures"
CHANGES: Final = "changes"
GROUPS: Final = "groups"
HELD: Final = "held"

TABLES: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    HISTOGRAMS: bucket_counts,
    STEPS: lambda lines: throughput(lines, step_us=STEP_US),
    GAUGES: gauges.gauges,
    COUNTERS: gauges.counters,
    ACTIVATION: gauges.activation,
    FAILURES: failures.failures,
    CHANGES: failures.changes,
    GROUPS: hot_groups.hot_groups,
    HELD: held.held,
}

_SUBJECT = "date string, instance string, broker string, scope string, name string"
SCHEMAS: Final = {
    HISTOGRAMS: f"{_SUBJECT}, measure string, span string, span_at long, bucket int, count long",
    STEPS: f"{_SUBJECT}, counter string, step_at long, thousandths long",
    GAUGES: f"{_SUBJECT}, hour_at long, gauge string, most double, last double, last_at long",
    COUNTERS: f"{_SUBJECT}, hour_at long, counter string, total long",
    ACTIVATION: f"{_SUBJECT}, hour_at long, watched_us long, ceiling_us long, idle_us long, "
    "most_readers double, max_readers double, most_ready double",
    FAILURES: "date string, instance string, broker string, event string, subclass string, "
    "name string, fingerprint string, times long, first_at long, example string, "
    "conversation_id string",
    CHANGES: "date string, at long, instance string, boot_id string, what string, about string",
    GROUPS: "date string, instance string, broker string, name string, group string, messages long",
    HELD: "date string, instance string, broker string, name string, group string, since_at long, "
    "seen_at long, by string, conversation_id string",
}
"""Schemas of the tables; a test compares them with the output of the jobs."""
