"""Explanation: the steps that led to a decision of `classify`, by applying the rules one by one.

Reads:  routes, facts about this instance.      Calls: address.
Never:  sends, takes a turn of the balancer, or runs where speed matters: it evaluates every route
        at every step, as the rules are written. It decides nothing: the outcome is that of
        `classify` (`concluded`), and a test compares the last step with it.
"""

from collections.abc import Callable, Sequence

import msgspec

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import BrokerId, show
from brokerd.model import CONFIGURATION_SERVICE, Route, is_system
from brokerd.routing.address import LOCAL, TRANSPORT, address_in_name, normalise
from brokerd.routing.choice import Choice, Pick
from brokerd.routing.classify import (
    ArrivalKey,
    Arriving,
    Delayed,
    DialogKey,
    InstanceFacts,
    Local,
    OutgoingDecision,
    Remote,
)
from brokerd.routing.duplicates import Barred, nobody_barred
from brokerd.routing.mirror import Pair, Principal, Unresolved, nobody_known
from brokerd.routing.reasons import DropReason, Reason
from brokerd.routing.table import HERE, NEAR, folded

OWN_TABLE = "own"
"""Name of the table of the broker that holds the dialog (RTE-1)."""
INSTANCE_TABLE = "instance"
"""Name of the table for arrivals."""


class Step(msgspec.Struct, frozen=True):
    """One rule that was applied."""

    table: str
    """`OWN_TABLE`, `INSTANCE_TABLE`, or empty if no table was used."""
    step: str
    """1 to 7 when matching, A to D when choosing, or a word."""
    finding: str
    routes: tuple[str, ...] = ()
    """Names of the routes that the step is about."""


class Explanation(msgspec.Struct, frozen=True):
    """A decision, and every step that led to it."""

    outcome: str
    """local, remote, delayed, dropped or refused."""
    where: str
    """Name of the broker, or the address; empty if the message goes nowhere."""
    reason: str
    """Key of the obstacle (XMT-19); empty if there is none."""
    route: str
    """Name of the route that is followed."""
    hops_used: int
    steps: tuple[Step, ...]


class _Routed(msgspec.Struct, frozen=True):
    """The result of one table."""

    outcome: str
    where: str = ""
    reason: str = ""
    route: str = ""


class _Alive(msgspec.Struct, frozen=True):
    """A route that has not expired, with its address in normal form; None if it is no address."""

    route: Route
    address: str | None
    mirror: str = ""
    """Second address, in normal form (RTE-50); empty if there is none."""

    @property
    def name(self) -> str:
        return self.route.name


def explain_outgoing(
    key: DialogKey,
    own: Sequence[Route],
    instance: Sequence[Route],
    facts: InstanceFacts,
    *,
    now: Instant,
    pick: Pick,
    previous: Choice | None = None,
    avoid: Callable[[str], bool] | None = None,
    principal: Principal = nobody_known,
    barred: Barred = nobody_barred,
) -> Explanation:
    """Explain where a dialog of this instance sends (RTE-2 to RTE-43).

    `avoid`, `principal`, `barred`: as in `classify_outgoing`."""
    walk = _Walk(key.service_name, key.broker_id, facts, now, pick)
    walk.principal, walk.barred = principal, barred
    walk.avoid = avoid
    if not facts.enabled(key.home):
        walk.say("", "home", "delivery is off in the broker that holds the dialog")
        return walk.result(_Routed("delayed", reason=Reason.SENDER_DISABLED))
    walk.first = (key.home,) if key.holder is None else (key.holder, key.home)
    walk.opens = key.from_initiator and key.holder is None
    routed = walk.route(own, OWN_TABLE, key.home, previous)
    if routed.outcome != "remote" or routed.where not in facts.own_addresses:
        return walk.result(routed)
    walk.say("", "self", f"{routed.where} is this instance, so it counts as arriving (RTE-41)")
    walk.first, walk.avoid = () if key.holder is None else (key.holder,), None
    arrival = ArrivalKey(key.service_name, key.broker_id, key.from_initiator, holder=key.holder)
    there = walk.arrive(arrival, instance)
    if there.outcome == "dropped":  # the sender is here and sees the reason
        there = msgspec.structs.replace(there, outcome="delayed")
    return walk.result(there)


