"""Lock: a store is open in one process only (REL-16, design D1).

Reads:  the lock file beside the store.      Calls: the operating system's file lock.
Never:  follows a link to another file (SX-24), or removes the lock file: a process that waits for
        the lock of a removed file would then hold nothing.
"""

import fcntl
import os
import socket
from pathlib import Path
from typing import Final

import msgspec

from brokerd.clock import Clock, show_instant
from brokerd.errors import StoreDamaged, StoreLocked, UnsafeFile
from brokerd.storage.files.private_files import open_private

_MOST: Final = 4096
"""Most bytes of a lock file that are read."""


class Owner(msgspec.Struct, frozen=True):
    """The process that has a store open, as named in the lock file."""

    pid: int
    host: str
    since: str
    broker_id: str = ""
    """Identifier of the broker; empty while the store is being opened."""
    epoch: int = 0
    """Epoch of the store, once it is open."""
    master_key: str = ""
    """Fingerprint of the master key that encrypts keys of dialogs there (SEC-73)."""


class OwnerLock:
    """The lock of a store, held from before its first check until it is closed."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        """Take the lock of the store at `path`.

        Raises:
            StoreLocked: another process holds the lock; the error names it.
            StoreDamaged: the lock file cannot be used.
            UnsafeFile: the lock file is a link, or not exclusively ours (SX-24).
            OSError: the lock file cannot be written; the lock is free again.
        """
        try:
            self._file = open_private(lock_path(path), writable=True, create=True)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            content = os.pread(self._file, _MOST, 0)
            os.close(self._file)
            raise _held(path, content) from error
        self._owner = Owner(os.getpid(), socket.gethostname(), show_instant(clock.utc()))
        try:
            self._write()
        except OSError:
            self.release()
            raise

    def describe(self, broker_id: str, epoch: int, *, master_key: str = "") -> None:
        """Write broker and epoch of the store to the file, for waiting processes (RTE-55)."""
        self._owner = msgspec.structs.replace(
            self._owner, broker_id=broker_id, epoch=epoch, master_key=master_key
        )
        self._write()

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, msgspec.json.encode(self._owner) + b"\n", 0)


def last_owner(path: Path) -> Owner | None:
    """Return the process that has, or last had, the store open; None = the file is unreadable."""
    try:
        file = open_private(lock_path(path), writable=False)
    except (OSError, UnsafeFile):
        return None
    try:
        return msgspec.json.decode(os.pread(file, _MOST, 0), type=Owner)
    except (OSError, msgspec.DecodeError):
        return None
    finally:
        os.close(file)


def refuse_if_held(path: Path) -> None:
    """Raise `StoreLocked` if a process has the store at `path` open; leave no trace.

    `UnsafeFile`: the lock file is a link, or not a regular file (SX-24).
    """
    try:
        file = open_private(lock_path(path), writable=False)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        raise _held(path, os.pread(file, _MOST, 0)) from error
    finally:
        os.close(file)


def is_held(path: Path) -> bool:
    """Return whether a process has the store at `path` open."""
    try:
        refuse_if_held(path)
    except StoreLocked:
        return True
    return False


def lock_path(path: Path) -> Path:
    """Return the path of the lock file of the store at `path`."""
    return path.with_name(path.name + ".lock")


def _held(path: Path, content: bytes) -> StoreLocked:
    return StoreLocked(f"{path} is open in {_show(content)}")


def _unusable(path: Path, error: OSError) -> StoreDamaged:
    return StoreDamaged(
        f"{lock_path(path)} cannot be opened: {error.strerror}",
        hint="change the owner and mode of the file",
    )


def _show(content: bytes) -> str:
    try:
        owner = msgspec.json.decode(content, type=Owner)
    except msgspec.DecodeError:
        return "another process"
    return f"process {owner.pid} on {owner.host} since {owner.since}"
