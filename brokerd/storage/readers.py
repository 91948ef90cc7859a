"""Readers: answer statements on connections that only query.

Reads:  committed rows.      Calls: SQLAlchemy on aiosqlite, or the compiled reader.
Never:  waits for the writer, or holds a read longer than `READ_LIMIT` (FD-10).
Fails:  `Busy` if a read took too long, `StoreDamaged` if the file is bad; the reader stays usable.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import quote
from weakref import WeakKeyDictionary

import aiosqlite
from sqlalchemy import URL, ClauseElement, Engine, Executable, Select, create_engine, event
from sqlalchemy import Connection as ReadConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.util import greenlet_spawn

from brokerd.clock import Clock
from brokerd.errors import BrokerError, Busy, StoreDamaged, StoreFault
from brokerd.storage.compiled.reader import ALL, CompiledReader, compiled_reader
from brokerd.storage.connections import READ_PRAGMAS, Connection
from brokerd.storage.statements import DIALECT

T = TypeVar("T")
Values = tuple[Any, ...]
"""A row as the driver returns it; it does not leave the package."""

READ_LIMIT: Final = 5.0
"""Seconds after which a read is interrupted: a long one would pin the log (FD-10)."""
_OPERATIONS: Final = 100_000
"""Steps of SQLite's virtual machine between two checks of the clock."""


class PageOf(NamedTuple):
    """A statement for a page, made once, in two forms; values `max_bytes` and others."""

    rows: Select[Any]
    """Statement for one row per message, with the size of its body as last column; the reader
    applies `max_bytes`."""
    packed: Select[Any]
    """Statement for all messages as one row."""
    unpack: Callable[[Values], list[Values]]
    """Function that converts the packed row to the rows of `rows`, without sizes."""


