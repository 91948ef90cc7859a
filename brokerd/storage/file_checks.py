"""File checks: whether a file is a store of this version that may be opened (BI-D1).

Reads:  the header, the lock, the log and the schema of a file, on connections that cannot write.
Calls:  nothing that writes.
Never:  changes a file, or leaves a new file in its directory.
Fails:  with the error that opening the file would raise.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from brokerd.errors import BrokerError, StoreDamaged, StoreLocked
from brokerd.model import Contract
from brokerd.storage import tables
from brokerd.storage.connections import READ_PRAGMAS, Connection
from brokerd.storage.files.lock import is_held, refuse_if_held
from brokerd.storage.files.log_check import HAS_LOG, refuse_loss
from brokerd.storage.files.log_head import has_log, index_path, log_path
from brokerd.storage.files.moved_files import file_at
from brokerd.storage.files.private_files import refuse_unsafe
from brokerd.storage.move_marks import Moved, read_mark
from brokerd.storage.rows import catalog, known_brokers, references
from brokerd.storage.rows.known_brokers import Known
from brokerd.storage.schema import REVISIONS, check_objects, read_revision, refuse_code

_MAGIC: Final = b"SQLite format 3\0"
_HEADER_SIZE: Final = 100
_APPLICATION_ID_AT: Final = 68
_JOURNAL_AT: Final = 18


def refusals_of(path: Path, *, user: int | None = None) -> Iterator[BrokerError]:
    """Yield the reasons why `open_file` would refuse a file, and change nothing (BI-D1).

    There are at most two: that a process has the file open, and the first other reason that can
    be found without a write. `user`: as for `refuse_unsafe`. The errors are those that `check_file`
    raises.
    """
    is_in_use = False
    try:
        refuse_unsafe(path, user=user)
        try:
            refuse_if_held(path)
        except StoreLocked as error:
            yield error
            is_in_use = True
        check_header(path)
        refuse_loss(path, is_in_use=is_in_use)
        check_schema(path)
    except BrokerError as error:
        yield error


def check_file(path: Path) -> None:
    """Refuse a file that `open_file` would refuse, and change nothing (BI-D1).

    Raises:
        StoreLocked: a process has the file open.
        UnsafeFile: a file of the store is a link, or not exclusively ours (SX-24).
        StoreDamaged, StoreVersion: the file is not a store, or not one of this version, or its log
            lacks confirmed changes (REL-39).
    """
    for error in refusals_of(path):
        raise error


def read_known_brokers(msdb: Path) -> Known:
    """Return the brokers that an instance has, without opening its store `msdb` (MAN-16).

    Raises:
        StoreLocked: a process has the store open, and may have changed the brokers.
        StoreDamaged: the file is not a store, or its log lacks confirmed changes (REL-39).
    """
    refuse_if_held(msdb)
    if is_missing(msdb):
        return {}
    check_header(msdb)
    refuse_loss(msdb)
    with reading(msdb) as connection:
        try:
            refuse_code(connection, msdb)
            return known_brokers.load(connection)
        except sqlite3.DatabaseError as error:
            raise unreadable(msdb, error) from error


def check_header(path: Path) -> None:
    """Raise `StoreDamaged` if the file is not a store; the error says what the file is."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_SIZE)
    except OSError as error:
        raise StoreDamaged(f"{path} cannot be read: {error.strerror}") from error
    if not header:
        raise StoreDamaged(f"{path} is an empty file, not a store")
    if not header.startswith(_MAGIC) or len(header) < _HEADER_SIZE:
        raise StoreDamaged(f"{path} is not an SQLite file")
    application_id = int.from_bytes(header[_APPLICATION_ID_AT:][:4])
    if application_id != tables.APPLICATION_ID:
        raise StoreDamaged(
            f"{path} belongs to another application (id {application_id:#010x},"
            f" a store has {tables.APPLICATION_ID:#010x})"
        )
    if header[_JOURNAL_AT:][:2] != HAS_LOG:  # a backup, or new: opening it starts a log
        refuse_stray_log(path, "is a backup, or new, and the log beside it is of another file")


