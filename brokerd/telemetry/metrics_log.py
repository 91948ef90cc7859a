"""The metrics log: JSON lines in segments that readers see only when complete (design D12).

Reads:  rows made by the metrics pass.       Calls: segments, the clock and the file system.
Never:  waits for room on a full disk: lines that cannot be written are dropped and counted
        (FD-5); a later interval continues after the last whole line.
Fails:  only in `start`, if the directory cannot be made; later failures are counted in
        `dropped`.

A segment being written is called `<instance>-<boot>-<first seq>.jsonl.open`. It is sealed
(`segments.py`) when it is old or large enough, when another UTC day begins, and at an orderly stop.
The next boot seals a segment that an earlier one left open, after cutting off a torn last line.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from brokerd.clock import Clock, Instant
from brokerd.ids import BootId
from brokerd.telemetry.metrics import DialogLine, Row
from brokerd.telemetry.private import make_directory
from brokerd.telemetry.segments import OPEN, Facts, day_of, seal

VERSION: Final = 1
"""The field `v` of every line."""
MAX_EVENTS: Final = 10_000
"""Most events copied in one interval; further events are counted as dropped."""

_MAX_BUFFER = 256 * 1024
_TAIL = 64 * 1024
_NAME = re.compile(r"(?P<instance>.+)-(?P<boot>[0-9a-f]{32})-(?P<seq>\d{10})\.jsonl\.open")
_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

Later = Callable[[Callable[[], None]], object]
"""Function that runs slow work (compress, synchronise and rename), in place or on a thread."""


def at_once(work: Callable[[], None]) -> None:
    """Run the work before this returns."""
    work()


class MetricsLog:
    """The metrics log of one boot of one instance."""

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
        self._tally = _Tally()
        self._day = ""
        self._events = 0
        self._interval_from = Instant(0)
        self.dropped = 0
        """Number of lines lost, because they could not be written or exceeded `MAX_EVENTS`."""

    def start(self) -> int:
        """Make the directory and seal the segments that earlier boots of this instance left open.

        Return the number of segments sealed.

        Raises:
            OSError: the directory cannot be made or read.
        """
        make_directory(self._directory)
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
        """Write the rows of the time since the last call, and all buffered lines; seal if due."""
        since, now = self._interval_from, self._clock.utc()
        self._interval_from = now
        self._events = 0
        for row in rows:
            self._line("interval", now, {"from_at": since}, row)
        self.flush()
        if self._segment and self._segment.is_due(
            self._clock.monotonic(), self._age, self._size, self._day or day_of(now)
        ):
            self._close()

    def write_dialogs(self, rows: Iterable[DialogLine]) -> None:
        """Buffer a line for each dialog endpoint, and seal the segment if it has become large.

        There may be millions of lines; a segment that a kill leaves open must be short, since the
        next boot has to seal it before it is ready."""
        now = self._clock.utc()
        for row in rows:
            self._line("dialog", now, {}, row)
        if self._segment and self._segment.size >= self._size:
            self._close()

    def write_closed(self, broker: str, lines: Iterable[bytes]) -> None:
        """Buffer lines of closed endpoints of one broker; `to_sync` makes them durable.

        `lines`: encoded JSON objects, one for each endpoint. Decoding and encoding a line again
        would be most of its cost."""
        now = self._clock.utc()
        head = self._encoder.encode(self._head("dialog", broker))[:-1] + b',"seq":'
        at = b',"at":%d,' % now
        for line in lines:
            self._tally.add("dialog", self._seq, now)
            self._buffer += b"%b%d%b%b\n" % (head, self._seq, at, line[1:])
            self._added()

    def write_event(self, severity: str, fields: Mapping[str, object]) -> None:
        """Buffer a copy of a line of the event log (MON-16); its values become text.

        Of repeats that the event log summarises (MON-11), this log too has only the summary.
        """
        if self._events >= MAX_EVENTS:
            self.dropped += 1
            return
        self._events += 1
        texts = {name: _text(value) for name, value in fields.items() if value is not None}
        about: dict[str, object] = {
            "event": texts.pop("event", ""),
            "subclass": texts.pop("subclass", ""),
            "severity": severity,
            "broker": texts.pop("broker", ""),
            "fields": texts,
        }
        self._line("event", self._clock.utc(), about, None)

    def write_mark(self, what: str) -> None:
        """Write a mark (`started`, `stopped`, `recovered`) and all buffered lines."""
        self._line("mark", self._clock.utc(), {"what": what}, None)
        self.flush()

    def flush(self) -> bool:
        """Write the buffered lines to the segment; return whether this succeeded.

        Lines that could not be written are dropped, without another attempt."""
        return self._flush_buffer()

    def to_sync(self) -> Callable[[], bool]:
        """Write the buffered lines, and return a function that syncs the segment to the disk.

        The function may be called on any thread, even if the segment is sealed meanwhile. It
        returns whether all lines since the last call of `to_sync` are durable."""
        self._flush_buffer()
        whole, self._whole = self._whole, True
        if self._segment is None:
            return lambda: whole
        sync = self._segment.to_sync()
        return lambda: sync() and whole

    def seal(self) -> None:
        """Flush and seal the segment; the next line opens a new one, for the day of that line."""
        self._close()
        self._day = ""

    def seal_now(self) -> None:
        """Flush and seal the segment before this returns, for a process that ends at once."""
        self._close(at_once)

    def _close(self, later: Later | None = None) -> None:
        self.flush()
        segment, self._segment = self._segment, None
        if segment:
            (later or self._later)(segment.seal)

    def close_day(self, day: str) -> None:
        """Assign all lines until the next `seal` to the day `day`, which is over."""
        if self._segment is not None and self._segment.day != day:
            self.seal()
        self._day = day

    def _line(
        self,
        kind: str,
        at: Instant,
        about: dict[str, object],
        row: msgspec.Struct | None,
    ) -> None:
        fields = self._head(kind, "") | {"seq": self._seq, "at": at} | about
        if row is not None:
            fields |= msgspec.to_builtins(row)
        self._tally.add(kind, self._seq, at)
        self._encoder.encode_into(fields, self._buffer, -1)
        self._buffer += b"\n"
        self._added()

    def _head(self, kind: str, broker: str) -> dict[str, object]:
        """Return the first fields of each line; the line's number and time follow."""
        return {
            "v": VERSION,
            "kind": kind,
            "instance": self._instance,
            "broker": broker,
            "boot_id": self._boot,
        }

    def _added(self) -> None:
        self._seq += 1
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
        self._tally = _Tally()
        return written

    def _write(self, lines: bytes) -> bool:
        try:
            if self._segment is None:
                first = self._seq - self._buffered
                name = f"{self._instance}-{self._boot}-{first:010}{OPEN}"
                facts = self._tally.begin(self._instance, self._boot, self._day)
                self._segment = _Segment(self._directory / name, self._clock.monotonic(), facts)
            self._segment.write(lines, self._tally)
        except OSError:
            return False
        return True


