"""Ownership: a store in PostgreSQL has one daemon that may write to it (REL-16, REL-54, design D1).

Reads:  the locks of the server.      Calls: nothing.
Never:  holds the right on another connection than the one that writes: both end together.

The right is an advisory lock of the session that writes. The server gives it back when that session
ends, for whatever reason; a daemon that was cut off can then confirm nothing more, since its
commits would need the session. The epoch, which the next owner raises, is the second fence: each
flush begins with it.
"""

import sqlite3
import zlib
from collections.abc import Callable
from typing import Final

from brokerd.errors import StoreLocked
from brokerd.storage.connections import Connection
from brokerd.storage.sqlite_errors import is_busy
from brokerd.storage.tables import APPLICATION_ID

_PATIENCE: Final = "SELECT set_config('lock_timeout', ?, false)"
_TAKE: Final = "SELECT pg_advisory_lock(?::int, ?::int)"
_HOLDER: Final = (
    "SELECT a.pid, a.application_name, coalesce(host(a.client_addr), 'this machine'),"
    ' to_char(a.backend_start, \'YYYY-MM-DD"T"HH24:MI:SS"Z"\')'
    " FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid"
    " WHERE l.locktype = 'advisory' AND l.granted"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND l.classid::bigint = ? AND l.objid::bigint = ?"
)


def lock_keys(schema: str) -> tuple[int, int]:
    """Return the two numbers of the lock of a schema, as signed 32-bit numbers."""
    number = zlib.crc32(schema.encode())
    return APPLICATION_ID, number - (1 << 32) if number >= 1 << 31 else number


def own(connection: Connection, schema: str, patience: float) -> None:
    """Take the lock of a store for this session.

    `patience`: seconds to wait for the session of another owner, which may be about to end.

    Raises:
        StoreLocked: another session has the lock; the error says which.
    """
    connection.execute(_PATIENCE, (f"{int(patience * 1000)}ms",))
    try:
        connection.execute(_TAKE, lock_keys(schema))
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
        raise _refusal(connection, schema) from error
    connection.execute(_PATIENCE, ("0",))


def holder(connection: Connection, schema: str) -> str:
    """Return the session that has the store of a schema open, as text; empty = none has."""
    first, second = lock_keys(schema)
    row = connection.execute(_HOLDER, (first, second & 0xFFFFFFFF)).fetchone()
    if row is None:
        return ""
    pid, name, host, since = row
    return f"{name or 'a daemon'} on {host} since {since} (server process {pid})"


def _refusal(connection: Connection, schema: str) -> StoreLocked:
    """Return the error that names the owner of a store."""
    found = holder(connection, schema)
    if not found:
        return StoreLocked(f"the store {schema} was just let go by another daemon")
    return StoreLocked(f"the store {schema} is open in {found}")


class ServerLock:
    """The lock of a store; the session that writes holds it, and it ends with that session."""

    def __init__(self, close: Callable[[], None]) -> None:
        """`close`: closes the connection of the session."""
        self._close = close

    def describe(self, broker_id: str, epoch: int, *, master_key: str = "") -> None:
        """Do nothing: waiting daemons read the store itself."""

    def release(self) -> None:
        """Close the connection: after a fault nobody else has closed it."""
        self._close()
