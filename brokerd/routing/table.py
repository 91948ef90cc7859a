"""Routing table: finds the routes that match a service name and broker (RTE-8 to RTE-15).

Reads:  routes, once, when a table is built; a change builds a new table.
Calls:  address.
Never:  chooses among several matching routes (`choice.py`), or reads a clock (`now` is an
        argument).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final, Self

import msgspec

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import BrokerId
from brokerd.model import CONFIGURATION_SERVICE, Route, is_system
from brokerd.routing.address import LOCAL, TRANSPORT, address_in_name, normalise
from brokerd.routing.mirror import Pair
from brokerd.routing.notes import Finding, Notes

HERE: Final = "(service of this instance)"
"""Name under which step 6 reports the implied LOCAL route (RTE-14)."""
NEAR: Final = "there is a route to {}, which differs by case or blanks only"


class Candidate(msgspec.Struct, frozen=True):
    """A route in a table, with its address in normal form."""

    route: str
    """Name of the route; of several identical routes, the first name (RTE-18)."""
    address: str
    """Address: LOCAL, TRANSPORT or normalised text; as declared if it is invalid."""
    valid: bool = True
    service_name: str | None = None
    broker_id: BrokerId | None = None
    expires_at: Instant | None = None
    mirror: str = ""
    """Second address of a mirrored route, in normal form (RTE-50); else empty."""


class Found(msgspec.Struct, frozen=True):
    """The result of the matching steps."""

    step: int
    """Step that matched: 1, 2, 3, 5, 6; 4 = a route is requested, 7 = none (RTE-8 to RTE-15)."""
    candidates: tuple[Candidate, ...]


class _Alike(msgspec.Struct, frozen=True):
    """The routes for one service name, or those that name no service.

    Of identical routes only the first is in the group (RTE-18)."""

    all: tuple[Candidate, ...]
    by_id: dict[BrokerId | None, tuple[Candidate, ...]]
    """The routes of `all` by broker id."""
    expiring: tuple[Candidate, ...] = ()
    """All declared routes if some of them expire; else empty, as time then changes nothing."""

    @classmethod
    def from_candidates(cls, candidates: Iterable[Candidate]) -> Self:
        """Create the group of these routes, sorted for choosing."""
        ordered = sorted(candidates, key=_order)
        distinct: dict[tuple[BrokerId | None, str, str], Candidate] = {}
        for one in ordered:
            distinct.setdefault((one.broker_id, one.address, one.mirror), one)
        by_id: dict[BrokerId | None, tuple[Candidate, ...]] = {}
        for one in distinct.values():
            by_id[one.broker_id] = (*by_id.get(one.broker_id, ()), one)
        some = any(one.expires_at is not None for one in ordered)
        return cls(tuple(distinct.values()), by_id, tuple(ordered) if some else ())

    def expired(self, now: Instant) -> list[Candidate]:
        """Return the routes that have expired."""
        return [
            one for one in self.expiring if one.expires_at is not None and one.expires_at <= now
        ]

    def at(self, now: Instant) -> _Alike:
        """Return the group without the routes that have expired (RTE-3)."""
        if not self.expiring:
            return self
        return _Alike.from_candidates(
            one for one in self.expiring if one.expires_at is None or now < one.expires_at
        )


_NONE: Final = _Alike((), {})


class RoutingTable:
    """The routes of one broker, or of the instance; never changes once built (RTE-1).

    Raises:
        InvalidArgument: a route has a broker id and no service name (RTE-61).
    """

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        named: dict[str, list[Candidate]] = {}
        wild: list[Candidate] = []
        for route in routes:
            candidate = candidate_of(route)
            if route.service_name is not None:
                named.setdefault(route.service_name, []).append(candidate)
            elif route.broker_id is None:
                wild.append(candidate)
            else:
                raise InvalidArgument(f"route {route.name}: a broker id needs a service name")
        self._named = {name: _Alike.from_candidates(those) for name, those in named.items()}
        self._asks = CONFIGURATION_SERVICE in self._named
        self._wild = _Alike.from_candidates(wild)
        self._alike: dict[str, list[str]] | None = None

    def names(self, service_name: str, broker_id: BrokerId) -> bool:
        """Return whether a route, even an expired one, has exactly this name and broker id."""
        named = self._named.get(service_name)
        return named is not None and broker_id in named.by_id

    def near(self, service_name: str, *, now: Instant, notes: Notes | None = None) -> str:
        """Return a sentence about routes whose name differs by case or blanks only (NBT-19).

        Expired routes do not count; the sentence is empty if no route is left."""
        if self._alike is None:
            self._alike = {}
            for name in sorted(self._named):
                self._alike.setdefault(folded(name), []).append(name)
        names = [one for one in self._alike.get(folded(service_name), ()) if one != service_name]
        found = {name: live for name in names if (live := self._named[name].at(now).all)}
        if not found:
            return ""
        sentence = NEAR.format(", ".join(map(repr, found)))
        if notes is not None:
            notes.add(Finding.NEAR, sentence, routes=list(chain.from_iterable(found.values())))
        return sentence

    def asks_for(self, service_name: str, *, now: Instant) -> bool:
        """Return whether a missing route to this service is requested (BCN-2, BCN-14)."""
        if not self._asks or service_name == CONFIGURATION_SERVICE or is_system(service_name):
            return False
        return bool(self._named[CONFIGURATION_SERVICE].at(now).all)

    def find(  # noqa: C901, PLR0911, PLR0912  # one return a step
        self,
        service_name: str,
        broker_id: BrokerId | None,
        *,
        now: Instant,
        service_here: bool,
        exempt_local: bool = False,
        notes: Notes | None = None,
    ) -> Found:
        """Return the matching routes: those of the first step that yields any (RTE-8 to RTE-15).

        `service_here`: whether a broker of this instance has a service of that name (steps 4, 6).
        `exempt_local`: whether no route is requested for such a service (NBT-17). Expired routes do
        not count (RTE-3); identical ones count once (RTE-18).
        """
        # The steps are in the order of the rules. Step 4 comes before the routes without a name:
        # these are a last resort, used only where no route can be requested (RTE-12).
        declared = self._named.get(service_name, _NONE)
        if notes is not None:
            for one in sorted((*declared.expired(now), *self._wild.expired(now)), key=_by_name):
                notes.add(Finding.EXPIRED, one.route)
        named = declared.at(now)
        if broker_id is not None:
            bound = named.by_id.get(broker_id, ())
            if notes is not None:
                notes.add(Finding.NAME_AND_BROKER, routes=bound)
            if bound:
                return Found(1, bound)
        without_id = named.by_id.get(None, ())
        if notes is not None:
            notes.add(Finding.NAME_ALONE, routes=without_id)
        if without_id:
            return Found(2, without_id)
        if broker_id is None:
            if notes is not None:
                notes.add(Finding.NAME_AND_SOME_BROKER, routes=named.all)
            if named.all:
                return Found(3, named.all)
        if self.asks_for(service_name, now=now):
            if not (exempt_local and service_here):
                if notes is not None:
                    asked = self._named[CONFIGURATION_SERVICE].at(now).all
                    notes.add(Finding.REQUESTED, routes=asked)
                return Found(4, ())
            if notes is not None:
                notes.add(Finding.REQUEST_EXEMPT)
        wild = self._wild.at(now).all
        if notes is not None:
            notes.add(Finding.NEITHER, routes=wild)
        if wild:
            return Found(5, wild)
        if notes is not None and broker_id is not None:
            notes.add(Finding.SERVICE_HERE if service_here else Finding.SERVICE_NOT_HERE)
        if broker_id is not None and service_here:
            return Found(6, (Candidate(HERE, LOCAL, service_name=service_name),))
        return Found(7, ())


def folded(service_name: str) -> str:
    """Return a name without its blanks and case, for comparison."""
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
    """Return the normalised address of a network or TRANSPORT route.

    None means that the address is invalid."""
    if candidate.address == TRANSPORT:
        return address_in_name(service_name)
    return candidate.address if candidate.valid else None


def candidate_of(route: Route) -> Candidate:
    """Return the candidate for a route, as a table stores it."""
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


def pair_of(route: Route) -> Pair | None:
    """Return the two addresses of a mirrored route (RTE-50); None for any other route."""
    candidate = candidate_of(route)
    if not candidate.mirror or candidate.broker_id is None:
        return None
    return Pair(candidate.address, candidate.mirror, candidate.broker_id)


def places(route: Route) -> frozenset[str]:
    """Return the valid addresses of a route, including its mirror, in normal form."""
    candidate = candidate_of(route)
    addresses = (candidate.address, candidate.mirror) if candidate.valid else ()
    return frozenset(one for one in addresses if one)


def _by_name(candidate: Candidate) -> str:
    return candidate.route


def _order(candidate: Candidate) -> tuple[bytes, str, str]:
    return candidate.broker_id or b"", candidate.address + candidate.mirror, candidate.route
