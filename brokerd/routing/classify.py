"""Classification: decides where a dialog or an arrival goes (XMT-5, DSP-4).

Reads:  routing tables, facts about this instance.
Calls:  table (which routes match), choice (which of them is used).
Never:  waits, sends, or changes anything but the turns of the balancer.
A dialog with an end in this instance is classified by the table of the broker that holds that end
(RTE-2); a message that arrives from outside is classified by the instance table (RTE-1).
"""

from collections.abc import Callable, Iterable

import msgspec

from brokerd.clock import Instant
from brokerd.ids import BrokerId, show
from brokerd.routing.address import LOCAL
from brokerd.routing.choice import Choice, Picks, choose, chosen_as
from brokerd.routing.duplicates import Barred, nobody_barred
from brokerd.routing.mirror import Pair, Principal, Unresolved, nobody_known
from brokerd.routing.notes import Finding, Notes
from brokerd.routing.reasons import DropReason, Reason
from brokerd.routing.table import Candidate, Found, RoutingTable, destination

INITIAL_HOPS = 10
"""Hop count with which a message starts (FWD-5)."""
_INSTANCE = b""
_MOST_ROUNDS = 64
"""Limit on routing one arrival again in this instance, whatever hop count a peer claims."""


class LocalBroker(msgspec.Struct, frozen=True):
    """The facts about a broker of this instance that routing needs."""

    broker_id: BrokerId
    name: str
    services: frozenset[str]
    enabled: bool = True
    """Whether the broker has started and its delivery is activated (RTE-33, CLK-6)."""
    former: frozenset[BrokerId] = frozenset()
    """Former identifiers of the broker, under which it can still be reached (MAN-6)."""


class InstanceFacts:
    """The brokers of this instance and its own addresses; never changes once built.

    `own_addresses` holds normalised text: the addresses on which the broker endpoint listens, and
    those at which a login returned the id of this instance (RTE-42).
    """

    def __init__(
        self,
        brokers: Iterable[LocalBroker] = (),
        *,
        own_addresses: Iterable[str] = (),
        forwarding: bool = False,
        exempt_local: bool = False,
        why_off: Callable[[BrokerId], str] = lambda _broker_id: "",
    ) -> None:
        """Create the facts.

        `why_off`: returns the name of a broker of this instance that does not serve, with the
        reason; empty for any other broker."""
        ordered = sorted(brokers, key=lambda one: one.name)
        self.forwarding = forwarding
        self.exempt_local = exempt_local
        """Whether dynamic routing is not used for services of this instance (NBT-17)."""
        self.why_off = why_off
        self.own_addresses = frozenset(own_addresses)
        self._enabled = {one.broker_id: one for one in ordered if one.enabled}
        self._names = {one.broker_id: one.name for one in ordered}
        self._disabled = frozenset(one.broker_id for one in ordered if not one.enabled)
        self._former = {old: one.broker_id for one in self._enabled.values() for old in one.former}
        self._by_service: dict[str, list[BrokerId]] = {}
        for broker in self._enabled.values():
            for service in broker.services:
                self._by_service.setdefault(service, []).append(broker.broker_id)

    def enabled(self, broker_id: BrokerId) -> bool:
        """Return whether this instance has the broker, with delivery activated."""
        return broker_id in self._enabled

    def disabled(self, broker_id: BrokerId) -> bool:
        """Return whether this instance has the broker, with delivery deactivated (RTE-34)."""
        return broker_id in self._disabled and broker_id not in self._enabled

    def name_of(self, broker_id: BrokerId) -> str:
        """Return the name of a broker of this instance; empty if it has no such broker."""
        return self._names.get(broker_id, "")

    def present(self, broker_id: BrokerId) -> BrokerId:
        """Return the current identifier of the broker that has, or had, `broker_id` (MAN-6)."""
        return self._former.get(broker_id, broker_id)

    def has_service(self, service_name: str) -> bool:
        """Return whether any enabled broker of this instance has a service of this name."""
        return service_name in self._by_service

    def serves(self, broker_id: BrokerId, service_name: str) -> bool:
        """Return whether this instance has the broker, enabled, with a service of this name."""
        return broker_id in self._by_service.get(service_name, ())

    def having(self, service_name: str) -> list[str]:
        """Return the names of this instance's enabled brokers that have a service of this name."""
        return [self._names[one] for one in self._by_service.get(service_name, ())]

    def locate(
        self, service_name: str, *broker_ids: BrokerId | None, first: tuple[BrokerId, ...] = ()
    ) -> BrokerId | None:
        """Return the broker that a LOCAL route leads to (RTE-20, RTE-31 to RTE-33); None if none.

        A broker id, of the dialog or of the route, admits only that broker. The named broker need
        not have the service if another broker has it: it then answers the sender with an error
        (DLP-41). `first`: preferred brokers; the others follow in ascending order of name.
        """
        having = self._by_service.get(service_name, [])
        named = {self.present(one) for one in broker_ids if one is not None}
        if named:
            only = named.pop()
            return only if having and not named and only in self._enabled else None
        return next((one for one in (*first, *having) if one in having), None)


