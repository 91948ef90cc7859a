"""The metrics log: JSON lines in segments that readers only see when they are whole (design D12).

Reads:  rows made by the metrics pass.       Calls: the clock and the file system.
Never:  waits for room on a full disk: lines that cannot be written are dropped and counted
        (FD-5); a later interval goes on after the last whole line.
Fails:  only `start` raises, if the directory cannot be made; after it everything is counted in
        `dropped`.

A segment being written is called `<instance>-<boot>-<first seq>.jsonl.open`. It is sealed by
synchronising it and renaming it to the name without `.open`: when it is old or large enough, and
at an orderly stop. What an earlier boot left open is sealed by the next one, after cutting a torn
last line.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from brokerd.clock import Clock, Instant
from brokerd.ids import BootId
from brokerd.metrics import DialogLine, Row

VERSION: Final = 1
"""The field `v` of every line."""
OPEN: Final = ".open"
"""Ends the name of a segment that nobody but its writer may read."""

_MAX_BUFFER = 256 * 1024
_TAIL = 64 * 1024
_NAME = re.compile(r"(?P<instance>.+)-(?P<boot>[0-9a-f]{32})-(?P<seq>\d{10})\.jsonl\.open")
_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

Later = Callable[[Callable[[], None]], object]
"""Runs slow work (synchronise and rename), perhaps in a thread, perhaps at once."""


def at_once(work: Callable[[], None]) -> None:
    """Run slow work in place."""
    work()


class MetricsLog:
    """Writes the metrics log of one boot of one instance."""

    def __init__(
        self,
        *,
        directory: Path,
        instance: str,
        boot_id: BootId,
        clock: Clock,
        segment_age: timedelta = timedelta(seconds=60),
        segment_size: int = 8 * 1024 * 1024,
        later: Later = at_once,
    ) -> None:
        assert _INSTANCE.fullmatch(instance), "the settings admit no other name"
        self._directory = directory
        self._instance = instance
        self._boot = boot_id.hex()
        self._clock = clock
        self._age = segment_age.total_seconds()
        self._size = segment_size
        self._later = later
        self._encoder = msgspec.json.Encoder()
        self._seq = 0
        self._buffer = bytearray()
        self._buffered = 0
        self._whole = True
        self._segment: _Segment | None = None
        self._interval_from = Instant(0)
        self.dropped = 0
        """Lines lost because they could not be written."""

    def start(self) -> int:
        """Make the directory and seal what earlier boots of this instance left open.

        Returns how many segments that were.

        Raises:
            OSError: the directory cannot be made or read.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._interval_from = self._clock.utc()
        left = 0
        for path in sorted(self._directory.iterdir()):
            name = _NAME.fullmatch(path.name)
            if name and name["instance"] == self._instance and name["boot"] != self._boot:
                with contextlib.suppress(OSError):  # tried again at the next start
                    _recover(path)
                    left += 1
        return left

    def write_interval(self, rows: Iterable[Row]) -> None:
        """Write what happened since the last call, then everything buffered; seal when due."""
        since, now = self._interval_from, self._clock.utc()
        self._interval_from = now
        for row in rows:
            self._line("interval", now, {"from_at": since}, row)
        self.flush()
        if self._segment and self._segment.is_due(self._clock.monotonic(), self._age, self._size):
            self.seal()

    def write_dialogs(self, rows: Iterable[DialogLine]) -> None:
        """Buffer a line for each dialog endpoint; `flush(sync=True)` makes them safe."""
        now = self._clock.utc()
        for row in rows:
            self._line("dialog", now, {}, row)

    def write_mark(self, what: str) -> None:
        """Write a mark (`started`, `stopped`, `recovered`) and everything buffered."""
        self._line("mark", self._clock.utc(), {"what": what}, None)
        self.flush()

    def flush(self, *, sync: bool = False) -> bool:
        """Hand buffered lines to the system, with `sync` also to the disk.

        Returns whether they are there; with `sync`, all lines since the last call with `sync`.
        What could not be written was dropped and is not tried again.
        """
        written = self._flush_buffer()
        if not sync:
            return written
        whole, self._whole = self._whole, True
        return (self._segment is None or self._segment.sync()) and whole

    def seal(self) -> None:
        """Flush, then let readers see the segment; the next line opens another."""
        self.flush()
        segment, self._segment = self._segment, None
        if segment:
            self._later(segment.seal)

    def _line(
        self, kind: str, at: Instant, more: dict[str, object], row: msgspec.Struct | None
    ) -> None:
        fields: dict[str, object] = {
            "v": VERSION,
            "kind": kind,
            "instance": self._instance,
            "broker": "",
            "boot_id": self._boot,
            "seq": self._seq,
            "at": at,
        }
        fields |= more
        if row is not None:
            fields |= msgspec.to_builtins(row)
        self._seq += 1
        self._encoder.encode_into(fields, self._buffer, -1)
        self._buffer += b"\n"
        self._buffered += 1
        if len(self._buffer) >= _MAX_BUFFER:
            self._flush_buffer()

    def _flush_buffer(self) -> bool:
        written = not self._buffer or self._write(bytes(self._buffer))
        if not written:
            self.dropped += self._buffered
            self._whole = False
        self._buffer.clear()
        self._buffered = 0
        return written

    def _write(self, lines: bytes) -> bool:
        try:
            if self._segment is None:
                first = self._seq - self._buffered
                name = f"{self._instance}-{self._boot}-{first:010}.jsonl{OPEN}"
                self._segment = _Segment(self._directory / name, self._clock.monotonic())
            self._segment.write(lines)
        except OSError:
            return False
        return True


