"""Idle dialogs: how far each old open dialog was when last looked at, and since when (REL-44).

Reads:  conversation_endpoints, endpoint_progress; reads and writes idle_dialogs.
Calls:  the writer, in jobs of one transaction each.
Never:  writes on the way of a message: a dialog is looked at by pages of its key, and its row is
        written only if it has moved since. The row goes with its endpoint (REL-36).
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

from brokerd.clock import Instant
from brokerd.ids import EndpointKey
from brokerd.model import SYSTEM_PREFIX
from brokerd.storage.connections import Connection, transaction

T = TypeVar("T")


class Writer(Protocol):
    """The writer of a store."""

    async def run(self, job: Callable[[Connection], T], /, *, writes: bool) -> T:
        """Run a job alone on the writer's connection."""
        ...


class Idle(NamedTuple):
    """An announced dialog: how far it was, and since when it has not moved."""

    key: EndpointKey
    sent: int
    received: int
    since: Instant


class Examined(NamedTuple):
    """The outcome of looking at one page of endpoints."""

    through: EndpointKey | None
    """The last key of the page; None = there are no more endpoints."""
    announced: int
    """Number of dialogs announced now."""


class Announced(NamedTuple):
    """The announced dialogs of a store, together."""

    dialogs: int = 0
    since: Instant | None = None
    """Since when the longest idle one has been idle."""
    announced_at: Instant | None = None
    """When the first of them was announced."""


_OPEN: Final = "state IN ('SO', 'CO')"
_PAGE_END: Final = (
    "SELECT max(endpoint_key) FROM (SELECT endpoint_key FROM conversation_endpoints"
    " WHERE endpoint_key > ? ORDER BY endpoint_key LIMIT ?) AS page"
)
_EXAMINE: Final = (
    "INSERT INTO idle_dialogs (endpoint_key, sent, received, since)"  # noqa: S608  # all ours
    " SELECT endpoint_key, send_sequence, receive_sequence, ?"
    " FROM conversation_endpoints JOIN endpoint_progress USING (endpoint_key)"
    f" WHERE endpoint_key > ? AND endpoint_key <= ? AND {_OPEN} AND began_at <= ?"
    f" AND service NOT GLOB '{SYSTEM_PREFIX}*' AND far_service NOT GLOB '{SYSTEM_PREFIX}*'"
    f" AND contract NOT GLOB '{SYSTEM_PREFIX}*'"
    " ON CONFLICT (endpoint_key) DO UPDATE SET sent = excluded.sent, received = excluded.received,"
    " since = excluded.since, announced_at = NULL"
    " WHERE idle_dialogs.sent <> excluded.sent OR idle_dialogs.received <> excluded.received"
)
_NOT_OPEN: Final = (
    "DELETE FROM idle_dialogs WHERE endpoint_key > ? AND endpoint_key <= ? AND endpoint_key NOT IN"  # noqa: S608
    f" (SELECT endpoint_key FROM conversation_endpoints WHERE endpoint_key > ?"
    f" AND endpoint_key <= ? AND {_OPEN})"
)
_ANNOUNCE: Final = (
    "UPDATE idle_dialogs SET announced_at = ? WHERE endpoint_key > ? AND endpoint_key <= ?"
    " AND announced_at IS NULL AND since <= ?"
)
_DUE: Final = (
    "SELECT endpoint_key, sent, received, since FROM idle_dialogs"
    " WHERE announced_at <= ? ORDER BY announced_at LIMIT ?"
)
_PUT_OFF: Final = "UPDATE idle_dialogs SET since = ?, announced_at = NULL WHERE endpoint_key = ?"
_FORGET: Final = "DELETE FROM idle_dialogs WHERE endpoint_key = ?"
_COUNT: Final = (
    "SELECT count(*), min(since), min(announced_at) FROM idle_dialogs"
    " WHERE announced_at IS NOT NULL"
)


async def examine(
    store: Writer, after: EndpointKey, limit: int, *, now: Instant, before: Instant, idle: Instant
) -> Examined:
    """Look at the endpoints behind a key, at most `limit`, and announce those that are idle.

    Only dialogs begun until `before` count; those that have not moved since `idle` are idle.
    """

    def job(connection: Connection) -> Examined:
        with transaction(connection):
            (through,) = connection.execute(_PAGE_END, (after, limit)).fetchone()
            if through is None:
                return Examined(None, 0)
            connection.execute(_NOT_OPEN, (after, through, after, through))
            connection.execute(_EXAMINE, (now, after, through, before))
            announced = connection.execute(_ANNOUNCE, (now, after, through, idle))
            return Examined(EndpointKey(through), announced.rowcount)

    return await store.run(job, writes=False)


async def due(store: Writer, announced: Instant, limit: int) -> list[Idle]:
    """Return dialogs that were announced until an instant, the first announced first."""

    def job(connection: Connection) -> list[Idle]:
        rows = connection.execute(_DUE, (announced, limit)).fetchall()
        return [Idle(EndpointKey(row[0]), row[1], row[2], Instant(row[3])) for row in rows]

    return await store.run(job, writes=False)


async def settle(
    store: Writer, *, ended: Iterable[EndpointKey], moved: Iterable[EndpointKey], now: Instant
) -> None:
    """Forget the dialogs that were ended; the time of those that have moved begins anew."""

    def job(connection: Connection) -> None:
        with transaction(connection):
            connection.executemany(_FORGET, [(key,) for key in ended])
            connection.executemany(_PUT_OFF, [(now, key) for key in moved])

    await store.run(job, writes=False)


async def count(store: Writer) -> Announced:
    """Return number and times of the announced dialogs."""

    def job(connection: Connection) -> Announced:
        dialogs, since, announced_at = connection.execute(_COUNT).fetchone()
        return Announced(dialogs, since, announced_at)

    return await store.run(job, writes=False)
