"""Rows: the tables of a store, read in the order of their keys, written in batches, and compared.

Reads:  every row of every table.      Calls: the connection of an end.
Never:  changes a value on the way, or holds more than a batch in memory.
Fails:  `StoreDamaged` names the row with a value that is not of the type of its column.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from sqlalchemy import Column, Integer, LargeBinary, Table
from xxhash import xxh3_128_intdigest

from brokerd.errors import CopyFailed, StoreDamaged
from brokerd.storage import tables
from brokerd.storage.connections import Connection
from brokerd.storage.statements import Inserts, Script

Row = tuple[Any, ...]
Progress = Callable[[str, int, int], None]
"""Function that is told of long work: what is done, rows done, rows in all."""

TABLES: Final = tables.metadata.sorted_tables
"""All tables, those that others refer to first."""
NUMBERED: Final = tuple(
    table for table in TABLES if table.dialect_options["sqlite"]["autoincrement"]
)
"""The tables whose keys the engine gives, and never gives twice."""
_LARGE: Final = {"body", "data", "state", "line", "encoded"}
"""Columns with values of up to hundreds of kilobytes."""
_FEW, _MANY = 64, 2_000
"""Rows in a batch of a table with such a column, and of another one."""
_BYTES: Final = 4 << 20
"""Bytes of a batch that is written."""
_MODULUS: Final = 1 << 128
_encode: Final = msgspec.msgpack.Encoder().encode


class Readable(Protocol):
    """An end from which rows are read."""

    connection: Connection

    def stream(self, query: str, size: int) -> Iterator[Sequence[Row]]:
        """Yield the rows of a query, at most `size` at a time."""
        ...


class Fingerprint(NamedTuple):
    """The content of a table, in brief; equal fingerprints mean equal rows."""

    rows: int
    hash: str
    """Sum of the XXH3-128 of each row, in hexadecimal digits."""


class Counter:
    """Makes the fingerprint of a table."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Add the next rows."""
        self._rows += len(rows)
        # A sum, since keys with U+0000 have another order in PostgreSQL, which stores them in
        # another form (REL-55).
        self._sum += sum(xxh3_128_intdigest(_encode(row)) for row in rows)

    def done(self) -> Fingerprint:
        """Return the fingerprint."""
        return Fingerprint(self._rows, f"{self._sum % _MODULUS:032x}")


def batches(end: Readable, table: Table) -> Iterator[Sequence[Row]]:
    """Yield the rows of a table in the order of its key; a row has a value for every column."""
    columns = ", ".join(column.name for column in table.columns)
    key = ", ".join(column.name for column in table.primary_key)
    query = f"SELECT {columns} FROM {table.name} ORDER BY {key}"  # noqa: S608  # all ours
    is_large = any(
        isinstance(column.type, LargeBinary) and column.name in _LARGE for column in table.columns
    )
    return end.stream(query, _FEW if is_large else _MANY)


def count_rows(end: Readable) -> dict[str, int]:
    """Return the number of rows of each table."""
    each = (f"(SELECT count(*) FROM {table.name})" for table in TABLES)  # noqa: S608  # ours
    row = end.connection.execute(f"SELECT {', '.join(each)}").fetchone()
    return {table.name: int(count) for table, count in zip(TABLES, row, strict=True)}


class Change(Protocol):
    """A function that returns the rows that are to be written for those that were read."""

    def __call__(self, table: Table, rows: Sequence[Row], /) -> Sequence[Row]:
        """Return the rows to write."""
        ...


def copy_tables(
    source: Readable, target: Connection, *, change: Change, progress: Progress, place: str
) -> dict[str, Fingerprint]:
    """Copy all rows in the caller's transaction; return the fingerprints of what was written.

    `place`: the source, for messages.

    Raises:
        StoreDamaged: a row of the source cannot be kept elsewhere.
    """
    counts, done = count_rows(source), 0
    whole = sum(counts.values())
    found: dict[str, Fingerprint] = {}
    for table in TABLES:
        counter, inserts = Counter(), Inserts(table)
        for read in _gathered(batches(source, table)) if counts[table.name] else ():
            _refuse_wrong_types(table, read, place)
            rows = change(table, read)
            script = Script()
            inserts.add(script, rows)
            script.run(target)
            counter.add(rows)
            done += len(rows)
            progress(f"copying {table.name}", done, whole)
        found[table.name] = counter.done()
    return found


def _gathered(pieces: Iterable[Sequence[Row]]) -> Iterator[list[Row]]:
    """Join small batches, since each that is written takes some exchanges with a server."""
    rows: list[Row] = []
    size = 0
    for piece in pieces:
        rows += piece
        size += sum(len(value) for row in piece for value in row if isinstance(value, bytes))
        if len(rows) >= _MANY or size >= _BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def fingerprints(end: Readable, *, progress: Progress) -> dict[str, Fingerprint]:
    """Return the fingerprints of all tables."""
    counts, done = count_rows(end), 0
    whole = sum(counts.values())
    found: dict[str, Fingerprint] = {}
    for table in TABLES:
        counter = Counter()
        for rows in batches(end, table) if counts[table.name] else ():
            counter.add(rows)
            done += len(rows)
            progress(f"comparing {table.name}", done, whole)
        found[table.name] = counter.done()
    return found


def refuse_difference(
    wanted: dict[str, Fingerprint], found: dict[str, Fingerprint], *, place: str
) -> None:
    """Raise `CopyFailed` if a table of the copy is not what was written."""
    for name, one in wanted.items():
        if one != found[name]:
            raise CopyFailed(
                f"the table {name} of {place} is not what was written: {found[name].rows} rows of"
                f" {one.rows}, or other values; the copy was given up",
                hint="try again; if it happens again, something is wrong with that disk or server",
            )


def _refuse_wrong_types(table: Table, rows: Sequence[Row], place: str) -> None:
    """Refuse values that SQLite takes and PostgreSQL does not, with the row that has one."""
    kinds = [_kind(column) for column in table.columns]
    for row in rows:
        for at, value in enumerate(row):
            if value is None or type(value) is kinds[at]:
                continue
            column = list(table.columns)[at]
            keys = ", ".join(
                f"{key.name} {_shown(row[list(table.columns).index(key)])}"
                for key in table.primary_key
            )
            raise StoreDamaged(
                f"{place}: {table.name}, {keys}: column {column.name} has a value of another type,"
                " which PostgreSQL cannot keep; nothing was moved",
                hint="end the dialog, or change the object, to which the row belongs",
            )


def _kind(column: Column[Any]) -> type:
    if isinstance(column.type, Integer):
        return int
    return bytes if isinstance(column.type, LargeBinary) else str


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
