"""Log reader: the lines of the event log's file, also those that were rotated away (MAN-23).

Reads:  the file that `log.file` names and its rotated siblings, plain or compressed.
Calls:  nothing.
Never:  changes a file, or keeps more of one in memory than a line.
Fails:  a line that is no JSON object is passed over and counted: a crash may have cut it off.
"""

import gzip
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import msgspec

Line = dict[str, Any]
_ROTATED: Final = re.compile(r"[.-](\d+)(\.gz)?$")
"""Suffixes of rotated files: .1, .2.gz, -20260131, -20260131.gz."""
_LONGEST: Final = 1 << 20
"""Longest line that is read; the rest of a longer one is passed over."""


class LogReader:
    """A reader of one event log; `lines` may be called again and again, to follow it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""
        self.unreadable = 0
        """Number of lines that were no JSON objects."""

    def older(self) -> Iterator[Line]:
        """Yield the lines of the rotated files, oldest first."""
        for path in rotated(self._path):
            opener = gzip.open if path.suffix == ".gz" else open
            with opener(path, "rb") as file:
                yield from self._parsed(cast("BinaryIO", file))
            self._rest = b""

    def lines(self) -> Iterator[Line]:
        """Yield the lines that were added since the last call, in the first one all.

        When the file was rotated away, the rest of it comes first, and then the new file. A file
        that is not there has no lines.

        Raises:
            OSError: the file cannot be read.
        """
        while True:
            if self._file is None:
                try:
                    self._file = self._path.open("rb")  # it stays open between calls
                except FileNotFoundError:
                    return
            yield from self._parsed(self._file)
            if not self._has_moved():
                return
            yield from self._parsed(self._file)  # what was written until it was rotated
            self._file.close()
            self._file, self._rest = None, b""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _has_moved(self) -> bool:
        """Return whether another file has the name now, or the file was cut."""
        assert self._file is not None
        own = os.fstat(self._file.fileno())
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            return False  # between two steps of a rotation
        return (own.st_dev, own.st_ino) != (named.st_dev, named.st_ino) or (
            own.st_size < self._file.tell()
        )

    def _parsed(self, file: BinaryIO) -> Iterator[Line]:
        while data := file.readline(_LONGEST):
            if not data.endswith(b"\n"):  # the writer, or the limit, is in the middle of a line
                self._rest = (self._rest + data)[-_LONGEST:]
                continue
            whole, self._rest = self._rest + data, b""
            try:
                line = msgspec.json.decode(whole)
            except msgspec.DecodeError:
                line = None
            if isinstance(line, dict):
                yield line
            else:
                self.unreadable += 1


def rotated(path: Path) -> list[Path]:
    """Return the files that were rotated away from this path, oldest first."""
    found: list[tuple[bool, int, Path]] = []
    for one in path.parent.glob(f"{path.name}[.-]*"):
        if match := _ROTATED.fullmatch(one.name[len(path.name) :]):
            number = int(match[1])
            is_date = one.name[len(path.name)] == "-"
            found.append((is_date, number if is_date else -number, one))
    return [one for _, _, one in sorted(found)]
