"""Schema of a line of the metrics log, version 1 (design D12, D16).

Reads:  nothing.      Never: is inferred. A field not named here is ignored, and one that a line of
        an older daemon lacks is null; neither makes another version.
Times are UTC in whole microseconds since 1970, as LONG.
"""

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

VERSION = 1
"""The version of lines that these jobs understand; other lines are set aside and counted."""

CORRUPT = "_corrupt_record"
"""The column in which the reader keeps the text of a line that it cannot parse."""

HISTOGRAM_BASE = 1.02
"""Bucket i of a histogram holds values v with i = floor(log(v) / log(HISTOGRAM_BASE))."""

HELD = StructType(
    [
        StructField("group", StringType()),
        StructField("conversation_id", StringType()),
        StructField("by", StringType()),
        StructField("since_at", LongType()),
    ]
)
"""The lock of a conversation group that a transaction has held for long."""

LINE = StructType(
    [
        # every line
        StructField("v", LongType()),
        StructField("kind", StringType()),
        StructField("instance", StringType()),
        StructField("broker", StringType()),
        StructField("boot_id", StringType()),
        StructField("seq", LongType()),
        StructField("at", LongType()),
        # kind "interval"
        StructField("from_at", LongType()),
        StructField("scope", StringType()),
        StructField("queue", StringType()),
        StructField("from_service", StringType()),
        StructField("to_service", StringType()),
        StructField("destination", StringType()),
        StructField("counters", MapType(StringType(), LongType())),
        StructField("gauges", MapType(StringType(), DoubleType())),
        StructField("histograms", MapType(StringType(), MapType(StringType(), LongType()))),
        # kind "interval" of a queue; older daemons do not write these
        StructField("groups", MapType(StringType(), LongType())),
        StructField("groups_within", LongType()),
        StructField("held", ArrayType(HELD)),
        # kinds "interval" of a pair, and "dialog"
        StructField("contract", StringType()),
        # kind "dialog"
        StructField("state", StringType()),
        StructField("conversation_id", StringType()),
        StructField("is_initiator", BooleanType()),
        StructField("service", StringType()),
        StructField("far_service", StringType()),
        StructField("sent", LongType()),
        StructField("acknowledged", LongType()),
        StructField("received", LongType()),
        StructField("discarded_unread", LongType()),
        StructField("undelivered", LongType()),
        StructField("outcome", StringType()),
        StructField("began_at", LongType()),
        StructField("ended_at", LongType()),
        # kind "event"
        StructField("event", StringType()),
        StructField("subclass", StringType()),
        StructField("severity", StringType()),
        StructField("fields", MapType(StringType(), StringType())),
        # kind "mark"
        StructField("what", StringType()),
        # not in the log
        StructField(CORRUPT, StringType()),
    ]
)

REQUIRED = {
    "interval": ("from_at", "scope"),
    "dialog": (
        "broker",
        "state",
        "conversation_id",
        "is_initiator",
        "service",
        "far_service",
        "sent",
        "acknowledged",
        "received",
        "discarded_unread",
        "undelivered",
    ),
    "event": ("event",),
    "mark": ("what",),
}
"""Fields that a line of each kind must have, in addition to `COMMON`."""

COUNTS = ("seq", "sent", "acknowledged", "received", "discarded_unread", "undelivered")
"""Fields that are never below zero."""

COMMON = ("v", "kind", "instance", "boot_id", "seq", "at")
"""Fields that every line must have."""

SCOPE_REQUIRED = {
    "queue": ("queue",),
    "pair": ("from_service", "to_service"),
    "destination": ("destination",),
    "instance": (),
}
"""Fields that name the subject of an interval, by its scope."""
