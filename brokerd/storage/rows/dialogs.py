"""Dialog endpoints, group states and closing lines: statements and row mapping.

Reads:  conversation_endpoints, endpoint_progress, group_states, dialog_log.
Calls:  the reader it is given.
Never:  decides what an endpoint may do; `protocol.dialog` does.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Select, bindparam, func, select, text

from brokerd.clock import Instant
from brokerd.errors import StoreDamaged
from brokerd.ids import ConversationId, EndpointKey, GroupId, Handle
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State
from brokerd.storage.changes import DialogLogRow
from brokerd.storage.read_cache import ReadCache
from brokerd.storage.readers import Reader, Values
from brokerd.storage.statements import Deletes, Inserts, Script, update_by_key
from brokerd.storage.tables import LIFETIME_COUNTS, UNSETTLED, dialog_log, group_states
from brokerd.storage.tables import conversation_endpoints as endpoints
from brokerd.storage.tables import endpoint_progress as progress

_LINES: Final = 64
"""Most closing lines in one row."""
_MANY: Final = 500
"""Most keys in one IN list of a read."""
_COUNTED_ALWAYS: Final = 10_000
"""Most endpoints that are counted after each write; counting them takes 2 ms."""
_GOOD_FOR: Final = 20e-6
"""Seconds for each endpoint of a count, a hundred times as long as counting it takes."""

_COLUMNS = [column.name for column in endpoints.columns]
_PROGRESS = [column.name for column in progress.columns]
_MUTABLE = _COLUMNS.index("priority")
_STATE = _COLUMNS.index("state")
_MOVED = len(_COLUMNS)
_FLAGS = [_COLUMNS.index(name) for name in ("is_initiator", "encryption", "bound", "first_acked")]
# The two rows of an endpoint, one after the other, are its fields in order.
assert [*_COLUMNS, *_PROGRESS[1:]][1:] == list(DialogEndpoint.__struct_fields__[1:])
_insert = Inserts(endpoints)
_update = update_by_key(endpoints, "endpoint_key", _COLUMNS[_MUTABLE:])
_delete = Deletes(endpoints.c.endpoint_key)
_put_progress = Inserts(progress, replace=True)
_progress_row = attrgetter("key", *_PROGRESS[1:])
_delete_progress = Deletes(progress.c.endpoint_key)
_put_state = Inserts(group_states, replace=True)
_drop_state = Deletes(group_states.c.group_id)
_drop_left = Deletes(
    group_states.c.group_id,
    also=" AND NOT EXISTS (SELECT 1 FROM conversation_endpoints"
    " WHERE conversation_endpoints.group_id = group_states.group_id"
    " AND conversation_endpoints.state <> 'CD')",
)
_put_line = Inserts(dialog_log, replace=True)
_drop_line = Deletes(dialog_log.c.endpoint_key)
_TEXT = {state: str(state.value) for state in State}


class Lingering(NamedTuple):
    """The endpoints of a service that have been in the same state for a long time."""

    service: str
    state: State
    endpoints: int
    since: Instant
    """When the first of these endpoints entered the state."""


def insert_endpoints(script: Script, created: Iterable[DialogEndpoint]) -> None:
    """Write new endpoints; the caller writes their progress as well."""
    _insert.add(script, [_row(endpoint) for endpoint in created])


def update_endpoints(script: Script, changed: Iterable[DialogEndpoint]) -> None:
    """Write the mutable columns of endpoints, except their progress."""
    script.add(_update, *[(*_row(endpoint)[_MUTABLE:], endpoint.key) for endpoint in changed])


def write_progress(script: Script, moved: Iterable[DialogEndpoint]) -> None:
    """Write the progress of endpoints."""
    _put_progress.add(script, sorted(map(_progress_row, moved)))


def delete_endpoints(script: Script, removed: Sequence[EndpointKey]) -> None:
    """Delete endpoints; the caller deletes their progress as well."""
    _delete.add(script, removed)


def delete_progress(script: Script, removed: Sequence[EndpointKey]) -> None:
    """Delete the progress of endpoints."""
    _delete_progress.add(script, removed)


def write_group_states(script: Script, states: Mapping[GroupId, bytes | None]) -> None:
    """Write the groups' states; None deletes a state."""
    _drop_state.add(script, [group for group, state in states.items() if state is None])
    _put_state.add(script, [(group, state) for group, state in states.items() if state is not None])


