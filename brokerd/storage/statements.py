"""Statements of the hot path: SQLAlchemy Core compiled once to text, then run many rows at a time.

Reads:  the tables.      Calls: nothing.      Never: puts a value into the text of a statement.

A flush is a script: statements with their rows, in order, as data. It runs in multi-row statements,
since beginning and ending a statement takes as long as half a row. Building a statement again costs
more than running it (design D3), so each has a few sizes, which SQLite keeps prepared. The driver
uses the sizes with one non-zero digit in base 8: three or four statements then write any number of
rows up to a thousand, and each further statement would be a wait for the interpreter lock. A writer
outside the interpreter needs only two sizes (`Script.steps`).
"""

import sqlite3
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from sqlalchemy import ClauseElement, Column, Table, bindparam, delete, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import Insert, insert

Value = int | str | bytes | None
Row = Sequence[Value]

DIALECT: Final = sqlite.dialect(paramstyle="qmark")
"""The dialect of all texts; one object, since it caches its work for each type of column."""
MOST: Final = 512
"""Most rows, or keys, in one statement."""
_STEP: Final = 8
"""Rows in one statement where further statements cost little. With 64 rows, a row would cost the
flusher a tenth less time, and the only client of a daemon a tenth more."""


def sql(statement: ClauseElement) -> str:
    """Return the statement as text for the driver, with `?` for each value."""
    return str(statement.compile(dialect=DIALECT))


def _size(left: int) -> int:
    """Return the number of rows for the next statement: one of 22 sizes."""
    if left >= MOST:
        return MOST
    unit = 64 if left >= 64 else 8 if left >= 8 else 1  # noqa: PLR2004  # the digits in base 8
    return left - left % unit


class Texts(dict[int, str]):
    """The texts of one statement by size, each made when it is first needed."""

    def __init__(self, make: Callable[[int], str], columns: Sequence[Column[Any]]) -> None:
        super().__init__()
        self._make = make
        self.columns = columns
        """The column of each value of a row."""

    def __missing__(self, size: int) -> str:
        text = self[size] = self._make(size)
        return text


class Part(NamedTuple):
    """One statement of a script."""

    text: str
    """The text for one row, or one key."""
    rows: tuple[Row, ...]
    """Tuples of values, which must not change while they are written."""
    texts: Texts | None
    """The texts for several rows at a time, by number of rows; None = one row at a time."""


class Step(NamedTuple):
    """One statement of a script, and how it is run."""

    text: str
    rows: tuple[Row, ...]
    at_a_time: int
    """Number of rows that the statement takes; the number of `rows` is a multiple."""


class Script:
    """The changes of one transaction to the store: statements in order, with their rows."""

    __slots__ = ("is_fenced", "parts")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.is_fenced = False
        """Whether the script ends unless its first statement changes one row."""

    def add(self, text: str, *rows: Row) -> None:
        """Add a statement, to be run once for each of the rows."""
        if rows:
            self.parts.append(Part(text, rows, None))

    def fence(self, text: str, row: Row) -> None:
        """Add the first statement as a fence: the script ends unless it changes one row."""
        self.parts.append(Part(text, (row,), None))
        self.is_fenced = True

    def run(self, connection: sqlite3.Connection) -> bool:
        """Run the script inside the caller's transaction; return False if it ended at its fence."""
        run_script = getattr(connection, "run_script", None)
        if run_script is not None:  # an engine that takes many rows in another way
            return bool(run_script(self))
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
        """Return the script for a writer outside the interpreter.

        It takes two thirds of the time of a script with one row per statement.
        """
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
    """INSERT of many rows; a row has a value for every column of the table, in the same order.

    With `replace`, an existing row with the same key gets the new values. This takes a third less
    time than OR REPLACE, and still less for rows in the order of the key.
    """

    def __init__(self, table: Table, *, replace: bool = False) -> None:
        plain = insert(table)
        head, _, group = sql(plain).partition(" VALUES ")
        tail = sql(_or_update(plain, table)).partition(group)[2] if replace else ""
        self._texts = Texts(
            lambda size: f"{head} VALUES {', '.join([group] * size)}{tail}", list(table.columns)
        )

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
        self._texts = Texts(lambda size: f"{head}({', '.join('?' * size)}){also}", [column])

    def add(self, script: Script, keys: Sequence[Value]) -> None:
        """Delete the rows of all keys."""
        if keys:
            script.parts.append(Part(self._texts[1], tuple([(key,) for key in keys]), self._texts))


def update_by_key(table: Table, key: str, columns: Sequence[str]) -> str:
    """Return the UPDATE of some columns of one row; its values: those columns, then the key.

    `columns`: names in the order of the table.
    """
    statement = (
        update(table)
        .where(table.c[key] == bindparam("key_"))
        .values({name: bindparam(name) for name in columns})
    )
    return sql(statement)
