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
_GONE: Final = ("57P01", "57P02", "57P03")
"""SQLSTATEs of a server that stops, was stopped, or starts."""
_LOST: Final = "CONNECTION_LOST"
STANDBY: Final = "STANDBY"
"""Name of the error that the server is a standby."""
OTHER_SYSTEM: Final = "OTHER_SYSTEM"
"""Name of the error that the server is not the one that had the stores, nor its standby."""
FORMER: Final = "FORMER_PRIMARY"
"""Name of the error that the server was the primary before another one was promoted."""
_CONSTRAINT: Final = "23"
"""Class of the SQLSTATEs of violated constraints."""
FENCED: Final = "22012"
"""SQLSTATE of a division by zero, by which a flush of one statement ends at its fence."""


class ServerError(sqlite3.OperationalError):  # what the commit pipeline handles
    """An error of the server, or of the connection to it."""

    def __init__(
        self,
        message: str,
        *,
        name: str,
        kind: int = 0,
        sqlstate: str = "",
        is_outcome_known: bool = True,
    ) -> None:
        super().__init__(message)
        self.sqlite_errorname = name
        self.sqlite_errorcode = kind
        self.sqlstate = sqlstate
        self.is_outcome_known = is_outcome_known
        """Whether the server has rolled back for certain. If the connection is gone, a statement
        that commits may have been carried out."""


def server_error(error: BaseException) -> ServerError:
    """Return the error of the store for an error of the driver."""
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return ServerError("the server is a standby, which cannot be written to", name=STANDBY)
    if isinstance(error, asyncpg.ClientConfigurationError):
        return ServerError(str(error), name="BAD_URL")
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or "unknown"
        kind = _KINDS.get(state, 0)
        if state.startswith(_CONSTRAINT):
            kind = sqlite3.SQLITE_CONSTRAINT
        is_gone = state.startswith("08") or state in _GONE
        name = _LOST if is_gone else _NAMES.get(kind, "POSTGRESQL")
        return ServerError(
            str(error),
            name=f"{name} ({state})",
            kind=kind,
            sqlstate=state,
            is_outcome_known=not is_gone,
        )
    text = str(error) or type(error).__name__
    return ServerError(
        f"the connection to PostgreSQL is lost: {text}",
        name=_LOST,
        is_outcome_known=False,
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
