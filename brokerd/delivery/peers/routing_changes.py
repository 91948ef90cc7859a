"""Routing changes: the dialogs concerned, so that no others are disturbed (XMT-11). PURE.

Reads: snapshots of routing, before and after a change.      Calls: nothing.
Never: classifies; the transmitter classifies the dialogs concerned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from brokerd.clock import Instant
from brokerd.ids import BrokerId
from brokerd.model import CONFIGURATION_SERVICE, Route
from brokerd.routing.address import TRANSPORT
from brokerd.routing.classify import LocalBroker
from brokerd.routing.table import places


class Snapshot(msgspec.Struct, frozen=True):
    """Everything that routing depends on, at one moment."""

    routes: Mapping[BrokerId, frozenset[Route]] = {}
    """Routes of each broker; those of `instance` are the instance routing table."""
    instance: BrokerId | None = None
    hosts: Mapping[BrokerId, LocalBroker] = {}
    own_addresses: frozenset[str] = frozenset()
    forwarding: bool = False


class Affected:
    """A set of dialogs, given by the broker that holds them and the service that they send to."""

    __slots__ = ("_brokers", "_everything", "_names", "_services")

    def __init__(self) -> None:
        self._everything = False
        self._services: set[str] = set()
        self._brokers: set[BrokerId] = set()
        self._names: set[tuple[BrokerId, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._everything or self._services or self._brokers or self._names)

    def concerns(self, broker_id: BrokerId, far_service: str) -> bool:
        """Return whether a dialog of a broker to a service has to be classified again."""
        return (
            self._everything
            or far_service in self._services
            or broker_id in self._brokers
            or (broker_id, far_service) in self._names
        )

    def everything(self) -> None:
        """Add all dialogs."""
        self._everything = True

    def services(self, names: Iterable[str]) -> None:
        """Add the dialogs of all brokers to these services."""
        self._services.update(names)

    def route(self, holder: BrokerId, route: Route, instance: BrokerId | None) -> None:
        """Add the dialogs that a route concerns.

        A route of the instance table may decide for dialogs of all brokers (RTE-41)."""
        if route.service_name in (None, CONFIGURATION_SERVICE):  # RTE-11: for any service
            if holder == instance:
                self._everything = True
            self._brokers.add(holder)
        elif holder == instance:
            self._services.add(route.service_name)
        else:
            self._names.add((holder, route.service_name))


def affected(before: Snapshot, after: Snapshot) -> Affected:
    """Return the dialogs that the change from `before` to `after` concerns."""
    found = Affected()
    own = before.own_addresses ^ after.own_addresses
    if before.forwarding != after.forwarding:
        own |= after.own_addresses
    if own:
        _leading_to(own, after, found)
    for broker_id in before.hosts.keys() | after.hosts.keys():
        old, new = before.hosts.get(broker_id), after.hosts.get(broker_id)
        if old is None or new is None or (old.enabled, old.former) != (new.enabled, new.former):
            found.everything()
        else:
            found.services(old.services ^ new.services)
    nothing: frozenset[Route] = frozenset()
    for broker_id in before.routes.keys() | after.routes.keys():
        changed = before.routes.get(broker_id, nothing) ^ after.routes.get(broker_id, nothing)
        for route in changed:
            found.route(broker_id, route, after.instance)
    return found


def _leading_to(own: frozenset[str], routing: Snapshot, found: Affected) -> None:
    """Add the dialogs of routes to these own addresses: such dialogs are routed once more (RTE-41).

    TRANSPORT routes are included, because their address is part of a service name."""
    for broker_id, routes in routing.routes.items():
        for route in routes:
            if route.address.upper() == TRANSPORT or own & places(route):
                found.route(broker_id, route, routing.instance)


def expired(routing: Snapshot, since: Instant, now: Instant) -> Affected:
    """Return the dialogs concerned by routes that have expired since an instant (XMT-9)."""
    found = Affected()
    for broker_id, routes in routing.routes.items():
        for route in routes:
            if route.expires_at is not None and since < route.expires_at <= now:
                found.route(broker_id, route, routing.instance)
    return found