class _Segment:
    """One file being written; holds only whole lines between two calls."""

    def __init__(self, path: Path, opened: float) -> None:
        self._path = path
        self._opened = opened
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        self._end = 0

    def is_due(self, now: float, age: float, size: int) -> bool:
        """Whether it is old or large enough to be sealed."""
        return self._end >= size or now - self._opened >= age

    def write(self, lines: bytes) -> None:
        """Append whole lines, all or none of them; `OSError` means none."""
        at = self._end
        try:
            view = memoryview(lines)
            while view:
                done = os.pwrite(self._fd, view, at)
                at += done
                view = view[done:]
        except OSError:
            os.ftruncate(self._fd, self._end)
            raise
        self._end = at

    def sync(self) -> bool:
        """Make what was written safe; whether that worked."""
        try:
            os.fdatasync(self._fd)
        except OSError:
            return False
        return True

    def seal(self) -> None:
        """Synchronise and rename; an empty segment goes. On failure the next boot seals it."""
        try:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
                _seal(self._fd, self._path, self._end)
        finally:
            os.close(self._fd)


def _seal(fd: int, path: Path, size: int) -> None:
    if size == 0:
        path.unlink()
        return
    os.fsync(fd)
    path.rename(path.with_name(path.name.removesuffix(OPEN)))
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _recover(path: Path) -> None:
    """Seal a segment that another boot left open, without the torn end a power cut may leave."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        end = _end_of_whole_lines(fd, os.fstat(fd).st_size)
        os.ftruncate(fd, end)
        _seal(fd, path, end)
    finally:
        os.close(fd)


def _end_of_whole_lines(fd: int, size: int) -> int:
    """Where the last line that is whole JSON ends; the search goes back from the end."""
    end = size
    while end:
        start = _line_start(fd, end)
        line = os.pread(fd, end - start, start)
        if line.endswith(b"\n") and _is_object(line):
            return end
        end = start
    return 0


def _line_start(fd: int, end: int) -> int:
    """Where the line begins whose last byte (a line end or not) lies before `end`."""
    at = end - 1
    while at > 0:
        begin = max(0, at - _TAIL)
        found = os.pread(fd, at - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        at = begin
    return 0


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
