"""Space: pages that a store no longer needs are returned to the file system while it is in use.

Reads:  the list of free pages of the file.      Calls: SQLite, on the writer's connection.
Never:  returns pages that the next messages would fill again: callers count only pages that have
        been free for a while. This module never changes the content of the store, so a crash in
        between is harmless.
"""

from typing import Final

from brokerd.storage.connections import BUSY_SECONDS, Connection
from brokerd.storage.writers import fold_and_cut, has_log

STEP: Final = 256
"""Number of pages freed at a time: a few milliseconds in which no flush is written."""

MOST: Final = 64 * STEP
"""Most pages freed in one pass."""


def prepare(connection: Connection) -> None:
    """Prepare a file that has no tables yet for freeing single pages later."""
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")


def prepare_full(connection: Connection) -> None:
    """Prepare a file made by a version that had no `prepare`; this rewrites the file, once."""
    if connection.execute("PRAGMA auto_vacuum").fetchone()[0] != _INCREMENTAL:
        prepare(connection)
        connection.execute("VACUUM")


def free_pages(connection: Connection) -> int:
    """Return the number of free pages of the file."""
    if not has_log(connection):
        return 0
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def give_back(connection: Connection, pages: int) -> int:
    """Free at most `pages` unused pages at the end of the file; return the number freed."""
    if not has_log(connection):
        return 0
    before = free_pages(connection)
    # Run as a script: this pragma frees one page per step, and the driver takes only one step.
    connection.executescript(f"PRAGMA incremental_vacuum({pages})")
    return before - free_pages(connection)


def fold(connection: Connection) -> None:
    """Fold the log into the file, which then shrinks, and cut the log, unless a read is running."""
    if not has_log(connection):
        return
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        fold_and_cut(connection)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")


_INCREMENTAL: Final = 2