def drop_states_of_ended(script: Script, left: Sequence[GroupId]) -> None:
    """Delete the states of the groups in `left` that have no open endpoint (GRP-2).

    Call this after endpoints and states have been written.
    """
    _drop_left.add(script, left)


def write_log(
    script: Script, closed: Sequence[DialogLogRow], logged: Sequence[EndpointKey]
) -> None:
    """Write closing lines, many per row, and delete the rows that the metrics log has."""
    _put_line.add(
        script, [_joined(closed[at : at + _LINES]) for at in range(0, len(closed), _LINES)]
    )
    _drop_line.add(script, logged)


def _joined(lines: Sequence[DialogLogRow]) -> DialogLogRow:
    """Join lines in one row, which is kept for a second or two until the metrics log has it."""
    return DialogLogRow(lines[0].endpoint, b"\n".join([one.line for one in lines]))


def _row(endpoint: DialogEndpoint) -> tuple[Any, ...]:
    values: tuple[Any, ...] = msgspec.structs.astuple(endpoint)
    return (*values[:_STATE], _TEXT[endpoint.state], *values[_STATE + 1 : len(_COLUMNS)])


def as_endpoint(row: Values) -> DialogEndpoint:
    """Return the endpoint made from its two rows, which are joined in `row`."""
    values = list(row)
    if values[_MOVED] is None:
        raise StoreDamaged(f"dialog endpoint {row[0]} has no row in {progress.name}")
    for at in _FLAGS:
        values[at] = bool(values[at])
    values[_STATE] = State(values[_STATE])
    return DialogEndpoint(*values)


WHOLE = select(endpoints, *(progress.c[name] for name in _PROGRESS[1:])).select_from(
    endpoints.outerjoin(progress, progress.c.endpoint_key == endpoints.c.endpoint_key)
)
BY_HANDLE = WHOLE.where(endpoints.c.handle == bindparam("handle"))
BY_CONVERSATION = WHOLE.where(
    endpoints.c.conversation_id == bindparam("conversation_id"),
    endpoints.c.is_initiator == bindparam("is_initiator"),
)
BY_HANDLES = WHOLE.where(endpoints.c.handle.in_(bindparam("handles", expanding=True)))
BY_CONVERSATIONS = WHOLE.where(
    endpoints.c.conversation_id.in_(bindparam("conversations", expanding=True))
)
BY_GROUP = WHOLE.where(endpoints.c.group_id == bindparam("group"))
KEYS_OF_GROUPS = select(endpoints.c.group_id, endpoints.c.endpoint_key).where(
    endpoints.c.group_id.in_(bindparam("groups", expanding=True))
)
BY_KEY = WHOLE.where(endpoints.c.endpoint_key.in_(bindparam("keys", expanding=True)))
# The conditions are those of the partial indexes, word for word, or SQLite does not use them.
EXPIRED = (
    WHOLE.where(text(LIFETIME_COUNTS), endpoints.c.expires_at <= bindparam("now"))
    .order_by(endpoints.c.expires_at)
    .limit(bindparam("limit"))
)
FIRST_EXPIRY = select(func.min(endpoints.c.expires_at)).where(text(LIFETIME_COUNTS))
UNSETTLED_ONES = (
    WHOLE.where(text(UNSETTLED), endpoints.c.endpoint_key > bindparam("after"))
    .order_by(endpoints.c.endpoint_key)
    .limit(bindparam("limit"))
)
PURGEABLE = (
    select(endpoints.c.endpoint_key)
    .where(endpoints.c.purge_at <= bindparam("now"), endpoints.c.state == State.CLOSED.value)
    .order_by(endpoints.c.purge_at)
    .limit(bindparam("limit"))
)
FIRST_PURGE = select(func.min(endpoints.c.purge_at)).where(endpoints.c.purge_at.is_not(None))
COUNT_BY_STATE = select(endpoints.c.state, func.count()).group_by(endpoints.c.state)
LINGERING = (
    select(
        endpoints.c.service,
        endpoints.c.state,
        func.count(),
        func.min(endpoints.c.state_since).label("since"),
    )
    .where(
        endpoints.c.state.in_(
            [State.DISCONNECTED_INBOUND, State.DISCONNECTED_OUTBOUND, State.ERROR]
        ),
        endpoints.c.state_since <= bindparam("since"),
    )
    .group_by(endpoints.c.service, endpoints.c.state)
    .order_by("since")
    .limit(bindparam("limit"))
)
LISTED = (
    WHOLE.where(endpoints.c.endpoint_key > bindparam("after"))
    .order_by(endpoints.c.endpoint_key)
    .limit(bindparam("limit"))
)
GROUP_STATE = select(group_states.c.state).where(group_states.c.group_id == bindparam("group"))
LOG_LINES = select(dialog_log).order_by(dialog_log.c.endpoint_key).limit(bindparam("limit"))


