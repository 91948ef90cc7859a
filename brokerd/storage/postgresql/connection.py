"""Connection: runs the statements of a store on a PostgreSQL server, as SQLite's driver would.

Reads:  nothing by itself.      Calls: asyncpg.
Never:  reports a COMMIT as done that the server did not confirm, or that it confirmed without the
        standbys for which it was to wait (REL-53).
Fails:  with `ServerError`, which names the SQLSTATE.

The jobs of a store are plain functions over a connection. asyncpg works on the event loop, so a job
runs in a greenlet there, and `wait` hands each answer of the server over to it. A thread is not
used: beside a busy loop, a flush on a thread waited seconds for the interpreter lock.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Protocol, TypeVar, cast

import asyncpg
from sqlalchemy.util import await_only

from brokerd.storage.connections import Connection
from brokerd.storage.postgresql.errors import (
    DRIVER_ERRORS,
    FENCED,
    ServerError,
    server_error,
)
from brokerd.storage.postgresql.storable import as_given, storable, storable_rows
from brokerd.storage.postgresql.texts import (
    column_type,
    is_plain_insert,
    many_rows,
    statement_of,
    types_of,
)
from brokerd.storage.statements import Part, Row, Script

T = TypeVar("T")
_PREPARED: Final = 512
"""Most statements that a connection keeps prepared."""
_COPIED: Final = 32
"""Number of new rows from which they are copied into their table: from here on that is cheaper."""
_UNREPLICATED: Final = "01000"
"""SQLSTATE of the warning that a commit did not wait for a standby."""


class Wait(Protocol):
    """A function that waits for something on the event loop, in a function that is no coroutine."""

    def __call__(self, awaitable: Awaitable[T], /) -> T:
        """Return the result."""
        ...


def in_greenlet(awaitable: Awaitable[T]) -> T:
    """Wait in a greenlet of the loop (`greenlet_spawn`), while the loop does other work."""
    return await_only(awaitable)


def in_thread(awaitable: Awaitable[T]) -> T:
    """Wait for a loop on another thread; the caller's loop, whose time may be virtual, stops."""

    async def run() -> T:
        return await awaitable

    return asyncio.run_coroutine_threadsafe(run(), _loop_aside()).result()


@cache
def _loop_aside() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="brokerd-postgresql", daemon=True).start()
    return loop