class Tables(msgspec.Struct, frozen=True):
    """The routing tables that one classification needs; None for an unavailable table."""

    local: RoutingTable | None
    """Table of the broker that holds the dialog; None while it is replaced (XMT-13)."""
    instance: RoutingTable | None
    """Table for arrivals: the routes of msdb."""


class Local(msgspec.Struct, frozen=True):
    """Deliver to the dispatcher of this instance, without a socket."""

    broker_id: BrokerId
    route: str
    """Name of the route; empty if no table was used (RTE-7)."""
    step: int
    choice: Choice | None = None
    """Choice to pass as `previous` next time, and to store with the dialog if `ambiguous`."""
    ambiguous: bool = False
    """Whether more than one route was a candidate (RTE-29)."""


class Remote(msgspec.Struct, frozen=True):
    """Send to a destination; `choice` and `ambiguous` are as in `Local`."""

    address: str
    """Address of the destination as normalised text."""
    route: str
    step: int
    choice: Choice | None = None
    ambiguous: bool = False
    hops_used: int = 0
    """Forwarding steps made in this instance, to be subtracted in the hop block (FWD-5, RTE-43)."""


class Delayed(msgspec.Struct, frozen=True):
    """Delay the dialog, which keeps its place and is classified again later (XMT-6)."""

    reason: str
    detail: str = ""


class Dropped(msgspec.Struct, frozen=True):
    """Drop an arrival: one event, one counter, nothing kept (DSP-5, DSP-13)."""

    reason: str
    detail: str = ""


OutgoingDecision = Local | Remote | Delayed
Arriving = Local | Remote | Dropped


class DialogKey(msgspec.Struct, frozen=True):
    """Routing key of a dialog with an end in this instance (RTE-6)."""

    service_name: str
    """Name of the far service."""
    broker_id: BrokerId | None
    """Id of the far broker: the bound one, or until then the one given at the beginning, if any."""
    home: BrokerId
    """Broker that holds this end."""
    from_initiator: bool
    """Whether this end is the initiator's; used only if a route leads back to this instance."""
    holder: BrokerId | None = None
    """Broker of this instance that already holds the far end of the conversation (RTE-32)."""


class ArrivalKey(msgspec.Struct, frozen=True):
    """Routing key of a message from outside."""

    service_name: str
    broker_id: BrokerId | None
    from_initiator: bool
    hops: int = INITIAL_HOPS
    """Number of remaining hops of the message."""
    holder: BrokerId | None = None
    """Broker of this instance that already holds this end of the conversation (RTE-32)."""


def classify_outgoing(
    key: DialogKey,
    tables: Tables,
    facts: InstanceFacts,
    *,
    now: Instant,
    balancer: Picks,
    previous: Choice | None = None,
    avoid: Callable[[str], bool] | None = None,
    principal: Principal = nobody_known,
    barred: Barred = nobody_barred,
    notes: Notes | None = None,
) -> OutgoingDecision:
    """Decide where a dialog of this instance sends its messages and acknowledgements (RTE-2).

    `previous`: the choice of an earlier call for this dialog (RTE-29). `avoid`: whether an address
    is chosen only if no other matches (NBT-13). `principal`: returns the address of a mirrored
    route at which the broker is (RTE-52). `barred`: returns why nothing for a broker may be sent to
    an address, if another instance has the broker as well (RTE-72). `notes`: receives the findings,
    for an explanation.
    """
    if not facts.enabled(key.home):
        if notes is not None:
            notes.add(Finding.DELIVERY_OFF)
        return Delayed(Reason.SENDER_DISABLED)
    if tables.local is None:
        return Delayed(Reason.ROUTING_UPDATING)
    first = (key.home,) if key.holder is None else (key.holder, key.home)
    matching = _Matching(key.service_name, key.broker_id, first, facts, principal, barred, notes)
    result = _route(
        matching, tables.local, key.home, previous, now=now, balancer=balancer, avoid=avoid
    )
    if not isinstance(result, Remote) or result.address not in facts.own_addresses:
        return result
    # The route leads to this instance: from here on the message counts as an arrival (RTE-41).
    if notes is not None:
        notes.add(Finding.TURNED_ROUND, result.address)
    return _turned_round(
        key,
        result,
        tables,
        facts,
        now=now,
        balancer=balancer,
        principal=principal,
        barred=barred,
        notes=notes,
    )


