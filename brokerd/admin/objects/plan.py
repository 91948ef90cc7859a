"""Plan: the changes that make one broker match its declaration, computed once (design D9, MAN-14).

PURE.   Reads:  a declaration, and the objects that the broker has.
Calls:  objects.declared.diff.
Never:  decides whether the changes are allowed (`check.py`), or makes them (`apply.py`).

A dry run reports the plan that a run would apply. A plan also knows what its changes need: which
dialogs a drop ends, which services move to another queue, and why a queue is on or off afterwards.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from brokerd.clock import Instant
from brokerd.config.toml_file import did_you_mean
from brokerd.model import (
    AUTO_CREATED_LOCAL,
    MSDB,
    Contract,
    EventNotification,
    MessageType,
    Priority,
    Queue,
    QueueStatus,
    Route,
    Service,
)
from brokerd.objects.declared import TABLES, Action, Change, Declared, Kind, diff
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.security.bindings import Binding
from brokerd.storage.rows.catalog import CatalogChanges
from brokerd.storage.rows.references import Use

_V = TypeVar(
    "_V", MessageType, Contract, Queue, Service, Priority, Route, EventNotification, Binding
)

SERVICE_ALTERED: Final = -8469
SERVICE_DROPPED: Final = -8470
CONTRACT_DROPPED: Final = -8487

THE_DAEMON: Final = "the daemon"
"""The actor that applies the declaration at a start."""
_MANUAL: Final = "manual"
_CREATED_OFF: Final = "created_off"
_OFF_FOR_POISON: Final = frozenset({"poison", "disconnects"})

Merge = Callable[[Declared, Declared], Declared]
"""Function that merges the objects of a broker with a declaration (`merge.py`)."""


class Ending(msgspec.Struct, frozen=True):
    """Dialogs that end because of a change, and the error for their far sides."""

    use: Use
    code: int
    text: str
    target_of: str | None = None
    """Service whose dialogs end where it is the target; None = all that need the object end."""

    def fits(self, endpoint: DialogEndpoint) -> bool:
        """Return whether the dialog is to be ended."""
        if self.target_of is not None and (
            endpoint.is_initiator or endpoint.service != self.target_of
        ):
            return False
        return self.use.is_open(endpoint.service, endpoint.contract, endpoint.state)

    def event(self) -> dialog.Event:
        """Return the event for the endpoint: removal, or a fault (DLG-M7, DLG-T15)."""
        if self.use.service is not None:
            return dialog.CleanupRequested(tombstone=False)
        return dialog.FaultStruck(self.code, self.text)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes for one broker."""

    declared: Declared
    """The objects that the broker has once the plan is applied."""
    creation: Change | None = None
    """The change that makes the broker itself; None if it exists."""
    changes: tuple[Change, ...] = ()
    """The changes of objects, in order."""
    endings: tuple[Ending, ...] = ()
    """Dialogs that end, because they need an object that the changes drop."""
    moved: dict[str, str] = {}
    """Names of the new queues of services that get another queue (OBJ-35), by service."""

    @property
    def broker(self) -> str:
        """Name of the broker."""
        return self.declared.broker

    @property
    def reported(self) -> list[Change]:
        """All changes, in the order in which they are reported."""
        return [*([] if self.creation is None else [self.creation]), *self.changes]

    @property
    def own(self) -> tuple[Change, ...]:
        """Changes in the store of the broker."""
        return tuple(one for one in self.changes if one.kind is not Kind.INSTANCE_ROUTE)

    @property
    def shared(self) -> tuple[Change, ...]:
        """Changes in the store of `msdb`: routes of the instance."""
        return tuple(one for one in self.changes if one.kind is Kind.INSTANCE_ROUTE)

    @property
    def unused(self) -> tuple[Use, ...]:
        """Objects that no open dialog may need when they are dropped (OBJ-37, OBJ-38)."""
        return tuple(one.use for one in self.endings if one.target_of is None)

    def after_creation(self) -> "Plan":
        """Return the rest of the plan after the broker has been made with its own objects."""
        return Plan(declared=self.declared, changes=self.shared)


def plan(
    wanted: Declared, have: Declared, *, actor: str, now: Instant, merge: Merge | None = None
) -> Plan:
    """Return the plan for an existing broker.

    `merge` combines the declaration with the objects of the broker; without it, the broker has
    only the declared objects afterwards. `actor` requests the changes, and is recorded with the
    queues that are switched.
    """
    if merge is not None:
        wanted = merge(have, wanted)
    wanted = _kept_off(wanted, have, actor)
    changes = _with_status(diff(have, wanted, now=now), have.queues, actor, now)
    return Plan(
        declared=wanted,
        changes=changes,
        endings=tuple(_endings(have, changes)),
        moved=_moved(have, changes),
    )


def plan_new(
    wanted: Declared,
    *,
    instance_routes: dict[str, Route],
    others: Iterable[str],
    actor: str,
    now: Instant,
) -> Plan:
    """Return the plan for a broker to be made, which begins with one route (RTE-68).

    If other brokers exist (`others`), the sentence about the creation warns that the new name may
    be a misspelt name of one of these brokers.
    """
    nothing = Declared(
        broker=wanted.broker,
        default_encryption=wanted.default_encryption,
        routes={AUTO_CREATED_LOCAL.name: AUTO_CREATED_LOCAL},
        instance_routes=instance_routes,
    )
    names = sorted(name for name in others if name != MSDB)
    beside = f", a new one beside {', '.join(names)}" if names else ""
    creation = Change(
        action=Action.CREATE,
        kind=Kind.BROKER,
        name=wanted.broker,
        sentence=f"broker {wanted.broker} is created{beside}{did_you_mean(wanted.broker, names)}",
    )
    changes = _with_status(diff(nothing, wanted, now=now), {}, actor, now)
    return Plan(declared=wanted, creation=creation, changes=changes)


