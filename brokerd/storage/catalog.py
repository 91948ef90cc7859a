"""The catalog: message types, contracts, queues, services and routes of one broker (design D9).

Reads:  the catalog tables, at open and after each change.      Calls: nothing.
Never:  decides whether an object may go; foreign keys only refuse what would leave a hole.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Table, bindparam, delete, insert, select

from brokerd.clock import Instant
from brokerd.errors import ObjectsRefused
from brokerd.ids import BrokerId, QueueKey, ServiceKey
from brokerd.model import (
    AUTO_CREATED_LOCAL,
    DEFAULT,
    Activation,
    Contract,
    MessageType,
    Queue,
    Route,
    SentBy,
    Service,
    Validation,
)
from brokerd.storage.engine import Connection, transaction
from brokerd.storage.statements import sql, update_by_key
from brokerd.storage.tables import (
    contract_types,
    contracts,
    message_types,
    queues,
    routes,
    service_contracts,
    services,
)


class Catalog(msgspec.Struct, frozen=True):
    """All objects of a broker, by name."""

    message_types: dict[str, MessageType] = {}
    contracts: dict[str, Contract] = {}
    queues: dict[str, Queue] = {}
    services: dict[str, Service] = {}
    routes: dict[str, Route] = {}


class CatalogChanges(msgspec.Struct, frozen=True):
    """What is to be made or altered, and the names of what is to go.

    An object that is there under the same name is replaced; a queue or service keeps its key, and
    the key given here counts for nothing.
    """

    message_types: tuple[MessageType, ...] = ()
    contracts: tuple[Contract, ...] = ()
    queues: tuple[Queue, ...] = ()
    services: tuple[Service, ...] = ()
    routes: tuple[Route, ...] = ()
    dropped_message_types: tuple[str, ...] = ()
    dropped_contracts: tuple[str, ...] = ()
    dropped_queues: tuple[str, ...] = ()
    dropped_services: tuple[str, ...] = ()
    dropped_routes: tuple[str, ...] = ()


BUILT_IN = CatalogChanges(
    message_types=(MessageType(DEFAULT),),
    contracts=(Contract(DEFAULT, {DEFAULT: SentBy.ANY}),),
    routes=(AUTO_CREATED_LOCAL,),
)
"""What every broker is born with (OBJ-30, RTE-68)."""


def apply_changes(connection: Connection, changes: CatalogChanges) -> Catalog:
    """Make the changes in one transaction and return the catalog as it then is.

    `ObjectsRefused`: something named is not there, or is still in use; nothing was changed.
    """
    with transaction(connection):
        # Objects may name each other in any order; what is left over is looked at in the end.
        connection.execute("PRAGMA defer_foreign_keys = ON")
        write(connection, changes)
        _check_references(connection)
        return load(connection)


def write(connection: Connection, changes: CatalogChanges) -> None:
    """Make the changes inside the caller's transaction."""
    for table, names in (
        (routes, changes.dropped_routes),
        (services, changes.dropped_services),
        (queues, changes.dropped_queues),
        (contracts, changes.dropped_contracts),
        (message_types, changes.dropped_message_types),
    ):
        for name in names:
            _drop(connection, table, name)
    for message_type in changes.message_types:
        _put(connection, message_types, message_type.name, {"validation": message_type.validation})
    for contract in changes.contracts:
        _put_contract(connection, contract)
    for queue in changes.queues:
        _put_queue(connection, queue)
    for service in changes.services:
        _put_service(connection, service)
    for route in changes.routes:
        _put_route(connection, route)


def _drop(connection: Connection, table: Table, name: str) -> None:
    statement = sql(delete(table).where(table.c.name == bindparam("name")))
    if connection.execute(statement, (name,)).rowcount == 0:
        raise ObjectsRefused(f"{table.name}: there is no {name!r} to drop")


def _put(connection: Connection, table: Table, name: str, values: Mapping[str, object]) -> None:
    """Write the row of this name; `values` in the order of the table's columns."""
    there = sql(select(table.c.name).where(table.c.name == bindparam("name")))
    if connection.execute(there, (name,)).fetchone() is None:
        _insert(connection, table, {"name": name, **values})
    elif values:
        connection.execute(update_by_key(table, "name", list(values)), (*values.values(), name))