class StoredEndpoints:
    """The stored dialog endpoints, and the rows that belong to them."""

    def __init__(self, reader: Reader, cache: ReadCache) -> None:
        """Create the queries for endpoints.

        `cache`: answers that stay valid until something is written.
        """
        self._reader = reader
        self._cache = cache

    async def by_handle(self, handle: Handle) -> DialogEndpoint | None:
        """Return the endpoint with this handle; None = it does not exist."""
        rows = await self._reader.hot(BY_HANDLE, {"handle": handle})
        return as_endpoint(rows[0]) if rows else None

    async def by_conversation(
        self, conversation_id: ConversationId, is_initiator: bool
    ) -> DialogEndpoint | None:
        """Return the endpoint of one side of a conversation; None = it does not exist."""
        values = {"conversation_id": conversation_id, "is_initiator": int(is_initiator)}
        rows = await self._reader.hot(BY_CONVERSATION, values)
        return as_endpoint(rows[0]) if rows else None

    async def by_names(
        self, handles: Sequence[Handle], conversations: Sequence[ConversationId]
    ) -> list[DialogEndpoint]:
        """Return the endpoints with these handles and of these conversations, in few reads."""
        found: list[DialogEndpoint] = []
        for statement, name, wanted in (
            (BY_HANDLES, "handles", handles),
            (BY_CONVERSATIONS, "conversations", conversations),
        ):
            for at in range(0, len(wanted), _MANY):
                rows = await self._reader.hot(statement, {name: wanted[at : at + _MANY]})
                found += map(as_endpoint, rows)
        return found

    async def by_keys(self, keys: Iterable[EndpointKey]) -> dict[EndpointKey, DialogEndpoint]:
        """Return the endpoints with these keys; missing ones are left out."""
        wanted = sorted(set(keys))
        found: dict[EndpointKey, DialogEndpoint] = {}
        for at in range(0, len(wanted), _MANY):
            for row in await self._reader.hot(BY_KEY, {"keys": wanted[at : at + _MANY]}):
                endpoint = as_endpoint(row)
                found[endpoint.key] = endpoint
        return found

    async def in_group(self, group: GroupId) -> list[DialogEndpoint]:
        """Return the endpoints of a conversation group by key, closed ones included."""
        rows = await self._reader.hot(BY_GROUP, {"group": group})
        return sorted((as_endpoint(row) for row in rows), key=attrgetter("key"))

    async def keys_in_groups(self, groups: Sequence[GroupId]) -> dict[GroupId, list[EndpointKey]]:
        """Return the endpoints of groups, closed ones included; groups without any are left out."""
        found: dict[GroupId, list[EndpointKey]] = {}
        for at in range(0, len(groups), _MANY):
            for group, key in await self._reader.hot(
                KEYS_OF_GROUPS, {"groups": groups[at : at + _MANY]}
            ):
                found.setdefault(GroupId(group), []).append(EndpointKey(key))
        return found

    async def expired(self, now: Instant, limit: int) -> list[DialogEndpoint]:
        """Return endpoints whose lifetime is over and can still end them, oldest first."""
        return [
            as_endpoint(row)
            for row in await self._reader.rows(EXPIRED, {"now": now, "limit": limit})
        ]

    async def first_expiry(self) -> Instant | None:
        """Return when the first lifetime that can still end its endpoint is over.

        None = no lifetime can end an endpoint."""
        return await self._cache.answer("first expiry", partial(self._instant, FIRST_EXPIRY))

    def nothing_expired(self, now: Instant) -> bool:
        """Return whether the cache shows, without a read, that no lifetime is over."""
        return _is_ahead(self._cache.known("first expiry"), now)

    async def unsettled(self, after: EndpointKey, limit: int) -> list[DialogEndpoint]:
        """Return closed target endpoints that have not received FIRST_ACKED, by key (DLP-57)."""

        async def read() -> list[DialogEndpoint]:
            rows = await self._reader.rows(UNSETTLED_ONES, {"after": after, "limit": limit})
            return [as_endpoint(row) for row in rows]

        return await (self._cache.answer("unsettled", read) if after < 0 else read())

    @property
    def is_settled(self) -> bool:
        """Whether the cache shows, without a read, that `unsettled` returns no endpoint."""
        return self._cache.known("unsettled") == ([],)

    async def purgeable(self, now: Instant, limit: int) -> list[EndpointKey]:
        """Return closed endpoints whose guard time is over (DLP-54), oldest first."""
        rows = await self._reader.rows(PURGEABLE, {"now": now, "limit": limit})
        return [EndpointKey(row[0]) for row in rows]

    async def first_purge(self) -> Instant | None:
        """Return when the first guard time of a closed endpoint ends; None = no guard time."""
        return await self._cache.answer("first purge", partial(self._instant, FIRST_PURGE))

    def nothing_purgeable(self, now: Instant) -> bool:
        """Return whether the cache shows, without a read, that no guard time is over."""
        return _is_ahead(self._cache.known("first purge"), now)

    async def _instant(self, statement: Select[Any]) -> Instant | None:
        ((found,),) = await self._reader.rows(statement)
        return None if found is None else Instant(found)

    async def count_by_state(self) -> dict[str, int]:
        """Return the number of endpoints in each state; a store at rest is counted once.

        Counting reads every endpoint: the more there are, the longer a count is good (MON-117)."""
        found = await self._cache.answer("states", self._count_by_state, _good_for)
        return dict(found)

    async def _count_by_state(self) -> Mapping[str, int]:
        return {row[0]: row[1] for row in await self._reader.rows(COUNT_BY_STATE)}

    async def lingering(self, since: Instant, limit: int) -> list[Lingering]:
        """Count endpoints long in DI, DO or ER, by service and state, oldest first (PBT-5)."""
        rows = await self._reader.rows(LINGERING, {"since": since, "limit": limit})
        return [Lingering(row[0], State(row[1]), row[2], Instant(row[3])) for row in rows]

    async def page(self, limit: int, after: EndpointKey | None = None) -> list[DialogEndpoint]:
        """Return at most `limit` endpoints by key, from the first one after `after`."""
        values = {"after": -1 if after is None else after, "limit": limit}
        return [as_endpoint(row) for row in await self._reader.rows(LISTED, values)]

    async def group_state(self, group: GroupId) -> bytes | None:
        """Return the state that the application keeps for the group (GRP-22); None = no state."""
        rows = await self._reader.hot(GROUP_STATE, {"group": group})
        return bytes(rows[0][0]) if rows else None

    async def closing_lines(self, limit: int) -> list[DialogLogRow]:
        """Return at most `limit` rows of closing lines for the metrics log (design D16)."""
        rows = await self._reader.rows(LOG_LINES, {"limit": limit})
        return [DialogLogRow(EndpointKey(row[0]), row[1]) for row in rows]


def _good_for(counts: Mapping[str, int]) -> float:
    """Return the seconds for which a count of endpoints is shown, though it may have changed."""
    endpoints = sum(counts.values())
    return endpoints * _GOOD_FOR if endpoints > _COUNTED_ALWAYS else 0.0


def _is_ahead(known: tuple[Instant | None] | None, now: Instant) -> bool:
    return known is not None and (known[0] is None or known[0] > now)
