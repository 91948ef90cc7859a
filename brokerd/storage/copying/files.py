"""Files: a store in a file as the source or the target of a copy.

Reads:  the source, after all checks of an opening.      Calls: SQLite, the file system.
Never:  writes to the source before `mark`, or gives a copy its name before it is whole.
Fails:  with the errors of an opening; `CopyFailed` for a target that cannot be written.
"""

import glob
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from brokerd.clock import Clock
from brokerd.errors import CopyFailed, StoreDamaged, UnsafeFile
from brokerd.storage import file_checks, space, tables
from brokerd.storage.connections import Connection, connect_writer, transaction
from brokerd.storage.copying.ends import Facts, Staging, highest_keys, read_facts
from brokerd.storage.copying.places import FilePlace
from brokerd.storage.copying.rows import Row
from brokerd.storage.files.lock import OwnerLock
from brokerd.storage.files.log_check import refuse_loss
from brokerd.storage.files.log_head import head_path, index_path, log_path
from brokerd.storage.files.private_files import make_private_file, owner_of, refuse_unsafe, sync
from brokerd.storage.move_marks import Moved, Unfinished
from brokerd.storage.schema import REVISIONS, refuse_code, table_definitions
from brokerd.storage.sqlite_errors import is_full
from brokerd.storage.verifying import Finding, verify
from brokerd.storage.writers import roll_back_and_close

_SEQUENCES = "SELECT name, seq FROM sqlite_sequence"


class FileSource:
    """A store in a file, locked, on a connection that only reads."""

    def __init__(self, place: FilePlace, *, clock: Clock) -> None:
        """Lock and check the file.

        Raises:
            StoreLocked: a process has the store open.
            UnsafeFile: a file of the store is a link, or not exclusively ours (SX-24).
            StoreDamaged: the file is not a store, or its log lacks confirmed changes (REL-39).
        """
        self.place = place
        path = place.path
        if not path.exists():
            raise StoreDamaged(f"{path} is not there", hint="name the file of a store")
        _refuse_owner(path)
        refuse_unsafe(path)
        self._lock = OwnerLock(path, clock=clock)
        self._reading = ExitStack()
        try:
            file_checks.check_header(path)
            refuse_loss(path)
            self.connection = self._reading.enter_context(file_checks.reading(path))
            refuse_code(self.connection, path)
            facts = read_facts(self.connection)
        except sqlite3.DatabaseError as error:
            self.close()
            raise file_checks.unreadable(path, error) from error
        except BaseException:
            self.close()
            raise
        if facts is None:
            self.close()
            raise StoreDamaged(f"{path} does not say whose store it is")
        self.facts = facts

    def stream(self, query: str, size: int) -> Iterator[Sequence[Row]]:
        """Yield the rows of a query, at most `size` at a time."""
        return _stream(self.connection, query, size)

    def findings(self) -> list[Finding]:
        """Return what is wrong with the store."""
        return verify(self.place.path)

    def numbers(self) -> dict[str, int]:
        """Return the highest key that each numbered table has ever given."""
        return _numbers(self.connection)

    def mark(self, mark: Moved) -> None:
        """Mark the store as moved, durably; nothing is read from it afterwards."""
        self._reading.close()
        connection = connect_writer(self.place.path)
        try:
            with transaction(connection):
                connection.execute("UPDATE alembic_version SET version_num = ?", (mark.show(),))
        finally:
            roll_back_and_close(connection)

    def close(self) -> None:
        """Close the store, and let others open it."""
        self._reading.close()
        self._lock.release()


