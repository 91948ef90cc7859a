"""Changes: the consequences for other parts when objects, addresses or neighbours have changed.

Reads:  the record of parts.      Calls: router, transmitter, refusal_notices, readers, forwarder.
Never:  changes an object itself.
"""

from collections.abc import Sequence

from brokerd.broker.broker import Broker
from brokerd.config.settings import Endpoint
from brokerd.delivery.forwarding.forwarder import MEGABYTE
from brokerd.ids import BrokerId
from brokerd.instance.parts import Parts
from brokerd.maintenance import timers
from brokerd.objects.declared import Change
from brokerd.objects.notifications import activation_timeouts
from brokerd.routing.mirror import Pair


class Changes:
    """The consequences of changes, one method for each kind of change."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    # Changes of brokers.

    def objects_applied(self, broker: Broker, changes: Sequence[Change], actor: str) -> None:
        """Report changed objects to subscribers; called before `objects_changed` (EVT-6)."""
        self._parts.events.objects_changed(broker, changes, actor)

    def objects_changed(self, broker: Broker) -> None:
        """Apply changed objects to routing and activation at once (XMT-11, ACT-6e)."""
        parts = self._parts
        parts.destinations.release(parts.router.rebuild())
        parts.transmitter.reclassification.reroute()
        parts.refusal_notices.release(broker)
        self.queues_changed(broker)
        parts.tasks.spawn_counted(timers.release(broker))

    def queues_changed(self, broker: Broker) -> None:
        """Start and stop readers to match the queues that the broker now has."""
        readers, queues = self._parts.readers, [state.queue for state in broker.own_queues]
        readers.remaining(broker.name, {one.name for one in queues})
        readers.altered(
            broker.name,
            queues,
            delivery=broker.enabled,
            subscribed=activation_timeouts(broker.store.catalog.event_notifications.values()),
        )

    def broker_opened(self, broker: Broker) -> None:
        """Put a broker that was absent into use; if it is shared, notify peers (RTE-55)."""
        self.objects_changed(broker)
        mirroring = self._parts.mirroring
        if broker.name in mirroring.names:
            self._parts.destinations.tell_all(mirroring.answer_for(broker))

    def delivery_switched(self, broker: Broker) -> None:
        """Apply a switch of delivery, or a new identifier of the broker (MAN-2 to MAN-6)."""
        parts = self._parts
        parts.router.rebuild()
        if not broker.enabled:
            parts.transmitter.reclassification.withhold(broker)
            parts.dispatcher.drop_broker(broker)
        parts.transmitter.reclassification.reroute()
        parts.transmitter.reclassification.reclassify()
        parts.refusal_notices.release(broker)
        self.queues_changed(broker)

    # Changes of routes and neighbours.

    def routes_answered(self) -> None:
        """Classify dialogs that wait for a route again, after a request was answered (BCN-7)."""
        self._parts.transmitter.reclassification.reclassify()

    def tables_rebuilt(self) -> None:
        """Notify the forwarder and the duplicate check that the routing tables were rebuilt."""
        parts = self._parts
        parts.forwarder.routes_changed()
        parts.duplicate_brokers.set_own_list(parts.router.delivering())

    def principal_changed(self, pair: Pair) -> None:
        """Reroute dialogs after a mirrored route changed or lost its principal (RTE-53, RTE-54)."""
        self._parts.router.places_changed()
        self._parts.transmitter.reclassification.principal_changed(pair)

    def duplicates_changed(self, broker_ids: frozenset[BrokerId]) -> None:
        """Reroute the dialogs to brokers that have gained or lost a duplicate (RTE-72)."""
        self._parts.router.places_changed()
        self._parts.transmitter.reclassification.duplicates_changed(broker_ids)

    # Changes of the broker endpoint.

    def own_addresses_changed(self) -> None:
        """Reroute the dialogs concerned after the addresses of this instance have changed.

        They are rerouted now, not at the next change, which may concern only other dialogs
        (XMT-11).
        """
        parts = self._parts
        parts.router.learn_own(parts.destinations.own_addresses())
        parts.transmitter.reclassification.reroute()

    def endpoint_moved(self) -> None:
        """Read the instance's addresses again after altering, starting or stopping the endpoint."""
        self.own_addresses_changed()
        self._parts.exposure.report()

    def forwarding_changed(self, endpoint: Endpoint) -> None:
        """Apply forwarding options in place (END-6)."""
        parts = self._parts
        limit = endpoint.forward_size_mb * MEGABYTE
        parts.forwarder.configure(forwarding=endpoint.forwarding, limit=limit)
        parts.transmitter.reclassification.reroute()
        parts.transmitter.reclassification.reclassify()
