"""Catalog: all objects of one broker, from message types to event notifications (design D9).

Reads:  the catalog tables, at open and after each change.      Calls: `references`, `events`.
Never:  decides whether an object may be dropped; foreign keys only refuse to drop an object to
        which another one refers.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Final

import msgspec
from sqlalchemy import Table, bindparam, delete, insert, select

from brokerd.clock import Instant
from brokerd.errors import InUse, ObjectNotFound, ObjectsRefused
from brokerd.ids import BrokerId, QueueKey, ServiceKey
from brokerd.model import (
    AUTO_CREATED_LOCAL,
    CONFIGURATION_NOTICE,
    CONFIGURATION_SERVICE,
    DEFAULT,
    EVENT_NOTIFICATION,
    FAILED_BINDING,
    FAILED_ROUTE,
    MISSING_BINDING,
    MISSING_ROUTE,
    OWNER,
    POST_EVENT_NOTIFICATION,
    ROUTING_QUEUE,
    ROUTING_SERVICE,
    Activation,
    Contract,
    EventNotification,
    Host,
    MessageType,
    Poison,
    PoisonMode,
    Priority,
    Queue,
    QueueStatus,
    RetentionLimit,
    RetentionPolicy,
    Route,
    SentBy,
    Service,
    Validation,
)
from brokerd.security.bindings import Binding
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.rows import events, system_objects
from brokerd.storage.rows.references import (
    Use,
    forget_closed,
    missing,
    move_messages,
    refuse_if_used,
)
from brokerd.storage.statements import sql, update_by_key
from brokerd.storage.tables import (
    contract_types,
    contracts,
    event_notifications,
    message_types,
    priorities,
    queues,
    remote_service_bindings,
    routes,
    service_contracts,
    services,
    store,
)


class Catalog(msgspec.Struct, frozen=True):
    """All objects of a broker, by name."""

    message_types: dict[str, MessageType] = {}
    contracts: dict[str, Contract] = {}
    queues: dict[str, Queue] = {}
    services: dict[str, Service] = {}
    priorities: dict[str, Priority] = {}
    routes: dict[str, Route] = {}
    event_notifications: dict[str, EventNotification] = {}
    remote_service_bindings: dict[str, Binding] = {}
    binding_of: dict[str, Binding] = {}
    """Bindings by the name of their remote service (SEC-14)."""


class CatalogChanges(msgspec.Struct, frozen=True):
    """Objects to create or alter, and the names of objects to drop.

    An object replaces the one of the same name. A queue or service keeps its key, and the key in
    the changes is ignored; a notification is created again, with another key.
    """

    message_types: tuple[MessageType, ...] = ()
    contracts: tuple[Contract, ...] = ()
    queues: tuple[Queue, ...] = ()
    services: tuple[Service, ...] = ()
    priorities: tuple[Priority, ...] = ()
    routes: tuple[Route, ...] = ()
    event_notifications: tuple[EventNotification, ...] = ()
    remote_service_bindings: tuple[Binding, ...] = ()
    dropped_message_types: tuple[str, ...] = ()
    dropped_contracts: tuple[str, ...] = ()
    dropped_queues: tuple[str, ...] = ()
    dropped_services: tuple[str, ...] = ()
    dropped_priorities: tuple[str, ...] = ()
    dropped_routes: tuple[str, ...] = ()
    dropped_event_notifications: tuple[str, ...] = ()
    dropped_remote_service_bindings: tuple[str, ...] = ()
    options: dict[str, bool] = {}
    """Options of the broker itself, by their column of `store`."""
    unused: tuple[Use, ...] = ()
    """Uses that must have no open dialog at the commit; otherwise nothing is changed."""
    new_keys: dict[str, QueueKey] = {}
    """Keys that queues get if they are created, where `try_changes` has settled them."""


NO_CHANGES: Final = CatalogChanges()

_FACTS = [column.name for column in store.columns]

BUILT_IN = CatalogChanges(
    message_types=(
        MessageType(DEFAULT),
        MessageType(EVENT_NOTIFICATION, Validation.WELL_FORMED_JSON),
        MessageType(MISSING_ROUTE),
        MessageType(FAILED_ROUTE),
        MessageType(MISSING_BINDING),
        MessageType(FAILED_BINDING),
    ),
    contracts=(
        Contract(DEFAULT, {DEFAULT: SentBy.ANY}),
        Contract(POST_EVENT_NOTIFICATION, {EVENT_NOTIFICATION: SentBy.INITIATOR}),
        Contract(
            CONFIGURATION_NOTICE,
            dict.fromkeys(
                (MISSING_ROUTE, FAILED_ROUTE, MISSING_BINDING, FAILED_BINDING), SentBy.INITIATOR
            ),
        ),
    ),
    routes=(AUTO_CREATED_LOCAL,),
)
"""The objects that every broker has from the start (OBJ-30, OBJ-31, RTE-68)."""


def apply_changes(connection: Connection, changes: CatalogChanges) -> Catalog:
    """Make the changes in one transaction and return the new catalog.

    `ObjectsRefused`: a named object does not exist or is still in use; nothing was changed.
    """
    with transaction(connection):
        return make(connection, changes)


def make(connection: Connection, changes: CatalogChanges) -> Catalog:
    """Make the changes inside the caller's transaction and return the new catalog."""
    # Objects may name each other in any order; open references are checked at the end.
    connection.execute("PRAGMA defer_foreign_keys = ON")
    refuse_if_used(connection, changes.unused)
    write(connection, changes)
    _check_references(connection, changes)
    return load(connection)