class _Tally:
    """The facts about the buffered lines, until the lines are in a segment."""

    __slots__ = ("first", "kinds", "last")

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.first: tuple[int, int] | None = None
        self.last = (-1, 0)

    def add(self, kind: str, seq: int, at: int) -> None:
        """Count a line."""
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.last = (seq, at)
        if self.first is None:
            self.first = self.last

    def begin(self, instance: str, boot: str, day: str = "") -> Facts:
        """Return the facts of a segment that begins with these lines but does not have them yet.

        `day`: the day that the segment belongs to; "" = the day of its first line."""
        assert self.first is not None, "there is something to write"
        seq, at = self.first
        return Facts(
            instance=instance,
            boot_id=boot,
            first_seq=seq,
            last_seq=seq,
            first_at=at,
            last_at=at,
            day=day or day_of(at),
            lines={},
        )

    def add_to(self, facts: Facts) -> None:
        """Add the lines, which are now in the segment, to its facts."""
        for kind, count in self.kinds.items():
            facts.lines[kind] = facts.lines.get(kind, 0) + count
        facts.last_seq, facts.last_at = self.last


class _Segment:
    """A segment file that is being written; between two calls it has only whole lines."""

    def __init__(self, path: Path, opened: float, facts: Facts) -> None:
        self._path = path
        self._opened = opened
        self._facts = facts
        self.day = facts.day
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._end = 0

    @property
    def size(self) -> int:
        """Bytes of the lines in the file."""
        return self._end

    def is_due(self, now: float, age: float, size: int, day: str) -> bool:
        """Return whether the segment is old or large enough to be sealed, or of another day."""
        return self._end >= size or now - self._opened >= age or day != self.day

    def write(self, lines: bytes, tally: _Tally) -> None:
        """Append whole lines: all of them, or with `OSError` none."""
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
        tally.add_to(self._facts)

    def to_sync(self) -> Callable[[], bool]:
        """Return a function that syncs the file, and returns whether this succeeded.

        The function must be called exactly once, on any thread."""
        fd = os.dup(self._fd)  # sealing closes the original

        def sync() -> bool:
            try:
                os.fdatasync(fd)
            except OSError:
                return False
            finally:
                os.close(fd)
            return True

        return sync

    def seal(self) -> None:
        """Seal and close the segment, or remove an empty one.

        If this fails, the next boot seals the segment.
        """
        try:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
                if self._end:
                    os.fsync(self._fd)
                    seal(self._path, self._facts)
                else:
                    self._path.unlink()
        finally:
            os.close(self._fd)


def _recover(path: Path) -> None:
    """Seal a segment that another boot left open, after cutting off a torn last line."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, _end_of_whole_lines(fd, os.fstat(fd).st_size))
        os.fsync(fd)
    finally:
        os.close(fd)
    facts = _facts_of(path)
    if facts is None:
        path.unlink()
    else:
        seal(path, facts)


class _Head(msgspec.Struct):
    """The fields of every line."""

    kind: str
    seq: int
    at: int


def _facts_of(path: Path) -> Facts | None:
    """Return the facts of a segment that another boot wrote; None = it has no usable line.

    An earlier line that a power cut has damaged is left in place; readers skip it.
    """
    name = _NAME.fullmatch(path.name)
    assert name is not None, "it was found by this name"
    decoder, tally, facts = msgspec.json.Decoder(_Head), _Tally(), None
    with path.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                head = decoder.decode(line)
                tally.add(head.kind, head.seq, head.at)
    if tally.first is not None:
        facts = tally.begin(name["instance"], name["boot"])
        tally.add_to(facts)
    return facts


def _end_of_whole_lines(fd: int, size: int) -> int:
    """Return the offset of the end of the last line of whole JSON; 0 = no such line."""
    end = size
    while end:
        start = _line_start(fd, end)
        line = os.pread(fd, end - start, start)
        if line.endswith(b"\n") and _is_object(line):
            return end
        end = start
    return 0


def _line_start(fd: int, end: int) -> int:
    """Return where the line begins whose last byte, a line end or not, is just before `end`."""
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


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
