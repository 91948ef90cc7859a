"""Columns of the lake: the meaning and the unit of each, and the meaning of each table.

Never:  reads or writes files. The page of the lake in the reference is made of this.
"""

from typing import Final

ABOUT: Final = {
    "lines": "The usable lines of the metrics log, each once, except those about dialogs. A column "
    "is null if lines of that kind do not have it.",
    "dialogs": "The lines about dialog endpoints (kind `dialog`), each once. Most columns of "
    "`lines` are null.",
    "aside": "The lines that cannot be used, with the reason in `fault`.",
    "stretches": "The lines of one boot in one segment, counted.",
    "files": "The unusable lines of each segment, counted by reason.",
    "places": "Where unusable lines stand in their unpacked segment; at most 100,000 of a run.",
    "histograms": "Durations, as histograms that are merged per subject, measure and span. Add the "
    "counts of a bucket over any grouping, then read the percentile: `pow(1.02, bucket + 0.5)`.",
    "steps": "Messages over time: the counters of queues and pairs in steps of 15 minutes.",
    "gauges": "Gauges by the hour.",
    "counters": "Counters by the hour.",
    "activation": "How busy the readers of each queue with activation were, by the hour.",
    "failures": "Failures, counted by fingerprint and place.",
    "changes": "Starts, stops, reloads and administration: what may explain a difference.",
    "groups": "The 20 conversation groups with the most messages of each queue. A row without a "
    "group has the number of messages by which each of them may be undercounted.",
    "held": "Locks of conversation groups that were held for long: the 20 longest of the day, and "
    "the 20 that were seen last.",
}
"""Meaning of each table."""

MEANINGS: Final = {
    "_corrupt_record": "the text of a line that is not JSON; null otherwise",
    "about": "the queue, route or broker that changed; empty for a mark",
    "acknowledged": "application messages sent that the far side has acknowledged",
    "at": "when the line was written, by the daemon's clock",
    "backwards": "how often the clock went back",
    "began_at": "when the first interval of the stretch began",
    "boot_id": "the run of a daemon",
    "broker": "the broker; empty for the instance itself",
    "bucket": "number of the bucket, which holds values *v* with floor(log *v* / log 1.02) = "
    "`bucket`",
    "by": "which client or reader held the lock when it was last seen, and its last verb",
    "ceiling_us": "how long the maximum number of readers ran while messages waited",
    "contract": "the contract of the pair or of the dialog",
    "conversation_id": "the dialog",
    "count": "number of values in the bucket",
    "counter": "name of the counter (see [Metrics](metrics.md))",
    "counters": "counters of the interval by name: differences since the line before",
    "date": "the day, such as 2026-11-18: that of the segment",
    "destination": "the address, in scope `destination`",
    "discarded_unread": "messages that were discarded unread as the dialog ended",
    "ended_at": "when the endpoint closed; null while it is open",
    "event": "name of the event",
    "example": "the text of the first of these failures",
    "far_service": "the service at the far end of the dialog",
    "fault": "why a line cannot be used: `corrupt`, `version`, `incomplete` or `time`",
    "fields": "the other fields of the event, as text",
    "file": "name of the segment",
    "fingerprint": "the text of the failure without numbers, ids and quoted texts",
    "first_at": "when the line with the lowest number was written",
    "first_seq": "the lowest number of a line",
    "from_at": "when the interval began",
    "from_service": "the service that sent, in scope `pair`",
    "gauge": "name of the gauge (see [Metrics](metrics.md))",
    "gauges": "gauges by name; an absent one is zero",
    "group": "the conversation group",
    "groups": "messages by conversation group: the largest groups of the window",
    "groups_within": "number of messages by which each group may be undercounted",
    "held": "locks of groups that a transaction held for a second or longer",
    "histograms": "counts by bucket, by name of the histogram",
    "hour_at": "beginning of the hour",
    "idle_us": "how long readers ran while no message waited",
    "instance": "the instance that wrote the line",
    "interval_us": "length of all intervals together",
    "intervals": "number of lines of kind `interval`",
    "is_initiator": "whether the endpoint began the dialog",
    "jumped": "whether the clock had gone back since the line before",
    "kind": "`interval`, `dialog`, `event` or `mark`",
    "last": "the last value of the hour",
    "last_at": "when the line with the highest number was written",
    "last_seq": "the highest number of a line",
    "line": "number of the line in the unpacked segment, from 1; null if it was not found",
    "lines": "number of usable lines",
    "max_readers": "the largest `max_readers` of the queue",
    "measure": "name of the histogram, such as `wait_us`",
    "messages": "messages of the group that were counted",
    "most": "the largest value of the hour",
    "most_at": "the latest instant of any line",
    "most_readers": "the most readers that ran at once",
    "most_ready": "the most messages that were ready at once",
    "name": "the queue, the pair `from → to`, or the destination; empty for the instance",
    "offset": "position of the line in the unpacked segment; null if it was not found",
    "outcome": "`ended`, `error:<code>`, `expired`, or `open`",
    "queue": "the queue, in scope `queue`",
    "received": "application messages received",
    "recovered": "whether this boot recovered what a crash had left",
    "repeated": "number of lines that other segments have as well",
    "row": "number of the line among those that the reader saw of its segment",
    "sample": "the beginning of the line",
    "scope": "what an interval is about: `queue`, `pair`, `destination` or `instance`",
    "seen_at": "when the lock was last seen",
    "sent": "application messages sent",
    "seq": "number of the line in its boot, from 0",
    "service": "the service of this endpoint",
    "severity": "the severity of the event",
    "since_at": "since when the lock was held",
    "span": "what the counts cover: the day (`all`), an `hour`, or a `step` of a curve",
    "span_at": "beginning of the hour or step; null for the day",
    "started_at": "when the boot started; null if its start is not in this segment",
    "state": "`open` or `closed`; of several lines about an endpoint the closed one counts",
    "step_at": "beginning of the step",
    "stopped": "whether the daemon stopped in an orderly way",
    "subclass": "what happened, within the event",
    "thousandths": "messages in the step; an interval's messages are divided among its steps",
    "times": "how often it failed",
    "to_service": "the service that received, in scope `pair`",
    "total": "the sum of the hour",
    "undelivered": "messages that were sent and never acknowledged",
    "v": "version of the form of the line",
    "watched_us": "how long the queue was watched",
    "what": "`started`, `recovered`, `stopped`, or the event that changed something",
}
"""Meanings of columns by name."""

