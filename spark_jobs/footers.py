"""Footers of Parquet files: put in a fixed order, and asked for the number of rows.

Reads:  the Thrift compact protocol, in which a footer is written.
Never:  changes the meaning or length of a file: only sets are sorted. The writer lists the
        encodings of a column in an order that differs from one JVM to the next.
"""

import os
from collections.abc import Iterator
from pathlib import Path

MAGIC = b"PAR1"
_TAIL = 8
"""Number of bytes at the end of a file: the length of the footer, and the magic."""

_ENCODINGS = (4, 1, 3, 2)
"""Path of field numbers: row groups, their columns, the metadata of one, its encodings."""

_ROWS = (3,)
"""Path to the number of rows."""

_TRUTHS = (1, 2)
_LONG_LIST = 15


def in_order(raw: bytes) -> bytes:
    """Return the file with the sets of its footer sorted.

    Raises:
        ValueError: this is not a Parquet file.
    """
    if len(raw) < 2 * len(MAGIC) + _TAIL or raw[-4:] != MAGIC:
        raise ValueError("this is no Parquet file")
    begin = len(raw) - _TAIL - int.from_bytes(raw[-_TAIL:-4], "little")
    footer = _Footer(raw[:-_TAIL], begin)
    footer.struct(())
    made = bytearray(raw)
    for places in footer.sets:
        ordered = b"".join(sorted(raw[place] for place in places))
        made[places[0].start : places[-1].stop] = ordered
    return bytes(made)


def rows(path: Path) -> int:
    """Return the number of rows of a file; read its footer alone.

    Raises:
        ValueError: this is not a Parquet file.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
        length = int.from_bytes(tail[:4], "little")
        if tail[-4:] != MAGIC or length > size - _TAIL:
            raise ValueError(f"{path} is no Parquet file")
        file.seek(size - _TAIL - length)
        footer = _Footer(file.read(length), 0)
    footer.struct(())
    return footer.rows


class _Footer:
    """A single pass over a footer that notes the members of each set, and the number of rows."""

    def __init__(self, raw: bytes, at: int) -> None:
        self._raw, self._at = raw, at
        self.sets: list[list[slice]] = []
        self.rows = 0

    def struct(self, path: tuple[int, ...]) -> None:
        """Read all fields of a struct; `path` has the numbers of the fields that lead to it."""
        field = 0
        while header := self._byte():
            field = field + (header >> 4) if header >> 4 else self._number() >> 1
            if header & 15 not in _TRUTHS:  # a boolean's value is in its header
                self._value(header & 15, (*path, field))

    def _value(self, kind: int, path: tuple[int, ...]) -> None:
        match kind:
            case 1 | 2 | 3:
                self._at += 1
            case 4 | 5 | 6:
                number = self._number()
                if path == _ROWS:
                    self.rows = number >> 1  # in zigzag form, and never negative
            case 7:
                self._at += 8
            case 8:
                length = self._number()
                self._at += length
            case 9 | 10:
                places = list(self._members(path))
                if path == _ENCODINGS and places:
                    self.sets.append(places)
            case 12:
                self.struct(path)
            case _:
                raise ValueError(f"a footer has no value of kind {kind}")

    def _members(self, path: tuple[int, ...]) -> Iterator[slice]:
        header = self._byte()
        count = header >> 4 if header >> 4 < _LONG_LIST else self._number()
        for _ in range(count):
            begin = self._at
            self._value(header & 15, path)
            yield slice(begin, self._at)

    def _number(self) -> int:
        found = shift = 0
        while (byte := self._byte()) & 0x80:
            found |= (byte & 0x7F) << shift
            shift += 7
        return found | byte << shift

    def _byte(self) -> int:
        byte = self._raw[self._at]
        self._at += 1
        return byte
