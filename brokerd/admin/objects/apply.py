"""Applying a declaration: the difference first, then all of it or nothing (design D9, MAN-14).

Reads: a broker's catalog and its endpoints.      Calls: objects.diff, terminate, storage.
Never: drops an object that open dialogs need, unless ordered to; changes two brokers in one commit.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from brokerd.admin.objects.rebind import apply_moving, rebound
from brokerd.admin.objects.terminate import (
    CONTRACT_DROPPED,
    SERVICE_ALTERED,
    SERVICE_DROPPED,
    Ending,
    Tell,
    terminate,
)
from brokerd.broker.broker import Broker
from brokerd.clock import Instant
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import InUse
from brokerd.model import (
    AUTO_CREATED_LOCAL,
    MSDB,
    Contract,
    EventNotification,
    MessageType,
    Priority,
    Queue,
    Route,
    Service,
)
from brokerd.objects.declared import TABLES, Action, Change, Declared, Kind, diff, is_built_in
from brokerd.protocol.transitions import State
from brokerd.storage.catalog import Catalog, CatalogChanges
from brokerd.storage.changes import Changes
from brokerd.storage.references import Use, in_use

_V = TypeVar("_V", MessageType, Contract, Queue, Service, Priority, Route, EventNotification)

_FORCE = "let the dialogs end first, keep the object, or end them with --terminate-existing"


def present(broker: Broker, instance: Broker) -> Declared:
    """Return the present objects of a broker in the form of a declaration."""
    catalog: Catalog = broker.store.catalog
    identity = broker.store.identity
    return Declared(
        broker=broker.name,
        default_encryption=identity.default_encryption,
        honor_priority=identity.honor_priority,
        message_types=_own(Kind.MESSAGE_TYPE, catalog.message_types),
        contracts=_own(Kind.CONTRACT, catalog.contracts),
        queues=_own(Kind.QUEUE, catalog.queues),
        services=_own(Kind.SERVICE, catalog.services),
        priorities=_own(Kind.PRIORITY, catalog.priorities),
        routes=catalog.routes,
        instance_routes=instance.store.catalog.routes,
        event_notifications=_own(Kind.EVENT_NOTIFICATION, catalog.event_notifications),
    )


def difference(broker: Broker, instance: Broker, wanted: Declared) -> list[Change]:
    """Return the changes that applying the declaration would make, in order."""
    return diff(present(broker, instance), wanted, now=broker.clock.utc())


def creation(wanted: Declared, others: Iterable[str]) -> Change:
    """Return the change that makes a broker; opening its store performs it.

    If other brokers exist, the new name may be a misspelt name of one of them: its sentence says
    so.
    """
    names = sorted(name for name in others if name != MSDB)
    beside = f", a new one beside {', '.join(names)}" if names else ""
    return Change(
        action=Action.CREATE,
        kind=Kind.BROKER,
        name=wanted.broker,
        sentence=f"broker {wanted.broker} is created{beside}{did_you_mean(wanted.broker, names)}",
    )


def against_nothing(wanted: Declared, instance: Broker) -> list[Change]:
    """Return the changes for a broker to be made, which begins with one route (RTE-68)."""
    nothing = Declared(
        broker=wanted.broker,
        default_encryption=wanted.default_encryption,
        routes={AUTO_CREATED_LOCAL.name: AUTO_CREATED_LOCAL},
        instance_routes=instance.store.catalog.routes,
    )
    return diff(nothing, wanted)


async def refuse_in_use(broker: Broker, changes: Sequence[Change]) -> None:
    """Raise `InUse`, with their number, if open dialogs need what is dropped (OBJ-37, OBJ-38)."""
    needed = [one.use for one in endings_of(broker, changes) if one.target_of is None]
    if not needed:
        return
    stored = await broker.store.count_uses(needed)
    live = [_in_memory(broker, use) for use in needed]
    for use, found in zip(needed, map(max, stored, live), strict=True):
        if found:
            raise InUse(in_use(use, found), hint=_FORCE)


async def apply(
    broker: Broker,
    instance: Broker,
    changes: Sequence[Change],
    *,
    tell: Tell,
    terminate_existing: bool = False,
) -> None:
    """Make the changes: those of the broker in one commit, those of `msdb` in another.

    `terminate_existing`: first end the dialogs that need what is dropped, and notify their far
    sides; that is many commits, and a crash leaves the objects and the rest of the dialogs. Raises
    `InUse` or `ObjectsRefused` with nothing changed.
    """
    now = broker.clock.utc()
    own = [one for one in changes if one.kind is not Kind.INSTANCE_ROUTE]
    shared = [one for one in changes if one.kind is Kind.INSTANCE_ROUTE]
    endings = endings_of(broker, own)
    if not terminate_existing:
        await refuse_in_use(broker, own)
        endings = [one for one in endings if one.target_of is None]
    # No dialog may begin that needs a dropped object while its users are counted, in memory and in
    # the store, or ended.
    if own:
        needed = tuple(one.use for one in endings if one.target_of is None)
        broker.close_objects(
            services={use.service for use in needed if use.service},
            contracts={use.contract for use in needed if use.contract},
        )
        try:
            if endings and terminate_existing:
                await terminate(broker, endings, tell)
            elif needed:  # a dialog that began since is in memory; none begins from here on
                _refuse_live(broker, needed)
                await broker.store.commit(Changes())  # writes to the store what joined by now
            catalog = await _commit(broker, own, catalog_changes(own, now, needed))
        except BaseException:
            broker.close_objects()
            raise
        broker.use_catalog(catalog)
        _forget_closed(broker)
    if shared:
        instance.use_catalog(await instance.store.apply_catalog(catalog_changes(shared, now)))


async def _commit(broker: Broker, own: Sequence[Change], changes: CatalogChanges) -> Catalog:
    moved = rebound(broker, own)
    if moved:
        return await apply_moving(broker, changes, moved)
    return await broker.store.apply_catalog(changes)


def endings_of(broker: Broker, changes: Iterable[Change]) -> list[Ending]:
    """Return the dialogs that need what these changes drop, and the errors for their peers."""
    endings: list[Ending] = []
    for one in changes:
        gone = one.action in (Action.DROP, Action.REPLACE)
        if one.kind is Kind.SERVICE and gone:
            text = f"service {one.name!r} has been dropped"
            endings.append(Ending(Use(service=one.name), SERVICE_DROPPED, text))
        elif one.kind is Kind.CONTRACT and gone:
            text = f"contract {one.name!r} has been dropped"
            endings.append(Ending(Use(contract=one.name), CONTRACT_DROPPED, text))
        elif isinstance(one.value, Service) and one.name in broker.services:
            for contract in sorted(broker.services[one.name].contracts - one.value.contracts):
                text = f"service {one.name!r} does not accept contract {contract!r} any more"
                endings.append(Ending(Use(contract=contract), SERVICE_ALTERED, text, one.name))
    return endings


def catalog_changes(
    changes: Iterable[Change], now: Instant, unused: tuple[Use, ...] = ()
) -> CatalogChanges:
    """Return the changes in the form that the store takes."""
    put: dict[Kind, list[object]] = {}
    dropped: dict[Kind, list[str]] = {}
    options: dict[str, bool] = {}
    for one in changes:
        kind = Kind.ROUTE if one.kind is Kind.INSTANCE_ROUTE else one.kind
        if one.option is not None:
            options |= [one.option]
        elif one.action is Action.DROP:
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
        priorities=_of(put.get(Kind.PRIORITY), Priority),
        routes=_of(put.get(Kind.ROUTE), Route),
        event_notifications=_of(put.get(Kind.EVENT_NOTIFICATION), EventNotification),
        options=options,
        unused=unused,
        **{f"dropped_{TABLES[kind]}": tuple(names) for kind, names in dropped.items()},
    )


def _in_memory(broker: Broker, use: Use) -> int:
    return sum(
        use.is_open(one.endpoint.service, one.endpoint.contract, one.endpoint.state)
        for one in broker.endpoints.all()
    )


def _refuse_live(broker: Broker, needed: Iterable[Use]) -> None:
    for use in needed:
        if found := _in_memory(broker, use):
            raise InUse(in_use(use, found), hint=_FORCE)


def _forget_closed(broker: Broker) -> None:
    """Forget endpoints of dropped services, kept only to recognise repeats: their rows are gone."""
    for live in broker.endpoints.all():
        if live.endpoint.service not in broker.services:
            assert live.endpoint.state is State.CLOSED, "a service was dropped with open dialogs"
            broker.forget(live)


def _own(kind: Kind, objects: dict[str, _V]) -> dict[str, _V]:
    return {name: value for name, value in objects.items() if not is_built_in(kind, name)}


def _of(values: list[object] | None, kind: type[_V]) -> tuple[_V, ...]:
    return tuple(value for value in values or () if isinstance(value, kind))