OF_TABLE: Final = {
    ("dialogs", "began_at"): "when the dialog began",
    ("lines", "began_at"): "null, as in all tables but `dialogs`",
    ("aside", "began_at"): "when the dialog began",
    ("failures", "first_at"): "when it failed first",
    ("failures", "name"): "the queue or address; empty if the event names none",
    ("failures", "conversation_id"): "the dialog of the first of these failures; may be empty",
    ("files", "lines"): "number of unusable lines",
    ("gauges", "last_at"): "when the gauge was written last",
    ("changes", "at"): "when it happened",
    ("groups", "group"): "the conversation group; empty in the row about the undercount",
    ("groups", "name"): "the queue",
    ("held", "name"): "the queue",
    ("held", "conversation_id"): "the dialog, if the group has one dialog; else empty",
    ("stretches", "instance"): "the instance",
    ("lines", "what"): "`started`, `recovered` or `stopped`, in kind `mark`",
}
"""Meanings of columns that mean something else in one table."""

_UNITS: Final = {
    "_at": "microseconds since 1970, UTC",
    "_us": "microseconds",
}
"""Units by the end of a column's name."""

_UNIT_OF: Final = {
    "at": _UNITS["_at"],
    "offset": "bytes",
    "thousandths": "thousandths of a message",
    "bucket": "depends on the measure, which ends in its unit",
}


def meaning(table: str, column: str) -> str:
    """Return what a column of a table means; "" if that is not written here."""
    return OF_TABLE.get((table, column)) or MEANINGS.get(column, "")


def unit(column: str) -> str:
    """Return the unit of a column, "" if it has none."""
    return _UNIT_OF.get(column) or _UNITS.get(column[-3:], "")
