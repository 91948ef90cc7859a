"""Dialog endpoints, group states and closing lines: statements and row mapping.

Reads:  conversation_endpoints, group_states, dialog_log.      Calls: the reader it is given.
Never:  decides what an endpoint may do; that is `protocol.dialog`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import bindparam, func, select, text

from brokerd.clock import Instant
from brokerd.ids import ConversationId, EndpointKey, GroupId, Handle
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State
from brokerd.storage.changes import DialogLogRow
from brokerd.storage.engine import Connection, Reader, Values
from brokerd.storage.statements import Deletes, Execute, Inserts, Row, update_by_key
from brokerd.storage.tables import LIFETIME_COUNTS, dialog_log, group_states
from brokerd.storage.tables import conversation_endpoints as endpoints

_MANY: Final = 500
"""Keys in one IN list of a read."""

_COLUMNS = [column.name for column in endpoints.columns]
_STATE = _COLUMNS.index("state")
_FLAGS = [_COLUMNS.index(name) for name in ("is_initiator", "encryption", "bound", "first_acked")]
assert _COLUMNS[1:] == list(DialogEndpoint.__struct_fields__[1:])  # a row is a value, in order
_insert = Inserts(endpoints)
_update = update_by_key(endpoints, "endpoint_key", _COLUMNS[_STATE:])
# Most endpoints have none of the last columns set; not binding those makes a third of the cost.
_SELDOM = _COLUMNS.index("purge_at")
_UNSET = (None,) * (len(_COLUMNS) - _SELDOM)
_update_usual = update_by_key(
    endpoints, "endpoint_key", _COLUMNS[_STATE:_SELDOM], unset=_COLUMNS[_SELDOM:]
)
_delete = Deletes(endpoints.c.endpoint_key)
_put_state = Inserts(group_states, replace=True)
_drop_state = Deletes(group_states.c.group_id)
_put_line = Inserts(dialog_log, replace=True)
_drop_line = Deletes(dialog_log.c.endpoint_key)
_TEXT = {state: str(state.value) for state in State}


def insert_endpoints(execute: Execute, created: Iterable[DialogEndpoint]) -> None:
    """Write new endpoints."""
    _insert.run(execute, [_row(endpoint) for endpoint in created])


def update_endpoints(connection: Connection, changed: Iterable[DialogEndpoint]) -> None:
    """Write what may change of endpoints."""
    usual: list[Row] = []
    seldom: list[Row] = []
    for endpoint in changed:
        row = _row(endpoint)
        if row[_SELDOM:] == _UNSET:
            usual.append((*row[_STATE:_SELDOM], endpoint.key))
        else:
            seldom.append((*row[_STATE:], endpoint.key))
    connection.executemany(_update_usual, usual)
    connection.executemany(_update, seldom)


def delete_endpoints(execute: Execute, removed: Sequence[EndpointKey]) -> None:
    """Remove endpoints."""
    _delete.run(execute, removed)


def write_group_states(execute: Execute, states: Mapping[GroupId, bytes | None]) -> None:
    """Write the groups' states, or remove them."""
    _drop_state.run(execute, [group for group, state in states.items() if state is None])
    _put_state.run(
        execute, [(group, state) for group, state in states.items() if state is not None]
    )


def write_log(
    execute: Execute, closed: Sequence[DialogLogRow], logged: Sequence[EndpointKey]
) -> None:
    """Write closing lines, and remove those that the metrics log has."""
    _put_line.run(execute, closed)
    _drop_line.run(execute, logged)


def _row(endpoint: DialogEndpoint) -> tuple[Any, ...]:
    values: tuple[Any, ...] = msgspec.structs.astuple(endpoint)
    return (*values[:_STATE], _TEXT[endpoint.state], *values[_STATE + 1 :])


def _endpoint(row: Values) -> DialogEndpoint:
    values = list(row)
    for at in _FLAGS:
        values[at] = bool(values[at])
    values[_STATE] = State(values[_STATE])
    return DialogEndpoint(*values)


