"""Routing table: finds the routes that match a service name and broker, and chooses one.

Reads:  routes, once, when it is built; a changed table is a new one.
Calls:  address.
Never:  reads a clock (`now` is an argument) or checks whether an address can be reached (RTE-27).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final, Protocol, Self

import msgspec

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import BrokerId
from brokerd.model import CONFIGURATION_SERVICE, Route, is_system
from brokerd.routing.address import LOCAL, TRANSPORT, address_in_name, normalise
from brokerd.routing.mirror import Pair

HERE: Final = "(service of this instance)"
"""Name under which step 6 reports the implied LOCAL route (RTE-14)."""
NEAR: Final = "there is a route to {}, which differs by case or blanks only"
BALANCER_LIMIT: Final = 10_000
"""Most names whose turn is remembered; the oldest are dropped (XMT-10)."""


class Candidate(msgspec.Struct, frozen=True):
    """A route in a table, with its address in normal form."""

    route: str
    """Name of the route; of identical ones, the first name (RTE-18)."""
    address: str
    """LOCAL, TRANSPORT, or normalised text; as declared if it is no valid address."""
    valid: bool = True
    service_name: str | None = None
    broker_id: BrokerId | None = None
    expires_at: Instant | None = None
    mirror: str = ""
    """Second address of a mirrored route, in normal form (RTE-50); empty if there is none."""


class Choice(msgspec.Struct, frozen=True):
    """The route chosen for a dialog, kept with it while it is not bound (RTE-29)."""

    route: str
    address: str
    broker_id: BrokerId | None = None
    mirror: str = ""


class Found(msgspec.Struct, frozen=True):
    """The result of the matching steps."""

    step: int
    """Step that matched: 1, 2, 3, 5, 6; 4 = a route is asked for, 7 = none (RTE-8 to RTE-15)."""
    candidates: tuple[Candidate, ...]


Pick = Callable[[tuple[bytes, str, str], int], int]
"""Takes a key (broker, service name, what is picked) and a count of options; returns an index."""


class Picks(Protocol):
    """A way to pick one of several options."""

    def pick(self, key: tuple[bytes, str, str], count: int) -> int:
        """Return the index of one of `count` > 0 options in a fixed order."""
        ...


class Foreseen:
    """Picks as a balancer would from now on, and can repeat its picks.

    So a caller can decide without taking a turn, and then explain what led to the decision."""

    def __init__(self, pick: Pick) -> None:
        self._pick = pick
        self._picked: list[tuple[tuple[bytes, str, str], int]] = []

    def pick(self, key: tuple[bytes, str, str], count: int) -> int:
        """Pick one option and remember it."""
        picked = self._pick(key, count)
        self._picked.append((key, picked))
        return picked

    def again(self) -> Pick:
        """Return a function that repeats the picks, in the same order for each key."""
        left = list(self._picked)

        def pick(key: tuple[bytes, str, str], count: int) -> int:
            at = next((at for at, (picked_for, _) in enumerate(left) if picked_for == key), None)
            return self._pick(key, count) if at is None else left.pop(at)[1]

        return pick


class Balancer:
    """Picks in turn: round robin per (broker, service name), from a random start (RTE-25).

    With `at_random` each pick is drawn instead (`routing.balance=random`).
    """

    def __init__(self, *, rng: Random, at_random: bool = False) -> None:
        self._rng = rng
        self._at_random = at_random
        self._turns: dict[tuple[bytes, str, str], int] = {}

    def pick(self, key: tuple[bytes, str, str], count: int) -> int:
        """Return the index of the next option of `count` > 0 options in a fixed order.

        The key is (broker, service name, what is picked): picking a broker id and picking one of
        its routes take separate turns, or else one would drive the other. A single option takes no
        turn.
        """
        if count == 1:
            return 0
        turn = self._next(key, count)
        if not self._at_random:
            self._turns[key] = turn + 1
        return turn

    def preview(self) -> Pick:
        """Return a function that picks as `pick` would from now on, without taking a turn."""
        turns: dict[tuple[bytes, str, str], int] = {}

        def pick(key: tuple[bytes, str, str], count: int) -> int:
            turn = turns.get(key)
            turn = self._next(key, count) if turn is None else turn % count
            turns[key] = turn + 1
            return turn

        return pick

    def _next(self, key: tuple[bytes, str, str], count: int) -> int:
        if count == 1:
            return 0
        turn = None if self._at_random else self._turns.pop(key, None)
        turn = self._rng.randrange(count) if turn is None else turn % count
        if not self._at_random:
            self._turns[key] = turn
            if len(self._turns) > BALANCER_LIMIT:
                del self._turns[next(iter(self._turns))]
        return turn


class _Alike(msgspec.Struct, frozen=True):
    """The routes with one service name, or with none; of identical ones, the first (RTE-18)."""

    all: tuple[Candidate, ...]
    by_id: dict[BrokerId | None, tuple[Candidate, ...]]
    """The routes of `all` by broker id."""
    expiring: tuple[Candidate, ...] = ()
    """All declared routes if some of them expire; else empty, since nothing changes with time."""

    @classmethod
    def of(cls, candidates: Iterable[Candidate]) -> Self:
        """Make the group of these routes, sorted for choosing."""
        ordered = sorted(candidates, key=_order)
        distinct: dict[tuple[BrokerId | None, str, str], Candidate] = {}
        for one in ordered:
            distinct.setdefault((one.broker_id, one.address, one.mirror), one)
        by_id: dict[BrokerId | None, tuple[Candidate, ...]] = {}
        for one in distinct.values():
            by_id[one.broker_id] = (*by_id.get(one.broker_id, ()), one)
        some = any(one.expires_at is not None for one in ordered)
        return cls(tuple(distinct.values()), by_id, tuple(ordered) if some else ())

    def at(self, now: Instant) -> _Alike:
        """Return the group without the routes that have expired (RTE-3)."""
        if not self.expiring:
            return self
        return _Alike.of(
            one for one in self.expiring if one.expires_at is None or now < one.expires_at
        )


class RoutingTable:
    """The routes of one broker, or of the instance; never changes once built (RTE-1).

    Raises:
        InvalidArgument: a route has a broker id and no service name (RTE-61).
    """

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        named: dict[str, list[Candidate]] = {}
        wild: list[Candidate] = []
        for route in routes:
            candidate = _candidate(route)
            if route.service_name is not None:
                named.setdefault(route.service_name, []).append(candidate)
            elif route.broker_id is None:
                wild.append(candidate)
            else:
                raise InvalidArgument(f"route {route.name}: a broker id needs a service name")
        self._named = {name: _Alike.of(those) for name, those in named.items()}
        self._asks = CONFIGURATION_SERVICE in self._named
        self._wild = _Alike.of(wild)
        self._alike: dict[str, list[str]] | None = None

    def names(self, service_name: str, broker_id: BrokerId) -> bool:
        """Return whether a route, even an expired one, has exactly this name and broker id."""
        named = self._named.get(service_name)
        return named is not None and broker_id in named.by_id

    def near(self, service_name: str) -> str:
        """Return a sentence about routes whose name differs by case or blanks only (NBT-19).

        Empty if there are none."""
        if self._alike is None:
            self._alike = {}
            for name in sorted(self._named):
                self._alike.setdefault(folded(name), []).append(name)
        found = [one for one in self._alike.get(folded(service_name), ()) if one != service_name]
        return NEAR.format(", ".join(map(repr, found))) if found else ""

    def asks_for(self, service_name: str, *, now: Instant) -> bool:
        """Return whether a missing route to this service is asked for (BCN-2, BCN-14)."""
        if not self._asks or service_name == CONFIGURATION_SERVICE or is_system(service_name):
            return False
        return bool(self._named[CONFIGURATION_SERVICE].at(now).all)

    def find(  # noqa: PLR0911  # one return a step
        self,
        service_name: str,
        broker_id: BrokerId | None,
        *,
        now: Instant,
        service_here: bool,
        exempt_local: bool = False,
    ) -> Found:
        """Return the matching routes: those of the first step that yields any (RTE-8 to RTE-15).

        `service_here`: whether a broker of this instance has a service of that name (steps 4, 6).
        `exempt_local`: whether no route is asked for such a service (NBT-17). Expired routes do not
        count (RTE-3); identical ones count once (RTE-18).
        """
        # The steps are in the order of the rules. Step 4 comes before the routes without a name:
        # they are a last resort, used only where no route can be asked for (RTE-12).
        named = self._named.get(service_name)
        if named is not None:
            named = named.at(now)
            if broker_id is not None and (bound := named.by_id.get(broker_id)):
                return Found(1, bound)
            if without_id := named.by_id.get(None):
                return Found(2, without_id)
            if broker_id is None and named.all:
                return Found(3, named.all)
        if self.asks_for(service_name, now=now) and not (exempt_local and service_here):
            return Found(4, ())
        if wild := self._wild.at(now).all:
            return Found(5, wild)
        if broker_id is not None and service_here:
            return Found(6, (Candidate(HERE, LOCAL, service_name=service_name),))
        return Found(7, ())


def choose(
    found: Found,
    *,
    service_name: str,
    broker: bytes,
    usable: Callable[[BrokerId | None], bool],
    previous: Choice | None,
    balancer: Picks,
    avoid: Callable[[str], bool] | None = None,
    barred: Callable[[Candidate], str] | None = None,
) -> Candidate:
    """Choose one of the matching routes, of which there must be one: steps A to D (RTE-19 on).

    A LOCAL route whose service is not here is chosen only if no other remains (RTE-28).

    `broker`: the broker that the table belongs to, b"" for the instance. `usable`: whether the
    service is found in this instance, given the broker id of a LOCAL route. `previous`: an earlier
    choice for this dialog, kept while it is among the matching routes (RTE-29). `avoid`: whether
    other addresses are preferred to this one (NBT-13). `barred`: returns why a route's address may
    not be sent to; such a route is chosen only if all are barred (RTE-72).
    """
    # The kept choice comes before everything, the barred and avoided addresses included: the peer
    # may have the dialog already, and a change would give it two targets (RTE-29, RTE-72).
    if (kept := _kept(found.candidates, previous)) is not None:
        return kept
    candidates = _pick_id(found, service_name, broker, balancer)
    mirrored = [one for one in candidates if one.mirror]
    if mirrored:
        return mirrored[balancer.pick((broker, service_name, "mirrored"), len(mirrored))]
    local = [one for one in candidates if one.address == LOCAL]
    if local and usable(local[0].broker_id):
        return local[0]
    network = [one for one in candidates if one.address not in (LOCAL, TRANSPORT)]
    if network:
        if barred is not None and len(network) > 1:
            network = [one for one in network if not barred(one)] or network
        if avoid is not None:
            network = [one for one in network if not avoid(one.address)] or network
        what = "route" if network[0].broker_id is None else network[0].broker_id.hex()
        return network[balancer.pick((broker, service_name, what), len(network))]
    transport = [one for one in candidates if one.address == TRANSPORT]
    return (transport or local)[0]


def folded(service_name: str) -> str:
    """Return a name without its blanks and differences of case, for comparison."""
    return "".join(service_name.split()).casefold()


def problems(route: Route) -> list[str]:
    """Return the problems of a declared route (END-13, RTE-61 to RTE-63); empty if none."""
    found = []
    try:
        address = normalise(route.address)
    except InvalidArgument as error:
        address = ""
        found.append(error.message)
    if route.broker_id is not None and route.service_name is None:
        found.append("a broker id needs a service name")
    if address == TRANSPORT and route.service_name is not None:
        found.append("TRANSPORT is for routes without service name and broker id")
    if route.service_name == CONFIGURATION_SERVICE and route.broker_id is not None:
        found.append(f"a route for {CONFIGURATION_SERVICE} may not have a broker id")
    return found + (_mirror_problems(route, address) if route.mirror else [])


def _mirror_problems(route: Route, address: str) -> list[str]:
    """Return the problems of the second address of a route (RTE-50)."""
    try:
        mirror = normalise(route.mirror)
    except InvalidArgument as error:
        return [error.message]
    found = []
    if route.service_name is None or route.broker_id is None:
        found.append("a mirrored route needs service name and broker id")
    if {mirror, address} & {LOCAL, TRANSPORT}:
        found.append("LOCAL and TRANSPORT have no mirror")
    elif mirror == address:
        found.append("address and mirror are the same")
    return found


def destination(candidate: Candidate, service_name: str) -> str | None:
    """Return the normalised address that a network or TRANSPORT route leads to.

    None means that the address is invalid."""
    if candidate.address == TRANSPORT:
        return address_in_name(service_name)
    return candidate.address if candidate.valid else None


def _candidate(route: Route) -> Candidate:
    try:
        address, valid = normalise(route.address), True
    except InvalidArgument:
        address, valid = route.address, False
    mirror = _normal_or_none(route.mirror) if valid else ""
    return Candidate(
        route.name, address, valid, route.service_name, route.broker_id, route.expires_at, mirror
    )


def _normal_or_none(mirror: str) -> str:
    try:
        return normalise(mirror) if mirror else ""
    except InvalidArgument:
        return ""


def choice_of(route: Route) -> Choice:
    """Return the choice of a route, whose name alone is stored with a dialog (RTE-29)."""
    candidate = _candidate(route)
    return chosen_as(candidate)


def pair_of(route: Route) -> Pair | None:
    """Return the two addresses of a mirrored route (RTE-50); None for any other route."""
    candidate = _candidate(route)
    if not candidate.mirror or candidate.broker_id is None:
        return None
    return Pair(candidate.address, candidate.mirror, candidate.broker_id)


def places(route: Route) -> frozenset[str]:
    """Return the valid addresses of a route, its mirror included, in normal form."""
    candidate = _candidate(route)
    addresses = (candidate.address, candidate.mirror) if candidate.valid else ()
    return frozenset(one for one in addresses if one)


def chosen_as(candidate: Candidate) -> Choice:
    """Return the part of the chosen route that is kept with a dialog."""
    return Choice(candidate.route, candidate.address, candidate.broker_id, candidate.mirror)


def _order(candidate: Candidate) -> tuple[bytes, str, str]:
    return candidate.broker_id or b"", candidate.address + candidate.mirror, candidate.route


def _with_id(candidates: Sequence[Candidate], broker_id: BrokerId | None) -> tuple[Candidate, ...]:
    return tuple(one for one in candidates if one.broker_id == broker_id)


def _kept(candidates: Sequence[Candidate], previous: Choice | None) -> Candidate | None:
    """Return the earlier choice if it still matches, by its addresses or else by its name.

    None if it does not match any more, or if no choice was made."""
    if previous is None:
        return None
    same_id = [one for one in candidates if one.broker_id == previous.broker_id]
    for one in same_id:
        if (one.address, one.mirror) == (previous.address, previous.mirror):
            return one
    return next((one for one in same_id if one.route == previous.route), None)


def _pick_id(
    found: Found, service_name: str, broker: bytes, balancer: Picks
) -> tuple[Candidate, ...]:
    """Pick one broker id and return its routes, if step 3 matched (RTE-10); else all routes."""
    if found.step != 3:  # noqa: PLR2004  # the steps have no better names than their numbers
        return found.candidates
    ids = sorted({one.broker_id for one in found.candidates if one.broker_id is not None})
    picked = ids[balancer.pick((broker, service_name, "id"), len(ids))]
    return _with_id(found.candidates, picked)
