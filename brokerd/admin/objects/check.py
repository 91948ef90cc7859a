"""Check: the objects that a broker has now, and the reasons that forbid applying a plan to it.

Reads:  a broker's catalog and its endpoints, in memory and in the store.
Never:  changes anything. `apply.py` closes the dropped objects and checks again, since a dialog may
        begin after this check.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from brokerd.admin.objects.plan import Plan
from brokerd.broker.broker import Broker
from brokerd.errors import InUse, ObjectNotFound
from brokerd.objects.declared import Declared, Kind, is_built_in
from brokerd.security.bindings import Binding
from brokerd.storage.rows.references import Use, in_use

_V = TypeVar("_V")

_WAY_OUT = "let the dialogs end first, keep the object, or end them with --terminate-existing"


def present(broker: Broker, instance: Broker) -> Declared:
    """Return the objects of a broker, in the form of a declaration."""
    catalog = broker.store.catalog
    identity = broker.store.identity
    return Declared(
        broker=broker.name,
        default_encryption=identity.default_encryption,
        honor_priority=identity.honor_priority,
        message_types=_declarable(Kind.MESSAGE_TYPE, catalog.message_types),
        contracts=_declarable(Kind.CONTRACT, catalog.contracts),
        queues=_declarable(Kind.QUEUE, catalog.queues),
        services=_declarable(Kind.SERVICE, catalog.services),
        priorities=_declarable(Kind.PRIORITY, catalog.priorities),
        routes=catalog.routes,
        instance_routes=instance.store.catalog.routes,
        remote_service_bindings=catalog.remote_service_bindings,
        event_notifications=_declarable(Kind.EVENT_NOTIFICATION, catalog.event_notifications),
    )


def refuse_unknown_principals(plan: Plan, has_principal: Callable[[str], bool]) -> None:
    """Raise `ObjectNotFound` if a new or altered binding names a principal that is not here.

    Bindings that the plan keeps are not checked: their principal may have been revoked since, and
    their dialogs say so (SEC-18).
    """
    for one in plan.changes:
        if isinstance(one.value, Binding) and not has_principal(one.value.principal):
            peer = one.value.principal.partition(":")[2]
            raise ObjectNotFound(
                f"remote service binding {one.name!r} names principal {one.value.principal!r}, "
                "which is not here; nothing was changed",
                hint=f"pair with its machine (brokerd peer pair), or install its certificates: "
                f"brokerd peer add {peer}",
            )


async def refuse_in_use(plan: Plan, broker: Broker) -> None:
    """Raise `InUse` if open dialogs need an object that is to be dropped (OBJ-37, OBJ-38).

    The error has the number of these dialogs."""
    if not plan.unused:
        return
    stored = await broker.store.count_uses(plan.unused)
    for use, found in zip(plan.unused, stored, strict=True):
        _refuse(use, max(found, _in_memory(broker, use)))


def refuse_in_use_in_memory(uses: Iterable[Use], broker: Broker) -> None:
    """Raise `InUse` if a dialog in memory needs one of the objects."""
    for use in uses:
        _refuse(use, _in_memory(broker, use))


def _refuse(use: Use, found: int) -> None:
    if found:
        raise InUse(in_use(use, found), hint=_WAY_OUT)


def _in_memory(broker: Broker, use: Use) -> int:
    return sum(
        use.is_open(one.endpoint.service, one.endpoint.contract, one.endpoint.state)
        for one in broker.endpoints.all()
    )


def _declarable(kind: Kind, objects: dict[str, _V]) -> dict[str, _V]:
    return {name: value for name, value in objects.items() if not is_built_in(kind, name)}
