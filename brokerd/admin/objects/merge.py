"""Merge: combines a declaration with the broker's objects, so that applying it drops nothing.

PURE.   Reads:  the objects of a broker, and the wanted ones.      Calls: nothing.
Never:  drops an object. A program only adds missing objects (SDK-4); the file of a start also
        alters the objects that it names, and keeps objects that were made since.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from brokerd.errors import ActivationConflict, ObjectsRefused
from brokerd.model import Contract, Route, Service
from brokerd.objects.declared import Declared
from brokerd.objects.notifications import activated_twice

_V = TypeVar("_V")


def add_missing(have: Declared, wanted: Declared) -> Declared:
    """Return the objects of a broker, and the wanted objects that it lacks.

    An existing service becomes a target for further contracts, and keeps its queue. Raises
    `ObjectsRefused` if a contract exists with other types, so that the two sides would not
    understand each other, and `ActivationConflict` if a queue would have both internal and
    external activation.
    """
    for name, contract in wanted.contracts.items():
        _refuse_another(have.contracts.get(name), contract)
    instance_routes = have.instance_routes
    if wanted.instance_routes is not None:
        instance_routes = _added(have.instance_routes or {}, wanted.instance_routes)
    services = _added(have.services, wanted.services)
    for name, service in wanted.services.items():
        services[name] = _with_contracts(services[name], service)
    notifications = _added(have.event_notifications, wanted.event_notifications)
    queues = _added(have.queues, wanted.queues)
    for queue, notification in activated_twice(queues.values(), notifications.values()):
        raise ActivationConflict(
            f"queue {queue} has activation of its own, and event notification {notification} is "
            "for its QUEUE_ACTIVATION: one excludes the other; nothing was changed",
            ssb_code=9718,
        )
    return msgspec.structs.replace(
        have,
        message_types=_added(have.message_types, wanted.message_types),
        contracts=_added(have.contracts, wanted.contracts),
        queues=queues,
        services=services,
        priorities=_added(have.priorities, wanted.priorities),
        routes=_added(have.routes, wanted.routes),
        instance_routes=instance_routes,
        remote_service_bindings=_added(
            have.remote_service_bindings, wanted.remote_service_bindings
        ),
        event_notifications=notifications,
        lifetimes={
            name: seconds for name, seconds in wanted.lifetimes.items() if _is_new(name, have)
        },
        warnings=wanted.warnings,
    )


def keep_undeclared(have: Declared, wanted: Declared) -> Declared:
    """Return the wanted objects, and other objects that programs or operators made in the broker.

    A file that is applied at every start must not drop objects made since, or a restart would end
    their dialogs; a wanted service keeps the contracts it has (SDK-4).
    """
    instance_routes = wanted.instance_routes
    if instance_routes is not None:
        instance_routes = _added(instance_routes, have.instance_routes or {})
    services = _added(wanted.services, have.services)
    for name in wanted.services.keys() & have.services.keys():
        services[name] = _with_contracts(services[name], have.services[name])
    return msgspec.structs.replace(
        wanted,
        message_types=_added(wanted.message_types, have.message_types),
        contracts=_added(wanted.contracts, have.contracts),
        queues=_added(wanted.queues, have.queues),
        services=services,
        priorities=_added(wanted.priorities, have.priorities),
        routes=_added(wanted.routes, have.routes),
        instance_routes=instance_routes,
        remote_service_bindings=_added(
            wanted.remote_service_bindings, have.remote_service_bindings
        ),
        event_notifications=_added(wanted.event_notifications, have.event_notifications),
    )


def _added(have: Mapping[str, _V], wanted: Mapping[str, _V]) -> dict[str, _V]:
    return {**wanted, **have}


def _with_contracts(have: Service, wanted: Service) -> Service:
    return msgspec.structs.replace(have, contracts=have.contracts | wanted.contracts)


def _refuse_another(have: Contract | None, wanted: Contract) -> None:
    if have is not None and have.types != wanted.types:
        raise ObjectsRefused(
            f"contract {wanted.name} is there with other types: {_show(have)}, "
            f"and not {_show(wanted)}; nothing was changed",
            hint="a contract cannot be altered (OBJ-25): give the new one a name of its own, "
            "such as orders/v2",
        )


def _show(contract: Contract) -> str:
    return ", ".join(f"{name} by {who}" for name, who in sorted(contract.types.items()))


def _is_new(key: str, have: Declared) -> bool:
    """Return whether a lifetime, with the key `route NAME`, is for a new route."""
    kind, _, name = key.partition(" ")
    routes: Mapping[str, Route] = have.routes if kind == "route" else have.instance_routes or {}
    return name not in routes