def concluded(
    walked: Explanation, decision: OutgoingDecision | Arriving, facts: InstanceFacts, *, opens: str
) -> Explanation:
    """Return the steps together with the actual decision.

    `opens`: the service at which the message begins a dialog; empty if the dialog exists."""
    steps = walked.steps
    if isinstance(decision, Local):
        where, refused = facts.name_of(decision.broker_id), ""
        if opens and not facts.serves(decision.broker_id, opens):
            refused = DropReason.SERVICE_NOT_IN_BROKER
        outcome = "refused" if refused else "local"
        return Explanation(outcome, where, refused, decision.route, 0, steps)
    if isinstance(decision, Remote):
        used = decision.hops_used
        return Explanation("remote", decision.address, "", decision.route, used, steps)
    outcome = "delayed" if isinstance(decision, Delayed) else "dropped"
    return Explanation(outcome, "", decision.reason, "", 0, steps)


def explained_here(broker: str, finding: str, *, reason: str = "") -> Explanation:
    """Return the explanation for a dialog that its broker serves without its routes.

    `reason`: key of the refusal; empty if the message is delivered."""
    step = Step("", "here", finding)
    return Explanation("refused" if reason else "local", broker, reason, "", 0, (step,))


def explain_arriving(
    key: ArrivalKey,
    instance: Sequence[Route],
    facts: InstanceFacts,
    *,
    now: Instant,
    pick: Pick,
    principal: Principal = nobody_known,
    barred: Barred = nobody_barred,
) -> Explanation:
    """Explain where a message from outside goes (RTE-7 on)."""
    walk = _Walk(key.service_name, key.broker_id, facts, now, pick)
    walk.principal, walk.barred = principal, barred
    walk.first = () if key.holder is None else (key.holder,)
    walk.opens = key.from_initiator and key.holder is None
    return walk.result(walk.arrive(key, instance))