class Reader(Protocol):
    """A reader that answers statements from committed rows, and never waits for the writer."""

    async def rows(
        self, statement: Executable, values: Mapping[str, object] | None = None
    ) -> Sequence[Values]:
        """Return all rows. `StoreDamaged`: the file is bad. `Busy`: the read took too long."""
        ...

    async def hot(self, statement: Select[Any], values: Mapping[str, object]) -> Sequence[Values]:
        """Return all rows of a constant statement for which clients wait, in few thread hops."""
        ...

    async def page(
        self, page: PageOf, values: Mapping[str, object], *, aside: bool = False
    ) -> list[Values]:
        """Return the rows of a page without their size column.

        The page ends with the row at which the sizes total `max_bytes`. `aside`: read on a
        connection for which no receive waits.
        """
        ...

    async def job(self, job: Callable[[Connection], T]) -> T:
        """Run a longer job on a connection that only reads, off the loop, one job at a time."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class AsyncReader:
    """A reader that uses SQLAlchemy's engine on aiosqlite.

    `sqlalchemy.ext.asyncio` would do the same behind its own objects, but also loads the whole
    object-relational part, which takes a fifth of the time of a start.

    Reads for which clients wait (pages of a long queue, endpoints that are not in memory) have
    their own connection. If the compiled reader was built, it has this connection. Otherwise a hop
    to a thread costs more than reading the rows, so these statements are compiled once, take one
    hop, and return a page as one row.
    """

    def __init__(self, path: Path, clock: Clock, *, compiled: bool) -> None:
        self._clock = clock
        self._path = path
        self._compiled: CompiledReader | None = None
        self._may_be_compiled = compiled
        self._engine: Engine = create_engine(
            _address(path, "sqlite+aiosqlite"),
            isolation_level="AUTOCOMMIT",
            pool_size=4,
            max_overflow=0,  # another connection would start another thread, for a single read
            pool_timeout=None,  # reads wait their turn; each has its own time limit (FD-10)
        )
        _prepare_connections(self._engine, clock)
        self._file = f"file:{quote(str(path.absolute()))}?mode=ro"
        self._hot: asyncio.Task[aiosqlite.Connection] | None = None
        self._until = float("inf")
        self._jobs = asyncio.Lock()
        self._aside: Connection | None = None

    async def job(self, job: Callable[[Connection], T]) -> T:
        """Run the job on a thread, on the connection reserved for jobs.

        A caller that stops waiting does not stop the thread, which keeps the connection until the
        job is done.
        """
        await self._jobs.acquire()
        running = asyncio.get_running_loop().run_in_executor(None, self._job, job)
        running.add_done_callback(lambda _: self._jobs.release())
        return await asyncio.shield(running)

    def _job(self, job: Callable[[Connection], T]) -> T:
        try:
            if self._aside is None:
                self._aside = _connect_reader(self._file)
            return job(self._aside)
        except sqlite3.Error as error:
            raise refusal(DBAPIError(None, None, error)) from error

    async def hot(self, statement: Select[Any], values: Mapping[str, object]) -> Sequence[Values]:
        """Return all rows, in one hop."""
        return await self._in_one_hop(*text_of(statement).bind(values))

    async def page(
        self, page: PageOf, values: Mapping[str, object], *, aside: bool = False
    ) -> list[Values]:
        """Return the rows of a page, in one hop, unless they are read aside."""
        if aside:
            (row,) = await self.rows(page.packed, values)
            return page.unpack(row)
        if self._compiled_reader() is None:
            (row,) = await self.hot(page.packed, values)
            return page.unpack(row)
        most = max(0, cast("int", values["max_bytes"]))
        return await self._in_one_hop(*text_of(page.rows).bind(values), most)

    def _compiled_reader(self) -> CompiledReader | None:
        if self._may_be_compiled:
            self._may_be_compiled = False
            self._compiled = compiled_reader(self._path, pragmas=READ_PRAGMAS, limit=READ_LIMIT)
        return self._compiled

    async def _in_one_hop(
        self, text: str, arguments: list[object], most: int = ALL
    ) -> list[Values]:
        try:
            if (compiled := self._compiled_reader()) is not None:
                return await compiled.rows(text, tuple(arguments), most)
            if self._hot is None:
                self._hot = asyncio.ensure_future(self._open_hot())
            connection = await asyncio.shield(self._hot)
            self._until = self._clock.monotonic() + READ_LIMIT
            return cast("list[Values]", await connection.execute_fetchall(text, arguments))
        except sqlite3.Error as error:
            raise refusal(DBAPIError(text, None, error)) from error

    async def _open_hot(self) -> aiosqlite.Connection:
        connection = await aiosqlite.connect(self._file, uri=True, isolation_level=None)
        for pragma in READ_PRAGMAS:
            await connection.execute(f"PRAGMA {pragma}")
        await connection.set_progress_handler(
            lambda: self._clock.monotonic() > self._until, _OPERATIONS
        )
        return connection

    async def rows(
        self, statement: Executable, values: Mapping[str, object] | None = None
    ) -> Sequence[Values]:
        """Return all rows, read on a connection of the pool."""
        return await greenlet_spawn(self._rows, statement, values)

    async def close(self) -> None:
        """Close the connections; one left open would delay the end of the process."""
        if self._compiled is not None:
            await self._compiled.close()
        if self._hot is not None:
            await (await self._hot).close()
        async with self._jobs:
            if self._aside is not None:
                self._aside.close()
        await greenlet_spawn(self._engine.dispose)

    def _rows(self, statement: Executable, values: Mapping[str, object] | None) -> Sequence[Values]:
        try:
            with self._engine.connect() as connection:
                return _fetch(connection, statement, values, self._clock)
        except DBAPIError as error:
            raise refusal(error) from error


class InlineReader:
    """A reader on the loop, for tests and simulation, which open thousands of stores."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._file = f"file:{quote(str(path.absolute()))}?mode=ro"
        self._connection: Connection | None = None
        self._until = float("inf")

    async def rows(
        self, statement: Executable, values: Mapping[str, object] | None = None
    ) -> Sequence[Values]:
        """Return all rows, read before this returns."""
        connection = self._connection or self._open()
        text, arguments = text_of(statement).bind(values or {})
        self._until = self._clock.monotonic() + READ_LIMIT
        try:
            return connection.execute(text, arguments).fetchall()
        except sqlite3.Error as error:
            raise refusal(DBAPIError(text, None, error)) from error

    async def hot(self, statement: Select[Any], values: Mapping[str, object]) -> Sequence[Values]:
        """Return all rows, as `rows` does."""
        return await self.rows(statement, values)

    async def page(
        self, page: PageOf, values: Mapping[str, object], *, aside: bool = False
    ) -> list[Values]:
        """Return the rows of a page, read before this returns."""
        (row,) = await self.rows(page.packed, values)
        return page.unpack(row)

    async def job(self, job: Callable[[Connection], T]) -> T:
        """Run the job before this returns."""
        try:
            return job(self._connection or self._open())
        except sqlite3.Error as error:
            raise refusal(DBAPIError(None, None, error)) from error

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection:
        try:
            made = _connect_reader(self._file)
        except sqlite3.Error as error:
            raise refusal(DBAPIError(None, None, error)) from error
        made.set_progress_handler(lambda: self._clock.monotonic() > self._until, _OPERATIONS)
        self._connection = made
        return made


