"""Statements of the hot path: SQLAlchemy Core compiled once to text, then run many rows at a time.

Reads:  the tables.      Calls: nothing.      Never: puts a value into the text of a statement.

A flush is a script: statements with their rows, in order, as data. It runs in multi-row statements:
beginning and ending a statement takes as long as half a row does. Building one anew costs more than
running it (design D3), so each comes in a few sizes, which SQLite keeps prepared: for the driver
those with one digit in base 8. Three or four statements then write any number of rows up to a
thousand, and each further one is a wait for the interpreter lock. A writer without the interpreter
manages with two sizes (`Script.steps`).
"""

import sqlite3
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from sqlalchemy import ClauseElement, Column, Table, bindparam, delete, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import Insert, insert

Value = int | str | bytes | None
Row = Sequence[Value]

DIALECT: Final = sqlite.dialect(paramstyle="qmark")
"""The dialect of all texts: it remembers what it has worked out about each type of column."""
MOST: Final = 512
"""Rows, or keys, in one statement at most."""
_STEP: Final = 8
"""Rows in one statement where further statements cost little. With 64 a row costs the flusher a
tenth less time, and a client that is alone on the daemon a tenth more."""


def sql(statement: ClauseElement) -> str:
    """Return the statement as text for the driver, with `?` for each value."""
    return str(statement.compile(dialect=DIALECT))


def _size(left: int) -> int:
    """Return the number of rows that the next statement takes: one of 22 sizes."""
    if left >= MOST:
        return MOST
    unit = 64 if left >= 64 else 8 if left >= 8 else 1  # noqa: PLR2004  # the digits in base 8
    return left - left % unit


class _Texts(dict[int, str]):
    """The texts of one statement by size, each made when it is first needed."""

    def __init__(self, make: Callable[[int], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, size: int) -> str:
        text = self[size] = self._make(size)
        return text


class Part(NamedTuple):
    """One statement of a script."""

    text: str
    """The text for one row, or one key."""
    rows: tuple[Row, ...]
    """Tuples of values: nobody changes them while they are written."""
    texts: _Texts | None
    """The texts for several rows at a time, by their number; None = one row at a time."""


class Step(NamedTuple):
    """One statement of a script, and how it is run."""

    text: str
    rows: tuple[Row, ...]
    at_a_time: int
    """Rows that the statement takes; the number of `rows` is a multiple of it."""


class Script:
    """The changes of one transaction to the store: statements in order, with their rows."""

    __slots__ = ("is_fenced", "parts")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.is_fenced = False
        """Whether nothing is done unless the first statement changes one row."""

    def add(self, text: str, *rows: Row) -> None:
        """Add a statement to be run for each of these rows."""
        if rows:
            self.parts.append(Part(text, rows, None))

    def fence(self, text: str, row: Row) -> None:
        """Add the first statement: nothing is done unless it changes one row."""
        self.parts.append(Part(text, (row,), None))
        self.is_fenced = True

    def run(self, connection: sqlite3.Connection) -> bool:
        """Run the script inside the caller's transaction; return False if it ended at its fence."""
        for at_part, (text, rows, texts) in enumerate(self.parts):
            if texts is None:
                changed = connection.executemany(text, rows).rowcount
                if self.is_fenced and not at_part and changed != 1:
                    return False
                continue
            at, left = 0, len(rows)
            while left:
                size = _size(left)
                values = list(chain.from_iterable(rows[at : at + size]))
                connection.execute(texts[size], values)
                at, left = at + size, left - size
        return True

    def steps(self) -> tuple[Step, ...]:
        """Return the script for a writer outside the interpreter; 2/3 of the time of row by row."""
        steps: list[Step] = []
        for text, rows, texts in self.parts:
            left = rows
            if texts is not None and (many := len(rows) // _STEP * _STEP):
                steps.append(Step(texts[_STEP], rows[:many], _STEP))
                left = rows[many:]
            if left:
                steps.append(Step(text, left, 1))
        return tuple(steps)


class Inserts:
    """INSERT of many rows, each with a value for every column of the table in its order.

    With `replace`, an existing row with the same key gets the new values. That takes a third less
    than OR REPLACE, and less again for rows in the order of the key.
    """

    def __init__(self, table: Table, *, replace: bool = False) -> None:
        plain = insert(table)
        head, _, group = sql(plain).partition(" VALUES ")
        tail = sql(_or_update(plain, table)).partition(group)[2] if replace else ""
        self._texts = _Texts(lambda size: f"{head} VALUES {', '.join([group] * size)}{tail}")

    def add(self, script: Script, rows: Sequence[Row]) -> None:
        """Insert all rows."""
        if rows:
            script.parts.append(Part(self._texts[1], tuple(rows), self._texts))


def _or_update(statement: Insert, table: Table) -> Insert:
    key = list(table.primary_key.columns)
    others = {it.name: statement.excluded[it.name] for it in table.columns if not it.primary_key}
    return statement.on_conflict_do_update(index_elements=key, set_=others)


class Deletes:
    """DELETE of all rows whose column has one of many values."""

    def __init__(self, column: Column[int] | Column[bytes], *, also: str = "") -> None:
        head = sql(delete(column.table)) + f" WHERE {column.name} IN "
        self._texts = _Texts(lambda size: f"{head}({', '.join('?' * size)}){also}")

    def add(self, script: Script, keys: Sequence[Value]) -> None:
        """Delete the rows of all keys."""
        if keys:
            script.parts.append(Part(self._texts[1], tuple([(key,) for key in keys]), self._texts))


def update_by_key(table: Table, key: str, columns: Sequence[str]) -> str:
    """Return the UPDATE of some columns of one row; it takes their values in order, then the key.

    `columns` are in the order of the table.
    """
    statement = (
        update(table)
        .where(table.c[key] == bindparam("key_"))
        .values({name: bindparam(name) for name in columns})
    )
    return sql(statement)
