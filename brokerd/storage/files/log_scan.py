"""Log scan: the frames in a store's write-ahead log, and where the log is damaged (REL-39).

SQLite silently ends a log at its first bad frame, because a power cut leaves the last transaction
in this way. An earlier bad frame is damage, and it hides every commit after it. This module
distinguishes the two cases.

Reads:  the log it is given, once, a frame at a time.      Calls: nothing.
Never:  changes anything, or holds more than a frame of the log in memory.
"""

import struct
from array import array
from collections.abc import Sequence
from sys import byteorder
from typing import BinaryIO, Final, NamedTuple

import msgspec

from brokerd.storage.compiled import library

HEADER_SIZE: Final = 32
FRAME_HEADER_SIZE: Final = 24
_MAGIC: Final = 0x377F0682
"""Magic of a log whose checksums read its words with the low byte first. If they read the words
with the high byte first, the magic is greater by 1."""
_VERSION: Final = 3007000
_WORDS: Final = struct.Struct(">6I")
_PAGE_SIZES: Final = frozenset(1 << power for power in range(9, 17))
_MASK: Final = 0xFFFFFFFF

Checksum = tuple[int, int]
"""SQLite's running checksum of a log: each frame's checksum continues that of the frame before."""


class Scan(msgspec.Struct, frozen=True):
    """The content of a log. Frames are counted from 1.

    A generation is the frames written since the log last restarted: each has the salts of the
    header, and frames of older generations may follow.
    """

    size: int
    """Bytes of the file."""
    page_size: int
    salts: tuple[int, int] | None
    """Salts of the generation; None = the header is not valid, so SQLite recovers no frame."""
    committed: int = 0
    """The last frame that SQLite recovers: it ends a transaction, and all frames up to it are
    valid."""
    commits: int = 0
    """Number of transactions up to `committed`."""
    probed: Checksum | None = None
    """The checksum of the frame `probe`; None = SQLite does not recover that frame."""
    bad: int = 0
    """The first frame that is not valid; 0 = all frames are valid."""
    behind: int = 0
    """Number of frames, from the bad one on, with the salts of the generation."""
    commits_behind: int = 0
    """Number of frames counted in `behind` that end a transaction."""
    last: int = 0
    """The last frame counted in `behind`."""
    is_damaged: bool = False
    """Whether a synced transaction is damaged, as shown by transactions written after it."""

    def offset_of(self, frame: int) -> int:
        """Return the offset of a frame in the file."""
        return HEADER_SIZE + (frame - 1) * (FRAME_HEADER_SIZE + self.page_size)


class _Frame(NamedTuple):
    page: int
    pages: int
    """Number of pages of the store's file, in a frame that ends a transaction; otherwise 0."""
    salts: tuple[int, int]
    checksum: Checksum
    data: bytes

    def continues(self, before: Checksum, orders: Sequence[str]) -> bool:
        """Return whether the frame's checksum continues `before`, in one of these byte orders."""
        return self.page != 0 and any(
            checksum(self.data, before, order) == self.checksum for order in orders
        )


def scan(log: BinaryIO, *, page_size: int, probe: int = 0) -> Scan:
    """Scan, from its beginning, the log of a store with pages of this size.

    `probe`: the frame whose checksum to return. `OSError`: the log cannot be read.
    """
    head = log.read(HEADER_SIZE)
    if len(head) < HEADER_SIZE:
        return Scan(len(head), page_size, None)
    magic, version, pages, _, salt_1, salt_2 = _WORDS.unpack_from(head)
    order = "big" if magic == _MAGIC + 1 else "little"
    start = checksum(head[:24], (0, 0), order)
    if magic not in (_MAGIC, _MAGIC + 1) or start != struct.unpack_from(">2I", head, 24):
        return _scan_without_header(log, page_size)
    if version != _VERSION or pages not in _PAGE_SIZES:
        return _scan_without_header(log, page_size)
    return _Scanner(log, pages, (order,), (salt_1, salt_2)).run(start, probe)


