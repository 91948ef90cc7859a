"""Routing as the brokers of this instance use it: tables, facts, and the two classifications.

Reads: catalogs of the brokers.      Calls: routing.
Never: sends; the transmitter and the dispatcher ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.broker.outgoing import Outgoing
from brokerd.clock import Clock, Instant
from brokerd.delivery.peers.arrival_routes import WayOptions, Ways
from brokerd.delivery.peers.mirrors import Mirrors
from brokerd.delivery.peers.routing_changes import Snapshot
from brokerd.errors import BrokerError
from brokerd.ids import ID_SIZE, BrokerId, ConversationId
from brokerd.model import MSDB, Route
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import Item
from brokerd.routing.address import normalise
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
from brokerd.routing.explain import (
    Explanation,
    concluded,
    explain_arriving,
    explain_outgoing,
    explained_here,
)
from brokerd.routing.mirror import Pair, Principal
from brokerd.routing.reasons import DropReason, Reason
from brokerd.routing.table import (
    Balancer,
    Choice,
    Foreseen,
    Picks,
    RoutingTable,
    choice_of,
    pair_of,
)
from brokerd.telemetry.log import NullLog


def _ids(joined: bytes) -> frozenset[BrokerId]:
    return frozenset(BrokerId(joined[at : at + ID_SIZE]) for at in range(0, len(joined), ID_SIZE))


def _nobody_to_ask(_broker: Broker, _service: str, _broker_id: BrokerId | None) -> Delayed:
    return Delayed(Reason.BCN_PENDING)


class Router:
    """Both levels of tables, rebuilt when an object changes (RTE-1)."""

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
        options: WayOptions | None = None,
        mirrors: Mirrors | None = None,
    ) -> None:
        """`absent`: brokers that cannot be opened, and why; `known`: the identifiers that the
        instance remembers by name. `avoid`: addresses that new dialogs get only where there is no
        other (NBT-13).

        `mirrors`: knows the principals of mirrored routes; None = nobody does."""
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
        """Told which route a broker lacks; why what needs it waits (BCN-3)."""
        self.ambiguous: Callable[[str, list[str]], None] = lambda _service, _brokers: None
        """Told once which brokers have a service that nothing chooses among (NBT-18)."""
        self.barred: Barred = nobody_barred
        """Why nothing for a broker is sent to an address (RTE-72)."""
        self._copies: dict[str, list[str]] = {}
        self.rebuilt: Callable[[], None] = lambda: None
        """Told when the tables are other ones, or a route of the instance has expired."""
        self.ways = Ways(
            self._arriving, is_here=self._is_here, clock=clock, options=options or WayOptions()
        )
        self._expires_at: Instant | None = None
        self._tables: dict[BrokerId, RoutingTable] = {}
        self._routes: frozenset[Route] = frozenset()
        self._instance = RoutingTable([])
        self._facts = InstanceFacts()
        self.rebuild()

    def rebuild(self) -> frozenset[str]:
        """Take the objects of all brokers as they now are.

        Returns the addresses of routes that were not there before (NBT-8)."""
        before, self._routes = (
            self._routes,
            frozenset(
                route
                for broker in self._brokers.values()
                for route in broker.store.catalog.routes.values()
            ),
        )
        # A copy may have the identifier of another one; it is disabled, and the other one counts.
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
        self._forget_ways()
        return frozenset(normalise(route.address) for route in self._routes - before)

    def _why_off(self, broker_id: BrokerId) -> str:
        """Which broker of this instance that is and why it does not serve; empty if it does, or is
        none of them."""
        for name, reason in self._absent.items():
            if self._known.get(name) == broker_id:
                return f"broker {name!r} of this instance cannot be opened: {reason.message}"
        for broker in self._brokers.values():
            if broker.broker_id == broker_id and not broker.enabled:
                why = broker.store.identity.disabled_reason or "it was switched off"
                return f"delivery of broker {broker.name!r} of this instance is off: {why}"
        return ""

    def snapshot(self) -> Snapshot:
        """What all this is made of now, to see later what has changed (XMT-11)."""
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
        """Every second tick: what a route decided that has expired is decided again (RTE-65).

        What nobody has asked for in a long time is forgotten (XMT-10). How much it was."""
        trimmed = self.ways.trim()
        if self._expires_at is None or self._clock.utc() < self._expires_at:
            return trimmed
        self._forget_ways()
        return trimmed + 1

    def learn_own(self, addresses: frozenset[str]) -> None:
        """The addresses that lead to this instance, as far as it is known now (RTE-42)."""
        self._own_addresses = addresses
        self.rebuild()

    def delivering(self) -> frozenset[BrokerId]:
        """The brokers of this instance whose delivery is on (TRN-46)."""
        return frozenset(one.broker_id for one in self._hosts if one.enabled)

    def places_changed(self) -> None:
        """What passes through here may go elsewhere now, though no route has changed: a mirrored
        route has another principal (RTE-53), or a broker a duplicate (RTE-72)."""
        self._forget_ways()

    def allow_forwarding(self, allowed: bool) -> None:
        """Whether messages for others may pass through (FWD-1)."""
        self._forwarding = allowed
        self.rebuild()

    def outgoing(self, broker: Broker, endpoint: DialogEndpoint, out: Outgoing) -> OutgoingDecision:
        """Where this dialog sends (XMT-5); the choice is kept while it is not bound (RTE-29)."""
        decision = self._classify(broker, endpoint, out)
        if not isinstance(decision, Delayed):
            out.choice = decision.choice
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
        """Where it goes and every step to there; no turn is taken, and no peer asked.

        `bound`: the dialog has its target. `decided`: the decision by which it sends now; without
        one it is made here, as it would be for the next message.
        """
        if isinstance(key, ArrivalKey):
            return self._explain_arriving(key)
        pinned_here = key.from_initiator and key.broker_id == broker.broker_id
        if pinned_here and not bound and key.service_name not in broker.services:
            said = f"this broker is named and has no {key.service_name!r}: it refuses (DLG-6)"
            return explained_here(broker.name, said, reason=DropReason.SERVICE_NOT_IN_BROKER)
        foreseen, avoid = Foreseen(self._balancer.preview()), None if bound else self._avoid
        principal = self._mirrors.peek
        if decided is None:
            decided = self._decide(
                broker, key, previous, avoid, balancer=foreseen, principal=principal
            )
        walked = explain_outgoing(
            key,
            list(broker.store.catalog.routes.values()),
            list(self._brokers[MSDB].store.catalog.routes.values()),
            self._facts,
            now=self._clock.utc(),
            pick=foreseen.again(),
            previous=previous,
            avoid=avoid,
            principal=principal,
            barred=self.barred,
        )
        opens = key.from_initiator and not bound and key.holder is None
        return concluded(walked, decided, self._facts, opens=key.service_name if opens else "")

    def _explain_arriving(self, key: ArrivalKey) -> Explanation:
        foreseen, now = Foreseen(self._balancer.preview()), self._clock.utc()
        principal, barred, facts = self._mirrors.peek, self.barred, self._facts
        decided = classify_arriving(
            key,
            self._instance,
            facts,
            now=now,
            balancer=foreseen,
            principal=principal,
            barred=barred,
        )
        walked = explain_arriving(
            key,
            list(self._brokers[MSDB].store.catalog.routes.values()),
            facts,
            now=now,
            pick=foreseen.again(),
            principal=principal,
            barred=barred,
        )
        opens = key.from_initiator and key.holder is None
        return concluded(walked, decided, facts, opens=key.service_name if opens else "")

    def explain_dialog(
        self, broker: Broker, endpoint: DialogEndpoint, out: Outgoing | None
    ) -> tuple[DialogKey, Explanation]:
        """What a dialog is routed by, and where that leads: as it was decided for it last, or would
        be for its next message, from the same facts (RTE-29, RTE-32)."""
        key = self.key_of(broker, endpoint)
        if endpoint.bound and endpoint.far_broker == broker.broker_id:
            said = "both ends are in this broker, so no route is asked (SND-14)"
            return key, explained_here(broker.name, said)
        previous = (
            _stored_choice(broker, endpoint) if out is None else _chosen(broker, endpoint, out)
        )
        decided = None if out is None else out.decision
        return key, self.explain(broker, key, previous, bound=endpoint.bound, decided=decided)

    def delivers_here(self, broker: Broker, live: Live) -> bool:
        """Whether the far service is in this very broker, by its own routes (SND-14).

        This may be asked several times for one message. If there was a choice the dialog keeps it,
        so that it takes one turn of the balancer (RTE-26)."""
        endpoint = live.endpoint
        if endpoint.far_service not in broker.services:
            return False
        decision = self._classify(broker, endpoint, live.outgoing)
        if isinstance(decision, Local) and decision.broker_id == broker.broker_id:
            return True
        if not isinstance(decision, Delayed) and decision.ambiguous:
            broker.outgoing(live).choice = decision.choice
        return False

    def always_here(self, broker: Broker, service: str) -> bool:
        """Whether `delivers_here` says so of every dialog that begins now with a service, pinned to
        no broker: where only one route matches there is nothing to choose."""
        if service not in broker.services:
            return False
        found = self._tables[broker.broker_id].find(
            service, None, now=self._clock.utc(), service_here=True, exempt_local=self._exempt_local
        )
        if len(found.candidates) != 1:  # to decide would take a turn of the balancer
            return False
        decision = self._decide(broker, DialogKey(service, None, broker.broker_id, True))
        return isinstance(decision, Local) and decision.broker_id == broker.broker_id

    def names(self, broker: Broker, service: str, broker_id: BrokerId) -> bool:
        """Whether a route of a broker has exactly this name and this broker id (RTE-8)."""
        return self._tables[broker.broker_id].names(service, broker_id)

    def loose(
        self,
        broker: Broker,
        service: str,
        far: BrokerId | None,
        conversation_id: ConversationId,
        *,
        from_initiator: bool,
    ) -> OutgoingDecision:
        """Where an answer goes that belongs to no endpoint; no route is asked for (BCN-3)."""
        holder = None if far else self._holder(conversation_id, initiator=not from_initiator)
        return self._decide(
            broker, DialogKey(service, far, broker.broker_id, from_initiator, holder)
        )

    def arriving(self, item: Item) -> Arriving:
        """Where an item from outside goes (DSP-4)."""
        return self.ways.arriving(item)

    def notified(self, key: ArrivalKey) -> Arriving:
        """Where something goes that belongs to no conversation as such, such as a NOTICE."""
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
        self._look_at_copies(key, decision, home=None)
        return decision

    def _is_here(self, item: Item) -> bool:
        """Whether a broker of this instance has the side of the dialog that an item is for."""
        side = not item.from_initiator
        return any(
            broker.enabled and broker.endpoints.find_conversation(item.conversation_id, side)
            for broker in self._brokers.values()
        )

    def _forget_ways(self) -> None:
        now = self._clock.utc()
        routes = self._brokers[MSDB].store.catalog.routes.values()
        ends = [one.expires_at for one in routes if one.expires_at is not None]
        self._expires_at = min((one for one in ends if one > now), default=None)
        self.ways.forget()
        self.rebuilt()

    def key_of(self, broker: Broker, endpoint: DialogEndpoint) -> DialogKey:
        """What a dialog of this broker is routed by (RTE-6, RTE-32)."""
        far, initiator = endpoint.far_broker, endpoint.is_initiator
        holder = None
        if far is None:
            holder = self._holder(endpoint.conversation_id, initiator=not initiator)
        return DialogKey(endpoint.far_service, far, broker.broker_id, initiator, holder)

    def _holder(self, conversation_id: ConversationId, *, initiator: bool) -> BrokerId | None:
        """The broker of this instance that has that side of a conversation in memory (RTE-32)."""
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
            return self._asked(broker, key)
        self._look_at_copies(key, decision, home=broker.broker_id)
        return decision

    def _look_at_copies(
        self,
        key: DialogKey | ArrivalKey,
        decision: OutgoingDecision | Arriving,
        home: BrokerId | None,
    ) -> None:
        """Warn where another broker might have been meant as well: the first by name is used."""
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
    ) -> OutgoingDecision:
        """By the tables as they are. `balancer`, `principal`: in place of those that take a turn,
        and ask the two addresses of a mirrored route."""
        if not broker.enabled:
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
        )

    def _asked(self, broker: Broker, key: DialogKey) -> Delayed:
        """No route: have it asked for, by the broker whose table lacks it (BCN-3)."""
        found = self._tables[broker.broker_id].find(
            key.service_name, key.broker_id, now=self._clock.utc(), service_here=False
        )
        lacking = self._brokers[MSDB] if found.candidates else broker  # the route leads to itself
        return self.missing(lacking, key.service_name, key.broker_id)


def _pairs(brokers: Iterable[Broker]) -> dict[Pair, list[str]]:
    """The mirrored routes of all brokers: their addresses, and the names of the routes."""
    pairs: dict[Pair, list[str]] = {}
    for broker in brokers:
        for route in broker.store.catalog.routes.values():
            if (pair := pair_of(route)) is not None:
                pairs.setdefault(pair, []).append(f"{broker.name}.{route.name}")
    return pairs


def _chosen(broker: Broker, endpoint: DialogEndpoint, out: Outgoing) -> Choice | None:
    """What was chosen for the dialog, perhaps before a restart (RTE-29)."""
    if out.choice is None:
        out.choice = _stored_choice(broker, endpoint)
    return out.choice


def _stored_choice(broker: Broker, endpoint: DialogEndpoint) -> Choice | None:
    route = broker.store.catalog.routes.get(endpoint.route) if endpoint.route is not None else None
    return None if route is None else choice_of(route)
