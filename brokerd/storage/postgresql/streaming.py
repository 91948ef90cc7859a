"""Streaming: reads long results from the server in pieces, in one transaction.

Reads:  whatever the query names.      Calls: the connection it is given.
Never:  holds more than one piece in memory.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final

from brokerd.storage.postgresql.connection import Cursor, ServerConnection

_NUMBERS: Final = count(1)


def stream(
    connection: ServerConnection, query: str, size: int
) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Yield the rows of a query without values, at most `size` at a time, in an open transaction.

    Each cursor has a name of its own: the connection keeps statements by their text.
    """
    name = f"rows{next(_NUMBERS)}"
    connection.execute(f"DECLARE {name} NO SCROLL CURSOR FOR {query}")
    is_last = False
    while not is_last:
        rows = connection.execute(f"FETCH {size} FROM {name}").fetchall()
        is_last = len(rows) < size
        if rows:
            yield rows
    connection.execute(f"CLOSE {name}")


class Streamed:
    """A connection whose queries without values yield their rows as they come."""

    def __init__(self, connection: ServerConnection, size: int) -> None:
        self._connection, self._size = connection, size

    def execute(self, text: str, values: Sequence[Any] = (), /) -> "Cursor | _Rows":
        """Run a query."""
        if values:
            return self._connection.execute(text, values)
        return _Rows(stream(self._connection, text, self._size))


class _Rows:
    """The rows of a query, which are fetched while they are read."""

    def __init__(self, pieces: Iterator[Sequence[tuple[Any, ...]]]) -> None:
        self._rows = (row for piece in pieces for row in piece)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row; None = there are no more."""
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows that are left."""
        return list(self._rows)
