"""Families: the names under which `/metrics` shows the figures (MON-31, MON-32).

PURE.   Reads: nothing.      Calls: nothing.
Never:  counts: `admin/metrics_totals.py` does. The reference page is made from these texts.

Names follow Prometheus: prefix `brokerd_`, base units, `_total` for counters. A name, once
published, keeps its meaning.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from brokerd.telemetry.metric_names import MetricKind, Scope

DAY_S: Final = 86_400.0


class Family(NamedTuple):
    """The series of one name."""

    name: str
    """Without `_total`, which the exposition adds to counters."""
    kind: MetricKind
    meaning: str
    figure: str
    """Name of the figure of the totals; each `{word}` in it becomes a label."""
    factor: float = 1.0
    """Factor from the unit of the figure to that of the family."""

    @property
    def full_name(self) -> str:
        """The name of its series."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name


def _named(prefix: str, kind: MetricKind, **texts: str) -> Iterator[Family]:
    """Yield families; a text is `name: meaning`, by the name of the figure."""
    for figure, text in texts.items():
        name, _, meaning = text.partition(": ")
        yield Family(f"{prefix}_{name}", kind, meaning, figure)


def _counters(prefix: str, **texts: str) -> Iterator[Family]:
    return _named(prefix, MetricKind.COUNTER, **texts)


def _gauges(prefix: str, **texts: str) -> Iterator[Family]:
    return _named(prefix, MetricKind.GAUGE, **texts)


def _times(prefix: str, **texts: str) -> Iterator[Family]:
    for one in _named(prefix, MetricKind.HISTOGRAM, **texts):
        yield one._replace(factor=1e-6)


