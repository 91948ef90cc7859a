"""Space: gives pages that a store no longer needs back to the file system, while it is in use.

Reads:  the list of free pages of the file.      Calls: SQLite, on the writer's connection.
Never:  gives back pages that the next messages would fill again: callers name only what has been
        free for a while. Nothing here changes the content of the store, so a crash in between is
        harmless.
"""

from typing import Final

from brokerd.storage.connections import BUSY_SECONDS, Connection
from brokerd.storage.writers import fold_and_cut

STEP: Final = 256
"""Pages given back at a time: a few milliseconds in which no flush is written."""

MOST: Final = 64 * STEP
"""Pages given back in one pass at most."""


def prepare(connection: Connection) -> None:
    """Let a file that has no tables yet give back single pages later."""
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")


def prepare_full(connection: Connection) -> None:
    """Prepare a file of a version that did not: it is rewritten, once."""
    if connection.execute("PRAGMA auto_vacuum").fetchone()[0] != _INCREMENTAL:
        prepare(connection)
        connection.execute("VACUUM")


def free_pages(connection: Connection) -> int:
    """Return the number of free pages of the file."""
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def give_back(connection: Connection, pages: int) -> int:
    """Free at most `pages` unused pages at the end of the file; return the number freed."""
    before = free_pages(connection)
    # As a script: this pragma frees a page with each step, and the driver takes one step only.
    connection.executescript(f"PRAGMA incremental_vacuum({pages})")
    return before - free_pages(connection)


def fold(connection: Connection) -> None:
    """Fold the log into the file, which shrinks, and cut the log, unless a read is under way."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        fold_and_cut(connection)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")


_INCREMENTAL: Final = 2
