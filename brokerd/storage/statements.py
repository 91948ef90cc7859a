"""Statements of the hot path: SQLAlchemy Core compiled once to text, then run many rows at a time.

Reads:  the tables.      Calls: nothing.      Never: puts a value into the text of a statement.

Building a multi-row statement anew costs more than running it (design D3), so each comes in a few
sizes, powers of two, which SQLite keeps prepared.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from sqlalchemy import ClauseElement, Column, Table, bindparam, delete, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import Insert, insert

Value = int | str | bytes | None
Row = Sequence[Value]
Execute = Callable[[str, Sequence[Value]], object]

MOST: Final = 512
"""Rows, or keys, in one statement at most."""


def sql(statement: ClauseElement) -> str:
    """The statement as text for the driver, with `?` for each value."""
    dialect = sqlite.dialect(paramstyle="qmark")
    return str(statement.compile(dialect=dialect))


def _size(left: int) -> int:
    return MOST if left >= MOST else 1 << (left.bit_length() - 1)


class Inserts:
    """INSERT of many rows, each with a value for every column of the table in its order.

    With `replace`, a row that is there under the same key gets the new values. That takes a third
    less than OR REPLACE, and less again for rows in the order of the key."""

    def __init__(self, table: Table, *, replace: bool = False) -> None:
        plain = insert(table)
        head, _, group = sql(plain).partition(" VALUES ")
        tail = sql(_or_update(plain, table)).partition(group)[2] if replace else ""
        self._texts = {
            1 << n: f"{head} VALUES {', '.join([group] * (1 << n))}{tail}"
            for n in range(MOST.bit_length())
        }

    def run(self, execute: Execute, rows: Sequence[Row]) -> None:
        """Insert them all."""
        at, left = 0, len(rows)
        while left:
            size = _size(left)
            execute(self._texts[size], list(chain.from_iterable(rows[at : at + size])))
            at, left = at + size, left - size


def _or_update(statement: Insert, table: Table) -> Insert:
    key = list(table.primary_key.columns)
    others = {it.name: statement.excluded[it.name] for it in table.columns if not it.primary_key}
    return statement.on_conflict_do_update(index_elements=key, set_=others)


class Deletes:
    """DELETE of all rows whose column has one of many values."""

    def __init__(self, column: Column[int] | Column[bytes], *, also: str = "") -> None:
        head = sql(delete(column.table)) + f" WHERE {column.name} IN "
        self._texts = {
            1 << n: f"{head}({', '.join('?' * (1 << n))}){also}" for n in range(MOST.bit_length())
        }

    def run(self, execute: Execute, keys: Sequence[Value]) -> None:
        """Delete them all."""
        at, left = 0, len(keys)
        while left:
            size = _size(left)
            execute(self._texts[size], keys[at : at + size])
            at, left = at + size, left - size


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
