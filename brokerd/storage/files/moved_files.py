"""Moved files: whether the files of an open store are still where they were opened (FD-9).

Reads:  the identity of the file at each path.      Calls: the operating system.
Never:  restores a file: the file now at its path may belong to another program.
Fails:  with the fault that stops the daemon. A removed log is still open in this process, so it is
        first saved in the directory where it was, for an administrator to restore.
"""

import os
import sqlite3
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from brokerd.errors import BAD_FILE, StoreFault
from brokerd.storage.files.log_head import (
    descriptor_of_file,
    index_path,
    log_path,
    saved_log_path,
)

_PIECE: Final = 1 << 20
"""Most bytes that are copied at a time."""

FileNumber = tuple[int, int]
"""Device and inode of a file, which identify it under any name."""


def file_at(path: Path) -> FileNumber | None:
    """Return the identity of the file at a path; None = no file. `OSError`: it is unknown."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


class FilesInPlace:
    """The three files of an open store: its own, its log, and the log's index."""

    def __init__(self, path: Path) -> None:
        """Note the identities of the files, which a connection has open."""
        self._path = path
        self._found = {one: file_at(one) for one in (path, log_path(path), index_path(path))}
        self._fault: StoreFault | None = None

    def fault(self) -> StoreFault | None:
        """Return the fault to stop with; None = no file was moved, replaced or removed."""
        if self._fault is None:
            for path, number in self._found.items():
                with suppress(OSError):
                    if number is not None and file_at(path) != number:
                        self._fault = self._fault_of(path, number)
                        break
        return self._fault

    @property
    def log_fault(self) -> StoreFault | None:
        """The fault if the log or its index was moved; None = both are in place.

        If only the store's own file was moved, SQLite may still fold the log: it writes to the
        moved file, to which the log belongs.
        """
        fault = self.fault()
        with suppress(OSError):
            if file_at(log_path(self._path)) != self._found[log_path(self._path)]:
                return fault
            if file_at(index_path(self._path)) != self._found[index_path(self._path)]:
                return fault
        return None

    def _fault_of(self, path: Path, number: FileNumber) -> StoreFault:
        what = f"{path} was moved, replaced or removed while it was open"
        hint = f"{path} is made anew by the next start"
        if path == self._path:
            hint = (
                "what was committed since is in the file that was there: put that one back before "
                "anything is started on another"
            )
        elif path == log_path(self._path):
            hint = f"put back the file that was there as {path}, then start again"
            if (saved := _save(path, number)) is not None:
                what += f"; all that it held is saved in {saved}"
                hint = f"move {saved} to {path}, then start again"
        return StoreFault(f"{what}; nothing is confirmed any more", hint=hint, exit_status=BAD_FILE)


def place_of(connection: sqlite3.Connection) -> FilesInPlace | None:
    """Return the identities of a writing connection's files; None = they are not known."""
    return getattr(connection, "place", None)


def refuse_moved_log(connection: sqlite3.Connection) -> None:
    """Raise `StoreFault` if the log or its index is not in place: then no fold may run."""
    place = place_of(connection)
    if place is not None and (fault := place.log_fault) is not None:
        raise fault


def _save(log: Path, number: FileNumber) -> Path | None:
    """Copy a log that this process still has open to a file in its directory; None = failure.

    This reads the log over SQLite's own descriptor, which is safe: no lock depends on the log.
    """
    source = descriptor_of_file(number)
    if source < 0:
        return None
    for attempt in count():
        target = saved_log_path(log, attempt)
        try:
            file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        except OSError:
            return None
        try:
            _copy(source, file)
        except OSError:
            target.unlink(missing_ok=True)
            return None
        finally:
            os.close(file)
        return target
    return None


def _copy(source: int, target: int) -> None:
    at = 0
    while piece := os.pread(source, _PIECE, at):
        at += os.write(target, piece)
    os.fsync(target)