def plan_switch(
    have: Declared, queue: Queue, status: QueueStatus | None, *, actor: str, now: Instant
) -> Plan:
    """Return the plan that switches a queue off for the reason in `status`, or on if it is None."""
    on = status is None
    switched = msgspec.structs.replace(queue, enqueue_enabled=on, receive_enabled=on, status=status)
    change = Change(
        action=Action.ALTER,
        kind=Kind.QUEUE,
        name=queue.name,
        sentence=f"queue {queue.name}: status changes to {'on' if on else 'off'}",
        value=switched,
    )
    return Plan(declared=have, changes=_with_status([change], {queue.name: queue}, actor, now))


def catalog_changes(
    changes: Iterable[Change], now: Instant, unused: tuple[Use, ...] = ()
) -> CatalogChanges:
    """Return the changes in the form that the store accepts."""
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
        message_types=_only(put.get(Kind.MESSAGE_TYPE), MessageType),
        contracts=_only(put.get(Kind.CONTRACT), Contract),
        queues=_only(put.get(Kind.QUEUE), Queue),
        services=_only(put.get(Kind.SERVICE), Service),
        priorities=_only(put.get(Kind.PRIORITY), Priority),
        routes=_only(put.get(Kind.ROUTE), Route),
        remote_service_bindings=_only(put.get(Kind.REMOTE_SERVICE_BINDING), Binding),
        event_notifications=_only(put.get(Kind.EVENT_NOTIFICATION), EventNotification),
        options=options,
        unused=unused,
        new_keys={},
        **{f"dropped_{TABLES[kind]}": tuple(names) for kind, names in dropped.items()},
    )


def _endings(have: Declared, changes: Iterable[Change]) -> Iterable[Ending]:
    """Yield the dialogs that need an object that is dropped, and the errors for their peers."""
    for one in changes:
        gone = one.action in (Action.DROP, Action.REPLACE)
        if one.kind is Kind.SERVICE and gone:
            text = f"service {one.name!r} has been dropped"
            yield Ending(Use(service=one.name), SERVICE_DROPPED, text)
        elif one.kind is Kind.CONTRACT and gone:
            text = f"contract {one.name!r} has been dropped"
            yield Ending(Use(contract=one.name), CONTRACT_DROPPED, text)
        elif isinstance(one.value, Service) and one.name in have.services:
            for contract in sorted(have.services[one.name].contracts - one.value.contracts):
                text = f"service {one.name!r} does not accept contract {contract!r} any more"
                yield Ending(Use(contract=contract), SERVICE_ALTERED, text, one.name)


def _moved(have: Declared, changes: Iterable[Change]) -> dict[str, str]:
    return {
        one.name: one.value.queue
        for one in changes
        if isinstance(one.value, Service)
        and one.name in have.services
        and have.services[one.name].queue != one.value.queue
    }


# Why a queue is on or off: written with every change that switches one (PBT-1, PSN-9).


def _kept_off(wanted: Declared, have: Declared, actor: str) -> Declared:
    """Return the declaration, changed so that a start does not switch on certain queues (PSN-9).

    These are the queues that are off because of poison.
    """
    if actor != THE_DAEMON:
        return wanted
    queues = dict(wanted.queues)
    for name, queue in have.queues.items():
        off_for_poison = queue.status is not None and queue.status.reason in _OFF_FOR_POISON
        if name in queues and off_for_poison and not queue.is_on:
            queues[name] = msgspec.structs.replace(
                queues[name], enqueue_enabled=False, receive_enabled=False
            )
    return wanted if queues == wanted.queues else msgspec.structs.replace(wanted, queues=queues)


def _with_status(
    changes: Iterable[Change], have: Mapping[str, Queue], actor: str, now: Instant
) -> tuple[Change, ...]:
    """Return the changes, each queue with the reason why it is on or off after its change."""
    return tuple(
        msgspec.structs.replace(one, value=_reasoned(one, one.value, have, actor, now))
        if isinstance(one.value, Queue)
        else one
        for one in changes
    )


def _reasoned(
    change: Change, wanted: Queue, have: Mapping[str, Queue], actor: str, now: Instant
) -> Queue:
    before = have.get(change.name)
    status = wanted.status
    if change.action is Action.CREATE or before is None:
        if not wanted.is_on:
            status = QueueStatus(_CREATED_OFF, now, actor)
    elif status is not None and status != before.status:
        pass  # the author of the change gives the reason
    elif _switches(before) == _switches(wanted):
        status = before.status
    else:
        status = QueueStatus(_MANUAL, now, actor)
    return msgspec.structs.replace(wanted, status=status)


def _switches(queue: Queue) -> tuple[bool, bool]:
    return queue.enqueue_enabled, queue.receive_enabled


def _only(values: list[object] | None, kind: type[_V]) -> tuple[_V, ...]:
    return tuple(value for value in values or () if isinstance(value, kind))