class Cursor:
    """The rows that a statement returned, and the number that it changed."""

    def __init__(self, rows: Sequence[tuple[Any, ...]], rowcount: int) -> None:
        self._rows = iter(rows)
        self.rowcount = rowcount

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row; None = there are no more."""
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows that are left."""
        return list(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows


class ServerConnection:
    """A connection to the schema of one store, with the methods of SQLite's that jobs use."""

    def __init__(self, connection: "asyncpg.Connection[Any]", wait: Wait) -> None:
        self._connection = connection
        self._wait = wait
        self._prepared: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self._warnings: list[str] = []
        connection.add_log_listener(self._logged)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return not self.is_lost and bool(self._connection.is_in_transaction())

    @property
    def is_lost(self) -> bool:
        """Whether the connection is closed."""
        return bool(self._connection.is_closed())

    def execute(self, text: str, values: Sequence[object] | Mapping[str, object] = ()) -> Cursor:
        """Run a statement written for SQLite. `ServerError`: the server refused it, or is gone."""
        return self._wait(self._execute(text, values))

    def execute_all(self, texts: Sequence[str]) -> None:
        """Run statements written for PostgreSQL, without values, in one exchange."""
        self._wait(self._execute_all(texts))

    def executemany(self, text: str, rows: Sequence[Sequence[object]]) -> Cursor:
        """Run a statement once for each row; `rowcount` is that of the only row, or unknown."""
        return Cursor((), self._wait(self._execute_rows(text, rows)))

    def run_script(self, script: Script) -> bool:
        """Run a script in the caller's transaction; return False if it ended at its fence."""
        return self._wait(self._run_script(script))

    def run_at_once(self, text: str, values: Sequence[object]) -> bool:
        """Run a statement of `one_statement.py`, a transaction by itself.

        Returns False if its fence does not hold. `ServerError`: see `is_outcome_known`.
        """
        self._warnings.clear()
        try:
            self.execute(text, values)
        except ServerError as error:
            if error.sqlstate == FENCED:
                return False
            raise
        self._refuse_unreplicated()
        return True

    def use_driver(self, use: "Callable[[asyncpg.Connection[Any]], Awaitable[T]]") -> T:
        """Run a coroutine on the connection of the driver; it may change the tables."""
        try:
            return self._wait(use(self._connection))
        finally:
            self._prepared.clear()

    def close(self) -> None:
        """Close the connection; the server rolls back what was not committed."""
        if self._wait is in_thread:  # a connection belongs to the loop that made it
            in_thread(self._terminate())
        else:
            self._connection.terminate()

    async def _terminate(self) -> None:
        self._connection.terminate()

    async def _execute(self, text: str, values: Sequence[object] | Mapping[str, object]) -> Cursor:
        statement = statement_of(text, types_of(values))
        arguments = [storable(values[at]) for at in statement.order]  # type: ignore[index]  # one of both forms
        try:
            if text == "COMMIT":
                return await self._commit()
            if not arguments and text.startswith(("BEGIN", "ROLLBACK")):
                await self._connection.execute(statement.text)
                return Cursor((), 0)
            return await self._fetch(statement.text, arguments)
        except DRIVER_ERRORS as error:
            if isinstance(error, TimeoutError):  # the answer may still come, to another statement
                self._connection.terminate()
            raise server_error(error) from error

    async def _execute_all(self, texts: Sequence[str]) -> None:
        try:
            await self._connection.execute("; ".join(texts))
        except DRIVER_ERRORS as error:
            raise server_error(error) from error

    async def _execute_rows(self, text: str, rows: Sequence[Sequence[object]]) -> int:
        try:
            return await self._run_rows(text, rows)
        except DRIVER_ERRORS as error:
            raise server_error(error) from error

    async def _run_rows(self, text: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement for each row, many in one exchange; return the number changed by one."""
        if not rows:
            return 0
        rows = storable_rows(rows)
        # A value that is NULL in some rows has the type that it has in the others.
        types = [
            next((type(value) for value in each if value is not None), type(None))
            for each in zip(*rows, strict=True)
        ]
        statement = statement_of(text, tuple(types))
        order = cast("tuple[int, ...]", statement.order)
        if len(rows) == 1:
            (row,) = rows
            return (await self._fetch(statement.text, [row[at] for at in order])).rowcount
        prepared, _ = await self._prepare(statement.text)
        await prepared.executemany([[row[at] for at in order] for row in rows])
        return -1

    async def _prepare(self, text: str) -> tuple[Any, tuple[int, ...]]:
        """Return a prepared statement, and which columns of its rows are texts."""
        found = self._prepared.get(text)
        if found is None:
            if len(self._prepared) >= _PREPARED:
                self._prepared.clear()
            prepared = await self._connection.prepare(text)
            columns = enumerate(prepared.get_attributes())
            texts = tuple(at for at, column in columns if column.type.name == "text")
            found = self._prepared[text] = prepared, texts
        return found

    async def _fetch(self, text: str, arguments: Sequence[object]) -> Cursor:
        prepared, texts = await self._prepare(text)
        rows = [tuple(row) for row in await prepared.fetch(*arguments)]
        return Cursor(as_given(rows, texts), _changed(prepared.get_statusmsg()))

    async def _commit(self) -> Cursor:
        self._warnings.clear()
        status = await self._connection.execute("COMMIT")
        if status != "COMMIT":  # an error was passed over: the server rolled back
            raise ServerError(f"COMMIT was answered by {status}", name="ROLLED_BACK")
        self._refuse_unreplicated()
        return Cursor((), 0)

    def _refuse_unreplicated(self) -> None:
        """Raise an error if the server has confirmed without waiting for its standbys."""
        if self._warnings:
            raise ServerError(
                f"the server did not wait for its standby: {self._warnings[0]}",
                name="NOT_REPLICATED",
                is_outcome_known=False,
            )

    async def _run_script(self, script: Script) -> bool:
        try:
            for at, part in enumerate(script.parts):
                changed = await self._run_part(part)
                if script.is_fenced and not at and changed != 1:
                    return False
        except DRIVER_ERRORS as error:
            raise server_error(error) from error
        return True

    async def _run_part(self, part: Part) -> int:
        text, rows, texts = part
        if texts is None or len(rows) == 1:
            return await self._run_rows(text, rows)
        rows = cast("tuple[Row, ...]", storable_rows(rows))
        if len(rows) >= _COPIED and is_plain_insert(text):
            await self._connection.copy_records_to_table(
                texts.columns[0].table.name,
                records=rows,
                columns=[column.name for column in texts.columns],
            )
            return len(rows)
        types = tuple(column_type(column) for column in texts.columns)
        columns = [list(each) for each in zip(*rows, strict=True)]
        statement = statement_of(many_rows(text, types), types_of(columns))
        return (await self._fetch(statement.text, columns)).rowcount

    def _logged(self, _connection: object, message: Any) -> None:  # noqa: ANN401  # a driver's
        if message.sqlstate == _UNREPLICATED:
            self._warnings.append(message.message)


def _changed(status: str | None) -> int:
    """Return the number at the end of a command tag."""
    number = (status or "").rpartition(" ")[2]
    return int(number) if number.isdigit() else 0


def as_connection(connection: ServerConnection) -> Connection:
    """Return the connection as the type that jobs name: they use nothing else of it."""
    return cast("Connection", connection)