def try_changes(connection: Connection, changes: CatalogChanges) -> Catalog:
    """Return the catalog as the changes would make it, or raise their refusal; change nothing.

    A key that was given here may not be given again: SQLite gives the next one to who comes next,
    PostgreSQL gives each only once. Whoever uses a queue of this catalog sets `new_keys`.
    """
    with suppress(_Undo), transaction(connection):
        catalog = make(connection, changes)
        raise _Undo
    return catalog


class _Undo(Exception):
    """Error that rolls back a transaction which was only tried."""


def write(connection: Connection, changes: CatalogChanges) -> None:
    """Make the changes inside the caller's transaction."""
    if changes.options:
        columns = [column for column in _FACTS if column in changes.options]
        values = [changes.options[column] for column in columns]
        connection.execute(update_by_key(store, "id", columns), (*values, 1))
    _drop_all(connection, changes)
    for message_type in changes.message_types:
        _put_message_type(connection, message_type)
    for contract in changes.contracts:
        _put_contract(connection, contract)
    for queue in changes.queues:
        _put_queue(connection, queue, changes.new_keys.get(queue.name))
    for service in changes.services:
        _put_service(connection, service)
        move_messages(connection, service.name, service.queue)
    for priority in changes.priorities:
        _put_priority(connection, priority)
    for route in changes.routes:
        _put_route(connection, route)
    for binding in changes.remote_service_bindings:
        _put_binding(connection, binding)
    for notification in changes.event_notifications:
        events.put(connection, notification)


def _drop_all(connection: Connection, changes: CatalogChanges) -> None:
    # Only endpoints that recognise duplicates are left (DLG-31).
    for name in changes.dropped_services:
        forget_closed(connection, name)
    for table, names in (
        (event_notifications, changes.dropped_event_notifications),
        (remote_service_bindings, changes.dropped_remote_service_bindings),
        (routes, changes.dropped_routes),
        (priorities, changes.dropped_priorities),
        (services, changes.dropped_services),
        (queues, changes.dropped_queues),
        (contracts, changes.dropped_contracts),
        (message_types, changes.dropped_message_types),
    ):
        for name in names:
            _drop(connection, table, name)


def _drop(connection: Connection, table: Table, name: str) -> None:
    if connection.execute(_deletion(table), (name,)).rowcount == 0:
        raise ObjectNotFound(f"{table.name}: there is no {name!r} to drop")