def classify_arriving(
    key: ArrivalKey,
    instance_table: RoutingTable | None,
    facts: InstanceFacts,
    *,
    now: Instant,
    balancer: Picks,
    previous: Choice | None = None,
    principal: Principal = nobody_known,
    barred: Barred = nobody_barred,
    notes: Notes | None = None,
) -> Arriving:
    """Decide about a message from outside: deliver it locally, forward it, or drop it (RTE-7).

    `previous`: the choice of an earlier call for this conversation and direction, since balancing
    is per conversation (RTE-26). `principal`, `barred`, `notes`: as in `classify_outgoing`.
    """
    if (answer := _to_sender(key, facts, notes)) is not None:
        return answer
    if instance_table is None:
        return Dropped(Reason.INSTANCE_ROUTES_UNAVAILABLE)
    first = () if key.holder is None else (key.holder,)
    matching = _Matching(key.service_name, key.broker_id, first, facts, principal, barred, notes)
    for used in range(min(key.hops, _MOST_ROUNDS) + 1):
        result = _route(matching, instance_table, _INSTANCE, previous, now=now, balancer=balancer)
        if not isinstance(result, Remote):
            return Dropped(result.reason, result.detail) if isinstance(result, Delayed) else result
        if not facts.forwarding:
            if notes is not None:
                notes.add(Finding.FORWARDING_OFF)
            return Dropped(Reason.FORWARDING_DISABLED, result.address)
        if used < key.hops and result.address not in facts.own_addresses:
            return msgspec.structs.replace(result, hops_used=used + 1)
        # An address of this instance: route again, with one hop less (RTE-43). Without a hop left
        # the loop ends here.
        if notes is not None and used < key.hops:
            notes.add(Finding.ROUND_AGAIN, result.address)
    if notes is not None:
        notes.add(Finding.NO_HOP)
    return Dropped(DropReason.HOPS_EXHAUSTED)


def _to_sender(
    key: ArrivalKey, facts: InstanceFacts, notes: Notes | None
) -> Local | Dropped | None:
    """Return the decision for a reply that names a broker of this instance (RTE-7).

    Such a reply is delivered without the routing table. None for any other message."""
    if key.from_initiator or key.broker_id is None:
        return None
    named = facts.present(key.broker_id)
    if facts.enabled(named):
        if notes is not None:
            notes.add(Finding.REPLY_HERE)
        return Local(named, route="", step=0)
    is_off = facts.disabled(key.broker_id)
    if notes is not None:
        notes.add(Finding.REPLY_OFF if is_off else Finding.REPLY_NOT_HERE)
    return Dropped(DropReason.BROKER_DISABLED) if is_off else None


class _Matching(msgspec.Struct, frozen=True):
    """A routing key, with the facts and functions that evaluate routes for it."""

    service_name: str
    broker_id: BrokerId | None
    first: tuple[BrokerId, ...]
    facts: InstanceFacts
    principal: Principal
    barred: Barred
    notes: Notes | None

    def why_barred(self, one: Candidate) -> str:
        """Return why nothing may be sent to a route's address; empty if sending is allowed.

        If neither the key nor the route names a broker, return why messages for some broker must
        not be sent to the address. Such a route can be chosen, but any other is preferred."""
        address = destination(one, self.service_name)
        return "" if address is None else self.barred(self.broker_id or one.broker_id, address)

    def locate(self, route_id: BrokerId | None) -> BrokerId | None:
        return self.facts.locate(self.service_name, self.broker_id, route_id, first=self.first)


