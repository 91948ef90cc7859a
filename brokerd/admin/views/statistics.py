"""Totals of brokers and of their transmission objects since the start (MON-9, 13, 14).

Reads:  the counters that every part keeps.      Calls: nothing.
Never:  resets a counter: clients compute rates and means from two readings.
"""

from collections.abc import Callable, Mapping

from brokerd.broker.broker import Broker
from brokerd.checking.checker import Checker
from brokerd.delivery.incoming.dispatcher import Dispatcher
from brokerd.delivery.outgoing.transmitter import Transmitter

Row = dict[str, object]


class StatisticsViews:
    """Source of the rows of `broker_statistics` and `transmission_statistics`."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        transmitter: Transmitter,
        dispatcher: Dispatcher,
        activation: Callable[[], Row],
        requests: Callable[[], Mapping[str, int]],
        corrupted: Callable[[], int],
        overruns: Callable[[], int],
        checker: Checker,
    ) -> None:
        """Create the source of the rows.

        `activation`: the row of `activation_counters`. `requests`: requests for routes, by
        outcome. `corrupted`: received items that were not valid. `overruns`: passes skipped
        (CLK-3).
        """
        self._brokers = brokers
        self._transmitter = transmitter
        self._dispatcher = dispatcher
        self._activation = activation
        self._requests = requests
        self._corrupted = corrupted
        self._overruns = overruns
        self._checker = checker

    def brokers(self) -> list[Row]:
        """Return the row of all brokers together (MON-13), with brokerd's own columns (MON-9)."""
        brokers, dispatcher, transmitter = (
            self._brokers.values(),
            self._dispatcher,
            self._transmitter,
        )
        enqueued = sum(queue.enqueued for one in brokers for queue in one.queues.values())
        return [
            {
                "enqueued_messages_total": enqueued,
                "enqueued_local_messages_total": max(0, enqueued - dispatcher.stored_messages),
                "enqueued_transport_messages_total": dispatcher.stored_messages,
                "enqueued_transport_fragments_total": dispatcher.stored,
                "transmission_messages_waiting": sum(_waiting(one) for one in brokers),
                "dequeued_transmission_messages_total": sum(one.memory.left for one in brokers),
                "dropped_fragments_total": dispatcher.dropped.total(),
                "dropped_by_reason": dict(dispatcher.dropped),
                "stale_fragments_total": dispatcher.dropped["stale"],
                "out_of_order_fragments_total": dispatcher.dropped["out_of_order"],
                "task_handlers": dispatcher.handlers,
                "task_restarts_total": dispatcher.restarts,
                "corrupted_items_total": self._corrupted(),
                "active_dialogs": sum(
                    live.outgoing is not None and bool(live.outgoing.route.timer)
                    for one in brokers
                    for live in one.endpoints.all()
                ),
                "sends_total": sum(one.sends for one in brokers),
                "receives_total": sum(one.receives for one in brokers),
                "rollbacks_total": sum(one.rollbacks for one in brokers),
                "activation_errors_total": self._activation()["tasks_aborted_total"],
                "retransmitted_fragments_total": transmitter.retransmitted,
                "duplicate_fragments_total": dispatcher.duplicates,
                "delayed_dialogs": transmitter.delayed_count(),
                "reclassified_by_trigger": dict(transmitter.reclassification.reclassified),
                "resumed_for_resources_total": transmitter.resumed,
                "clean_ups_resumed_total": sum(one.store.metrics.clean_ups for one in brokers),
                "route_requests_by_outcome": dict(self._requests()),
                "tick_overruns": self._overruns(),
                "acks_sent_total": transmitter.acks_sent,
                "acks_carried_total": transmitter.acks_carried,
                "memory_full_at": dispatcher.memory_full_at,
                **self._checks(),
            }
        ]

    def _checks(self) -> Row:
        """Return the counters of body checks (OBJ-61)."""
        counts = self._checker.counts
        return {
            "checks_total": counts.checked,
            "checks_unfit_total": counts.unfit,
            "checks_overrun_by_cause": dict(counts.overruns),
            "checks_unavailable_total": counts.unavailable,
            "checks_waiting": self._checker.waiting,
            "check_restarts_total": counts.restarts,
            "check_failure": counts.failing or None,
        }

    def transmission(self, broker: Broker) -> list[Row]:
        """Return the row of one broker's transmission objects and of its writes (MON-14)."""
        metrics, lives = broker.store.metrics, broker.endpoints.all()
        return [
            {
                "transmission_objects": sum(live.outgoing is not None for live in lives),
                "transmission_objects_made_total": broker.memory.made,
                "changesets_total": metrics.changesets,
                "writes_total": metrics.flushes,
                "rows_written_total": metrics.rows,
                "write_microseconds_total": metrics.microseconds,
            }
        ]


def _waiting(broker: Broker) -> int:
    """Return the number of messages in the transmission queue, whose dialogs are all in memory."""
    return sum(live.outgoing.pending for live in broker.endpoints.all() if live.outgoing)
