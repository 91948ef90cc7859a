"""References: the open dialogs that need a service or contract to be dropped (OBJ-37, OBJ-38).

Reads:  conversation_endpoints.      Calls: the reader or connection it is given.
Never:  ends a dialog; it counts dialogs, and deletes endpoints kept only to recognise duplicates.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Select, bindparam, delete, func, select, update

from brokerd.errors import InUse
from brokerd.protocol.transitions import State
from brokerd.storage.connections import Connection
from brokerd.storage.readers import Reader
from brokerd.storage.statements import DIALECT, sql
from brokerd.storage.tables import (
    contract_types,
    contracts,
    event_notifications,
    message_types,
    messages_at,
    metadata,
    priorities,
    queues,
    service_contracts,
    services,
)
from brokerd.storage.tables import conversation_endpoints as endpoints
from brokerd.storage.tables import endpoint_progress as progress
from brokerd.units import counted

_CLOSED: Final = State.CLOSED.value
_OVER: Final = (_CLOSED, State.ERROR.value, State.DISCONNECTED_OUTBOUND.value)
"""States in which a dialog receives nothing more under its contract."""


class Use(msgspec.Struct, frozen=True):
    """A service or a contract that dialogs may need."""

    service: str | None = None
    contract: str | None = None

    def is_open(self, service: str, contract: str, state: State) -> bool:
        """Return whether an endpoint needs the service or contract.

        An endpoint that only has to end needs no contract.
        """
        if self.service is not None:
            return service == self.service and state is not State.CLOSED
        return contract == self.contract and state.value not in _OVER

    def show(self) -> str:
        """Return kind and name, as text for operators."""
        return f"contract {self.contract}" if self.service is None else f"service {self.service}"


async def count(reader: Reader, uses: Sequence[Use]) -> list[int]:
    """Return the number of open dialogs that need each service or contract."""
    return [int((await reader.rows(_counting(use)))[0][0]) for use in uses]


def refuse_if_used(connection: Connection, uses: Sequence[Use]) -> None:
    """Raise `InUse`, with the number of dialogs, if open dialogs need a service or contract.

    Call this in the transaction that drops them.
    """
    for use in uses:
        # The text of this statement depends on its values, which are few: it is rarely run.
        (found,) = connection.execute(*_text(_counting(use))).fetchone()
        if found:
            raise InUse(in_use(use, found))


def in_use(use: Use, found: int) -> str:
    """Return the message of `InUse`."""
    dialogs = counted(found, "open dialog needs", "open dialogs need")
    return f"{dialogs} {use.show()}; nothing was changed"


def forget_closed(connection: Connection, service: str) -> None:
    """Delete a service's closed endpoints: without the service there are no duplicates."""
    connection.execute(_FORGET_PROGRESS, (service, _CLOSED))
    connection.execute(_FORGET, (service, _CLOSED))


def move_messages(connection: Connection, service: str, queue: str) -> None:
    """Move the messages of a service that are in another queue to `queue` (OBJ-35)."""
    for move in _MOVES:
        connection.execute(move, (queue, service, queue))


def _counting(use: Use) -> Select[Any]:
    states = endpoints.c.state
    if use.service is not None:
        open_ones = (endpoints.c.service == use.service, states != _CLOSED)
    else:
        open_ones = (endpoints.c.contract == use.contract, states.not_in(_OVER))
    return select(func.count()).select_from(endpoints).where(*open_ones)


def _text(statement: Select[Any]) -> tuple[str, list[Any]]:
    compiled = statement.compile(dialect=DIALECT, compile_kwargs={"render_postcompile": True})
    return str(compiled), [compiled.params[name] for name in compiled.positiontup or ()]


_closed = (
    endpoints.c.service == bindparam("service"),
    endpoints.c.state == bindparam("state"),
)
_FORGET: Final = sql(delete(endpoints).where(*_closed))
_FORGET_PROGRESS: Final = sql(
    delete(progress).where(
        progress.c.endpoint_key.in_(select(endpoints.c.endpoint_key).where(*_closed))
    )
)
_key = select(queues.c.queue_key).where(queues.c.name == bindparam("queue")).scalar_subquery()
_of_service = select(endpoints.c.endpoint_key).where(endpoints.c.service == bindparam("service"))
_MOVES: Final = [
    sql(
        update(messages)
        .values(queue_key=_key)
        .where(messages.c.endpoint_key.in_(_of_service), messages.c.queue_key != _key)
    )
    for messages in messages_at.values()
]


def missing(connection: Connection) -> Iterator[tuple[str, str, str, str]]:
    """Yield objects that name a missing one: kind and name of the object, then of the missing one.

    Call this in the transaction that changes objects.
    """
    for statement, kind, what in _MISSING:
        found = connection.execute(statement).fetchone()
        if found is not None:
            name, named = found
            yield kind, name, what, named


_WORDS: Final = {
    contracts.name: ("contract", "name"),
    contract_types.name: ("contract", "contract"),
    message_types.name: ("message type", "name"),
    queues.name: ("queue", "name"),
    services.name: ("service", "name"),
    service_contracts.name: ("service", "service"),
    priorities.name: ("priority", "name"),
    event_notifications.name: ("event notification", "name"),
}
"""For each table, the kind of object that a row belongs to, as words, and the column that has the
name of this object."""


def _naming_missing_ones() -> Iterator[tuple[str, str, str]]:
    """Yield statements that find a row which names a missing object: its name, and the missing one.

    With each statement: the kinds of both objects, as words.
    """
    for table, (kind, name) in _WORDS.items():
        for column in metadata.tables[table].columns:
            for key in column.foreign_keys:
                parent, there = key.column.table.name, key.column.name
                yield (
                    f"SELECT {name}, {column.name} FROM {table} WHERE {column.name} IS NOT NULL"  # noqa: S608  # all ours
                    f" AND {column.name} NOT IN (SELECT {there} FROM {parent}) LIMIT 1",
                    kind,
                    _WORDS[parent][0],
                )


_MISSING: Final = list(_naming_missing_ones())
