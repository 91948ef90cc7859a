"""Backups: a consistent copy of an open store, looked at before it gets its name (MAN-11).

Reads:  the whole file, in one read transaction.      Calls: SQLite.
Never:  waits for the writer or makes it wait, overwrites a file, or writes one among stores.
"""

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from brokerd.errors import BackupFailed, InvalidArgument, StoreDamaged
from brokerd.storage import files


def backup(source: Path, target: Path, *, not_in: Iterable[Path] = ()) -> int:
    """Copy the store at `source`, which may be in use, to a new file; its size in bytes.

    `not_in`: directories that belong to stores. `InvalidArgument`: the copy would be in one of
    them; `StoreDamaged`: it is not sound, so the store may not be; `BackupFailed`: it could not be
    written. No file is left then."""
    for directory in not_in:
        _refuse_among_stores(target, directory)
    if target.exists():
        raise BackupFailed(f"{target} is there already", hint="choose another name, or remove it")
    aside = target.with_name(target.name + ".new")
    aside.unlink(missing_ok=True)
    try:
        os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        _copy(source, aside)
        _verify(aside)
        files.sync(aside)
        os.link(aside, target)  # unlike a rename it replaces nothing
        files.sync(target.parent)
    except OSError as error:
        raise BackupFailed(f"{target} cannot be written: {error.strerror}") from error
    except sqlite3.Error as error:
        raise BackupFailed(f"copying {source} to {target} failed: {error}") from error
    finally:
        aside.unlink(missing_ok=True)
    return target.stat().st_size


def _refuse_among_stores(target: Path, directory: Path) -> None:
    """Whatever way its path takes: a start may take what is there for a broker's own store."""
    try:
        there, taken = files.file_at(target.parent), files.file_at(directory)
    except OSError:
        return  # nothing can be written there either, and why is told then
    if there is not None and there == taken:
        raise InvalidArgument(
            f"{target} would lie in {directory}, among the stores of the instance: a start may "
            "take the copy for the store of another broker; nothing was written",
            hint="give a file in another directory, best on another disk",
        )


def _copy(source: Path, aside: Path) -> None:
    """In one step, so that it is one moment of the store, whatever is written meanwhile."""
    name = f"file:{quote(str(source.absolute()))}?mode=ro"
    with closing(sqlite3.connect(name, uri=True)) as there, closing(sqlite3.connect(aside)) as here:
        there.backup(here)
        here.execute("PRAGMA journal_mode = DELETE")


def _verify(aside: Path) -> None:
    """Open the copy as a start would, and read all of it."""
    files.look_at(aside)
    with closing(sqlite3.connect(f"file:{quote(str(aside))}?mode=ro", uri=True)) as copy:
        problems = [row[0] for row in copy.execute("PRAGMA integrity_check(3)")]
    if problems != ["ok"]:
        raise StoreDamaged(f"the copy is not sound: {'; '.join(problems)}")
