"""Applying a declaration: the difference first, then all of it or nothing (design D9, MAN-14).

Reads: a broker's catalog and its endpoints.      Calls: objects.diff, storage.
Never: drops what has live dialogs.
"""

from collections.abc import Iterable
from typing import TypeVar

from brokerd.broker.broker import Broker
from brokerd.clock import Instant
from brokerd.errors import ObjectsRefused
from brokerd.model import Contract, MessageType, Queue, Route, Service
from brokerd.objects import Action, Change, Declared, Kind, diff, is_built_in
from brokerd.protocol.transitions import State
from brokerd.storage.catalog import Catalog, CatalogChanges

_V = TypeVar("_V", MessageType, Contract, Queue, Service, Route)

MOST_LOOKED_AT = 100_000
"""Endpoints looked at for live dialogs of an object that is to go."""


def present(broker: Broker, instance: Broker) -> Declared:
    """What a broker has now, in the form of a declaration."""
    catalog: Catalog = broker.store.catalog
    return Declared(
        broker=broker.name,
        default_encryption=broker.store.identity.default_encryption,
        message_types=_own(Kind.MESSAGE_TYPE, catalog.message_types),
        contracts=_own(Kind.CONTRACT, catalog.contracts),
        queues=_own(Kind.QUEUE, catalog.queues),
        services=_own(Kind.SERVICE, catalog.services),
        routes=_own(Kind.ROUTE, catalog.routes),
        instance_routes=_own(Kind.INSTANCE_ROUTE, instance.store.catalog.routes),
    )


def difference(broker: Broker, instance: Broker, wanted: Declared) -> list[Change]:
    """What applying the declaration would change, in order."""
    return diff(present(broker, instance), wanted, now=broker.clock.utc())


def against_nothing(wanted: Declared, instance: Broker) -> list[Change]:
    """The same for a broker that does not exist yet."""
    nothing = Declared(
        broker=wanted.broker,
        default_encryption=wanted.default_encryption,
        instance_routes=_own(Kind.INSTANCE_ROUTE, instance.store.catalog.routes),
    )
    return diff(nothing, wanted)


async def apply(broker: Broker, instance: Broker, changes: list[Change]) -> None:
    """Make the changes: those of the broker in one transaction, those of `msdb` in another.

    `ObjectsRefused`: an object that is to go has live dialogs; nothing was changed."""
    await _refuse_in_use(broker, changes)
    now = broker.clock.utc()
    own = [one for one in changes if one.kind is not Kind.INSTANCE_ROUTE]
    shared = [one for one in changes if one.kind is Kind.INSTANCE_ROUTE]
    for one in own:
        if one.kind is Kind.BROKER and one.default_encryption is not None:
            await broker.store.set_default_encryption(one.default_encryption)
    if any(one.kind is not Kind.BROKER for one in own):
        broker.use_catalog(await broker.store.apply_catalog(catalog_changes(own, now)))
    if shared:
        instance.use_catalog(await instance.store.apply_catalog(catalog_changes(shared, now)))


def catalog_changes(changes: Iterable[Change], now: Instant) -> CatalogChanges:
    """The changes in the form the store takes."""
    put: dict[Kind, list[object]] = {}
    dropped: dict[Kind, list[str]] = {}
    for one in changes:
        kind = Kind.ROUTE if one.kind is Kind.INSTANCE_ROUTE else one.kind
        if one.action is Action.DROP:
            dropped.setdefault(kind, []).append(one.name)
        elif kind is Kind.ROUTE:
            put.setdefault(kind, []).append(one.route_at(now))
        elif one.value is not None:
            put.setdefault(kind, []).append(one.value)
    return CatalogChanges(
        message_types=_of(put.get(Kind.MESSAGE_TYPE), MessageType),
        contracts=_of(put.get(Kind.CONTRACT), Contract),
        queues=_of(put.get(Kind.QUEUE), Queue),
        services=_of(put.get(Kind.SERVICE), Service),
        routes=_of(put.get(Kind.ROUTE), Route),
        dropped_message_types=tuple(dropped.get(Kind.MESSAGE_TYPE, ())),
        dropped_contracts=tuple(dropped.get(Kind.CONTRACT, ())),
        dropped_queues=tuple(dropped.get(Kind.QUEUE, ())),
        dropped_services=tuple(dropped.get(Kind.SERVICE, ())),
        dropped_routes=tuple(dropped.get(Kind.ROUTE, ())),
    )


async def _refuse_in_use(broker: Broker, changes: list[Change]) -> None:
    """Refuse to drop, replace or rebind what open dialogs use, with their number."""
    risky = [
        one
        for one in changes
        if one.action in (Action.DROP, Action.REPLACE)
        and one.kind in (Kind.SERVICE, Kind.CONTRACT, Kind.QUEUE)
    ]
    for one in changes:
        if one.kind is Kind.SERVICE and isinstance(one.value, Service):
            known = broker.services.get(one.name)
            if known is not None and known.queue != one.value.queue:
                risky.append(one)
    if not risky:
        return
    endpoints = await broker.store.conversation_endpoints(MOST_LOOKED_AT)
    for one in risky:
        using = 0
        for endpoint in endpoints:
            if endpoint.state is State.CLOSED:
                continue
            service = broker.services.get(endpoint.service)
            queue = service.queue if service is not None else ""
            name = {
                Kind.SERVICE: endpoint.service,
                Kind.CONTRACT: endpoint.contract,
                Kind.QUEUE: queue,
            }[one.kind]
            using += name == one.name
        if using:
            raise ObjectsRefused(
                f"{one.kind} {one.name} has {using} open dialogs; nothing was changed",
                hint="let the dialogs end first, or keep the object in the file",
            )


def _own(kind: Kind, objects: dict[str, _V]) -> dict[str, _V]:
    return {name: value for name, value in objects.items() if not is_built_in(kind, name)}


def _of(values: list[object] | None, kind: type[_V]) -> tuple[_V, ...]:
    return tuple(value for value in values or () if isinstance(value, kind))
