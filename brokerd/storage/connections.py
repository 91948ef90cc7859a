"""Connections that write, their pragmas and transactions, and the pragmas of reading connections.

Reads:  nothing by itself.      Calls: SQLite, through its driver.
Never:  opens a file for writing that `file_checks` has not checked.
Fails:  a connection that does not keep its promises is closed and refused (REL-1).
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from brokerd.errors import StoreDamaged
from brokerd.storage.files.log_head import LogHead, head_path
from brokerd.storage.files.moved_files import FilesInPlace
from brokerd.storage.sqlite_errors import is_full
from brokerd.storage.writers import roll_back, roll_back_and_close

Connection = sqlite3.Connection

BUSY_SECONDS: Final = 5.0
"""Seconds to wait for a lock of SQLite."""
_LOG_KEPT: Final = 64 * 1024 * 1024
"""Bytes of the log file that are kept, to be overwritten, when the log restarts."""

# The driver looks up a registry for every value that is not exactly an int, float or str, and a
# miss costs more than the rest of the binding. These adapters return the value that the driver
# would have bound anyway.
sqlite3.register_adapter(bytes, bytes.__bytes__)
sqlite3.register_adapter(bool, int)
_nothing: dict[None, None] = {None: None}
sqlite3.register_adapter(type(None), _nothing.__getitem__)

SQLITE_VERSION: Final = sqlite3.sqlite_version
"""Version of the SQLite library in use; brokerd does not bundle one."""

WRITE_PRAGMAS: Final = (
    # Nothing stored in a file is executed (BI-D2).
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "journal_mode = WAL",
    "synchronous = FULL",
    "foreign_keys = ON",
    # The commit pipeline starts the checkpoints: SQLite hides the error of an automatic one.
    "wal_autocheckpoint = 0",
    "cache_size = -16384",
    # Some builds overwrite each freed page with zeros: deleting a message would cost as much as
    # writing one, and a full disk could not be drained (REL-26).
    "secure_delete = FAST",
    # A long read may have let the log grow; the file shrinks when the log restarts.
    f"journal_size_limit = {_LOG_KEPT}",
)
"""Pragmas of each connection that writes."""
KEPT_PRAGMAS: Final = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
"""Values that some of `WRITE_PRAGMAS` must return once they are set."""

READ_PRAGMAS: Final = ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON")


class StoreConnection(sqlite3.Connection):
    """A connection that writes, with its store's record of the log's head and file identities."""

    head: LogHead | None = None
    place: FilesInPlace | None = None

    def close(self) -> None:
        """Close the connection, and record whether a log is left."""
        is_log_gone = self.place is not None and self.place.log_fault is not None
        super().close()
        if self.head is not None:
            self.head.close(is_log_gone=is_log_gone)


def connect_writer(path: Path) -> StoreConnection:
    """Return the one connection that writes. `StoreDamaged` if it would break its promises (REL-1).

    The caller must have checked the log that SQLite will find (`log_check.py`).
    """
    try:
        head = LogHead(path)
    except OSError as error:
        if is_full(error):
            raise
        raise StoreDamaged(
            f"{head_path(path)} cannot be written: {error.strerror}",
            hint="change the owner and mode of the file; it may not be a link",
        ) from error
    try:
        connection = connect_without_record(path)
    except BaseException:
        head.close()
        raise
    connection.head = head
    try:
        connection.execute("PRAGMA schema_version").fetchone()  # opens the log and its index
        head.attach()
        connection.place = FilesInPlace(path)
    except BaseException:
        roll_back_and_close(connection)
        raise
    return connection


def connect_without_record(path: Path) -> StoreConnection:
    """Connect as `connect_writer` does, but leave the record of the log's head alone (REL-39)."""
    connection = sqlite3.connect(
        path,
        factory=StoreConnection,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    for pragma in WRITE_PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").fetchone()
    for pragma, wanted in KEPT_PRAGMAS.items():
        found = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
        if found != wanted:
            connection.close()
            raise StoreDamaged(f"{path}: {pragma} is {found}, not {wanted}, after setting it")
    return connection


@contextmanager
def transaction(connection: Connection) -> Iterator[Connection]:
    """Run BEGIN IMMEDIATE, then the block, then COMMIT; on an error before COMMIT, ROLLBACK."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        roll_back(connection)
        raise
    connection.execute("COMMIT")