class _FileStaging:
    """A file without a name, in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def stream(self, query: str, size: int) -> Iterator[Sequence[Row]]:
        """Yield the rows of a query, at most `size` at a time."""
        return _stream(self.connection, query, size)

    def set_numbers(self, numbers: dict[str, int]) -> None:
        """Set the highest key that each numbered table has given."""
        for name, number in numbers.items():
            self.connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
            if number:
                self.connection.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (name, number))

    def numbers(self) -> dict[str, int]:
        """Return the highest key that each numbered table has given."""
        return _numbers(self.connection)


class FileTarget:
    """The place of a file; an unfinished copy lies beside it under a name with its number."""

    def __init__(self, place: FilePlace, *, clock: Clock) -> None:
        """Lock the place.

        Raises:
            StoreLocked: a process has a store open there.
            UnsafeFile: the directory belongs to another user.
            CopyFailed: the directory cannot be used.
        """
        self.place = place
        path = place.path
        if not path.parent.is_dir():
            raise CopyFailed(
                f"{path.parent} is not a directory", hint="make it first, with mode 0700"
            )
        _refuse_owner(path.parent)
        self._lock = OwnerLock(path, clock=clock)

    def facts(self) -> Facts | None:
        """Return whose store is there; None = there is none."""
        path = self.place.path
        left = [one for one in (path, log_path(path), index_path(path)) if os.path.lexists(one)]
        if not left:
            return None
        if path in left:
            file_checks.check_header(path)
            refuse_loss(path)
            with file_checks.reading(path) as connection:
                return read_facts(connection)
        raise CopyFailed(
            f"{left[0]} is there already; nothing was copied",
            hint=f"move {path}-* to another directory",
        )

    def unfinished(self) -> Unfinished | None:
        """Return the copy that was made here and not finished; None = there is none."""
        for path in self._left():
            if path.name.endswith(("-journal", "-wal")):
                continue
            return Unfinished(path.name.rpartition("-")[2], "")
        return None

    def stage(self, mark: Unfinished, fill: Callable[[Staging], None]) -> None:
        """Make a copy that nobody can open yet, durably; if `fill` fails, nothing is left."""
        aside = self._aside(mark)
        try:
            with _refusing(self.place.path):
                make_private_file(aside)
                with closing(sqlite3.connect(aside, isolation_level=None)) as connection:
                    space.prepare(connection)
                    connection.execute(f"PRAGMA application_id = {tables.APPLICATION_ID}")
                    with transaction(connection):
                        for statement in table_definitions():
                            connection.execute(statement)
                        connection.execute(
                            "INSERT INTO alembic_version VALUES (?)", (REVISIONS[-1],)
                        )
                        fill(_FileStaging(connection))
                sync(aside)
                sync(aside.parent)
        except BaseException:
            self.discard()
            raise

    def finish(self, mark: Unfinished) -> None:
        """Let the copy be opened, durably."""
        path = self.place.path
        with _refusing(path):
            head_path(path).unlink(missing_ok=True)  # of a store that was here before
            self._aside(mark).rename(path)
            sync(path.parent)

    def discard(self) -> None:
        """Remove unfinished copies."""
        for path in self._left():
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others use the place."""
        self._lock.release()

    def _aside(self, mark: Unfinished) -> Path:
        path = self.place.path
        return path.with_name(f".{path.name}.copy-{mark.copy}")

    def _left(self) -> list[Path]:
        path = self.place.path
        return sorted(path.parent.glob(f".{glob.escape(path.name)}.copy-*"))


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if is_full(error):
            raise CopyFailed(
                f"{path}: the disk has no room for the copy",
                hint="make room, or copy to another disk; the source is as it was",
            ) from error
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise CopyFailed(f"{path} cannot be written: {text}") from error


def _refuse_owner(path: Path) -> None:
    owner = owner_of(path)
    if owner not in (None, os.geteuid()):
        raise UnsafeFile(
            f"{path} belongs to user {owner}, who could not use what user {os.geteuid()} makes",
            hint=f"run this as that user: sudo -u '#{owner}' brokerd store copy ...",
        )


def _stream(connection: Connection, query: str, size: int) -> Iterator[Sequence[Row]]:
    cursor = connection.execute(query)
    while rows := cursor.fetchmany(size):
        yield rows


def _numbers(connection: Connection) -> dict[str, int]:
    given = dict(connection.execute(_SEQUENCES).fetchall())
    return {
        name: max(given.get(name, 0), highest) for name, highest in highest_keys(connection).items()
    }
