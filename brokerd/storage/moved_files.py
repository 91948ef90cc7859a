"""Moved files: whether the files of an open store are still where they were opened (FD-9).

Reads:  which file is at each path.      Calls: the operating system.
Never:  puts anything back: the file now at a path may be somebody else's.
Fails:  with the fault that stops the daemon. A removed log is still open here, so it is first saved
        beside its place, for an administrator to put back.
"""

import os
import sqlite3
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from brokerd.errors import BAD_FILE, StoreFault
from brokerd.storage.log_head import (
    descriptor_of_file,
    index_path,
    log_path,
    saved_log_path,
)

_PIECE: Final = 1 << 20
"""Bytes that are copied at a time."""

FileNumber = tuple[int, int]
"""Device and inode, which identify a file under any name."""


def file_at(path: Path) -> FileNumber | None:
    """Return which file is at a path; None = none. `OSError`: that cannot be determined."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


class FilesInPlace:
    """The three files of an open store: its own, its log, and the log's index."""

    def __init__(self, path: Path) -> None:
        """Note which files they are; a connection has them open."""
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
        """The fault for the log and its index alone; None = both are in place.

        If the store's own file was moved, SQLite may still fold the log: it writes to the moved
        file, to which the log belongs.
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
    """Return the identities of a writing connection's files; None if they are not known."""
    return getattr(connection, "place", None)


def refuse_moved_log(connection: sqlite3.Connection) -> None:
    """Raise `StoreFault` if the log is not in its place: nothing may be folded then."""
    place = place_of(connection)
    if place is not None and (fault := place.log_fault) is not None:
        raise fault


def _save(log: Path, number: FileNumber) -> Path | None:
    """Copy a log that this process still has open to a file beside its place; None = that failed.

    SQLite's own descriptor is read: no lock depends on the log.
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