def _insert(connection: Connection, table: Table, values: Mapping[str, object]) -> None:
    statement = sql(insert(table).values({column: bindparam(column) for column in values}))
    connection.execute(statement, tuple(values.values()))


def _put_contract(connection: Connection, contract: Contract) -> None:
    _put(connection, contracts, contract.name, {})
    of = contract_types.c.contract == bindparam("contract")
    connection.execute(sql(delete(contract_types).where(of)), (contract.name,))
    for message_type, sent_by in contract.types.items():
        values = {"contract": contract.name, "message_type": message_type, "sent_by": sent_by}
        _insert(connection, contract_types, values)


def _put_queue(connection: Connection, queue: Queue) -> None:
    activation = queue.activation
    values = {
        "is_enqueue_enabled": queue.enqueue_enabled,
        "is_receive_enabled": queue.receive_enabled,
        "activation_handler": activation.handler if activation else None,
        "max_readers": activation.max_readers if activation else 0,
        "is_activation_enabled": activation.enabled if activation else False,
        "receive_ageing": queue.receive_ageing,
    }
    _put(connection, queues, queue.name, values)


def _put_service(connection: Connection, service: Service) -> None:
    _put(connection, services, service.name, {"queue": service.queue})
    of = service_contracts.c.service == bindparam("service")
    connection.execute(sql(delete(service_contracts).where(of)), (service.name,))
    for contract in sorted(service.contracts):
        _insert(connection, service_contracts, {"service": service.name, "contract": contract})


def _put_route(connection: Connection, route: Route) -> None:
    values = {
        "service_name": route.service_name,
        "broker_id": route.broker_id,
        "address": route.address,
        "expires_at": route.expires_at,
    }
    _put(connection, routes, route.name, values)


def _check_references(connection: Connection) -> None:
    for table, rowid, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        query = f"SELECT * FROM {table} WHERE rowid = ?"  # noqa: S608  # a table of ours
        row = connection.execute(query, (rowid,)).fetchone()
        named = ", ".join(str(value) for value in row)
        raise ObjectsRefused(f"{table} ({named}) would name what is not in {parent}")


@cache
def _all_of(table: Table) -> str:
    return sql(select(table).order_by(*table.primary_key))


def load(connection: Connection) -> Catalog:
    """The catalog as it stands."""

    def rows(table: Table) -> list[tuple[Any, ...]]:
        return connection.execute(_all_of(table)).fetchall()

    types: dict[str, dict[str, SentBy]] = {name: {} for (name,) in rows(contracts)}
    for contract, message_type, sent_by in rows(contract_types):
        types[contract][message_type] = SentBy(sent_by)
    usages: dict[str, set[str]] = {}
    for service, contract in rows(service_contracts):
        usages.setdefault(service, set()).add(contract)
    return Catalog(
        message_types={
            name: MessageType(name, Validation(validation))
            for name, validation in rows(message_types)
        },
        contracts={name: Contract(name, allowed) for name, allowed in types.items()},
        queues={row[1]: _queue(row) for row in rows(queues)},
        services={
            name: Service(ServiceKey(key), name, queue, frozenset(usages.get(name, ())))
            for key, name, queue in rows(services)
        },
        routes={row[0]: _route(row) for row in rows(routes)},
    )


def _queue(row: tuple[Any, ...]) -> Queue:
    key, name, enqueue, receive, handler, max_readers, enabled, receive_ageing = row
    activation = None if handler is None else Activation(handler, max_readers, bool(enabled))
    return Queue(QueueKey(key), name, bool(enqueue), bool(receive), activation, receive_ageing)


def _route(row: tuple[Any, ...]) -> Route:
    name, service_name, broker_id, address, expires_at = row
    return Route(
        name=name,
        address=address,
        service_name=service_name,
        broker_id=None if broker_id is None else BrokerId(broker_id),
        expires_at=None if expires_at is None else Instant(expires_at),
    )