def _put(
    connection: Connection,
    table: Table,
    name: str,
    values: Mapping[str, object],
    *,
    new: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write the row of this name; `values` in the order of the table's columns.

    `new`: further values of a row that is added."""
    if connection.execute(_look_up(table), (name,)).fetchone() is None:
        _insert(connection, table, {**new, "name": name, **values})
    elif values:
        connection.execute(_alteration(table, tuple(values)), (*values.values(), name))


def _insert(connection: Connection, table: Table, values: Mapping[str, object]) -> None:
    connection.execute(_insertion(table, tuple(values)), tuple(values.values()))


def _put_message_type(connection: Connection, message_type: MessageType) -> None:
    values = {
        "validation": message_type.validation,
        "schema": message_type.schema,
        "require_body": message_type.require_body,
        "validate_on_send": message_type.validate_on_send,
    }
    _put(connection, message_types, message_type.name, values)


def _put_contract(connection: Connection, contract: Contract) -> None:
    _put(connection, contracts, contract.name, {})
    connection.execute(_deletion(contract_types, "contract"), (contract.name,))
    for message_type, sent_by in contract.types.items():
        values = {"contract": contract.name, "message_type": message_type, "sent_by": sent_by}
        _insert(connection, contract_types, values)


def _put_queue(connection: Connection, queue: Queue, key: QueueKey | None) -> None:
    activation = queue.activation
    values = {
        "is_enqueue_enabled": queue.enqueue_enabled,
        "is_receive_enabled": queue.receive_enabled,
        "activation_handler": activation.handler if activation else None,
        "max_readers": activation.max_readers if activation else 0,
        "is_activation_enabled": activation.enabled if activation else False,
        "receive_ageing": queue.receive_ageing,
        "run_as": activation.run_as if activation else None,
        "is_retention_enabled": queue.retention,
        "is_poison_message_handling_enabled": queue.poison_handling,
        "retention_max_rows": queue.retention_limit.max_rows or None,
        "retention_max_bytes": queue.retention_limit.max_bytes or None,
        "retention_policy": _policy_text(queue.retention_limit),
        **poison_values(queue),
        "activation_options": options_text(activation),
        "max_messages": queue.max_messages,
        "max_bytes": queue.max_bytes,
    }
    new = {} if key is None else {"queue_key": key}
    _put(connection, queues, queue.name, values, new=new)


def _put_service(connection: Connection, service: Service) -> None:
    _put(connection, services, service.name, {"queue": service.queue})
    connection.execute(_deletion(service_contracts, "service"), (service.name,))
    for contract in sorted(service.contracts):
        _insert(connection, service_contracts, {"service": service.name, "contract": contract})


def _put_priority(connection: Connection, priority: Priority) -> None:
    values = {
        "contract": priority.contract,
        "local_service": priority.local_service,
        "remote_service": priority.remote_service,
        "priority": priority.level,
    }
    _put(connection, priorities, priority.name, values)


def _put_route(connection: Connection, route: Route) -> None:
    values = {
        "service_name": route.service_name,
        "broker_id": route.broker_id,
        "address": route.address,
        "expires_at": route.expires_at,
        "mirror": route.mirror,
    }
    _put(connection, routes, route.name, values)
    if route.service_name == CONFIGURATION_SERVICE:  # the broker sends its questions to it (BCN-3)
        system_objects.put(connection, service=ROUTING_SERVICE, queue=ROUTING_QUEUE)


def _put_binding(connection: Connection, binding: Binding) -> None:
    values = {
        "service_name": binding.service_name,
        "principal": binding.principal,
        "is_anonymous": binding.is_anonymous,
    }
    _put(connection, remote_service_bindings, binding.name, values)


def _check_references(connection: Connection, changes: CatalogChanges) -> None:
    dropped = {
        *changes.dropped_message_types,
        *changes.dropped_contracts,
        *changes.dropped_queues,
        *changes.dropped_services,
    }
    for kind, name, what, named in missing(connection):
        if named in dropped:
            raise InUse(f"{kind} {name!r} names {what} {named!r}; nothing was changed")
        raise ObjectsRefused(f"{kind} {name!r} names {what} {named!r}, which is not there")


# Statements, each compiled once.


@cache
def _look_up(table: Table) -> str:
    return sql(select(table.c.name).where(table.c.name == bindparam("name")))


@cache
def _deletion(table: Table, by: str = "name") -> str:
    return sql(delete(table).where(table.c[by] == bindparam("value")))


@cache
def _alteration(table: Table, columns: tuple[str, ...]) -> str:
    return update_by_key(table, "name", columns)


@cache
def _insertion(table: Table, columns: tuple[str, ...]) -> str:
    return sql(insert(table).values({column: bindparam(column) for column in columns}))


@cache
def _all_of(table: Table) -> str:
    return sql(select(table).order_by(*table.primary_key))


def load(connection: Connection) -> Catalog:
    """Return the catalog as it stands."""

    def rows(table: Table) -> list[tuple[Any, ...]]:
        return connection.execute(_all_of(table)).fetchall()

    types: dict[str, dict[str, SentBy]] = {name: {} for (name,) in rows(contracts)}
    for contract, message_type, sent_by in rows(contract_types):
        types[contract][message_type] = SentBy(sent_by)
    usages: dict[str, set[str]] = {}
    for service, contract in rows(service_contracts):
        usages.setdefault(service, set()).add(contract)
    bindings = [
        Binding(name, service, principal, bool(anonymous))
        for name, service, principal, anonymous in rows(remote_service_bindings)
    ]
    return Catalog(
        message_types={row[0]: _message_type(row) for row in rows(message_types)},
        contracts={name: Contract(name, allowed) for name, allowed in types.items()},
        queues={row[1]: _queue(row) for row in rows(queues)},
        services={
            name: Service(ServiceKey(key), name, queue, frozenset(usages.get(name, ())))
            for key, name, queue in rows(services)
        },
        priorities={row[1]: Priority(*row[1:]) for row in rows(priorities)},
        routes={row[0]: _route(row) for row in rows(routes)},
        event_notifications={row[1]: events.notification(row) for row in rows(event_notifications)},
        remote_service_bindings={one.name: one for one in bindings},
        binding_of={one.service_name: one for one in bindings},
    )


_KEPT: Final = 256
"""Number of rows whose objects are cached: each start, and each change of an object, reads all
rows."""


@lru_cache(_KEPT)
def _message_type(row: tuple[Any, ...]) -> MessageType:
    it = _named(message_types, row)
    require = it["require_body"]
    return MessageType(
        name=it["name"],
        validation=Validation(it["validation"]),
        schema=it["schema"],
        require_body=None if require is None else bool(require),
        validate_on_send=bool(it["validate_on_send"]),
    )


@lru_cache(_KEPT)
def _queue(row: tuple[Any, ...]) -> Queue:
    it = _named(queues, row)
    activation = None
    if it["activation_handler"] is not None:
        activation = activation_of(
            it["activation_handler"],
            it["max_readers"],
            bool(it["is_activation_enabled"]),
            it["run_as"],
            it["activation_options"],
        )
    return Queue(
        key=QueueKey(it["queue_key"]),
        name=it["name"],
        enqueue_enabled=bool(it["is_enqueue_enabled"]),
        receive_enabled=bool(it["is_receive_enabled"]),
        activation=activation,
        receive_ageing=it["receive_ageing"],
        retention=bool(it["is_retention_enabled"]),
        retention_limit=_limit(
            it["retention_max_rows"], it["retention_max_bytes"], it["retention_policy"]
        ),
        max_messages=it["max_messages"],
        max_bytes=it["max_bytes"],
        poison_handling=bool(it["is_poison_message_handling_enabled"]),
        poison=poison_of(it),
        status=status_of(it),
    )


def _policy_text(limit: RetentionLimit) -> str | None:
    """Return the policy as one text: `error`, `drop_oldest` or `archive:QUEUE`."""
    if limit == RetentionLimit():
        return None
    return f"{limit.policy}:{limit.archive}" if limit.archive else str(limit.policy)


def _limit(max_rows: int | None, max_bytes: int | None, policy: str | None) -> RetentionLimit:
    if policy is None:
        return RetentionLimit()
    kind, _, archive = policy.partition(":")
    return RetentionLimit(max_rows or 0, max_bytes or 0, RetentionPolicy(kind), archive)


def _named(table: Table, row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(table.c.keys(), row, strict=True))


@lru_cache(_KEPT)
def _route(row: tuple[Any, ...]) -> Route:
    name, service_name, broker_id, address, expires_at, mirror = row
    return Route(
        name=name,
        address=address,
        service_name=service_name,
        broker_id=None if broker_id is None else BrokerId(broker_id),
        expires_at=None if expires_at is None else Instant(expires_at),
        mirror=mirror,
    )


_FIELDS = ("mode", "threshold", "disconnects", "backoff_first", "backoff_max")


class _Detail(msgspec.Struct, frozen=True, omit_defaults=True):
    conversation_id: str = ""
    message_id: str = ""
    error: str = ""
    rollbacks: int = 0


def poison_values(queue: Queue) -> dict[str, object]:
    """Return the columns, in the order of the table; defaults are NULL."""
    status, usual = queue.status, Poison()
    values: dict[str, object] = {}
    for name in _FIELDS:
        value = getattr(queue.poison, name)
        values[f"poison_{name}"] = None if value == getattr(usual, name) else value
    values["status_reason"] = None if status is None else status.reason
    values["status_changed_at"] = None if status is None else status.changed_at
    values["status_changed_by"] = None if status is None else status.changed_by
    values["status_detail"] = None if status is None else _written(status)
    return values


def poison_of(row: Mapping[str, Any]) -> Poison:
    """Return how the queue of a row handles poison messages."""
    given = {name: row[f"poison_{name}"] for name in _FIELDS if row[f"poison_{name}"] is not None}
    if "mode" in given:
        given["mode"] = PoisonMode(given["mode"])
    return Poison(**given)


def status_of(row: Mapping[str, Any]) -> QueueStatus | None:
    """Return the reason why the queue is on or off; None = it was never switched."""
    if row["status_reason"] is None:
        return None
    detail = msgspec.json.decode(row["status_detail"] or "{}", type=_Detail)
    return QueueStatus(
        reason=row["status_reason"],
        changed_at=Instant(row["status_changed_at"]),
        changed_by=row["status_changed_by"] or "",
        conversation_id=bytes.fromhex(detail.conversation_id),
        message_id=bytes.fromhex(detail.message_id),
        error=detail.error,
        rollbacks=detail.rollbacks,
    )


def _written(status: QueueStatus) -> str:
    detail = _Detail(
        conversation_id=status.conversation_id.hex(),
        message_id=status.message_id.hex(),
        error=status.error,
        rollbacks=status.rollbacks,
    )
    return msgspec.json.encode(detail).decode()


class _Options(msgspec.Struct, frozen=True, omit_defaults=True):
    host: str = Host.DAEMON.value
    command: tuple[str, ...] = ()
    memory: int = Activation("").memory
    deadline: int | None = None
    ramp_interval: int | None = None
    initial_readers: int = 1
    drain_wait: int = Activation("").drain_wait
    spare: bool = True


def options_text(activation: Activation | None) -> str | None:
    """Return the text; None = all options have their defaults."""
    if activation is None:
        return None
    made = _Options(
        host=activation.host.value,
        command=activation.command,
        memory=activation.memory,
        deadline=activation.deadline,
        ramp_interval=activation.ramp_interval,
        initial_readers=activation.initial_readers,
        drain_wait=activation.drain_wait,
        spare=activation.spare,
    )
    return None if made == _Options() else msgspec.json.encode(made).decode()


def activation_of(
    handler: str, max_readers: int, enabled: bool, run_as: str | None, options: str | None
) -> Activation:
    """Return the activation of a row."""
    known = msgspec.json.decode(options or "{}", type=_Options)
    return Activation(
        handler=handler,
        max_readers=max_readers,
        enabled=enabled,
        run_as=run_as or OWNER,
        host=Host(known.host),
        command=known.command,
        memory=known.memory,
        deadline=known.deadline,
        ramp_interval=known.ramp_interval,
        initial_readers=known.initial_readers,
        drain_wait=known.drain_wait,
        spare=known.spare,
    )