def _route(
    matching: _Matching,
    table: RoutingTable,
    broker: bytes,
    previous: Choice | None,
    *,
    now: Instant,
    balancer: Picks,
    avoid: Callable[[str], bool] | None = None,
) -> OutgoingDecision:
    """Find the matching routes, choose one and locate its target (RTE-4)."""
    notes = matching.notes
    found = table.find(
        matching.service_name,
        matching.broker_id,
        now=now,
        service_here=matching.facts.has_service(matching.service_name),
        exempt_local=matching.facts.exempt_local,
        notes=notes,
    )
    if not found.candidates:
        asked = found.step == 4  # noqa: PLR2004  # the steps have no better names than their numbers
        if asked:
            return Delayed(Reason.BCN_PENDING)
        near = table.near(matching.service_name, now=now, notes=notes)
        if notes is not None:
            notes.add(Finding.NOTHING)
        return Delayed(Reason.NO_ROUTE, near)
    chosen = choose(
        found,
        service_name=matching.service_name,
        broker=broker,
        usable=lambda route_id: matching.locate(route_id) is not None,
        previous=previous,
        balancer=balancer,
        avoid=avoid,
        barred=None if matching.barred is nobody_barred else matching.why_barred,
        notes=notes,
    )
    result = _leading_to(chosen, found, matching)
    if isinstance(result, Delayed) and result.reason == Reason.LOCAL_SERVICE_MISSING:
        return Delayed(result.reason, table.near(matching.service_name, now=now, notes=notes))
    return result


def _leading_to(chosen: Candidate, found: Found, matching: _Matching) -> OutgoingDecision:
    choice = chosen_as(chosen)
    notes = matching.notes
    ambiguous = len(found.candidates) > 1
    if chosen.address == LOCAL:
        broker_id = matching.locate(chosen.broker_id)
        if broker_id is None:
            return _not_located(matching, chosen)
        if notes is not None:
            serves = matching.facts.serves(broker_id, matching.service_name)
            finding = Finding.LOCATED if serves else Finding.REFUSES
            notes.add(finding, matching.facts.name_of(broker_id))
        return Local(broker_id, chosen.route, found.step, choice, ambiguous)
    if chosen.mirror and chosen.broker_id is not None:
        where = matching.principal(Pair(chosen.address, chosen.mirror, chosen.broker_id))
        if isinstance(where, Unresolved):
            if notes is not None:
                notes.add(Finding.NO_PRINCIPAL, where.detail)
            return Delayed(where.reason, where.detail)
        if notes is not None:
            notes.add(Finding.PRINCIPAL, where)
        return Remote(where, chosen.route, found.step, choice, ambiguous)
    address = _address(chosen, matching)
    if isinstance(address, Delayed):
        return address
    return Remote(address, chosen.route, found.step, choice, ambiguous)


def _address(chosen: Candidate, matching: _Matching) -> str | Delayed:
    """Return the address of a network or TRANSPORT route, or why the address is not used."""
    address = destination(chosen, matching.service_name)
    if address is None:
        if matching.notes is not None:
            matching.notes.add(Finding.NO_ADDRESS, chosen.address, chosen.route)
        return Delayed(Reason.INVALID_ADDRESS, f"route {chosen.route}")
    named = matching.broker_id or chosen.broker_id
    if named is not None and (why := matching.barred(named, address)):
        if matching.notes is not None:
            matching.notes.add(Finding.DUPLICATE, why)
        return Delayed(Reason.DUPLICATE_BROKER, why)
    return address


def _not_located(matching: _Matching, local: Candidate) -> Delayed:
    """Return the delay for a LOCAL route to a missing service, the only route left (RTE-28)."""
    named = matching.broker_id or local.broker_id
    if named is not None and not matching.facts.enabled(named):
        why = matching.facts.why_off(named)
        if matching.notes is not None:
            said = why or f"broker {show(named)} is not in this instance"
            matching.notes.add(Finding.BROKER_NOT_HERE, said)
        return Delayed(Reason.BROKER_NOT_HERE, why)
    if matching.notes is not None:
        matching.notes.add(Finding.NOTHING_ELSE)
    return Delayed(Reason.LOCAL_SERVICE_MISSING)


def _turned_round(
    key: DialogKey,
    sent: Remote,
    tables: Tables,
    facts: InstanceFacts,
    *,
    now: Instant,
    balancer: Picks,
    principal: Principal,
    barred: Barred,
    notes: Notes | None,
) -> OutgoingDecision:
    """Route a dialog by the instance table, after its broker's table led back to this instance.

    Where an arrival would be dropped, the dialog is delayed, since its sender is in this instance
    and can see the reason. The returned choice is that of the broker's table. In the instance table
    the balancer takes a turn each time the dialog is classified, not each time it sends.
    """
    arrival = ArrivalKey(key.service_name, key.broker_id, key.from_initiator, holder=key.holder)
    result = classify_arriving(
        arrival,
        tables.instance,
        facts,
        now=now,
        balancer=balancer,
        principal=principal,
        barred=barred,
        notes=notes,
    )
    if isinstance(result, Dropped):
        return Delayed(result.reason, result.detail)
    return msgspec.structs.replace(result, choice=sent.choice, ambiguous=sent.ambiguous)
