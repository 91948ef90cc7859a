"""Snapshots: the pages of stores at one moment, read beside the daemon that writes them (REL-46).

A snapshot holds a read transaction. While it does, SQLite neither overwrites the frames of the log
up to the snapshot nor folds later ones into the file. So the pages are read from the two files
themselves: a page that the log has from the log, any other from the file. SQLite offers no other
way to read changed pages without copying the whole file.

Reads:  store, log, and the log's index, the first and last over SQLite's own descriptors, because
        closing another one would release the locks of this process.
Calls:  SQLite, for the transaction.
Never:  writes, folds, or makes the daemon wait. The log can restart only after the snapshot ends.
Fails:  `Unsettled`, if the files changed in a way that no snapshot was possible; later it will be.
"""

import os
import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

from xxhash import xxh3_128_digest

from brokerd.storage import file_checks
from brokerd.storage.connections import BUSY_SECONDS, READ_PRAGMAS, Connection
from brokerd.storage.files.lock import is_held
from brokerd.storage.files.log_check import refuse_loss
from brokerd.storage.files.log_head import descriptor_of, has_log, index_path, log_path
from brokerd.storage.files.log_scan import FRAME_HEADER_SIZE, HEADER_SIZE
from brokerd.storage.files.moved_files import file_at

DIGEST_SIZE: Final = 16
"""Bytes of the hash of a page."""
_TOGETHER: Final = 256
"""Number of pages that are read at a time."""
_ATTEMPTS: Final = 200
"""Number of attempts to begin a transaction between two commits."""
_INDEX_READ: Final = 100
"""Bytes of the log's index that are read: its header twice, then the number of folded frames."""
_INDEX_HEADER: Final = 48
_FOLDED_AT: Final = 96
_INDEX: Final = struct.Struct("=14xHII8x8s")
"""Fields of the index's header: page size, last frame, pages of the store, salts."""
_FRAME: Final = struct.Struct(">II8s")
"""Fields of a frame: page, pages of the store if the frame ends a transaction, salts."""


class Unsettled(Exception):  # a state, not a fault: the next attempt may succeed
    """The files of a store were changed meanwhile so that they cannot be read as of one moment."""


class Position(NamedTuple):
    """The moment of a snapshot, as the log shows it."""

    salts: bytes
    """Salts of the log; empty = there was no log."""
    frames: int
    """The last frame of the log that belongs to the moment."""


class Facts(NamedTuple):
    """The identity of a store."""

    broker: str
    broker_id: bytes
    incarnation: bytes
    epoch: int


