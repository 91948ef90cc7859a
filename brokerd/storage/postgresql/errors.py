"""Errors: what an error of the server or of its connection means for the store.

Reads:  the SQLSTATE of an error.      Calls: nothing.
Never:  lets an error of the driver leave the package.

The commit pipeline handles the errors of a DB-API driver by their kind. So that it need not know
which engine a store has, errors of the server come as such an error, with the result code that
SQLite has for the same cause.
"""

import sqlite3
from typing import Final

import asyncpg

_KINDS: Final = {
    "53100": sqlite3.SQLITE_FULL,  # disk full
    "55P03": sqlite3.SQLITE_BUSY,  # a lock was not to be had
    "40P01": sqlite3.SQLITE_BUSY,  # deadlock
    "57014": sqlite3.SQLITE_INTERRUPT,  # a statement took too long
    "XX001": sqlite3.SQLITE_CORRUPT,  # a page of a table is damaged
    "XX002": sqlite3.SQLITE_CORRUPT,  # an index is damaged
    "25006": sqlite3.SQLITE_READONLY,  # a standby, or a server that was made read-only
}
_CONSTRAINT: Final = "23"
"""Class of the SQLSTATEs of violated constraints."""
NOT_REPRESENTABLE: Final = "22021"
"""SQLSTATE of a text with a character that PostgreSQL cannot store: NUL."""


class ServerError(sqlite3.OperationalError):  # what the commit pipeline handles
    """An error of the server, or of the connection to it."""

    def __init__(self, message: str, *, name: str, kind: int, is_lost: bool = False) -> None:
        super().__init__(message)
        self.sqlite_errorname = name
        self.sqlite_errorcode = kind
        self.is_lost = is_lost
        """Whether the connection is gone, so that nothing more can be said about the server."""


def server_error(error: BaseException) -> ServerError:
    """Return the error of the store for an error of the driver."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or "unknown"
        kind = _KINDS.get(state, 0)
        if state.startswith(_CONSTRAINT):
            kind = sqlite3.SQLITE_CONSTRAINT
        is_lost = state.startswith("08") or state in {"57P01", "57P02", "57P03"}
        name = f"{_NAMES.get(kind, 'POSTGRESQL')} ({state})"
        return ServerError(str(error), name=name, kind=kind, is_lost=is_lost)
    text = str(error) or type(error).__name__
    return ServerError(
        f"the connection to PostgreSQL is lost: {text}",
        name="CONNECTION_LOST",
        kind=0,
        is_lost=True,
    )


_NAMES: Final = {
    sqlite3.SQLITE_FULL: "SERVER_DISK_FULL",
    sqlite3.SQLITE_BUSY: "SERVER_BUSY",
    sqlite3.SQLITE_INTERRUPT: "SQLITE_INTERRUPT",  # what readers look for
    sqlite3.SQLITE_CORRUPT: "SQLITE_CORRUPT",
    sqlite3.SQLITE_READONLY: "SQLITE_READONLY",
    sqlite3.SQLITE_CONSTRAINT: "SERVER_CONSTRAINT",
}

DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    EOFError,
)
"""The errors that the driver raises."""
