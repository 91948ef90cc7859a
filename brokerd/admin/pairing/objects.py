"""Objects of a pairing: the routes and bindings for the services of the other instance (SEC-61).

PURE.   Reads: the objects of a broker.      Calls: nothing.
Never:  changes a route or a binding that was not made by pairing with that peer.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from brokerd.model import Route
from brokerd.objects.declared import Declared
from brokerd.objects.keys import MAX_NAME
from brokerd.security.bindings import Binding

_V = TypeVar("_V")
_TOLD: Final = "leave it, or drop it and pair again"


class PeerServices(msgspec.Struct, frozen=True, kw_only=True):
    """A peer, as routes and bindings name it."""

    principal: str
    address: str
    services: tuple[str, ...]
    is_secured: bool
    """Whether it has a dialog certificate; without one no binding can be used."""

    def object_name(self, service: str) -> str:
        """Return the name of the route and of the binding for a service."""
        return f"{self.principal.partition(':')[2]}/{service}"[:MAX_NAME]


def with_peer(have: Declared, peer: PeerServices) -> tuple[Declared, dict[str, str]]:
    """Return the objects of a broker with those for a peer, and why services were left out.

    Routes and bindings of an earlier pairing with the peer, for services that it no longer has, are
    dropped."""
    left_out: dict[str, str] = {}
    routes, bindings = _without(have.routes, peer), _without_bindings(have, peer)
    for service in peer.services:
        why = _why_not(have, peer, service, routes, bindings)
        if why:
            left_out[service] = why
            continue
        name = peer.object_name(service)
        if not any(one.service_name == service for one in routes.values()):
            routes[name] = Route(name=name, service_name=service, address=peer.address)
        if peer.is_secured and not any(one.service_name == service for one in bindings.values()):
            bindings[name] = Binding(name, service, peer.principal)
    return msgspec.structs.replace(have, routes=routes, remote_service_bindings=bindings), left_out


def restored(before: Declared, now: Declared, peer: PeerServices) -> Declared:
    """Return the present objects with the routes and bindings of a pairing as they were before."""

    def back(old: Mapping[str, _V], new: Mapping[str, _V]) -> dict[str, _V]:
        prefix = peer.object_name("")
        kept = {name: one for name, one in new.items() if not name.startswith(prefix)}
        return kept | {name: one for name, one in old.items() if name.startswith(prefix)}

    return msgspec.structs.replace(
        now,
        routes=back(before.routes, now.routes),
        remote_service_bindings=back(before.remote_service_bindings, now.remote_service_bindings),
    )


def keep_paired(
    have: Declared, wanted: Declared, *, has_principal: Callable[[str], bool]
) -> Declared:
    """Return the wanted objects, and those that pairing made and that nothing in them replaces.

    A file cannot declare what pairing will make, so applying one must not undo it (SEC-80)."""
    routed = {one.service_name for one in wanted.routes.values()} | wanted.services.keys()
    bound = {one.service_name for one in wanted.remote_service_bindings.values()}
    routes = {
        name: one
        for name, one in have.routes.items()
        if one.service_name not in routed
        and one.service_name is not None
        and has_principal(_paired(name, one.service_name))
    }
    bindings = {
        name: one
        for name, one in have.remote_service_bindings.items()
        if one.service_name not in bound | wanted.services.keys()
        and one.principal == _paired(name, one.service_name)
        and has_principal(one.principal)
    }
    return msgspec.structs.replace(
        wanted,
        routes={**routes, **wanted.routes},
        remote_service_bindings={**bindings, **wanted.remote_service_bindings},
    )


def _paired(name: str, service: str) -> str:
    """Return the principal whose pairing made the object of this name; empty = none did."""
    principal = f"peer:{name.partition('/')[0]}"
    peer = PeerServices(principal=principal, address="", services=(), is_secured=True)
    return principal if name == peer.object_name(service) else ""


def _without(routes: Mapping[str, Route], peer: PeerServices) -> dict[str, Route]:
    """Return the routes that pairing with the peer has not made."""
    return {
        name: one
        for name, one in routes.items()
        if one.service_name is None or name != peer.object_name(one.service_name)
    }


def _without_bindings(have: Declared, peer: PeerServices) -> dict[str, Binding]:
    return {
        name: one
        for name, one in have.remote_service_bindings.items()
        if one.principal != peer.principal or name != peer.object_name(one.service_name)
    }


def _why_not(
    have: Declared,
    peer: PeerServices,
    service: str,
    routes: Mapping[str, Route],
    bindings: Mapping[str, Binding],
) -> str:
    """Return why nothing is made for a service; empty = something is."""
    if service in have.services:
        return "this broker has a service of that name, so dialogs stay here"
    other = next((one for one in routes.values() if one.service_name == service), None)
    if other is not None and (other.address != peer.address or other.broker_id is not None):
        return f"route {other.name!r} leads to {other.address}; {_TOLD}"
    bound = next((one for one in bindings.values() if one.service_name == service), None)
    if bound is not None and bound.principal != peer.principal:
        return f"binding {bound.name!r} is for {bound.principal}; {_TOLD}"
    name = peer.object_name(service)
    if other is None and name in routes:
        return f"another route is called {name!r}; {_TOLD}"
    if bound is None and name in bindings:
        return f"another binding is called {name!r}; {_TOLD}"
    return ""