def _scan_without_header(log: BinaryIO, page_size: int) -> Scan:
    """Scan a log whose header is not valid, for frames with the same salts as the first one.

    SQLite recovers nothing from such a log.
    """
    scanner = _Scanner(log, page_size, ("little", "big"), None)
    for frame in iter(scanner.read, None):
        scanner.pass_over(frame)
    return scanner.result()


class _Scanner:
    """One pass over the frames of a log."""

    def __init__(
        self,
        log: BinaryIO,
        page_size: int,
        orders: Sequence[str],
        salts: tuple[int, int] | None,
    ) -> None:
        self._log, self._page_size, self._orders, self._salts = log, page_size, orders, salts
        self._generation = salts
        self._size = HEADER_SIZE
        self._at = 0
        self._committed = self._commits = 0
        self._probed: Checksum | None = None
        self._bad = self._behind = self._commits_behind = self._last = 0
        self._chain: Checksum | None = None
        """Stored checksum of the previous frame; None = that frame is not of the generation."""
        self._is_after_commit = self._is_damaged = False

    def read(self) -> _Frame | None:
        """Return the next frame; None = no whole frame follows."""
        data = self._log.read(FRAME_HEADER_SIZE + self._page_size)
        self._size += len(data)
        if len(data) < FRAME_HEADER_SIZE + self._page_size:
            return None
        self._at += 1
        page, pages, *rest = _WORDS.unpack_from(data)
        covered = data[:8] + data[FRAME_HEADER_SIZE:]
        return _Frame(page, pages, (rest[0], rest[1]), (rest[2], rest[3]), covered)

    def run(self, start: Checksum, probe: int) -> Scan:
        """Scan the valid frames, then the frames after them."""
        running, probed = start, None
        while (frame := self.read()) is not None:
            if frame.salts != self._salts or not frame.continues(running, self._orders):
                self._bad = self._at
                self.pass_over(frame)
                break
            running = frame.checksum
            if self._at == probe:
                probed = running
            if frame.pages:
                self._committed = self._at
                self._commits += 1
        for frame in iter(self.read, None):
            self.pass_over(frame)
        self._probed = probed if probe <= self._committed else None
        return self.result()

    def pass_over(self, frame: _Frame) -> None:
        """Count the first bad frame, or a frame after it.

        A frame that continues the checksum stored in the previous frame was written after that
        frame: if the previous frame ended a transaction, that transaction had already been synced.
        """
        if self._generation is None:
            self._generation = frame.salts
        if frame.salts != self._generation:
            self._chain = None
            return
        if self._chain is not None and frame.continues(self._chain, self._orders):
            self._is_damaged |= self._is_after_commit or self._salts is None
        self._behind += 1
        self._last = self._at
        self._commits_behind += frame.pages != 0
        self._chain, self._is_after_commit = frame.checksum, frame.pages != 0

    def result(self) -> Scan:
        """Return the findings of the scan."""
        return Scan(
            size=self._size,
            page_size=self._page_size,
            salts=self._salts,
            committed=self._committed,
            commits=self._commits,
            probed=self._probed,
            bad=self._bad,
            behind=self._behind,
            commits_behind=self._commits_behind,
            last=self._last,
            is_damaged=self._is_damaged,
        )


def checksum(data: bytes, start: Checksum, order: str) -> Checksum:
    """Return SQLite's checksum of a multiple of eight bytes, continued from `start`."""
    if library.BUILT is not None:
        compiled: Checksum = library.BUILT.log_checksum(data, *start, order == "big")
        return compiled
    first, second = start
    words = array("I", data)
    if order != byteorder:
        words.byteswap()
    each = iter(words)
    for word in each:
        first = (first + word + second) & _MASK
        second = (second + next(each) + first) & _MASK
    return first, second
