"""Statements of the hot path: SQLAlchemy Core compiled once to text, then run many rows at a time.

Reads:  the tables.      Calls: nothing.      Never: puts a value into the text of a statement.

What a flush does is a script: statements with their rows, in order, as data. It runs in multi-row
statements: to begin and end one takes as long as half a row does. Building one anew costs more than
running it (design D3), so each comes in a few sizes, which SQLite keeps prepared: for the driver
those with one digit in base 8. Three or four statements then write any number of rows up to a
thousand, and each one more is a wait for the interpreter lock. Who needs no interpreter does with
two sizes (`Script.steps`).
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
"""One for all texts: it remembers what it has worked out about each type of column."""
MOST: Final = 512
"""Rows, or keys, in one statement at most."""
_STEP: Final = 8
"""Rows in one statement where each statement more costs little. With 64 a row costs a tenth less of
the flusher's time, and whoever is alone on the daemon a tenth more of his."""


def sql(statement: ClauseElement) -> str:
    """The statement as text for the driver, with `?` for each value."""
    return str(statement.compile(dialect=DIALECT))


def _size(left: int) -> int:
    """How many of the rows that are left the next statement takes: one of 22 sizes."""
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
    """For one row, or one key."""
    rows: tuple[Row, ...]
    """Tuples of values: nobody changes them while they are written."""
    texts: _Texts | None
    """The same for several at a time, by how many they are; None = it is run for each row."""


class Step(NamedTuple):
    """One statement of a script, and how it is run."""

    text: str
    rows: tuple[Row, ...]
    at_a_time: int
    """Rows that it takes; those above are a multiple of it."""


class Script:
    """What one transaction does to the store, as data: statements in order, with their rows."""

    __slots__ = ("is_fenced", "parts")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.is_fenced = False
        """Whether nothing is done unless the first statement changes one row."""

    def add(self, text: str, *rows: Row) -> None:
        """Run a statement for each of these rows."""
        if rows:
            self.parts.append(Part(text, rows, None))

    def fence(self, text: str, row: Row) -> None:
        """The first statement: nothing is done unless it changes one row."""
        self.parts.append(Part(text, (row,), None))
        self.is_fenced = True

    def run(self, connection: sqlite3.Connection) -> bool:
        """Run it all, inside the caller's transaction; False = it ended at its fence."""
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
        """The same for who needs no interpreter, in two thirds of the time of row by row."""
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

    With `replace`, a row that is there under the same key gets the new values. That takes a third
    less than OR REPLACE, and less again for rows in the order of the key."""

    def __init__(self, table: Table, *, replace: bool = False) -> None:
        plain = insert(table)
        head, _, group = sql(plain).partition(" VALUES ")
        tail = sql(_or_update(plain, table)).partition(group)[2] if replace else ""
        self._texts = _Texts(lambda size: f"{head} VALUES {', '.join([group] * size)}{tail}")

    def add(self, script: Script, rows: Sequence[Row]) -> None:
        """Insert them all."""
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
        """Delete them all."""
        if keys:
            script.parts.append(Part(self._texts[1], tuple([(key,) for key in keys]), self._texts))


def update_by_key(table: Table, key: str, columns: Sequence[str]) -> str:
    """UPDATE of some columns of one row; the values in that order, then the key.

    `columns` are in the order of the table.
    """
    statement = (
        update(table)
        .where(table.c[key] == bindparam("key_"))
        .values({name: bindparam(name) for name in columns})
    )
    return sql(statement)