BY_HANDLE = select(endpoints).where(endpoints.c.handle == bindparam("handle"))
BY_CONVERSATION = select(endpoints).where(
    endpoints.c.conversation_id == bindparam("conversation_id"),
    endpoints.c.is_initiator == bindparam("is_initiator"),
)
BY_KEY = select(endpoints).where(endpoints.c.endpoint_key.in_(bindparam("keys", expanding=True)))
# The conditions are those of the partial indexes, word for word, or SQLite does not use them.
EXPIRED = (
    select(endpoints)
    .where(text(LIFETIME_COUNTS), endpoints.c.expires_at <= bindparam("now"))
    .order_by(endpoints.c.expires_at)
    .limit(bindparam("limit"))
)
PURGEABLE = (
    select(endpoints.c.endpoint_key)
    .where(endpoints.c.purge_at <= bindparam("now"))
    .order_by(endpoints.c.purge_at)
    .limit(bindparam("limit"))
)
COUNT_BY_STATE = select(endpoints.c.state, func.count()).group_by(endpoints.c.state)
LISTED = (
    select(endpoints)
    .where(endpoints.c.endpoint_key > bindparam("after"))
    .order_by(endpoints.c.endpoint_key)
    .limit(bindparam("limit"))
)
GROUP_STATE = select(group_states.c.state).where(group_states.c.group_id == bindparam("group"))
LOG_LINES = select(dialog_log).order_by(dialog_log.c.endpoint_key).limit(bindparam("limit"))


async def by_handle(reader: Reader, handle: Handle) -> DialogEndpoint | None:
    """The endpoint with this handle."""
    rows = await reader.rows(BY_HANDLE, {"handle": handle})
    return _endpoint(rows[0]) if rows else None


async def by_conversation(
    reader: Reader, conversation_id: ConversationId, is_initiator: bool
) -> DialogEndpoint | None:
    """That side of the conversation."""
    values = {"conversation_id": conversation_id, "is_initiator": int(is_initiator)}
    rows = await reader.rows(BY_CONVERSATION, values)
    return _endpoint(rows[0]) if rows else None


async def by_key(reader: Reader, keys: Iterable[EndpointKey]) -> dict[EndpointKey, DialogEndpoint]:
    """Those of the endpoints that exist."""
    wanted = sorted(set(keys))
    found: dict[EndpointKey, DialogEndpoint] = {}
    for at in range(0, len(wanted), _MANY):
        for row in await reader.rows(BY_KEY, {"keys": wanted[at : at + _MANY]}):
            endpoint = _endpoint(row)
            found[endpoint.key] = endpoint
    return found


async def expired(reader: Reader, now: Instant, limit: int) -> list[DialogEndpoint]:
    """Endpoints whose lifetime is over and still counts, oldest first."""
    return [_endpoint(row) for row in await reader.rows(EXPIRED, {"now": now, "limit": limit})]


async def purgeable(reader: Reader, now: Instant, limit: int) -> list[EndpointKey]:
    """Closed endpoints whose guard time is over, oldest first."""
    rows = await reader.rows(PURGEABLE, {"now": now, "limit": limit})
    return [EndpointKey(row[0]) for row in rows]


async def count_by_state(reader: Reader) -> dict[str, int]:
    """How many endpoints are in each state."""
    return {row[0]: row[1] for row in await reader.rows(COUNT_BY_STATE)}


async def listed(reader: Reader, limit: int, after: EndpointKey | None) -> list[DialogEndpoint]:
    """Endpoints by key."""
    values = {"after": -1 if after is None else after, "limit": limit}
    return [_endpoint(row) for row in await reader.rows(LISTED, values)]


async def group_state(reader: Reader, group: GroupId) -> bytes | None:
    """What the application keeps for the group."""
    rows = await reader.rows(GROUP_STATE, {"group": group})
    return bytes(rows[0][0]) if rows else None


async def log_lines(reader: Reader, limit: int) -> list[DialogLogRow]:
    """Closing lines the metrics log does not have."""
    rows = await reader.rows(LOG_LINES, {"limit": limit})
    return [DialogLogRow(EndpointKey(row[0]), row[1]) for row in rows]
