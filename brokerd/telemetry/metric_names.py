"""The figures of the metrics log: scope, kind, unit and meaning of each (design D12).

Reads:  nothing.      Calls: nothing.
Never:  counts: `admin/metrics_rows.py` makes the lines. The reference page of the metrics is made
        from these texts, and a test compares them with the lines that a daemon writes.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple


class MetricKind(StrEnum):
    """The kind of a figure, which is also its place in a line."""

    COUNTER = "counter"
    """The increase during the interval; left out if it is 0."""
    GAUGE = "gauge"
    """The value at the end of the interval."""
    HISTOGRAM = "histogram"
    """Times that were counted during the interval, in buckets 2 % wide."""


class Scope(StrEnum):
    """The subject of a line."""

    QUEUE = "queue"
    """One queue of one broker."""
    PAIR = "pair"
    """The dialogs of one broker from one service to another under one contract."""
    DESTINATION = "destination"
    """One address to which messages are sent."""
    BROKER = "instance, with a broker"
    """One broker: the line has scope `instance` and names the broker."""
    INSTANCE = "instance"
    """The whole instance: the line names no broker."""


class Metric(NamedTuple):
    """One figure, or a family of figures."""

    name: str
    """Name in the line; `{…}` is a word that is only known at run time."""
    kind: MetricKind
    unit: str
    meaning: str

    def matches(self, name: str) -> bool:
        """Return whether this entry describes the figure `name`."""
        parts = (re.escape(part) for part in re.split(r"\{\w+\}", self.name))
        return re.fullmatch(r"\w+".join(parts), name) is not None


def _counters(unit: str, **meanings: str) -> Iterator[Metric]:
    for name, meaning in meanings.items():
        yield Metric(name, MetricKind.COUNTER, unit, meaning)


def _gauges(unit: str, **meanings: str) -> Iterator[Metric]:
    for name, meaning in meanings.items():
        yield Metric(name, MetricKind.GAUGE, unit, meaning)


def _times(**meanings: str) -> Iterator[Metric]:
    for name, meaning in meanings.items():
        yield Metric(name, MetricKind.HISTOGRAM, "µs", meaning)


def _family(name: str, unit: str, meaning: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, unit, meaning)


METRICS: Final[dict[Scope, tuple[Metric, ...]]] = {
    Scope.QUEUE: (
        *_counters(
            "messages",
            enqueued="put into the queue",
            received="received by transactions that committed",
            rolled_back="given back by transactions that rolled back",
            refused="refused because the queue was at its limit, at each attempt",
        ),
        *_gauges(
            "messages",
            ready="can be received",
            parked="belong to parked groups",
        ),
        *_gauges(
            "readers",
            readers="run now, started by activation",
            max_readers="may run at a time",
        ),
        *_gauges("s", oldest_s="age of the oldest message that can be received"),
        *_gauges(
            "flag",
            off="1 while nothing can be received from the queue",
            full="1 while the queue is at its limit and takes no messages",
        ),
        *_gauges("bytes", bytes="size of the bodies of all messages, if it is limited"),
        *_times(
            wait_us="from the arrival of a message to the commit of its receive",
            queue_us="from the arrival of the oldest message to its receive, of some receives",
            retry_us="the same, of receives whose messages had been rolled back before",
            handler_us="from a receive to its commit, of the same receives",
        ),
    ),
    Scope.PAIR: tuple(
        _counters(
            "messages",
            sent="sent from this service to that one",
            received="received from that one by transactions that committed",
        )
    ),
    Scope.BROKER: (
        *_counters("flushes", flushes="writes to the store, each for many transactions"),
        *_counters("transactions", changesets="written to the store"),
        *_counters("rows", flush_rows="written to the store"),
        *_counters("checkpoints", checkpoints="of the write-ahead log of the store"),
        *_counters("verbs", sends="sends of this broker", receives="receives of this broker"),
        *_counters("transactions", rollbacks="rolled back"),
        *_counters("dialogs", dialogs_refused="refused since their user or peer has too many"),
        *_gauges(
            "bytes",
            store_bytes="size of the file of the store",
            wal_bytes="size of its write-ahead log",
        ),
        *_gauges("flag", store_full="1 while the disk has no room for new messages (REL-26)"),
        *_gauges("dialog endpoints", endpoints="in the store, in any state"),
        Metric("endpoints_{state}", MetricKind.GAUGE, "dialog endpoints", "of them, in that state"),
        *_times(
            hop_us="time in which work was handed to the thread of the store and back",
            flush_us="a whole flush",
            commit_us="the commit within a flush, which waits for the disk",
        ),
    ),
    Scope.DESTINATION: (
        *_counters(
            "fragments", fragments_sent="sent there", fragments_received="received from there"
        ),
        *_counters(
            "frames",
            boxcars_sent="frames of packed fragments",
            boxcars_received="the same, received",
        ),
        *_counters("bytes", bytes_sent="sent there", bytes_received="received from there"),
        *_counters(
            "connections",
            attempts="attempts to connect",
            connects="attempts that succeeded",
            losses="lost",
        ),
        _family("failed_{cause}", "connections", "attempts that failed for that cause"),
        *_gauges("flag", suppressed="1 while no attempt to connect is made"),
        *_gauges("dialogs", dialogs_waiting="ready to send and waiting for their turn"),
        *_gauges("s", clock_ahead_s="how far the clock there is ahead of this one"),
        *_times(
            outbox_us="from sending a message to its first transmission",
            wire_us="from the transmission of a message to its acknowledgement",
        ),
    ),
    Scope.INSTANCE: (
        *_counters(
            "fragments",
            fragments_received="received from other instances",
            stored="of these, stored",
            duplicates="of these, stored already",
            retransmitted="sent again",
        ),
        _family("dropped_{reason}", "fragments", "received and dropped for that reason"),
        _family("sent_p{level}", "fragments", "sent at that priority level"),
        *_counters(
            "acknowledgements",
            acks_sent="sent on their own",
            acks_carried="carried by a message",
        ),
        *_counters("sends", resumed_for_resources="went on after a lack of memory (XMT-12)"),
        *_counters("restarts", task_restarts="of the dispatcher after an error (DSP-7)"),
        *_counters("ticks", clean_ups_resumed="went on with removing received messages (DLP-25)"),
        _family("reclassified_{trigger}", "dialogs", "classified again, because of that"),
        *_counters(
            "connections", arbitrations_lost="closed because the peer's own connection was kept"
        ),
        _family("refused_{kind}_{reason}", "connections", "of peers or clients, refused (END-18)"),
        *_counters(
            "fragments",
            transport_fragments_sent="sent over all connections",
            transport_fragments_received="received over all connections",
        ),
        *_counters(
            "frames",
            transport_boxcars_sent="frames of packed fragments, over all connections",
            transport_boxcars_received="the same, received",
        ),
        *_counters(
            "bytes",
            transport_bytes_sent="sent over all connections",
            transport_bytes_received="received over all connections",
        ),
        *_counters(
            "operations",
            transport_sends="network sends",
            transport_receives="network receives",
        ),
        *_counters(
            "fragments",
            forward_received="arrived to be passed on (FWD)",
            forward_sent="passed on",
        ),
        *_counters("messages", forward_messages="passed on"),
        *_counters("bytes", forward_bytes_sent="passed on"),
        _family("forward_dropped_{reason}", "fragments", "not passed on for that reason"),
        *_counters(
            "bodies",
            checks="checked (OBJ-61)",
            checks_unfit="failed their check",
            checks_unavailable="could not be checked",
        ),
        _family("checks_overrun_{cause}", "bodies", "got no verdict for that cause"),
        *_counters("restarts", check_restarts="of the process for checks"),
        *_gauges(
            "bytes",
            rss_bytes="most memory the process has had",
            disk_free_bytes="left on the disk of the stores",
        ),
        *_gauges("connections", connections="open to other instances"),
        *_gauges("s", clock_jump_s="jump of the clock that the daemon does not follow (REL-24)"),
        *_gauges(
            "days",
            own_certificate_days="until a certificate of this instance expires (NBT-21)",
            peer_certificate_days="until the first certificate of a peer or a client expires",
        ),
        *_gauges("fragments", forward_pending="held to be passed on"),
        *_gauges("bytes", forward_bytes="memory that they take"),
    ),
}


def described(scope: Scope, name: str) -> Metric | None:
    """Return the description of a figure; None = it is in no table."""
    exact = [one for one in METRICS[scope] if one.name == name]
    return next(iter(exact or [one for one in METRICS[scope] if one.matches(name)]), None)