def _connect_reader(file: str) -> Connection:
    made = sqlite3.connect(file, uri=True, isolation_level=None, check_same_thread=False)
    for pragma in READ_PRAGMAS:
        made.execute(f"PRAGMA {pragma}")
    return made


class _Text:
    """A statement as text for the driver."""

    def __init__(self, statement: Executable) -> None:
        assert isinstance(statement, ClauseElement)
        compiled = statement.compile(dialect=DIALECT)
        assert isinstance(compiled, SQLCompiler)
        self._text = str(compiled)
        self._order = [(name, compiled.params[name]) for name in compiled.positiontup or ()]
        places = {name: f"__[POSTCOMPILE_{name}]" for name, _ in self._order}
        self._lists = {name: place for name, place in places.items() if place in self._text}

    def bind(self, values: Mapping[str, object]) -> tuple[str, list[object]]:
        """Return the text, and a value for each `?` in it.

        A list is padded with its last value, so that SQLite has few different texts to prepare.
        """
        if not self._lists:
            return self._text, [values.get(name, constant) for name, constant in self._order]
        text, arguments = self._text, list[object]()
        for name, constant in self._order:
            value: Any = values.get(name, constant)
            if (place := self._lists.get(name)) is None:
                arguments.append(value)
            else:
                size = 1 << (len(value) - 1).bit_length() if value else 0
                text = text.replace(place, ", ".join("?" * size))
                arguments += [*value, *value[-1:] * (size - len(value))]
        return text, arguments


_texts: WeakKeyDictionary[Executable, _Text] = WeakKeyDictionary()


def text_of(statement: Executable) -> _Text:
    """Return the statement's text, compiled once; most statements are constants of a module."""
    found = _texts.get(statement)
    if found is None:
        found = _texts[statement] = _Text(statement)
    return found


def _address(path: Path, driver: str) -> URL:
    # The file is opened by URI: only a URI can open it read-only.
    return URL.create(
        driver,
        database=f"file:{quote(str(path.absolute()))}",
        query={"mode": "ro", "uri": "true"},
    )


def _prepare_connections(engine: Engine, clock: Clock) -> None:
    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: ConnectionPoolEntry) -> None:  # noqa: ANN401
        def overdue() -> bool:
            until: float = record.info.get("until", float("inf"))
            return clock.monotonic() > until

        cursor = connection.cursor()
        for pragma in READ_PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()
        driver = connection.driver_connection if hasattr(connection, "run_async") else connection
        if driver is connection:
            driver.set_progress_handler(overdue, _OPERATIONS)
        else:
            connection.run_async(lambda it: it.set_progress_handler(overdue, _OPERATIONS))


def _fetch(
    connection: ReadConnection,
    statement: Executable,
    values: Mapping[str, object] | None,
    clock: Clock,
) -> Sequence[Values]:
    connection.info["until"] = clock.monotonic() + READ_LIMIT
    return [tuple(row) for row in connection.execute(statement, values or {})]


def refusal(error: DBAPIError) -> BrokerError:
    name = getattr(error.orig, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_INTERRUPT"):
        return Busy(f"a read of the store took over {READ_LIMIT:.0f} s")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreDamaged(f"reading the store failed with {name}: {error.orig}")
    return StoreFault(f"reading the store failed with {name}: {error.orig}")