class Snapshot:
    """The pages of one store at one moment."""

    def __init__(
        self,
        file: int,
        *,
        page_size: int,
        pages: int,
        position: Position,
        facts: Facts,
        log: int = -1,
        is_folded: bool = True,
    ) -> None:
        """Read pages from the descriptor `file`, and from `log` unless the file has all of it."""
        self._file, self._log = file, log
        self.page_size = page_size
        self.pages = pages
        self.position = position
        self.facts = facts
        self._is_folded = is_folded

    def changed(
        self, hashes: bytes, *, seed: int, since: Position | None
    ) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the number, content and hash of each page whose hash is another than in `hashes`.

        `since`: the position at which `hashes` were made; None = unknown. If the log has not
        restarted since, only what was added to it is read.
        """
        touched = self._touched_since(since)
        # What the file has is taken from it: a log that is folded may restart at any time.
        in_log = {} if self._is_folded else self._pages_in_log(0) if touched is None else touched
        if touched is None:
            found = self._all(in_log)
        else:
            grown = range(len(hashes) // DIGEST_SIZE + 1, self.pages + 1)
            numbers = sorted({*touched, *grown})
            found = ((number, self._read(number, 1, in_log)) for number in numbers)
        for number, page in found:
            digest = xxh3_128_digest(page, seed)
            at = (number - 1) * DIGEST_SIZE
            if digest != hashes[at : at + DIGEST_SIZE]:
                yield number, page, digest

    def _touched_since(self, since: Position | None) -> dict[int, int] | None:
        """Return the pages written since, each with its last frame; None = the log cannot tell."""
        here = self.position
        if since is None or not here.salts or since.salts != here.salts:
            return None
        if since.frames > here.frames:
            return None
        try:
            return self._pages_in_log(since.frames)
        except Unsettled:
            if self._is_folded:
                return None
            raise

    def _all(self, pages: Mapping[int, int]) -> Iterator[tuple[int, bytes]]:
        size = self.page_size
        for first in range(1, self.pages + 1, _TOGETHER):
            count = min(_TOGETHER, self.pages + 1 - first)
            data = self._read(first, count, pages)
            for at in range(count):
                yield first + at, data[at * size : (at + 1) * size]

    def _read(self, first: int, count: int, pages: Mapping[int, int]) -> bytes:
        """Return consecutive pages; `pages`: the frames of pages that the log has."""
        size = self.page_size
        if count == 1 and first in pages:
            return self._frame(pages[first])
        data = os.pread(self._file, count * size, (first - 1) * size).ljust(count * size, b"\0")
        in_log = [number for number in range(first, first + count) if number in pages]
        if not in_log:
            return data
        mixed = bytearray(data)
        for number in in_log:
            at = (number - first) * size
            mixed[at : at + size] = self._frame(pages[number])
        return bytes(mixed)

    def _frame(self, frame: int) -> bytes:
        return os.pread(self._log, self.page_size, self._offset(frame) + FRAME_HEADER_SIZE)

    def _offset(self, frame: int) -> int:
        return HEADER_SIZE + (frame - 1) * (FRAME_HEADER_SIZE + self.page_size)

    def _pages_in_log(self, after: int) -> dict[int, int]:
        """Return the pages that the log has after a frame, each with its last frame."""
        found: dict[int, int] = {}
        step = FRAME_HEADER_SIZE + self.page_size
        for first in range(after + 1, self.position.frames + 1, _TOGETHER):
            count = min(_TOGETHER, self.position.frames + 1 - first)
            data = os.pread(self._log, count * step, self._offset(first))
            for at in range(count):
                page, _, salts = _FRAME.unpack_from(data.ljust(count * step, b"\0"), at * step)
                if salts != self.position.salts:
                    raise Unsettled("the log was overwritten while it was read")
                found[page] = first + at
        return {page: frame for page, frame in found.items() if page <= self.pages}


def state_of(path: Path) -> bytes:
    """Return a value that changes with each commit to the store at `path`; it opens nothing twice.

    Empty: the store is not there.
    """
    found = file_at(path)
    if found is None:
        return b""
    status = path.stat()
    if has_log(path):
        return repr(found).encode() + _index_of(path)[:_INDEX_HEADER]
    return repr((found, status.st_size, status.st_mtime_ns)).encode()


def _index_of(path: Path) -> bytes:
    """Return the beginning of the log's index, over SQLite's descriptor if it has one."""
    own = descriptor_of(index_path(path))
    if own >= 0:
        return os.pread(own, _INDEX_READ, 0)
    try:
        with index_path(path).open("rb") as index:
            return index.read(_INDEX_READ)
    except FileNotFoundError:
        return b""


@contextmanager
def held_together(paths: Sequence[Path]) -> Iterator[tuple[list["Held"], bool]]:
    """Hold snapshots of several stores; whether they are of one moment is the second value.

    They are if no store has changed between the first and the last beginning. That is tried again
    and again, for as long as it may be a matter of luck.
    """
    with ExitStack() as stack:
        held = [stack.enter_context(_opened(path)) for path in paths]
        for _ in range(_ATTEMPTS):
            for one in held:
                one.begin()
            if all(one.is_latest for one in held):
                yield held, True
                return
        yield held, False


class Held(Protocol):
    """A store whose snapshot is held."""

    snapshot: Snapshot

    def begin(self) -> None:
        """Begin the snapshot, or begin it anew. `Unsettled`: that was not possible."""
        ...

    @property
    def is_latest(self) -> bool:
        """Whether nothing was committed since the snapshot began."""
        ...

    def end(self) -> None:
        """Let go of the snapshot. `Unsettled`: what was read is not of one moment."""
        ...


@contextmanager
def _opened(path: Path) -> Iterator[Held]:
    file_checks.check_header(path)
    if not has_log(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield _Resting(path, descriptor)
        finally:
            os.close(descriptor)
        return
    if not is_held(path):  # SQLite would silently leave out the damaged part of a log
        refuse_loss(path)
    name = f"file:{quote(str(path.absolute()))}?mode=ro"
    log = os.open(log_path(path), os.O_RDONLY | os.O_CLOEXEC)
    connection = sqlite3.connect(name, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
    try:
        for pragma in READ_PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("PRAGMA schema_version").fetchone()  # opens the log and its index
        yield _Logged(path, connection, log)
    finally:
        connection.close()
        os.close(log)


class _Logged(Held):
    """A store with a log: a daemon has it open, or was killed."""

    def __init__(self, path: Path, connection: Connection, log: int) -> None:
        self._path, self._connection, self._log = path, connection, log
        self._file, self._index = descriptor_of(path), descriptor_of(index_path(path))
        if self._file < 0 or self._index < 0:
            raise Unsettled(f"the files of {path} were moved, or /dev/fd does not show them")
        self._header = b""

    def begin(self) -> None:
        for _ in range(_ATTEMPTS):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            before = self._read_header()
            self._connection.execute("BEGIN")
            facts = _facts(self._connection)
            # If all frames are folded, the transaction may protect the file only, and the log may
            # restart. If fewer are folded, it protects the log. The number is read before the
            # header is compared, because a restart sets it to 0.
            (folded,) = struct.unpack("=I", os.pread(self._index, 4, _FOLDED_AT))
            if before and self._read_header() == before:
                break
        else:
            raise Unsettled(f"{self._path} is written to without a pause")
        self._header = before
        size, frames, pages, salts = _INDEX.unpack_from(before)
        self.snapshot = Snapshot(
            self._file,
            log=self._log,
            page_size=65536 if size == 1 else size,
            pages=pages,
            position=Position(salts, frames),
            facts=facts,
            is_folded=folded >= frames,
        )

    @property
    def is_latest(self) -> bool:
        return self._read_header() == self._header

    def end(self) -> None:
        self._connection.execute("ROLLBACK")

    def _read_header(self) -> bytes:
        """Return the header of the index; empty = it is being written."""
        data = os.pread(self._index, _INDEX_READ, 0)
        header = data[:_INDEX_HEADER]
        return header if header == data[_INDEX_HEADER : 2 * _INDEX_HEADER] else b""


class _Resting(Held):
    """A store without a log, which nobody has open; a daemon that starts makes one."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._seen = b""

    def begin(self) -> None:
        self._seen = state_of(self._path)
        with file_checks.reading(self._path, with_log=False) as connection:
            facts = _facts(connection)
            (size,) = connection.execute("PRAGMA page_size").fetchone()
        self.snapshot = Snapshot(
            self._descriptor,
            page_size=size,
            pages=os.fstat(self._descriptor).st_size // size,
            position=Position(b"", 0),
            facts=facts,
        )

    @property
    def is_latest(self) -> bool:
        return state_of(self._path) == self._seen and not has_log(self._path)

    def end(self) -> None:
        if not self.is_latest:
            raise Unsettled(f"{self._path} was opened while it was read")


def _facts(connection: Connection) -> Facts:
    query = "SELECT broker_name, broker_id, incarnation, epoch FROM store"
    return Facts(*connection.execute(query).fetchone())
