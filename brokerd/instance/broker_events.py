"""Broker events: the requests and reports of brokers, passed to the parts concerned.

Reads:  the record of parts.      Calls: router, transmitter, readers, events, log.
Never:  changes the state of a broker.
"""

from brokerd.broker.broker import LIFETIMES, Broker
from brokerd.broker.dialog_events import DialogEvent, Lost, fields_of
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.queues import QueueState
from brokerd.broker.state import Live
from brokerd.ids import show
from brokerd.instance.parts import Parts
from brokerd.maintenance import timers
from brokerd.maintenance.dialog_expiry import expire
from brokerd.model import QueueStatus
from brokerd.routing.reasons import Reason
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import (
    CONVERSATION,
    CONVERSATION_GROUP,
    LOST_MESSAGES,
    TRANSMISSION,
)


class BrokerEvents:
    """The listener of all brokers of one instance."""

    def __init__(self, parts: Parts, *, daemon_log: Log) -> None:
        """Create the listener. `daemon_log`: the log whose lines no program can subscribe to."""
        self._parts = parts
        self._daemon_log = daemon_log

    # Traffic.

    def delivers_here(self, broker: Broker, live: Live) -> bool:
        """Return whether a dialog's messages go to a broker of this instance."""
        return self._parts.router.delivers_here(broker, live)

    def always_here(self, broker: Broker, service: str) -> bool:
        """Return whether the routes lead every new dialog with the service to this broker."""
        return self._parts.router.always_here(broker, service)

    def outgoing_ready(self, broker: Broker, out: Outgoing) -> None:
        """Have the transmitter send the messages of a dialog."""
        self._parts.transmitter.ready(broker, out)

    def message_arrived(self, broker: Broker, queue: QueueState, was_empty: bool) -> None:
        """Start readers for a message on a queue; process a message on an internal queue."""
        if queue.is_system:
            self._parts.events.arrived(broker)
            self._parts.route_requester.arrived()
        else:
            self._parts.readers.arrived(broker.name, queue.name, was_empty=was_empty)

    def receive_empty(self, broker: Broker, queue: QueueState) -> None:
        """Notify the readers of the queue that a receive found nothing."""
        self._parts.readers.receive_empty(broker.name, queue.name, selective=False)

    def queue_has_room(self, broker: Broker, queue: QueueState) -> None:
        """Have the refused senders of a queue send again (REL-42)."""
        self._parts.refusal_notices.release(broker)

    def deadline_due(self, broker: Broker, what: str) -> None:
        """Process lifetimes or timers that may be due, ahead of their passes (PER-23)."""
        tasks = self._parts.tasks
        if tasks.is_serving and broker.enabled:
            tasks.spawn_counted(expire(broker) if what == LIFETIMES else timers.fire(broker))

    # Reports.

    def dialogs_changed(self, broker: Broker, events: list[DialogEvent]) -> None:
        """Write events of dialogs to the event log, and through it to subscribers (EVT-10)."""
        log = self._parts.log
        for one in events:
            write = log.info if one.is_trouble else log.debug
            write(
                CONVERSATION_GROUP if one.of_group else CONVERSATION,
                subclass=one.what,
                broker=broker.name,
                **fields_of(one),
            )

    def error_lost(self, broker: Broker, lost: Lost) -> None:
        """Log an Error message that no program will receive (PBT-4)."""
        endpoint = lost.endpoint
        self._parts.log.warning(
            LOST_MESSAGES,
            broker=broker.name,
            conversation_id=show(endpoint.conversation_id),
            role="initiator" if endpoint.is_initiator else "target",
            service=endpoint.service,
            far_service=endpoint.far_service,
            contract=endpoint.contract,
            code=lost.code,
            description=lost.description,
            message_types=list(lost.message_types),
            count=lost.count,
        )

    def body_damaged(self, broker: Broker, out: Outgoing) -> None:
        """Log that a dialog stops sending, because its next stored body is damaged (REL-6)."""
        self._daemon_log.warning(
            TRANSMISSION,
            broker=broker.name,
            conversation_id=show(out.live.endpoint.conversation_id),
            status_key=Reason.DAMAGED,
            sequence=out.damaged,
            to_service=out.live.endpoint.far_service,
            reason="the stored body is damaged: nothing of this dialog is sent from it on",
        )

    def group_parked(self, broker: Broker, what: str, fields: dict[str, object]) -> None:
        """Report that a conversation group was parked, or is no longer parked."""
        self._parts.administration.parked.parking(broker, what, fields)

    def queue_poisoned(self, broker: Broker, queue: QueueState, status: QueueStatus) -> None:
        """Disable a queue after too many rollbacks."""
        parked = self._parts.administration.parked
        self._parts.tasks.spawn(parked.disable(broker, queue.name, status))
