"""Reader: answers the statements of a store from PostgreSQL, on connections that only query.

Reads:  committed rows.      Calls: asyncpg, through `ServerConnection`.
Never:  waits for the writer, or lets a read take longer than `READ_LIMIT` (FD-10).
Fails:  `Busy` if a read took too long, `StoreFault` if the server is gone; a later read connects
        again.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

from sqlalchemy import Executable, Select
from sqlalchemy.exc import DBAPIError

from brokerd.storage.connections import Connection
from brokerd.storage.postgresql.connection import ServerConnection, as_connection
from brokerd.storage.readers import PageOf, Values, refusal, text_of

T = TypeVar("T")

_VIEWS: Final = 2
"""Connections for reads for which no receive waits."""


class Run(Protocol):
    """A function that runs a job which waits for the server."""

    async def __call__(self, function: Callable[..., T], /, *given: Any) -> T:  # noqa: ANN401
        """Return the result of the function."""
        ...


class _Line:
    """A connection, used by one read at a time, and opened when it is needed."""

    def __init__(self, connect: Callable[[], Awaitable[ServerConnection]], run: Run) -> None:
        self._connect = connect
        self._run = run
        self._lock = asyncio.Lock()
        self._connection: ServerConnection | None = None

    @property
    def is_used(self) -> bool:
        return self._lock.locked()

    async def use(self, job: Callable[[ServerConnection], T]) -> T:
        async with self._lock:
            try:
                if self._connection is None or self._connection.is_lost:
                    self._connection = await self._connect()
                return await self._run(job, self._connection)
            except sqlite3.Error as error:
                if self._connection is not None and self._connection.in_transaction:
                    self._drop()  # the server answers nothing more in this transaction
                raise refusal(DBAPIError(None, None, error)) from error
            except BaseException:
                # Whoever waited has gone, in the middle of a read: the connection is not reused.
                self._drop()
                raise

    def _drop(self) -> None:
        """Close the connection; the next read makes another one."""
        self.close()
        self._connection = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class ServerReader:
    """A reader with one connection for reads that clients wait for, and some for all others."""

    def __init__(self, connect: Callable[[], Awaitable[ServerConnection]], run: Run) -> None:
        """Create the reader.

        `connect`: makes a connection that only reads. `run`: runs a job on one.
        """
        self._hot = _Line(connect, run)
        self._views = [_Line(connect, run) for _ in range(_VIEWS)]
        self._aside = _Line(connect, run)

    async def rows(
        self, statement: Executable, values: Mapping[str, object] | None = None
    ) -> Sequence[Values]:
        """Return all rows."""
        return await self._rows(self._free_view(), statement, values or {})

    async def hot(self, statement: Select[Any], values: Mapping[str, object]) -> Sequence[Values]:
        """Return all rows of a statement for which clients wait."""
        return await self._rows(self._hot, statement, values)

    async def page(
        self, page: PageOf, values: Mapping[str, object], *, aside: bool = False
    ) -> list[Values]:
        """Return the rows of a page; the server ends it at the size."""
        text, arguments = text_of(page.rows).bind(values)
        bounded = (
            "SELECT * FROM (SELECT page.*, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size"  # noqa: S608
            f" AS before_ FROM ({text}) AS page) AS bounded WHERE before_ < ?"
        )
        most = max(1, cast("int", values["max_bytes"]))  # the first row, however large it is
        line = self._free_view() if aside else self._hot
        rows = await line.use(
            lambda connection: connection.execute(bounded, [*arguments, most]).fetchall()
        )
        return [row[:-2] for row in rows]

    async def job(self, job: Callable[[Connection], T]) -> T:
        """Run a longer job on the connection reserved for jobs."""
        return await self._aside.use(lambda connection: job(as_connection(connection)))

    async def close(self) -> None:
        """Close the connections."""
        for line in (self._hot, self._aside, *self._views):
            line.close()

    async def _rows(
        self, line: _Line, statement: Executable, values: Mapping[str, object]
    ) -> Sequence[Values]:
        text, arguments = text_of(statement).bind(values)
        return await line.use(lambda connection: connection.execute(text, arguments).fetchall())

    def _free_view(self) -> _Line:
        return next((line for line in self._views if not line.is_used), self._views[0])
