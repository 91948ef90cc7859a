"""The rules of routing one by one, without an index: what `classify` has to come to.

Every route is evaluated at every step, in the order of the rules. Balancing is left to a function
that is asked with the keys that the balancer is asked with.
"""

from collections.abc import Callable, Sequence

import msgspec

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import BrokerId
from brokerd.model import CONFIGURATION_SERVICE, Route, is_system
from brokerd.routing.address import LOCAL, TRANSPORT, address_in_name, normalise
from brokerd.routing.choice import Choice, Picks
from brokerd.routing.classify import ArrivalKey, DialogKey, InstanceFacts
from brokerd.routing.duplicates import Barred
from brokerd.routing.mirror import Pair, Principal, Unresolved

Result = tuple[str, str, str, str]
"""Outcome, broker or address, reason, route."""


class Alive(msgspec.Struct, frozen=True):
    """A route that has not expired, with its address in normal form; None if it is no address."""

    route: Route
    address: str | None
    mirror: str

    @property
    def place(self) -> str:
        return self.address or self.route.address


class Rules:
    """The rules for one routing key."""

    def __init__(
        self,
        key: DialogKey | ArrivalKey,
        facts: InstanceFacts,
        *,
        now: Instant,
        picks: Picks,
        principal: Principal,
        barred: Barred,
        avoid: Callable[[str], bool] | None = None,
    ) -> None:
        self.name, self.id = key.service_name, key.broker_id
        self.facts, self.now, self.picks = facts, now, picks
        self.principal, self.barred, self.avoid = principal, barred, avoid
        self.first: tuple[BrokerId, ...] = ()
        self.hops_used = 0

    def outgoing(
        self,
        key: DialogKey,
        own: Sequence[Route],
        instance: Sequence[Route],
        previous: Choice | None,
    ) -> Result:
        if not self.facts.enabled(key.home):
            return "delayed", "", "sender_disabled", ""
        self.first = (key.home,)
        found = self.table(own, key.home, previous)
        if found[0] != "remote" or found[1] not in self.facts.own_addresses:
            return found
        self.first, self.avoid = (), None
        there = self.arriving(
            ArrivalKey(key.service_name, key.broker_id, key.from_initiator), instance
        )
        return ("delayed", *there[1:]) if there[0] == "dropped" else there

    def arriving(  # noqa: PLR0911  # one return a rule
        self, key: ArrivalKey, instance: Sequence[Route]
    ) -> Result:
        facts = self.facts
        if not key.from_initiator and key.broker_id is not None:
            if facts.enabled(key.broker_id):
                return "local", facts.name_of(key.broker_id), "", ""
            if facts.disabled(key.broker_id):
                return "dropped", "", "broker_disabled", ""
        for used in range(key.hops + 1):
            found = self.table(instance, b"", None)
            if found[0] == "delayed":
                return "dropped", *found[1:]
            if found[0] == "local":
                return found
            if not facts.forwarding:
                return "dropped", "", "forwarding_disabled", ""
            if used < key.hops and found[1] not in facts.own_addresses:
                self.hops_used = used + 1
                return found
        return "dropped", "", "hops_exhausted", ""

    def table(self, routes: Sequence[Route], broker: bytes, previous: Choice | None) -> Result:
        step, found = self.find(self.alive(routes))
        if not found:
            return "delayed", "", "bcn_pending" if step == 4 else "no_route", ""
        chosen = self.kept(found, previous)
        return self.locate(self.choose(step, found, broker) if chosen is None else chosen)

    def alive(self, routes: Sequence[Route]) -> list[Alive]:
        alive: dict[object, Alive] = {}
        for route in sorted(routes, key=lambda one: one.name):
            if route.expires_at is not None and route.expires_at <= self.now:
                continue
            address = normal(route.address)
            mirror = (normal(route.mirror) or "") if route.mirror and address else ""
            same = (route.service_name, route.broker_id, address or route.address, mirror)
            alive.setdefault(same, Alive(route, address, mirror))
        return sorted(
            alive.values(),
            key=lambda one: (one.route.broker_id or b"", one.place + one.mirror, one.route.name),
        )

    def find(  # noqa: PLR0911  # one return a step
        self, alive: list[Alive]
    ) -> tuple[int, list[Alive]]:
        def those(name: str | None, broker_id: BrokerId | None) -> list[Alive]:
            wanted = (name, broker_id)
            return [one for one in alive if (one.route.service_name, one.route.broker_id) == wanted]

        here = self.facts.has_service(self.name)
        if self.id is not None and (exact := those(self.name, self.id)):
            return 1, exact
        if unbound := those(self.name, None):
            return 2, unbound
        named = [one for one in alive if one.route.service_name == self.name]
        if self.id is None and named:
            return 3, named
        asked = any(one.route.service_name == CONFIGURATION_SERVICE for one in alive)
        if asked and self.name != CONFIGURATION_SERVICE and not is_system(self.name):  # noqa: SIM102
            if not (self.facts.exempt_local and here):
                return 4, []
        if wild := those(None, None):
            return 5, wild
        if self.id is not None and here:
            return 6, [Alive(Route("(service of this instance)", LOCAL, self.name), LOCAL, "")]
        return 7, []

    def kept(self, found: list[Alive], previous: Choice | None) -> Alive | None:
        if previous is None:
            return None
        same = [one for one in found if one.route.broker_id == previous.broker_id]
        place = (previous.address, previous.mirror)
        kept = [one for one in same if (one.place, one.mirror) == place]
        return next(iter([*kept, *(one for one in same if one.route.name == previous.route)]), None)

    def choose(self, step: int, found: list[Alive], broker: bytes) -> Alive:
        def turn(what: str, count: int) -> int:
            return self.picks.pick((broker, self.name, what), count)

        if step == 3:
            ids = sorted({one.route.broker_id for one in found if one.route.broker_id is not None})
            picked = ids[turn("id", len(ids))]
            found = [one for one in found if one.route.broker_id == picked]
        if mirrored := [one for one in found if one.mirror]:
            return mirrored[turn("mirrored", len(mirrored))]
        local = [one for one in found if one.address == LOCAL]
        if local and self.here(local[0]) is not None:
            return local[0]
        if network := [one for one in found if one.address not in (LOCAL, TRANSPORT)]:
            network = [one for one in network if not self.why_barred(one)] or network
            if (avoid := self.avoid) is not None:
                network = [one for one in network if not avoid(one.place)] or network
            broker_id = network[0].route.broker_id
            what = "route" if broker_id is None else broker_id.hex()
            return network[turn(what, len(network))]
        return ([one for one in found if one.address == TRANSPORT] or local)[0]

    def locate(self, chosen: Alive) -> Result:  # noqa: PLR0911  # one return a rule
        route_id, name = chosen.route.broker_id, chosen.route.name
        named = self.id or route_id
        if chosen.address == LOCAL:
            if (located := self.here(chosen)) is not None:
                return "local", self.facts.name_of(located), "", name
            away = named is not None and not self.facts.enabled(named)
            return "delayed", "", "broker_not_here" if away else "local_service_missing", ""
        if chosen.mirror and route_id is not None:
            where = self.principal(Pair(chosen.place, chosen.mirror, route_id))
            if isinstance(where, Unresolved):
                return "delayed", "", where.reason, ""
            return "remote", where, "", name
        address = address_in_name(self.name) if chosen.address == TRANSPORT else chosen.address
        if address is None:
            return "delayed", "", "invalid_address", ""
        if named and self.why_barred(chosen):
            return "delayed", "", "duplicate_broker", ""
        return "remote", address, "", name

    def here(self, one: Alive) -> BrokerId | None:
        return self.facts.locate(self.name, self.id, one.route.broker_id, first=self.first)

    def why_barred(self, one: Alive) -> str:
        address = address_in_name(self.name) if one.address == TRANSPORT else one.address
        return self.barred(self.id or one.route.broker_id, address) if address else ""


def normal(address: str) -> str | None:
    try:
        return normalise(address)
    except InvalidArgument:
        return None
