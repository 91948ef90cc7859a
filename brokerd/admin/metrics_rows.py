"""The rows of the metrics log: counters, gauges and histograms by scope (design D12).

Reads: the counters that every part keeps.      Calls: metrics.
Never: resets a counter; it computes the deltas from totals.
"""

import resource
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from brokerd.admin.views.locks import HeldLocks, Place
from brokerd.broker.broker import Broker
from brokerd.broker.queue_times import QueueTimes
from brokerd.broker.queues import QueueState
from brokerd.checking.checker import Checker
from brokerd.clock import SECOND, Clock
from brokerd.delivery.forwarding.forwarder import Forwarder
from brokerd.delivery.incoming.counters import MEMORY_FULL
from brokerd.delivery.incoming.dispatcher import Dispatcher
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.telemetry.metrics import Deltas, HeldLock, Histogram, Row
from brokerd.transport.destination import Destination
from brokerd.transport.destinations import Destinations
from brokerd.transport.door import TEXTS, Door

DROPPED: Final = frozenset({MEMORY_FULL, "dialog_memory", "early_memory", "stale", "out_of_order"})
"""Reasons for dropping fragments that are counted from the start, those of overload above all."""
HOT_EVERY_S: Final = 300.0
"""Seconds between two reports of the largest groups; only a group in many reports matters."""


class Times:
    """The histograms of an instance; created first, since the other parts record times in them."""

    def __init__(self) -> None:
        self.stores: dict[str, dict[str, Histogram]] = {}
        """Histograms of each store, by broker and name."""
        self.queues: dict[tuple[str, str], QueueTimes] = {}
        """Waiting times of messages, by broker and queue."""

    def of_store(self, broker: str) -> Callable[[str, int], None]:
        """Return the function with which a broker's store records its times."""
        histograms = self.stores.setdefault(broker, {})

        def observe(name: str, microseconds: int) -> None:
            histogram = histograms.get(name)
            if histogram is None:
                histogram = histograms[name] = Histogram()
            histogram.add(microseconds)

        return observe

    def of_queue(self, broker: str, queue: str) -> QueueTimes:
        """Return the histograms of a queue's waiting times."""
        times = self.queues.get((broker, queue))
        if times is None:
            times = self.queues[broker, queue] = QueueTimes()
        return times