LABELS: Final[dict[Scope, tuple[str, ...]]] = {
    Scope.QUEUE: ("broker", "queue"),
    Scope.BROKER: ("broker",),
    Scope.DESTINATION: ("destination",),
    Scope.INSTANCE: (),
}
"""The labels that every series of a scope has."""
FAMILIES: Final[dict[Scope, tuple[Family, ...]]] = {
    Scope.INSTANCE: (
        *_gauges(
            "brokerd",
            ready="ready: 1 if the daemon has started and does not stop",
            started_s="start_time_seconds: when the daemon started, in seconds since 1970",
            connections="peer_connections: connections open to other instances",
            rss_bytes="peak_memory_bytes: most memory the process has had",
            disk_free_bytes="disk_free_bytes: free room on the disk of the stores",
            min_free_bytes="disk_min_free_bytes: free room below which new messages are refused",
            clock_jump_s="clock_jump_seconds: jump of the machine's clock that the daemon does not "
            "follow; absent without one",
            forward_pending="forward_pending_fragments: fragments held to be passed on",
            forward_bytes="forward_held_bytes: memory that they take",
        ),
        Family(
            "brokerd_own_certificate_expiry_seconds",
            MetricKind.GAUGE,
            "time until a certificate of this instance expires; absent without one",
            "own_certificate_days",
            DAY_S,
        ),
        Family(
            "brokerd_peer_certificate_expiry_seconds",
            MetricKind.GAUGE,
            "time until the first certificate of a peer or a client expires; absent without one",
            "peer_certificate_days",
            DAY_S,
        ),
        Family(
            "brokerd_delayed_dialogs",
            MetricKind.GAUGE,
            "dialogs that have something to send and no destination, by the reason",
            "delayed_{reason}",
        ),
        Family(
            "brokerd_refused_dialogs",
            MetricKind.GAUGE,
            "dialogs whose messages the receiving side does not accept, by its reason",
            "noticed_{reason}",
        ),
        *_counters(
            "brokerd",
            fragments_received="received_fragments: fragments received from other instances",
            stored="stored_fragments: of the received fragments, those stored",
            duplicates="duplicate_fragments: of the received fragments, those stored before",
            retransmitted="retransmitted_fragments: fragments sent again",
            acks_sent="sent_acknowledgements: acknowledgements sent on their own",
            acks_carried="carried_acknowledgements: acknowledgements that a message carried",
            resumed_for_resources="resumed_sends: sends that went on after a lack of memory",
            task_restarts="dispatcher_restarts: restarts of the dispatcher after an error",
            clean_ups_resumed="resumed_clean_ups: ticks that went on removing received messages",
            arbitrations_lost="lost_arbitrations: connections closed because the peer's own was "
            "kept",
            transport_fragments_sent="transport_sent_fragments: fragments sent, over all "
            "connections",
            transport_fragments_received="transport_received_fragments: fragments received, over "
            "all connections",
            transport_boxcars_sent="transport_sent_boxcars: frames of packed fragments sent",
            transport_boxcars_received="transport_received_boxcars: frames of packed fragments "
            "received",
            transport_bytes_sent="transport_sent_bytes: bytes sent, over all connections",
            transport_bytes_received="transport_received_bytes: bytes received, over all "
            "connections",
            transport_sends="transport_sends: network sends",
            transport_receives="transport_receives: network receives",
            forward_received="forward_received_fragments: fragments that arrived to be passed on",
            forward_sent="forward_sent_fragments: fragments passed on",
            forward_messages="forward_sent_messages: messages passed on",
            forward_bytes_sent="forward_sent_bytes: bytes passed on",
            checks="checked_bodies: bodies checked",
            checks_unfit="unfit_bodies: bodies that failed their check",
            checks_unavailable="unchecked_bodies: bodies that could not be checked",
            check_restarts="checker_restarts: restarts of the process for checks",
        ),
        Family(
            "brokerd_dropped_fragments",
            MetricKind.COUNTER,
            "fragments received and dropped, by the reason",
            "dropped_{reason}",
        ),
        Family(
            "brokerd_sent_fragments",
            MetricKind.COUNTER,
            "fragments sent, by their priority level",
            "sent_p{level}",
        ),
        Family(
            "brokerd_reclassified_dialogs",
            MetricKind.COUNTER,
            "dialogs classified again, by what caused it",
            "reclassified_{trigger}",
        ),
        Family(
            "brokerd_refused_connections",
            MetricKind.COUNTER,
            "connections refused by a limit, by the listener and the limit",
            "refused_{listener}_{reason}",
        ),
        Family(
            "brokerd_forward_dropped_fragments",
            MetricKind.COUNTER,
            "fragments not passed on, by the reason",
            "forward_dropped_{reason}",
        ),
        Family(
            "brokerd_overrun_checks",
            MetricKind.COUNTER,
            "checks of bodies without a verdict, by the cause",
            "checks_overrun_{cause}",
        ),
    ),
    Scope.BROKER: (
        *_counters(
            "brokerd_broker",
            sends="sends: sends of this broker",
            receives="receives: receives of this broker",
            rollbacks="rollbacks: transactions rolled back",
            dialogs_refused="refused_dialogs: dialogs refused since their user or peer has too "
            "many",
        ),
        *_counters(
            "brokerd_store",
            flushes="flushes: writes to the store, each for many transactions",
            changesets="transactions: transactions written to the store",
            flush_rows="rows: rows written to the store",
            checkpoints="checkpoints: checkpoints of the write-ahead log",
        ),
        *_gauges(
            "brokerd_store",
            store_bytes="size_bytes: size of the file of the store",
            wal_bytes="wal_size_bytes: size of its write-ahead log",
        ),
        *_times(
            "brokerd_store",
            flush_us="flush_seconds: time of a whole flush",
            commit_us="commit_seconds: time of the commit within a flush, which waits for the disk",
            hop_us="hop_seconds: time to hand work to the thread of the store and back",
        ),
        Family(
            "brokerd_store_state",
            MetricKind.GAUGE,
            "1 while the store is in that state: full (no room on the disk), slow (a commit waits "
            "for the disk), disabled (delivery is off), refused or missing",
            "state_{state}",
        ),
        *_gauges(
            "brokerd_broker",
            endpoints="dialog_endpoints: dialog endpoints in the store, counted once an hour",
        ),
        Family(
            "brokerd_broker_dialog_endpoints_by_state",
            MetricKind.GAUGE,
            "dialog endpoints in the store by state, counted once an hour",
            "endpoints_{state}",
        ),
    ),
    Scope.QUEUE: (
        *_counters(
            "brokerd_queue",
            enqueued="enqueued_messages: messages put into the queue",
            received="received_messages: messages received by transactions that committed",
            rolled_back="rolled_back_messages: messages given back by rollbacks",
            refused="refused_messages: messages refused since the queue was at its limit",
        ),
        *_gauges(
            "brokerd_queue",
            ready="ready_messages: messages that can be received",
            parked="parked_messages: messages of parked groups",
            readers="readers: readers that run, started by activation",
            max_readers="max_readers: readers that may run",
            oldest_s="oldest_message_age_seconds: age of the oldest message that can be received",
            off="off: 1 while nothing can be received from the queue",
            full="full: 1 while the queue is at its limit and takes no messages",
            failing="readers_failing: 1 while readers are spaced out because they fail",
            bytes="size_bytes: size of the bodies of all messages, if it is limited",
        ),
        *_times(
            "brokerd_queue",
            wait_us="wait_seconds: time from the arrival of a message to the commit of its receive",
            handler_us="handler_seconds: time from a receive to its commit, of some receives",
        ),
    ),
    Scope.DESTINATION: (
        *_counters(
            "brokerd_destination",
            fragments_sent="sent_fragments: fragments sent there",
            fragments_received="received_fragments: fragments received from there",
            boxcars_sent="sent_boxcars: frames of packed fragments sent there",
            boxcars_received="received_boxcars: frames of packed fragments received from there",
            bytes_sent="sent_bytes: bytes sent there",
            bytes_received="received_bytes: bytes received from there",
            attempts="connect_attempts: attempts to connect",
            connects="connects: attempts to connect that succeeded",
            losses="lost_connections: connections lost",
        ),
        Family(
            "brokerd_destination_failed_connects",
            MetricKind.COUNTER,
            "attempts to connect that failed, by the cause",
            "failed_{cause}",
        ),
        *_gauges(
            "brokerd_destination",
            connected="connected: 1 while a connection is open",
            suppressed="suppressed: 1 while no attempt to connect is made, after a failed one",
            waiting="waiting_messages: messages that are not acknowledged",
            dialogs_waiting="waiting_dialogs: dialogs that are ready to send and wait for their "
            "turn",
            clock_ahead_s="clock_ahead_seconds: how far the clock there is ahead of this one",
        ),
        *_times(
            "brokerd_destination",
            outbox_us="outbox_seconds: time from sending a message to its first transmission",
            wire_us="wire_seconds: time from a transmission to its acknowledgement",
        ),
    ),
}
"""Every family, by the scope of its figures."""


class Series(NamedTuple):
    """A figure as a series: its family, and the labels that come from the figure's name."""

    family: Family
    labels: dict[str, str]


@lru_cache(maxsize=4096)
def series_of(scope: Scope, figure: str) -> Series | None:
    """Return the series of a figure; None = it is not shown."""
    for one in FAMILIES[scope]:
        if one.figure == figure:
            return Series(one, {})
    for one in FAMILIES[scope]:
        if "{" in one.figure and (found := _pattern(one.figure).fullmatch(figure)):
            return Series(one, found.groupdict())
    return None


@lru_cache(maxsize=256)
def _pattern(figure: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", figure)  # text and names in turn
    texts = (
        f"(?P<{part}>\\w+?)" if number % 2 else re.escape(part) for number, part in enumerate(parts)
    )
    return re.compile("".join(texts))
