"""Log head: a small file beside a store that says how far its log was confirmed (REL-39, FD-9).

A log alone cannot show what it has lost: a log that was cut off, replaced or removed looks like a
shorter log. So after each flush, once the log is synced and before anything is confirmed, the
position that the log has reached is written to a record in another file. A start compares the log
with the record.

Reads:  the index of the log, where SQLite keeps the position, over SQLite's own descriptor.
Calls:  the operating system.
Never:  is ahead of the log (it is written after the log's sync), opens the index itself (closing it
        would release the locks that this process holds on it), or decides the consequences of a
        loss.

The record has the position and a state. It is synced when the state says that the store's file has
the whole log: only then may SQLite restart the log, so that a crash finds either the log of the
record, or the log that follows it, or a record that expects neither. At other times a sync with
each tick is enough: after a power cut the record lags by at most a tick.
"""

import errno
import glob
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from sys import byteorder
from typing import Final

import msgspec

from brokerd.clock import Instant
from brokerd.storage.files.log_scan import Checksum, checksum
from brokerd.storage.files.private_files import open_private, sync

_sync_data: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)
"""Function that syncs a file, except for the time of its last write where the system can omit that:
the time is useless after a power cut, and costs another write."""
_INDEX_SIZE: Final = 100
"""Bytes of the index that are read: its header twice, then the number of folded frames."""
_HEADER: Final = struct.Struct("=16x2I2I8s")
"""Fields of the index's header: last frame, pages of the file, checksum of that frame, salts."""
_HEADER_SIZE: Final = 48
_SUMMED: Final = 40
"""Bytes of the header that its own checksum covers; the checksum follows them."""
_FOLDED_AT: Final = 96


class State(Enum):
    """The content of the log, as the first eight bytes of the record."""

    OPEN = b"brkd-opn"
    """The log has frames that the store's file may lack."""
    FOLDED = b"brkd-fld"
    """The store's file has all frames of the log: the next commit may restart the log."""
    EMPTY = b"brkd-emp"
    """The log has no frames; the next commit begins a log whose salts are not known yet."""
    CLOSED = b"brkd-cls"
    """The log has no frames, and no commit is made before the record says `EMPTY`."""
    FOLDING_LOSS = b"brkd-alf"
    """An administrator has accepted a loss, and the rest of the log is being folded."""
    DROPPING_LOSS = b"brkd-ald"
    """An administrator has accepted a loss, and the log, which is not the store's, is being
    removed. A start that finds this or `FOLDING_LOSS` is refused, because the acceptance was
    interrupted."""
    ACCEPTED = b"brkd-acc"
    """As `CLOSED`, after an administrator has accepted the loss from a damaged log."""


_WITHOUT_LOG: Final = (State.CLOSED, State.ACCEPTED)


class Record(msgspec.Struct, frozen=True):
    """The record beside a store."""

    state: State
    frames: int = 0
    """Number of the last frame that was confirmed."""
    checksum: Checksum = (0, 0)
    """Checksum of the last frame that was confirmed."""
    salts: tuple[int, int] = (0, 0)
    """Salts of the log."""
    written_at: Instant = Instant(0)
    """When the record was last written."""

    @property
    def expects_no_log(self) -> bool:
        """Whether the store has no log; a log that exists then is not the store's."""
        return self.state in _WITHOUT_LOG


class UnreadableRecord(ValueError):  # a finding, not a fault of this program
    """Error for a record that is not as this program writes it."""


def head_path(path: Path) -> Path:
    """Return the path of the record of the store at `path`."""
    return Path(f"{path}-head")


def log_path(path: Path) -> Path:
    """Return the path of the log of the store at `path`."""
    return Path(f"{path}-wal")


def saved_log_path(log: Path, number: int) -> Path:
    """Return the path under which to save a log that was removed while it was open."""
    return Path(f"{log}.saved-{number}")


def saved_logs(path: Path) -> list[Path]:
    """Return the logs of the store at `path` that were saved beside it, oldest first."""
    found = path.parent.glob(f"{glob.escape(log_path(path).name)}.saved-*")
    return sorted(found, key=lambda one: (one.lstat().st_mtime_ns, one.name))


def index_path(path: Path) -> Path:
    """Return the path of the index of the log of the store at `path`."""
    return Path(f"{path}-shm")