class Figures:
    """Source of rows of deltas, computed from totals once per interval."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        dispatcher: Dispatcher,
        forwarder: Forwarder,
        transmitter: Transmitter,
        destinations: Destinations,
        readers: Callable[[str, str], int],
        times: Times,
        locks: HeldLocks,
        doors: Sequence[Door],
        store_sizes: Callable[[str], tuple[int, int]],
        clock: Clock,
        checker: Checker,
        free: Callable[[], int] | None,
        jump: Callable[[], timedelta | None],
        certificate_days: Callable[[], Mapping[str, float]],
    ) -> None:
        """Create the source of the rows.

        `free`: returns the free bytes on the disk of the stores; None = unknown. `jump`:
        returns the jump of the clock while the daemon holds it back, else None.
        `certificate_days`: returns the gauges of days until certificates expire (NBT-21).
        """
        self._clock = clock
        self._free = free
        self._checker = checker
        self._jump = jump
        self._certificate_days = certificate_days
        self._states: dict[str, dict[str, float]] = {}
        self.endpoint_counts: dict[str, dict[str, float]] = {}
        """Gauges of the dialog endpoints of each broker, as they were counted last."""
        self._brokers = brokers
        self._dispatcher = dispatcher
        self._forwarder = forwarder
        self._transmitter = transmitter
        self._destinations = destinations
        self._readers = readers
        self._doors = doors
        self._store_sizes = store_sizes
        self._deltas: dict[tuple[str, ...], Deltas] = {}
        self._times = times
        self._locks = locks
        self._hot_at = clock.monotonic()

    def rows(self, *, last: bool = False) -> list[Row]:
        """Return the rows of the time since the last call; `last`: no further call follows."""
        rows: list[Row] = []
        now, held = self._clock.monotonic(), self._locks.by_queue()
        hot = last or now - self._hot_at >= HOT_EVERY_S
        if hot:
            self._hot_at = now
        for broker in self._brokers.values():
            rows += self._queues(broker, held, hot=hot)
            rows += self._pairs(broker)
            rows.append(self._broker(broker))
        rows += [self._to_destination(one) for one in self._destinations.known()]
        rows.append(self._instance())
        return [row for row in rows if not row.is_empty]

    def _since(self, totals: dict[str, int], *key: str) -> dict[str, int]:
        return self._deltas.setdefault(key, Deltas()).since(totals)

    def _queues(
        self, broker: Broker, held: Mapping[Place, list[HeldLock]], *, hot: bool
    ) -> list[Row]:
        return [
            self._queue(broker, queue, held.get((broker.name, name), []), hot=hot)
            for name, queue in broker.queues.items()
            if not queue.is_system
        ]

    def _queue(self, broker: Broker, queue: QueueState, held: list[HeldLock], *, hot: bool) -> Row:
        window = queue.times.hot.collect() if hot else None
        gauges = self.queue_gauges(broker, queue)
        always = ("ready", "readers")
        return Row(
            scope="queue",
            broker=broker.name,
            queue=queue.name,
            counters=self._since(queue_counters(queue), "queue", broker.name, queue.name),
            # without zeros that carry no information
            gauges={name: value for name, value in gauges.items() if value or name in always},
            histograms=queue.times.collect(),
            groups=window.groups if window is not None else {},
            groups_within=window.within if window is not None else 0,
            held=held,
        )

    def _pairs(self, broker: Broker) -> list[Row]:
        return [
            Row(
                scope="pair",
                broker=broker.name,
                from_service=pair.from_service,
                to_service=pair.to_service,
                contract=pair.contract,
                counters=self._since(
                    {"sent": pair.sent, "received": pair.received},
                    "pair",
                    broker.name,
                    pair.from_service,
                    pair.to_service,
                    pair.contract,
                ),
            )
            for pair in broker.pairs.all()
        ]

    def queue_gauges(self, broker: Broker, queue: QueueState) -> dict[str, float]:
        """Return the gauges of a queue."""
        oldest, activation = queue.oldest_at, queue.queue.activation
        return {
            "ready": float(queue.ready_count),
            "readers": float(self._readers(broker.name, queue.name)),
            "max_readers": float(activation.max_readers) if activation is not None else 0.0,
            "parked": float(queue.parked),
            "oldest_s": 0.0 if oldest is None else (self._clock.utc() - oldest) / SECOND,
            "off": 0.0 if queue.queue.receive_enabled else 1.0,
            "full": 1.0 if queue.is_at_limit() else 0.0,
            "bytes": 0.0 if queue.queue.max_bytes is None else float(queue.size),
        }

    def _broker(self, broker: Broker) -> Row:
        return Row(
            scope="instance",
            broker=broker.name,
            counters=self._since(broker_counters(broker), "broker", broker.name),
            gauges=self.broker_gauges(broker)
            | ({"store_full": 1.0} if broker.is_full else {})
            | self._states.pop(broker.name, {}),
            histograms=_drained(self.store_times(broker)),
        )

    def store_times(self, broker: Broker) -> Mapping[str, Histogram]:
        """Return the histograms of a broker's store, by name."""
        return self._times.stores.get(broker.name, {})

    def dialogs(self, broker: str, states: Mapping[str, int]) -> None:
        """Note the number of a broker's dialog endpoints in each state, for the next rows."""
        counts = {f"endpoints_{state}": float(count) for state, count in states.items()}
        self._states[broker] = counts | {"endpoints": float(sum(states.values()))}
        self.endpoint_counts[broker] = self._states[broker]

    def broker_gauges(self, broker: Broker) -> dict[str, float]:
        """Return the sizes of a broker's store."""
        size, wal = self._store_sizes(broker.name)
        return {"store_bytes": float(size), "wal_bytes": float(wal)}

    def _to_destination(self, one: Destination) -> Row:
        gauges = self.destination_gauges(one)
        ahead = gauges.pop("clock_ahead_s", None)
        row = Row(
            scope="destination",
            destination=one.address,
            counters=self._since(destination_counters(one), "destination", one.address),
            gauges={name: value for name, value in gauges.items() if value},
            histograms=_drained(self.destination_times(one)),
        )
        # a row of the clock difference alone is not worth a line
        if ahead is not None and not row.is_empty:
            row.gauges["clock_ahead_s"] = ahead
        return row

    def destination_gauges(self, one: Destination) -> dict[str, float]:
        """Return the gauges of a destination."""
        line = self._transmitter.line(one.address)
        gauges = {"suppressed": float(one.is_suppressed)}
        gauges["dialogs_waiting"] = float(0 if line is None else len(line.ready))
        ahead = None if one.connection is None else one.connection.clock_ahead
        if ahead is not None:
            gauges["clock_ahead_s"] = round(ahead, 6)
        return gauges

    def destination_times(self, one: Destination) -> Mapping[str, Histogram]:
        """Return the histograms of a destination, by name."""
        line = self._transmitter.line(one.address)
        return {} if line is None else {"outbox_us": line.outbox, "wire_us": line.wire}

    def _transport(self) -> dict[str, int]:
        """Return the traffic of all connections (MON-12), including those without a destination."""
        totals = self._destinations.peers.totals()
        return {f"transport_{key}": value for key, value in msgspec.structs.asdict(totals).items()}

    def _forwarded(self) -> dict[str, int]:
        """Return the counters of forwarding (MON-13) that are not zero."""
        report = self._forwarder.report
        counters = {
            "forward_received": report.received,
            "forward_sent": report.sent,
            "forward_messages": report.messages_sent,
            "forward_bytes_sent": report.bytes_sent,
            **{f"forward_dropped_{why}": count for why, count in report.dropped.items()},
        }
        return {name: count for name, count in counters.items() if count}

    def _checks(self) -> dict[str, int]:
        """Return the counters of body checks (OBJ-61) that are not zero."""
        counts = self._checker.counts
        counters = {
            "checks": counts.checked,
            "checks_unfit": counts.unfit,
            "checks_unavailable": counts.unavailable,
            "check_restarts": counts.restarts,
            **{f"checks_overrun_{cause}": count for cause, count in counts.overruns.items()},
        }
        return {name: count for name, count in counters.items() if count}

    def _instance(self) -> Row:
        counters = self._since(self.instance_counters(), "instance")
        return Row(scope="instance", counters=counters, gauges=self.instance_gauges())

    def instance_counters(self) -> dict[str, int]:
        """Return the counters of the whole instance; families without those that are zero."""
        dispatcher, transmitter = self._dispatcher, self._transmitter
        return {
            "fragments_received": dispatcher.received,
            "stored": dispatcher.stored,
            "duplicates": dispatcher.duplicates,
            "retransmitted": transmitter.retransmitted,
            "acks_sent": transmitter.acks_sent,
            "acks_carried": transmitter.acks_carried,
            "resumed_for_resources": transmitter.resumed,
            "task_restarts": dispatcher.restarts,
            "clean_ups_resumed": sum(one.store.metrics.clean_ups for one in self._brokers.values()),
            **{
                f"reclassified_{why}": count
                for why, count in transmitter.reclassification.reclassified.items()
            },
            "arbitrations_lost": self._destinations.arbitrations_lost,
            **self._transport(),
            **self._forwarded(),
            **self._checks(),
            **{
                f"sent_p{level}": count
                for level, count in enumerate(transmitter.sent_at_level)
                if count
            },
            # with zeros for what may come, or the first increase would not be seen in a scrape
            **{
                f"dropped_{why}": dispatcher.dropped[why] for why in DROPPED | {*dispatcher.dropped}
            },
            **{
                f"refused_{door.kind}_{why}": door.refused[why]
                for door in self._doors
                for why in TEXTS
            },
        }

    def instance_gauges(self) -> dict[str, float]:
        """Return the gauges of the whole instance."""
        gauges = {
            "rss_bytes": float(peak_memory()),
            "connections": float(len(self._destinations.peers.connections)),
            **self._certificate_days(),
        }
        if (jump := self._jump()) is not None:
            gauges["clock_jump_s"] = jump.total_seconds()
        if self._free is not None:
            gauges["disk_free_bytes"] = float(self._free())
        if self._forwarder.used:
            gauges |= {
                "forward_pending": float(self._forwarder.held),
                "forward_bytes": float(self._forwarder.used),
            }
        return gauges