class _Walk:
    """One pass through the rules, and the steps noted on the way."""

    def __init__(
        self, name: str, broker_id: BrokerId | None, facts: InstanceFacts, now: Instant, pick: Pick
    ) -> None:
        self._name = name
        self._id = broker_id
        self._facts = facts
        self._now = now
        self._pick = pick
        self._steps: list[Step] = []
        self._hops_used = 0
        self.first: tuple[BrokerId, ...] = ()
        self.opens = False
        """Whether the message may begin a dialog at its target, which then needs the service."""
        self.avoid: Callable[[str], bool] | None = None
        self.principal: Principal = nobody_known
        self.barred: Barred = nobody_barred
        self._all: list[_Alive] = []

    def say(self, table: str, step: str, finding: str, routes: Sequence[_Alive] = ()) -> None:
        """Append one step."""
        self._steps.append(Step(table, step, finding, tuple(one.name for one in routes)))

    def result(self, routed: _Routed) -> Explanation:
        """Return the explanation, with all steps so far."""
        return Explanation(
            routed.outcome,
            routed.where,
            routed.reason,
            routed.route,
            self._hops_used,
            tuple(self._steps),
        )

    # An arrival.

    def arrive(self, key: ArrivalKey, instance: Sequence[Route]) -> _Routed:
        """Route an arrival: a reply by the broker it names, else by the instance table."""
        facts = self._facts
        if not key.from_initiator and key.broker_id is not None:
            answer = self._to_sender(key.broker_id)
            if answer is not None:
                return answer
        for used in range(key.hops + 1):
            routed = self.route(instance, INSTANCE_TABLE, b"", None)
            if routed.outcome == "delayed":
                return msgspec.structs.replace(routed, outcome="dropped")
            if routed.outcome in ("local", "refused"):
                return routed
            if not facts.forwarding:
                self.say("", "forward", "forwarding is off here (RTE-24)")
                return _Routed("dropped", reason=Reason.FORWARDING_DISABLED)
            if used == key.hops:
                break
            if routed.where not in facts.own_addresses:
                self._hops_used = used + 1
                return routed
            self.say("", "self", f"{routed.where} is this instance: round again, one hop poorer")
        self.say("", "hops", "no hop is left for another forwarding (FWD-6)")
        return _Routed("dropped", reason=DropReason.HOPS_EXHAUSTED)

    def _to_sender(self, named: BrokerId) -> _Routed | None:
        facts, now = self._facts, self._facts.present(named)
        if facts.enabled(now):
            self.say("", "reply", "a reply goes to the broker it names, which is here (RTE-7)")
            return _Routed("local", facts.name_of(now))
        if facts.disabled(named):
            self.say("", "reply", "the broker it names is here, and its delivery is off")
            return _Routed("dropped", reason=DropReason.BROKER_DISABLED)
        self.say("", "reply", "the broker it names is not here")
        return None

    # One table: find, choose, locate (RTE-4).

    def route(
        self, routes: Sequence[Route], table: str, broker: bytes, previous: Choice | None
    ) -> _Routed:
        """Return the result of one table."""
        step, found = self._find(routes, table)
        if not found:
            asked = step == 4  # noqa: PLR2004  # the steps have no better names than their numbers
            return _Routed("delayed", reason=Reason.BCN_PENDING if asked else Reason.NO_ROUTE)
        chosen = self._kept(found, table, previous)
        if chosen is None:
            if step == 3:  # noqa: PLR2004  # the steps have no better names than their numbers
                found = self._one_id(found, table, broker)
            chosen = self._choose(found, table, broker)
        return self._lead(chosen, table)

    def _find(  # noqa: PLR0911  # one return a step
        self, routes: Sequence[Route], table: str
    ) -> tuple[int, list[_Alive]]:
        # The steps of `RoutingTable.find`, on all routes, so that each can name those it found.
        name, wanted = self._name, self._id
        alive = self._all = self._alive(routes, table)
        if wanted is not None:
            exact = [one for one in alive if _is(one, name, wanted)]
            if self._found(table, 1, f"name {name!r} and broker {show(wanted)}", exact):
                return 1, exact
        unbound = [one for one in alive if _is(one, name, None)]
        if self._found(table, 2, f"name {name!r} and no broker", unbound):
            return 2, unbound
        if wanted is None:
            some = [one for one in alive if one.route.service_name == name and one.route.broker_id]
            if self._found(table, 3, f"name {name!r} and some broker", some):
                return 3, some
        if self._asks(alive, table):
            return 4, []
        wild = [one for one in alive if _is(one, None, None)]
        if self._found(table, 5, "neither name nor broker", wild):
            return 5, wild
        if wanted is not None and self._facts.has_service(name):
            self.say(table, "6", f"a broker here has {name!r}: as if a LOCAL route existed")
            return 6, [_Alive(Route(HERE, LOCAL, name), LOCAL)]
        if wanted is not None:
            self.say(table, "6", f"no broker here has {name!r}")
        self._near(alive, table)
        self.say(table, "7", "nothing matches: it is delayed, and tried again")
        return 7, []

    def _asks(self, alive: list[_Alive], table: str) -> bool:
        """Return whether the dynamic routing service is asked: step 4 (RTE-11, BCN-2, BCN-14)."""
        name = self._name
        ways = [one for one in alive if one.route.service_name == CONFIGURATION_SERVICE]
        if not ways or name == CONFIGURATION_SERVICE or is_system(name):
            return False
        if self._facts.exempt_local and self._facts.has_service(name):
            self.say(table, "4", f"{name!r} is here, so no route is asked for (bcn.exempt_local)")
            return False
        self.say(table, "4", "the dynamic routing service is asked; until then it waits", ways)
        return True

    def _found(self, table: str, step: int, what: str, found: list[_Alive]) -> bool:
        finding = f"routes with {what}: " + (str(len(found)) if found else "none")
        self.say(table, str(step), finding, found)
        return bool(found)

    def _near(self, alive: Sequence[_Alive], table: str) -> None:
        """Note the routes that were perhaps meant (NBT-19)."""
        wanted = folded(self._name)
        near = [
            one
            for one in alive
            if (name := one.route.service_name) and name != self._name and folded(name) == wanted
        ]
        if near:
            names = ", ".join(sorted({repr(one.route.service_name) for one in near}))
            self.say(table, "near", NEAR.format(names), near)

    def _alive(self, routes: Sequence[Route], table: str) -> list[_Alive]:
        """Return the routes that have not expired; of identical ones, the first by name."""
        alive: dict[tuple[str | None, BrokerId | None, str, str], _Alive] = {}
        for route in sorted(routes, key=lambda one: one.name):
            if route.expires_at is not None and route.expires_at <= self._now:
                if route.service_name in (None, self._name):
                    self.say(table, "expired", f"route {route.name!r} has expired (RTE-3)")
                continue
            address = _normal(route.address)
            mirror = (_normal(route.mirror) or "") if route.mirror and address else ""
            same = (route.service_name, route.broker_id, address or route.address, mirror)
            alive.setdefault(same, _Alive(route, address, mirror))
        return sorted(alive.values(), key=_order)

    def _kept(self, found: list[_Alive], table: str, previous: Choice | None) -> _Alive | None:
        if previous is None:
            return None
        same = [one for one in found if one.route.broker_id == previous.broker_id]
        wanted = (previous.address, previous.mirror)
        kept = [one for one in same if (_place(one), one.mirror) == wanted]
        kept += [one for one in same if one.name == previous.route]
        if kept:
            self.say(table, "kept", "the dialog keeps the route it had (RTE-29)", kept[:1])
            return kept[0]
        return None

    def _one_id(self, found: list[_Alive], table: str, broker: bytes) -> list[_Alive]:
        ids = sorted({one.route.broker_id for one in found if one.route.broker_id is not None})
        picked = ids[self._pick((broker, self._name, "id"), len(ids))]
        if len(ids) > 1:
            self.say(table, "3", f"of {len(ids)} brokers the next in turn is {show(picked)}")
        return [one for one in found if one.route.broker_id == picked]

    def _choose(self, found: list[_Alive], table: str, broker: bytes) -> _Alive:
        # The keys of the picks are those of `table.choose`: only then does the preview of the
        # balancer give the turn that a decision would take.
        mirrored = [one for one in found if one.mirror]
        if mirrored:
            turn = self._pick((broker, self._name, "mirrored"), len(mirrored))
            self.say(table, "A", "a mirrored route comes before all others", mirrored)
            return mirrored[turn]
        local = [one for one in found if one.address == LOCAL]
        if local and self._locate(local[0]) is not None:
            self.say(table, "B", "LOCAL, and the service is here", local[:1])
            return local[0]
        if local:
            said = f"LOCAL, but no broker here has {self._name!r}: passed over"
            self.say(table, "B", said, local)
        network = [one for one in found if one.address not in (LOCAL, TRANSPORT)]
        if network:
            network = self._preferred(network, table)
            broker_id = network[0].route.broker_id
            what = "route" if broker_id is None else broker_id.hex()
            turn = self._pick((broker, self._name, what), len(network))
            said = "a network address"
            if len(network) > 1:
                said = f"{len(network)} network addresses, of which {network[turn].name!r} is next"
            self.say(table, "C", said, network)
            return network[turn]
        transport = [one for one in found if one.address == TRANSPORT]
        if transport:
            self.say(table, "D", "TRANSPORT: the address is in the service name", transport[:1])
        return (transport or local)[0]

    def _preferred(self, network: list[_Alive], table: str) -> list[_Alive]:
        """Return the routes to prefer, or all if no route is better (RTE-72, NBT-13)."""
        barred = [one for one in network if self._why_barred(one)]
        if barred and len(barred) < len(network):
            self.say(table, "C", "another instance has that broker as well: passed over", barred)
            network = [one for one in network if one not in barred]
        avoid = self.avoid
        if avoid is None:
            return network
        avoided = [one for one in network if avoid(_place(one))]
        if not avoided or len(avoided) == len(network):
            return network
        self.say(table, "C", "suppressed, so another is preferred (routing.prefer_online)", avoided)
        return [one for one in network if one not in avoided]

    def _lead(self, chosen: _Alive, table: str) -> _Routed:
        if chosen.address == LOCAL:
            located = self._locate(chosen)
            if located is not None:
                name = self._facts.name_of(located)
                if self.opens and not self._facts.serves(located, self._name):
                    said = (
                        f"broker {name!r} is named and has no {self._name!r}: it refuses (DLP-41)"
                    )
                    self.say(table, "locate", said)
                    reason = DropReason.SERVICE_NOT_IN_BROKER
                    return _Routed("refused", name, reason, chosen.name)
                self.say(table, "locate", f"the service is in broker {name!r}")
                return _Routed("local", name, route=chosen.name)
            named = self._id or chosen.route.broker_id
            if named is not None and not self._facts.enabled(named):
                why = self._facts.why_off(named)
                said = why or f"broker {show(named)} is not in this instance"
                self.say(table, "locate", said)
                return _Routed("delayed", reason=Reason.BROKER_NOT_HERE)
            self.say(table, "locate", "nothing else is left (RTE-28)")
            self._near(self._all, table)
            return _Routed("delayed", reason=Reason.LOCAL_SERVICE_MISSING)
        if chosen.mirror and chosen.route.broker_id is not None:
            return self._lead_to_principal(chosen, chosen.route.broker_id, table)
        return self._lead_out(chosen, table)

    def _lead_out(self, chosen: _Alive, table: str) -> _Routed:
        address = chosen.address
        if address == TRANSPORT:
            address = address_in_name(self._name)
        if address is None:
            said = f"{chosen.route.address!r} of route {chosen.name!r} leads to no address"
            self.say(table, "address", said)
            return _Routed("delayed", reason=Reason.INVALID_ADDRESS)
        if (self._id or chosen.route.broker_id) and (why := self._why_barred(chosen)):
            self.say(table, "duplicate", why)
            return _Routed("delayed", reason=Reason.DUPLICATE_BROKER)
        return _Routed("remote", address, route=chosen.name)

    def _lead_to_principal(self, chosen: _Alive, broker_id: BrokerId, table: str) -> _Routed:
        where = self.principal(Pair(_place(chosen), chosen.mirror, broker_id))
        if isinstance(where, Unresolved):
            self.say(table, "mirror", f"neither is known as principal: {where.detail} (RTE-54)")
            return _Routed("delayed", reason=where.reason)
        self.say(table, "mirror", f"{where} is the principal (RTE-52)")
        return _Routed("remote", where, route=chosen.name)

    def _why_barred(self, one: _Alive) -> str:
        address = address_in_name(self._name) if one.address == TRANSPORT else one.address
        return self.barred(self._id or one.route.broker_id, address) if address else ""

    def _locate(self, one: _Alive) -> BrokerId | None:
        return self._facts.locate(self._name, self._id, one.route.broker_id, first=self.first)


def _is(one: _Alive, name: str | None, broker_id: BrokerId | None) -> bool:
    return one.route.service_name == name and one.route.broker_id == broker_id


def _normal(address: str) -> str | None:
    try:
        return normalise(address)
    except InvalidArgument:
        return None


def _place(one: _Alive) -> str:
    return one.address or one.route.address


def _order(one: _Alive) -> tuple[bytes, str, str]:
    return one.route.broker_id or b"", _place(one) + one.mirror, one.name
