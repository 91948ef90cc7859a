"""Backup: a consistent copy of an open store, verified before it gets its name (MAN-11).

Reads:  the whole file, in one read transaction.      Calls: SQLite.
Never:  waits for the writer or makes it wait, overwrites a file, or writes one to a directory of
        stores.
"""

import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from brokerd.errors import BackupFailed, InvalidArgument
from brokerd.storage import file_checks
from brokerd.storage.files.moved_files import file_at
from brokerd.storage.files.private_files import sync
from brokerd.storage.verifying import refuse_damaged

_SUFFIX: Final = ".brokerd-backup"
"""Suffix of the name of an unfinished copy. Such a file, if it is ours and no backup is writing
it, was left by a killed backup: the next backup into its directory removes it."""


def backup(source: Path, target: Path, *, not_in: Iterable[Path] = ()) -> int:
    """Copy the store at `source`, which may be in use, to a new file; return its size in bytes.

    `not_in`: directories that belong to stores. No file is left after an error.

    Raises:
        InvalidArgument: the copy would be in a directory of stores.
        StoreDamaged: the copy is not sound, so the store may not be sound either.
        BackupFailed: the copy could not be written.
    """
    for directory in not_in:
        _refuse_among_stores(target, directory)
    if target.exists():
        raise BackupFailed(f"{target} is there already", hint="choose another name, or remove it")
    aside = target.with_name(f".{target.name}{_SUFFIX}")
    try:
        _remove_cut_off(target.parent)
        with _made(aside):
            _copy(source, aside)
            file_checks.check_file(aside)
            refuse_damaged(aside, name=f"the copy of {source}")
            sync(aside)
            os.link(aside, target)  # unlike a rename, a link replaces nothing
            sync(target.parent)
    except OSError as error:
        raise BackupFailed(f"{target} cannot be written: {error.strerror}") from error
    except sqlite3.Error as error:
        raise BackupFailed(f"copying {source} to {target} failed: {error}") from error
    return target.stat().st_size


def _refuse_among_stores(target: Path, directory: Path) -> None:
    """Raise `InvalidArgument` if a target is in a directory of stores, reached by any path.

    A start may mistake a file in such a directory for a broker's own store.
    """
    try:
        there, taken = file_at(target.parent), file_at(directory)
    except OSError:
        return  # writing the copy will fail, too; that error gives the reason
    if there is not None and there == taken:
        raise InvalidArgument(
            f"{target} would lie in {directory}, among the stores of the instance: a start may "
            "take the copy for the store of another broker; nothing was written",
            hint="give a file in another directory, best on another disk",
        )


def _copy(source: Path, aside: Path) -> None:
    """Copy in one step: the copy shows one moment of the store, despite writes meanwhile."""
    name = f"file:{quote(str(source.absolute()))}?mode=ro"
    with closing(sqlite3.connect(name, uri=True)) as there, closing(sqlite3.connect(aside)) as here:
        there.backup(here)
        here.execute("PRAGMA journal_mode = DELETE")


# The temporary file is locked while it is written, so that no other backup removes it as cut off.


@contextmanager
def _made(aside: Path) -> Iterator[None]:
    """Create a new file and lock it; remove it when the block ends."""
    handle = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        _remove(aside)
        os.close(handle)


def _remove_cut_off(directory: Path) -> None:
    """Remove the files of killed backups: those with our suffix, owned by us and not locked."""
    for left in directory.glob(f".*{_SUFFIX}"):
        try:
            handle = os.open(left, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # a link, another user's, or gone
        try:
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(left)
        except BlockingIOError:
            continue  # it is being written
        finally:
            os.close(handle)


def _remove(aside: Path) -> None:
    for one in (aside, Path(f"{aside}-journal")):
        one.unlink(missing_ok=True)
