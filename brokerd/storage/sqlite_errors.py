"""Errors of SQLite: the meaning of a failed statement for the store (reliability section 2).

Reads: nothing.      Calls: nothing.      Never: decides how to react; the pipeline does.
"""

import errno
import sqlite3
from typing import Final

from brokerd.errors import IO_FAULT, StoreFault

_EXIT_STATUSES: Final = {
    sqlite3.SQLITE_CORRUPT: 65,
    sqlite3.SQLITE_NOTADB: 65,
    sqlite3.SQLITE_CONSTRAINT: 70,
}
_PRIMARY: Final = 0xFF
"""Mask for the part of an extended result code that is the kind of error."""


def is_full(error: BaseException | None) -> bool:
    """Return whether there was no room: on the disk, or by a limit of SQLite or of this user."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY == sqlite3.SQLITE_FULL


def is_read_only(error: BaseException | None) -> bool:
    """Return whether the file, or its file system, is read-only."""
    return str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_READONLY")


def is_busy(error: BaseException | None) -> bool:
    """Return whether another connection held a lock that the statement needed."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def as_fault(error: BaseException, *, doing: str, known: bool) -> StoreFault:
    """Return the fault to stop with (reliability section 2); it names `doing` and the outcome.

    `known`: whether the outcome is known, that is, a rollback.
    """
    if isinstance(error, StoreFault):
        return error
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    outcome = "it was rolled back" if known else "its outcome is not known"
    status = _EXIT_STATUSES.get(getattr(error, "sqlite_errorcode", 0) & _PRIMARY, IO_FAULT)
    fault = StoreFault(f"{doing} failed with {name}: {error}; {outcome}", exit_status=status)
    fault.__cause__ = error
    return fault
