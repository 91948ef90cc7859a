"""Library: the module in C, if it was built, and its errors as the driver would raise them.

Reads:  the sources of the module, once.      Calls: nothing.
Never:  uses a library that was built from other sources than those in its directory.
"""

import sqlite3
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

PLACE: Final = Path(__file__).parent


def _sources() -> bytes:
    files = sorted(file for file in PLACE.iterdir() if file.suffix in {".c", ".h"})
    return b"".join(file.read_bytes() for file in files)


def _built() -> Any:  # noqa: ANN401  # a module in C, or None
    try:
        found = import_module("brokerd.storage.compiled._compiled")
        made_of = sha256(_sources()).hexdigest()
    except (ImportError, OSError):
        return None
    return found if made_of == found.MADE_OF else None


BUILT: Final[Any] = _built()
"""The module in C; None = there was no compiler, or its sources have changed since the build."""
IS_BUILT: Final = BUILT is not None
"""Whether the installation has the compiled part."""
SqliteError: Final[type[Exception]] = BUILT.SqliteError if IS_BUILT else RuntimeError
"""Error that SQLite returned: an extended result code, and a message."""

_PRIMARY: Final = 0xFF
# fmt: off
_NAMES: Final = (
    "OK", "ERROR", "INTERNAL", "PERM", "ABORT", "BUSY", "LOCKED", "NOMEM", "READONLY",
    "INTERRUPT", "IOERR", "CORRUPT", "NOTFOUND", "FULL", "CANTOPEN", "PROTOCOL", "EMPTY",
    "SCHEMA", "TOOBIG", "CONSTRAINT", "MISMATCH", "MISUSE", "NOLFS", "AUTH", "FORMAT", "RANGE",
    "NOTADB",
)
# fmt: on
"""Names of SQLite's primary result codes, in their order."""
_CLASSES: Final[dict[str, type[sqlite3.Error]]] = {
    "CORRUPT": sqlite3.DatabaseError,
    "NOTADB": sqlite3.DatabaseError,
    "CONSTRAINT": sqlite3.IntegrityError,
    "MISMATCH": sqlite3.IntegrityError,
}


class Worker(Protocol):
    """A thread with its own connection, which runs one statement at a time."""

    def execute(self, text: str, /) -> str:
        """Run a statement immediately; return the first value of its last row, "" = no row."""
        ...

    def drain(self) -> None:
        """Clear the descriptor, so that it becomes readable again only with a new result."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that a result makes readable, until `drain` is called."""
        ...

    def close(self) -> None:
        """Wait for the running statement, and close."""
        ...


def driver() -> str:
    """Return the path of Python's SQLite driver, through which its SQLite library is found.

    "" = the driver is part of the interpreter.
    """
    return getattr(import_module("_sqlite3"), "__file__", None) or ""


def sqlite_error(code: int, message: str) -> sqlite3.Error:
    """Return the driver's error for this extended result code."""
    primary = code & _PRIMARY
    name = _NAMES[primary] if primary < len(_NAMES) else "UNKNOWN"
    error = _CLASSES.get(name, sqlite3.OperationalError)(message)
    error.sqlite_errorcode = code
    error.sqlite_errorname = _extended_name(f"SQLITE_{name}", code)
    return error


def _extended_name(primary: str, code: int) -> str:
    if code <= _PRIMARY:
        return primary
    names = [one for one in dir(sqlite3) if one.startswith(f"{primary}_")]
    return next((one for one in names if getattr(sqlite3, one) == code), primary)
