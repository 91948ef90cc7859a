"""Failures by fingerprint, and changes of the daemons, from copies of the event log.

Reads:  event lines and marks, one per (boot_id, seq).
Never:  keeps numbers, ids or quoted texts in a fingerprint, so that the same fault is one row every
        day.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

FINGERPRINT_LENGTH = 160

_FAILED = {
    "broker.activation": ("aborted", "failed_to_start", "handler_failed"),
    "broker.parking": ("retry_scheduled", "parked"),
    "broker.conversation": ("broker_error", "received_broker_error", "end_with_error"),
    "broker.connection": ("connect_failed",),
    "broker.store": ("full", "refused", "replaced", "slow", "loss_accepted", "new_history"),
    "broker.tick": ("pass_failed",),
    "broker.lost_messages": None,
    "broker.history_lost": None,
    "broker.duplicate_broker": ("seen",),
    "broker.corrupted_message": None,
    "broker.endpoint": ("listen_failed", "accept_failed"),
    "broker.certificate": ("expired", "list_failed", "no_master_key", "authority"),
    "broker.event_notification": ("broken", "lost"),
    "broker.checks": ("not_started",),
    "broker.daemon": (
        *("failed", "loop_blocked", "transaction_too_old", "client_refused", "dialogs_left_out"),
        *("client_failed", "http_failed", "inquiry_failed", "reload_refused"),
    ),
    "audit.broker_login": (
        *("protocol_error", "format_error", "negotiate_failure"),
        *("authentication_failure", "authorization_failure"),
    ),
    "audit.broker_conversation": None,
}
"""Events that report a failure; None means every subclass. A parked group counts in addition to its
retries."""

_CHANGES = {
    "broker.daemon": ("reloaded", "draining"),
    "broker.mirrored_route": ("operational", "principal_only", "not_operational"),
    "broker.administration": None,
    "broker.queue_status": None,
    "broker.queue_disabled": None,
}
"""Events that may explain a difference from yesterday; None means every subclass."""

_NOISE = (
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "*"),
    (r"\b(0x)?[0-9a-fA-F]{12,}\b", "*"),
    (r"'[^']*'", "'…'"),
    (r'"[^"]*"', '"…"'),
    (r"\d+", "N"),
    (r"\s+", " "),
)


def failures(lines: DataFrame) -> DataFrame:
    """Count the failures per fingerprint and place, with the first instant and its example."""
    failed = lines.where((F.col("kind") == "event") & _any_of(_FAILED))
    told = failed.select(
        "date",
        "instance",
        F.coalesce("broker", F.lit("")).alias("broker"),
        "event",
        F.coalesce("subclass", F.lit("")).alias("subclass"),
        F.coalesce(F.col("fields")["queue"], F.col("fields")["address"], F.lit("")).alias("name"),
        _text().alias("text"),
        F.coalesce(F.col("fields")["conversation_id"], F.lit("")).alias("conversation_id"),
        F.coalesce(F.col("fields")["repeated"].try_cast("long"), F.lit(1)).alias("times"),
        "at",
    )
    told = told.withColumn("fingerprint", fingerprint(F.col("text")))
    first = F.min(F.struct("at", "text", "conversation_id"))
    keys = ("date", "instance", "broker", "event", "subclass", "name", "fingerprint")
    return told.groupBy(*keys).agg(
        F.sum("times").alias("times"),
        first.getField("at").alias("first_at"),
        first.getField("text").alias("example"),
        first.getField("conversation_id").alias("conversation_id"),
    )


def changes(lines: DataFrame) -> DataFrame:
    """Return the marks of boots, and the events that change how an instance works."""
    changed = (F.col("kind") == "event") & _any_of(_CHANGES)
    chosen = lines.where((F.col("kind") == "mark") | changed)
    about = F.coalesce(
        F.col("fields")["queue"], F.col("fields")["route"], F.col("broker"), F.lit("")
    )
    what = F.concat_ws(" ", F.regexp_replace("event", r"^broker\.", ""), "subclass")
    return chosen.select(
        "date",
        "at",
        "instance",
        "boot_id",
        F.coalesce("what", what).alias("what"),
        F.when(F.col("kind") == "event", about).otherwise("").alias("about"),
    )


def fingerprint(text: Column) -> Column:
    """Return the message without the parts that differ between occurrences of the same fault."""
    for pattern, instead in _NOISE:
        text = F.regexp_replace(text, pattern, instead)
    return F.substring(F.trim(text), 1, FINGERPRINT_LENGTH)


def _text() -> Column:
    fields = F.col("fields")
    names = ("error", "reason", "description", "problem", "task", "status_key")
    words = (F.nullif(fields[name], F.lit("")) for name in names)
    return F.substring(F.coalesce(*words, F.col("subclass"), F.lit("")), 1, 500)


def _any_of(events: Mapping[str, tuple[str, ...] | None]) -> Column:
    found = F.lit(False)
    for event, subclasses in events.items():
        one = F.col("event") == event
        if subclasses is not None:
            one &= F.col("subclass").isin(*subclasses)
        found |= one
    return F.coalesce(found, F.lit(False))
