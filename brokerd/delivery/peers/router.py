"""Router: the routing tables of this instance, and the classification of dialogs and arrivals.

Reads: catalogs of the brokers.      Calls: routing, arrival_routes, mirrors.
Never: sends; the transmitter, the dispatcher and the forwarder do, by its decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.state import Live
from brokerd.clock import Clock, Instant
from brokerd.delivery.peers.arrival_routes import ArrivalRouteOptions, ArrivalRoutes
from brokerd.delivery.peers.mirrors import Mirrors
from brokerd.delivery.peers.routing_changes import Snapshot
from brokerd.errors import BrokerError
from brokerd.ids import ID_SIZE, BrokerId, ConversationId
from brokerd.model import MSDB, Route
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import Item
from brokerd.routing.address import normalise
from brokerd.routing.choice import Balancer, Choice, Picks, choice_of
from brokerd.routing.classify import (
    ArrivalKey,
    Arriving,
    Delayed,
    DialogKey,
    Dropped,
    InstanceFacts,
    Local,
    LocalBroker,
    OutgoingDecision,
    Tables,
    classify_arriving,
    classify_outgoing,
)
from brokerd.routing.duplicates import Barred, nobody_barred
from brokerd.routing.explain import Explanation, explain, explain_here
from brokerd.routing.mirror import Pair, Principal
from brokerd.routing.notes import Finding, Notes
from brokerd.routing.reasons import DropReason, Reason
from brokerd.routing.table import RoutingTable, pair_of
from brokerd.telemetry.log import NullLog


def _ids(joined: bytes) -> frozenset[BrokerId]:
    return frozenset(BrokerId(joined[at : at + ID_SIZE]) for at in range(0, len(joined), ID_SIZE))


def _nobody_binds(_broker: Broker, _service: str) -> Delayed:
    return Delayed(Reason.NO_BINDING)


def _nobody_to_ask(_broker: Broker, _service: str, _broker_id: BrokerId | None) -> Delayed:
    return Delayed(Reason.BCN_PENDING)


class Router:
    """The tables of the brokers and of the instance, rebuilt when an object changes (RTE-1)."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        absent: Mapping[str, BrokerError],
        known: Mapping[str, BrokerId],
        clock: Clock,
        balancer: Balancer,
        own_addresses: frozenset[str],
        forwarding: bool,
        avoid: Callable[[str], bool] | None = None,
        exempt_local: bool = False,
        options: ArrivalRouteOptions | None = None,
        mirrors: Mirrors | None = None,
    ) -> None:
        """Create the router and build its tables.

        `absent`: brokers that cannot be opened, with the reason. `known`: the broker ids that the
        instance has on record, by name. `avoid`: tests for an address that new dialogs get only if
        there is no other (NBT-13). `mirrors`: knows the principals of mirrored routes; None = no
        principal is known."""
        self._brokers = brokers
        self._absent = absent
        self._known = known
        self._clock = clock
        self._balancer = balancer
        self._own_addresses = own_addresses
        self._forwarding = forwarding
        self._avoid = avoid
        self._mirrors = mirrors or Mirrors(clock=clock, log=NullLog())
        self._hosts: list[LocalBroker] = []
        self._exempt_local = exempt_local
        self.missing: Callable[[Broker, str, BrokerId | None], Delayed] = _nobody_to_ask
        """Called with a broker, service and broker id that lack a route; returns the reason for the
        delay (BCN-3)."""
        self.missing_binding: Callable[[Broker, str], Delayed] = _nobody_binds
        """Called with a broker and service without a remote service binding (BCN-4)."""
        self.ambiguous: Callable[[str, list[str]], None] = lambda _service, _brokers: None
        """Called once with a service and the brokers that have it, if no route chooses (NBT-18)."""
        self.barred: Barred = nobody_barred
        """Returns why nothing for a broker may be sent to an address; empty = it may (RTE-72)."""
        self._copies: dict[str, list[str]] = {}
        self.rebuilt: Callable[[], None] = lambda: None
        """Called when the tables have changed, or a route of the instance has expired."""
        self.arrival_routes = ArrivalRoutes(
            self._arriving,
            is_here=self._is_here,
            clock=clock,
            options=options or ArrivalRouteOptions(),
        )
        self._expires_at: Instant | None = None
        self._tables: dict[BrokerId, RoutingTable] = {}
        self._routes: frozenset[Route] = frozenset()
        self._instance = RoutingTable([])
        self._facts = InstanceFacts()
        self.rebuild()

    def rebuild(self) -> frozenset[str]:
        """Build the tables from the present objects of all brokers.

        Return the addresses of routes that did not exist before (NBT-8)."""
        before, self._routes = (
            self._routes,
            frozenset(
                route
                for broker in self._brokers.values()
                for route in broker.store.catalog.routes.values()
            ),
        )
        # A copy may have the broker id of another broker. It is disabled, so it is sorted first and
        # overwritten by the enabled one.
        self._tables = {
            broker.broker_id: RoutingTable(list(broker.store.catalog.routes.values()))
            for broker in sorted(self._brokers.values(), key=lambda one: one.enabled)
        }
        self._instance = self._tables[self._brokers[MSDB].broker_id]
        self._hosts = [
            LocalBroker(
                broker.broker_id,
                broker.name,
                frozenset(broker.services),
                broker.enabled and broker.name not in self._absent,
                _ids(broker.store.identity.former_ids or b""),
            )
            for broker in self._brokers.values()
            if broker.name != MSDB
        ]
        self._facts = InstanceFacts(
            self._hosts,
            own_addresses=self._own_addresses,
            forwarding=self._forwarding,
            exempt_local=self._exempt_local,
            why_off=self._why_off,
        )
        self._mirrors.keep(_pairs(self._brokers.values()))
        self._clear_arrival_routes()
        return frozenset(normalise(route.address) for route in self._routes - before)

    def _why_off(self, broker_id: BrokerId) -> str:
        """Return why the broker of this instance with this id does not serve, with its name.

        Empty: it serves, or no broker of this instance has the id."""
        for name, reason in self._absent.items():
            if self._known.get(name) == broker_id:
                return f"broker {name!r} of this instance cannot be opened: {reason.message}"
        for broker in self._brokers.values():
            if broker.broker_id == broker_id and not broker.enabled:
                why = broker.store.identity.disabled_reason or "it was switched off"
                return f"delivery of broker {broker.name!r} of this instance is off: {why}"
        return ""

    def snapshot(self) -> Snapshot:
        """Return the facts on which routing is based now, for a later comparison (XMT-11)."""
        return Snapshot(
            routes={
                broker.broker_id: frozenset(broker.store.catalog.routes.values())
                for broker in sorted(self._brokers.values(), key=lambda one: one.enabled)
            },
            instance=self._brokers[MSDB].broker_id,
            hosts={one.broker_id: one for one in sorted(self._hosts, key=lambda one: one.enabled)},
            own_addresses=self._own_addresses,
            forwarding=self._forwarding,
        )

    def expire(self) -> int:
        """Discard unused arrival routes (XMT-10), or all if a route expired (RTE-65).

        Called every second tick. Return the number of unused arrival routes, plus 1 if a route had
        expired."""
        trimmed = self.arrival_routes.trim()
        if self._expires_at is None or self._clock.utc() < self._expires_at:
            return trimmed
        self._clear_arrival_routes()
        return trimmed + 1

    def learn_own(self, addresses: frozenset[str]) -> None:
        """Set the addresses that are known to lead to this instance, and rebuild (RTE-42)."""
        self._own_addresses = addresses
        self.rebuild()

    def delivering(self) -> frozenset[BrokerId]:
        """Return the brokers of this instance whose delivery is on (TRN-46)."""
        return frozenset(one.broker_id for one in self._hosts if one.enabled)

    def places_changed(self) -> None:
        """Discard all arrival routes: messages that pass through may have to go elsewhere.

        No route has changed, but a mirrored route has another principal (RTE-53), or a broker has a
        duplicate (RTE-72)."""
        self._clear_arrival_routes()

    def allow_forwarding(self, allowed: bool) -> None:
        """Set whether messages for other instances may pass through, and rebuild (FWD-1)."""
        self._forwarding = allowed
        self.rebuild()

    def outgoing(self, broker: Broker, endpoint: DialogEndpoint, out: Outgoing) -> OutgoingDecision:
        """Return the destination of a dialog (XMT-5), and keep its choice of a route (RTE-29)."""
        decision = self._classify(broker, endpoint, out)
        if not isinstance(decision, Delayed):
            out.route.keep_choice(decision.choice)
        return decision

    def explain(
        self,
        broker: Broker,
        key: DialogKey | ArrivalKey,
        previous: Choice | None = None,
        *,
        bound: bool = False,
        decided: OutgoingDecision | None = None,
    ) -> Explanation:
        """Return the destination of a routing key, with every step of the decision.

        No turn of the balancer is used, and no peer is asked. `bound`: the dialog has its target.
        `decided`: the decision by which the dialog sends now; None = decide as for the next
        message."""
        if isinstance(key, ArrivalKey):
            return self._explain_arriving(key)
        pinned_here = key.from_initiator and key.broker_id == broker.broker_id
        if pinned_here and not bound and key.service_name not in broker.services:
            said = f"this broker is named and has no {key.service_name!r}: it refuses (DLG-6)"
            return explain_here(broker.name, said, reason=DropReason.SERVICE_NOT_IN_BROKER)
        notes = Notes()
        next_decision = self._decide(
            broker,
            key,
            previous,
            None if bound else self._avoid,
            balancer=self._balancer.preview(),
            principal=self._mirrors.peek,
            notes=notes,
        )
        return explain(
            key,
            next_decision if decided is None else decided,
            notes.all,
            self._facts,
            begins=key.from_initiator and not bound and key.holder is None,
        )

    def _explain_arriving(self, key: ArrivalKey) -> Explanation:
        notes = Notes()
        decision = classify_arriving(
            key,
            self._instance,
            self._facts,
            now=self._clock.utc(),
            balancer=self._balancer.preview(),
            principal=self._mirrors.peek,
            barred=self.barred,
            notes=notes,
        )
        begins = key.from_initiator and key.holder is None
        return explain(key, decision, notes.all, self._facts, begins=begins)

    def explain_dialog(
        self, broker: Broker, endpoint: DialogEndpoint, out: Outgoing | None
    ) -> tuple[DialogKey, Explanation]:
        """Return the routing key of a dialog, and its destination (RTE-29, RTE-32).

        The decision is the one by which the dialog sends now, or else the one for its next
        message."""
        key = self.key_of(broker, endpoint)
        if endpoint.bound and endpoint.far_broker == broker.broker_id:
            said = "both ends are in this broker, so no route is asked (SND-14)"
            return key, explain_here(broker.name, said)
        previous = (
            _stored_choice(broker, endpoint) if out is None else _chosen(broker, endpoint, out)
        )
        decided = None if out is None else out.route.decision
        return key, self.explain(broker, key, previous, bound=endpoint.bound, decided=decided)

    def delivers_here(self, broker: Broker, live: Live) -> bool:
        """Return whether a dialog's far service is in its own broker, by its own routes (SND-14).

        Callers may call this several times for one message. If there are several routes, the dialog
        keeps the chosen one, so that it uses one turn of the balancer (RTE-26)."""
        endpoint = live.endpoint
        if endpoint.far_service not in broker.services:
            return False
        decision = self._classify(broker, endpoint, live.outgoing)
        if isinstance(decision, Local) and decision.broker_id == broker.broker_id:
            return True
        if not isinstance(decision, Delayed) and decision.ambiguous:
            broker.outgoing(live).route.keep_choice(decision.choice)
        return False

    def always_here(self, broker: Broker, service: str) -> bool:
        """Return whether `delivers_here` holds for every new dialog to a service with no broker id.

        True only if a single route matches, because then no route has to be chosen."""
        if service not in broker.services:
            return False
        found = self._tables[broker.broker_id].find(
            service, None, now=self._clock.utc(), service_here=True, exempt_local=self._exempt_local
        )
        if len(found.candidates) != 1:  # a decision would use a turn of the balancer
            return False
        decision = self._decide(broker, DialogKey(service, None, broker.broker_id, True))
        return isinstance(decision, Local) and decision.broker_id == broker.broker_id

    def names(self, broker: Broker, service: str, broker_id: BrokerId) -> bool:
        """Return whether a route of a broker has exactly this service and broker id (RTE-8)."""
        return self._tables[broker.broker_id].names(service, broker_id)

    def for_orphan_reply(
        self,
        broker: Broker,
        service: str,
        far: BrokerId | None,
        conversation_id: ConversationId,
        *,
        from_initiator: bool,
    ) -> OutgoingDecision:
        """Return the destination of a reply without endpoint; request no missing route (BCN-3)."""
        holder = None if far else self._holder(conversation_id, initiator=not from_initiator)
        return self._decide(
            broker, DialogKey(service, far, broker.broker_id, from_initiator, holder)
        )

    def arriving(self, item: Item) -> Arriving:
        """Return where an item from outside goes (DSP-4)."""
        return self.arrival_routes.arriving(item)

    def notified(self, key: ArrivalKey) -> Arriving:
        """Return the destination of an arrival without a conversation, such as a NOTICE."""
        return self._arriving(key, None)

    def _arriving(self, key: ArrivalKey, previous: Choice | None) -> Arriving:
        decision = classify_arriving(
            key,
            self._instance,
            self._facts,
            now=self._clock.utc(),
            balancer=self._balancer,
            previous=previous,
            principal=self._mirrors.principal,
            barred=self.barred,
        )
        if isinstance(decision, Dropped) and decision.reason == Reason.BCN_PENDING:
            why = self.missing(self._brokers[MSDB], key.service_name, key.broker_id)
            return Dropped(why.reason, why.detail)
        self._report_copies(key, decision, home=None)
        return decision

    def _is_here(self, item: Item) -> bool:
        """Return whether a broker of this instance has the endpoint that an item is for."""
        side = not item.from_initiator
        return any(
            broker.enabled and broker.endpoints.find_conversation(item.conversation_id, side)
            for broker in self._brokers.values()
        )

    def _clear_arrival_routes(self) -> None:
        now = self._clock.utc()
        routes = self._brokers[MSDB].store.catalog.routes.values()
        ends = [one.expires_at for one in routes if one.expires_at is not None]
        self._expires_at = min((one for one in ends if one > now), default=None)
        self.arrival_routes.clear()
        self.rebuilt()

    def key_of(self, broker: Broker, endpoint: DialogEndpoint) -> DialogKey:
        """Return the routing key of a dialog (RTE-6, RTE-32)."""
        far, initiator = endpoint.far_broker, endpoint.is_initiator
        holder = None
        if far is None:
            holder = self._holder(endpoint.conversation_id, initiator=not initiator)
        return DialogKey(endpoint.far_service, far, broker.broker_id, initiator, holder)

    def _holder(self, conversation_id: ConversationId, *, initiator: bool) -> BrokerId | None:
        """Return the broker here that has this side of a conversation in memory (RTE-32)."""
        for broker in self._brokers.values():
            if broker.enabled and broker.endpoints.find_conversation(conversation_id, initiator):
                return broker.broker_id
        return None

    def _classify(
        self, broker: Broker, endpoint: DialogEndpoint, out: Outgoing | None
    ) -> OutgoingDecision:
        key = self.key_of(broker, endpoint)
        decision = self._decide(
            broker,
            key,
            previous=None if out is None else _chosen(broker, endpoint, out),
            avoid=None if endpoint.bound else self._avoid,
        )
        if isinstance(decision, Delayed) and decision.reason == Reason.BCN_PENDING:
            return self._request_route(broker, key)
        self._report_copies(key, decision, home=broker.broker_id)
        return decision

    def _report_copies(
        self,
        key: DialogKey | ArrivalKey,
        decision: OutgoingDecision | Arriving,
        home: BrokerId | None,
    ) -> None:
        """Report a service that several brokers here have; the first by name is used (NBT-18)."""
        if key.broker_id is not None or not isinstance(decision, Local):
            return
        choice = decision.choice
        if decision.broker_id == home or choice is None or choice.broker_id is not None:
            return
        having = self._facts.having(key.service_name)
        if len(having) > 1 and self._copies.get(key.service_name) != having:
            self._copies[key.service_name] = having
            self.ambiguous(key.service_name, having)

    def _decide(
        self,
        broker: Broker,
        key: DialogKey,
        previous: Choice | None = None,
        avoid: Callable[[str], bool] | None = None,
        *,
        balancer: Picks | None = None,
        principal: Principal | None = None,
        notes: Notes | None = None,
    ) -> OutgoingDecision:
        """Decide by the present tables.

        `balancer` and `principal` replace those of the router, which use a turn, and ask the two
        addresses of a mirrored route."""
        if not broker.enabled:
            if notes is not None:
                notes.add(Finding.DELIVERY_OFF)
            return Delayed(Reason.SENDER_DISABLED)
        return classify_outgoing(
            key,
            Tables(self._tables[broker.broker_id], self._instance),
            self._facts,
            now=self._clock.utc(),
            balancer=balancer or self._balancer,
            previous=previous,
            avoid=avoid,
            principal=principal or self._mirrors.principal,
            barred=self.barred,
            notes=notes,
        )

    def request_binding(self, broker: Broker, service: str) -> Delayed | None:
        """Ask for a missing remote service binding; return why its dialog waits (BCN-4).

        None: there is no service to ask."""
        if not self._tables[broker.broker_id].asks_for(service, now=self._clock.utc()):
            return None
        return self.missing_binding(broker, service)

    def _request_route(self, broker: Broker, key: DialogKey) -> Delayed:
        """Ask for a missing route, on behalf of the broker whose table lacks it (BCN-3)."""
        found = self._tables[broker.broker_id].find(
            key.service_name, key.broker_id, now=self._clock.utc(), service_here=False
        )
        # If the broker has a route, that leads to this instance, so the instance table lacks one.
        lacking = self._brokers[MSDB] if found.candidates else broker
        return self.missing(lacking, key.service_name, key.broker_id)


def _pairs(brokers: Iterable[Broker]) -> dict[Pair, list[str]]:
    """Return the address pairs of all mirrored routes, with the names of the routes."""
    pairs: dict[Pair, list[str]] = {}
    for broker in brokers:
        for route in broker.store.catalog.routes.values():
            if (pair := pair_of(route)) is not None:
                pairs.setdefault(pair, []).append(f"{broker.name}.{route.name}")
    return pairs


def _chosen(broker: Broker, endpoint: DialogEndpoint, out: Outgoing) -> Choice | None:
    """Return the route chosen for a dialog, perhaps before a restart (RTE-29); None = no choice."""
    if out.route.choice is None:
        out.route.keep_choice(_stored_choice(broker, endpoint))
    return out.route.choice


def _stored_choice(broker: Broker, endpoint: DialogEndpoint) -> Choice | None:
    route = broker.store.catalog.routes.get(endpoint.route) if endpoint.route is not None else None
    return None if route is None else choice_of(route)