def refuse_stray_log(path: Path, what: str) -> None:
    """Raise `StoreDamaged` if a log exists that SQLite would use for this file (MAN-11)."""
    if has_log(path):
        log = log_path(path)
        raise StoreDamaged(
            f"{path} {what}: {log}",
            hint=f"move {log} and {index_path(path)} away, or put back the file that they belong "
            "to",
        )


def check_schema(path: Path, *, name: str | None = None) -> str:
    """Check the schema of a file; return its revision.

    Raises:
        StoreVersion: the revision is unknown.
        StoreDamaged: the file is not whole, or it is not the store of the broker `name`.
    """
    with reading(path) as connection:
        try:
            refuse_code(connection, path)
            revision = read_revision(connection, path)
            if revision == REVISIONS[-1]:
                check_objects(connection, path)
            if name is not None:
                _check_name(connection, path, name)
        except sqlite3.DatabaseError as error:
            raise unreadable(path, error) from error
    return revision


def refuse_contracts_in_use(path: Path, wanted: Mapping[str, Contract]) -> None:
    """Raise `InUse` if open dialogs need a contract that the declarations `wanted` change.

    A start with such declarations is refused (OBJ-25, OBJ-37). A store of an older version is not
    inspected, and one whose log lacks confirmed changes is refused (`StoreDamaged`, REL-39).
    """
    check_header(path)
    refuse_loss(path, is_in_use=is_held(path))
    if check_schema(path) != REVISIONS[-1]:
        return
    with reading(path) as connection:
        try:
            refuse_changed_contracts(connection, wanted)
        except sqlite3.DatabaseError as error:
            raise unreadable(path, error) from error


def refuse_changed_contracts(connection: Connection, wanted: Mapping[str, Contract]) -> None:
    """Raise `InUse` if open dialogs of a store need a contract that `wanted` changes."""
    have = catalog.load(connection).contracts
    changed = (name for name, one in wanted.items() if have.get(name, one) != one)
    references.refuse_if_used(
        connection, [references.Use(contract=name) for name in sorted(changed)]
    )


def _check_name(connection: Connection, path: Path, name: str) -> None:
    """Raise `StoreDamaged` if the file is the store of another broker than `name`."""
    found = connection.execute("SELECT broker_name FROM store").fetchone()
    if found != (name,):
        owner = found[0] if found else "nobody"
        own = path.parent / f"{owner}.db"
        again = f"call the file {own.name} again"
        if own.exists():  # the name is taken: this file is a copy, and the other file may be in use
            again = f"move it to another directory, as {own.name} is there"
        raise StoreDamaged(
            f"{path} is the store of broker {owner}, not of {name}",
            hint=f"{again}, or put a backup of {name} in its place",
        )


@contextmanager
def reading(path: Path, *, with_log: bool = True) -> Iterator[Connection]:
    """Open a connection that only reads, and leave no new file behind.

    If the store has no log, the file is read as it is; otherwise SQLite needs the log's index.
    `with_log=False`: ignore the log, and do not touch its index.
    """
    index = index_path(path)
    had_index = index.exists()
    way = "mode=ro" if with_log and has_log(path) else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{way}", uri=True)
    try:
        for pragma in READ_PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        yield connection
    finally:
        connection.close()
        if not had_index:
            index.unlink(missing_ok=True)


def unreadable(path: Path, error: sqlite3.Error) -> StoreDamaged:
    """Return the error for a file that SQLite cannot read."""
    return StoreDamaged(f"{path} cannot be read: {error}")


def is_moved(path: Path) -> bool:
    """Return whether a file is marked as moved, so that no message waits in it (REL-61).

    False if that cannot be determined."""
    with suppress(sqlite3.DatabaseError, OSError), reading(path) as connection:
        found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        return len(found) == 1 and isinstance(read_mark(str(found[0][0])), Moved)
    return False


def is_missing(path: Path) -> bool:
    """Return whether there is no file; False if that cannot be determined."""
    try:
        return file_at(path) is None
    except OSError:
        return False