def read_record(path: Path) -> Record | None:
    """Return the record of the store at `path`; None = the store has no record yet.

    `UnreadableRecord`: the record is damaged; `OSError`: it cannot be read.
    """
    try:
        with head_path(path).open("rb") as file:
            data, found = file.read(), os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    if not data:  # a power cut while the record was made
        return None
    return _decode(data, Instant(found.st_mtime_ns // 1000))


def _decode(data: bytes, written_at: Instant) -> Record:
    try:
        state = State(data[:8])
    except ValueError:
        raise UnreadableRecord("it has no state that exists") from None
    header = data[8:]
    if len(header) != _HEADER_SIZE:
        raise UnreadableRecord(f"it has {len(data)} bytes, not {8 + _HEADER_SIZE}")
    if checksum(header[:_SUMMED], (0, 0), byteorder) != struct.unpack_from("=2I", header, _SUMMED):
        raise UnreadableRecord("its checksum is wrong")
    frames, _, first, second, salts = _HEADER.unpack_from(header)
    return Record(state, frames, (first, second), struct.unpack(">2I", salts), written_at)


class LogHead:
    """The record of a store that is open for writing; used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create the record of the store at `path`.

        Raises:
            OSError: the record cannot be written.
            UnsafeFile: the record is a link, or others may write to it (SX-24).
        """
        self._path = path
        self._index = -1
        self._file = open_private(head_path(path), writable=True, create=True)
        try:
            self._synced = self._read()
            self._expect_anything(is_new=not self._synced)
        except BaseException:
            os.close(self._file)
            raise

    def _expect_anything(self, *, is_new: bool) -> None:
        """Record, before the first commit, that a new log follows.

        Do nothing if the record describes a log that exists.
        """
        if self._synced[:8] in (State.OPEN.value, State.FOLDED.value) and has_log(self._path):
            return
        self._write(State.EMPTY.value + (self._synced[8:] or _nothing()))
        self._sync()
        if is_new:
            sync(self._path.parent)

    def attach(self) -> None:
        """Find SQLite's descriptor of the index; a connection must have read or written before."""
        self._index = descriptor_of(index_path(self._path))

    @property
    def descriptors(self) -> tuple[int, int] | None:
        """Descriptors of the index and of the record, for a writer outside the interpreter.

        None = the descriptor of the index cannot be found on this system: the record stays as it
        was when the store was opened, and expects any log.
        """
        return None if self._index < 0 else (self._index, self._file)

    def advance(self) -> None:
        """Record the position that the log has reached. `OSError`: the record cannot be written.

        Call this after each transaction, before it is confirmed.
        """
        if self._index < 0 or self._file < 0:
            return
        data = _record_of(os.pread(self._index, _INDEX_SIZE, 0))
        try:
            self._write(data)
        except OSError as error:
            # A record that lags expects less, which is harmless; but the record must not miss that
            # the log may restart.
            if data[:8] != State.OPEN.value or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        if data[:8] != State.OPEN.value:
            self.sync()

    def sync(self) -> None:
        """Sync the record, unless it is already synced."""
        if not self.is_synced:
            self._sync()

    @property
    def is_synced(self) -> bool:
        """Whether the present record is durable."""
        return self._file < 0 or self._read() == self._synced

    def close(self, *, is_log_gone: bool = False) -> None:
        """Record whether a log is left, and close the record; close the connection before.

        `is_log_gone`: another program has removed the log, so the record must not change.
        """
        if self._file < 0:
            return
        with suppress(OSError):  # the old record expects at least as much as the log has
            if not is_log_gone and not has_log(self._path):
                self._write(State.CLOSED.value + self._read()[8:])
                self._sync()
        os.close(self._file)
        self._file = self._index = -1

    def _read(self) -> bytes:
        return os.pread(self._file, 8 + _HEADER_SIZE, 0)

    def _write(self, data: bytes) -> None:
        os.pwrite(self._file, data, 0)

    def _sync(self) -> None:
        data = self._read()
        _sync_data(self._file)
        self._synced = data


def has_log(path: Path) -> bool:
    """Return whether the store has a log with changes that its file may lack."""
    log = log_path(path)
    return log.exists() and log.stat().st_size > 0


def write_state(path: Path, state: State) -> None:
    """Write, durably, a record with this state and no position; the store must not be open.

    The new record replaces any record, even a damaged one; the file exists at every moment.

    Raises:
        OSError: the record cannot be written.
        UnsafeFile: the record is a link, or others may write to it (SX-24).
    """
    data = state.value + _nothing()
    file = open_private(head_path(path), writable=True, create=True)
    try:
        os.pwrite(file, data, 0)
        os.ftruncate(file, len(data))
        os.fsync(file)
    finally:
        os.close(file)
    sync(path.parent)


def descriptor_of(path: Path) -> int:
    """Return this process's descriptor of a file; -1 = the file is not open, or this is unknown."""
    try:
        found = path.stat()
    except OSError:
        return -1
    return descriptor_of_file((found.st_dev, found.st_ino))


def descriptor_of_file(number: tuple[int, int]) -> int:
    """Return the descriptor of the file with this device and inode, even if it has no path.

    -1 = the file is not open, or this is unknown.
    """
    try:
        names = os.listdir("/dev/fd")
    except OSError:
        return -1
    for name in names:
        with suppress(OSError, ValueError):
            found = os.fstat(int(name))
            if (found.st_dev, found.st_ino) == number:
                return int(name)
    return -1


def _record_of(index: bytes) -> bytes:
    """Return the record for an index. The flusher makes identical records (`flusher.c`)."""
    (frames,) = struct.unpack_from("=I", index, 16)
    (folded,) = struct.unpack_from("=I", index, _FOLDED_AT)
    state = State.EMPTY if not frames else State.FOLDED if frames == folded else State.OPEN
    return state.value + index[:_HEADER_SIZE]


def _nothing() -> bytes:
    """Return an index header without a position, for a log that is not known."""
    header = bytes(_SUMMED)
    return header + struct.pack("=2I", *checksum(header, (0, 0), byteorder))