def queue_counters(queue: QueueState) -> dict[str, int]:
    """Return the counters of a queue."""
    return {
        "enqueued": queue.enqueued,
        "received": queue.received,
        "rolled_back": queue.rolled_back,
        "refused": 0 if queue.room is None else queue.room.refused,
    }


def broker_counters(broker: Broker) -> dict[str, int]:
    """Return the counters of a broker."""
    metrics = broker.store.metrics
    return {
        "flushes": metrics.flushes,
        "changesets": metrics.changesets,
        "flush_rows": metrics.rows,
        "checkpoints": metrics.checkpoints,
        "sends": broker.sends,
        "receives": broker.receives,
        "rollbacks": broker.rollbacks,
        "dialogs_refused": sum(one.number for one in broker.owners.refused.values()),
    }


def destination_counters(one: Destination) -> dict[str, int]:
    """Return the counters of a destination."""
    return {
        "fragments_sent": one.fragments_sent,
        "fragments_received": one.fragments_received,
        "boxcars_sent": one.boxcars_sent,
        "boxcars_received": one.boxcars_received,
        "bytes_sent": one.bytes_sent,
        "bytes_received": one.bytes_received,
        "connects": one.connects,
        "attempts": one.attempts,
        "losses": one.losses,
        **{f"failed_{why}": n for why, n in one.failed_by_cause.items()},
    }


def peak_memory() -> int:
    """Return the highest memory use of this process so far, in bytes.

    The kernel's high-water mark is used where it can be read, because the resource usage of a
    process also counts the memory that its parent had when the process was started.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _drained(histograms: Mapping[str, Histogram]) -> dict[str, dict[str, int]]:
    return {name: one.drain() for name, one in histograms.items() if one.count}
