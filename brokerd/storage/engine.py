"""Engine: connections and their pragmas, transactions, and the two executors (HK-3).

Reads:  nothing by itself.      Calls: SQLite, through its driver to write, SQLAlchemy to read.
Never:  opens a file for writing that `files.py` has not checked.
"""

import asyncio
import errno
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from brokerd.errors import IO_FAULT, BrokerError, Busy, StoreDamaged, StoreFault
from brokerd.storage.compiled.reader import ALL, CompiledReader, compiled_reader
from brokerd.storage.compiled.writer import compiled_writer
from brokerd.storage.log_head import LogHead, head_path
from brokerd.storage.places import FilesInPlace
from brokerd.storage.statements import DIALECT
from brokerd.storage.writers import (
    InlineWriter,
    Schedule,
    ThreadWriter,
    Writer,
    roll_back,
    roll_back_and_close,
    soon,
)

Connection = sqlite3.Connection
T = TypeVar("T")
Values = tuple[Any, ...]
"""A row as the driver gives it; it does not leave the package."""

READ_LIMIT: Final = 5.0
"""Seconds after which a read is cut: a long one would pin the log (FD-10)."""
BUSY_SECONDS: Final = 5.0
"""Seconds to wait for a lock of SQLite's."""
_LOG_KEPT: Final = 64 * 1024 * 1024
"""Bytes of the log's file that are kept to be written over."""
_OPERATIONS: Final = 100_000
"""Steps of SQLite's machine between two looks at the clock."""

_EXIT_STATUSES: Final = {
    sqlite3.SQLITE_CORRUPT: 65,
    sqlite3.SQLITE_NOTADB: 65,
    sqlite3.SQLITE_CONSTRAINT: 70,
}
_PRIMARY: Final = 0xFF
"""Part of an extended result code that says which kind of error it is."""

# The driver asks a registry for every value that is not exactly an int, float or str, and a miss
# costs more than the rest of binding it. These give back what it would have bound anyway.
sqlite3.register_adapter(bytes, bytes.__bytes__)
sqlite3.register_adapter(bool, int)
_nothing: dict[None, None] = {None: None}
sqlite3.register_adapter(type(None), _nothing.__getitem__)

SQLITE_VERSION: Final = sqlite3.sqlite_version
"""The library in use; it is not bundled."""


WRITE_PRAGMAS: Final = (
    # Nothing stored in a file is run (BI-D2).
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "journal_mode = WAL",
    "synchronous = FULL",
    "foreign_keys = ON",
    # The commit pipeline asks for checkpoints: SQLite hides the fault of an automatic one.
    "wal_autocheckpoint = 0",
    "cache_size = -16384",
    # Some builds write zeros over each page that is freed: a message that goes would cost as much
    # as one that comes, and a disk that is full could not be drained (REL-26).
    "secure_delete = FAST",
    # A long read may have kept the log growing; the next one to start anew gives the room back.
    f"journal_size_limit = {_LOG_KEPT}",
)
"""For each connection that writes."""
KEPT_PRAGMAS: Final = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
"""What they have to say then."""


class StoreConnection(sqlite3.Connection):
    """A connection that writes, with what is kept beside the store it writes to."""

    head: LogHead | None = None
    place: FilesInPlace | None = None

    def close(self) -> None:
        """Close; the record says whether a log is left."""
        is_log_gone = self.place is not None and self.place.log_fault is not None
        super().close()
        if self.head is not None:
            self.head.close(is_log_gone=is_log_gone)


def connect_writer(path: Path) -> StoreConnection:
    """The one connection that writes. `StoreDamaged` if it would not keep its promises (REL-1).

    What it is to find in the log has been looked at (`log_check.py`)."""
    try:
        head = LogHead(path)
    except OSError as error:
        if is_full(error):
            raise
        raise StoreDamaged(
            f"{head_path(path)} cannot be written: {error.strerror}",
            hint="change the owner and mode of the file; it may not be a link",
        ) from error
    try:
        connection = connect_without_record(path)
    except BaseException:
        head.close()
        raise
    connection.head = head
    try:
        connection.execute("PRAGMA schema_version").fetchone()  # opens the log and its index
        head.attach()
        connection.place = FilesInPlace(path)
    except BaseException:
        roll_back_and_close(connection)
        raise
    return connection


def connect_without_record(path: Path) -> StoreConnection:
    """The same, where the record of the log's head has to stay as it is (REL-39)."""
    connection = sqlite3.connect(
        path,
        factory=StoreConnection,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    for pragma in WRITE_PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").fetchone()
    for pragma, wanted in KEPT_PRAGMAS.items():
        found = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
        if found != wanted:
            connection.close()
            raise StoreDamaged(f"{path}: {pragma} is {found}, not {wanted}, after setting it")
    return connection


@contextmanager
def transaction(connection: Connection) -> Iterator[Connection]:
    """BEGIN IMMEDIATE, then COMMIT; on an error before it, ROLLBACK."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        roll_back(connection)
        raise
    connection.execute("COMMIT")


def is_full(error: BaseException | None) -> bool:
    """Whether the disk, or what SQLite or this user may take of it, had no room left."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY == sqlite3.SQLITE_FULL


def is_busy(error: BaseException | None) -> bool:
    """Whether somebody else was reading or writing what was wanted."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def as_fault(error: BaseException, *, doing: str, known: bool) -> StoreFault:
    """The fault to stop with (reliability section 2): what failed, and what is known of it."""
    if isinstance(error, StoreFault):
        return error
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    outcome = "it was rolled back" if known else "its outcome is not known"
    status = _EXIT_STATUSES.get(getattr(error, "sqlite_errorcode", 0) & _PRIMARY, IO_FAULT)
    fault = StoreFault(f"{doing} failed with {name}: {error}; {outcome}", exit_status=status)
    fault.__cause__ = error
    return fault


READ_PRAGMAS: Final = ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON")

# Readers: SQLAlchemy engines on connections that only query.


class PageOf(NamedTuple):
    """A statement for a page, made once, in two forms; values `max_bytes` and others."""

    rows: Select[Any]
    """A row each, with the size of its body as last column; `max_bytes` is whoever's who reads."""
    packed: Select[Any]
    """All of them as one row."""
    unpack: Callable[[Values], list[Values]]
    """What of that row is the same as `rows`, without sizes."""


class Reader(Protocol):
    """Answers statements from what is committed; never waits for the writer."""

    async def rows(
        self, statement: Executable, values: Mapping[str, object] | None = None
    ) -> Sequence[Values]:
        """All rows of the answer. `StoreDamaged` if the file is bad, `Busy` if it took too long."""
        ...

    async def hot(self, statement: Select[Any], values: Mapping[str, object]) -> Sequence[Values]:
        """The same for a statement made once that clients wait for, with as few hops as can be."""
        ...

    async def page(self, page: PageOf, values: Mapping[str, object]) -> list[Values]:
        """Such a statement's rows without their sizes.

        No further one once the sizes of those before make `max_bytes`."""
        ...

    async def job(self, job: Callable[[Connection], T]) -> T:
        """Run something longer on a connection that only reads, beside the loop, one at a time."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class AsyncReader:
    """SQLAlchemy's engine on aiosqlite.

    `sqlalchemy.ext.asyncio` would do the same behind objects of its own, but loads the whole
    object-relational part with it: a fifth of the time a start takes.

    What clients wait for has a connection of its own: pages of a long queue, endpoints that are not
    in memory. The compiled reader has it where it was built. Else a hop to a thread costs more than
    the rows it brings, so those statements are compiled once, take one hop, and bring a page as one
    row.
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
            max_overflow=0,  # one more connection is one more thread, for a single read
            pool_timeout=None,  # reads wait their turn; each of them is cut by itself (FD-10)
        )
        _prepare_connections(self._engine, clock)
        self._file = f"file:{quote(str(path.absolute()))}?mode=ro"
        self._hot: asyncio.Task[aiosqlite.Connection] | None = None
        self._until = float("inf")
        self._jobs = asyncio.Lock()
        self._aside: Connection | None = None

    async def job(self, job: Callable[[Connection], T]) -> T:
        """On a thread, with a connection of its own.

        Who gives up waiting does not stop the thread, which has the connection until it is done."""
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
            raise _refusal(DBAPIError(None, None, error)) from error

    async def hot(self, statement: Select[Any], values: Mapping[str, object]) -> Sequence[Values]:
        """In one hop."""
        return await self._in_one_hop(*_text_of(statement).bind(values))

    async def page(self, page: PageOf, values: Mapping[str, object]) -> list[Values]:
        """In one hop."""
        if self._compiled_reader() is None:
            (row,) = await self.hot(page.packed, values)
            return page.unpack(row)
        most = max(0, cast(int, values["max_bytes"]))
        return await self._in_one_hop(*_text_of(page.rows).bind(values), most)

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
            return cast(list[Values], await connection.execute_fetchall(text, arguments))
        except sqlite3.Error as error:
            raise _refusal(DBAPIError(text, None, error)) from error

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
        """Run it on a connection of the pool."""
        return await greenlet_spawn(self._rows, statement, values)

    async def close(self) -> None:
        """Close the pool; a connection left open would hold up the end of the process."""
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
            raise _refusal(error) from error


class InlineReader:
    """The same SQL on the loop, for tests and simulation: they boot stores by the thousand."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._file = f"file:{quote(str(path.absolute()))}?mode=ro"
        self._connection: Connection | None = None
        self._until = float("inf")

    async def rows(
        self, statement: Executable, values: Mapping[str, object] | None = None
    ) -> Sequence[Values]:
        """Run it here and now."""
        connection = self._connection or self._open()
        text, arguments = _text_of(statement).bind(values or {})
        self._until = self._clock.monotonic() + READ_LIMIT
        try:
            return connection.execute(text, arguments).fetchall()
        except sqlite3.Error as error:
            raise _refusal(DBAPIError(text, None, error)) from error

    async def hot(self, statement: Select[Any], values: Mapping[str, object]) -> Sequence[Values]:
        """The same."""
        return await self.rows(statement, values)

    async def page(self, page: PageOf, values: Mapping[str, object]) -> list[Values]:
        """The same."""
        (row,) = await self.rows(page.packed, values)
        return page.unpack(row)

    async def job(self, job: Callable[[Connection], T]) -> T:
        """Here and now."""
        try:
            return job(self._connection or self._open())
        except sqlite3.Error as error:
            raise _refusal(DBAPIError(None, None, error)) from error

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Connection:
        try:
            made = _connect_reader(self._file)
        except sqlite3.Error as error:
            raise _refusal(DBAPIError(None, None, error)) from error
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
        """The text and a value for each `?` of it.

        A list is filled up with its last value, so that there are few texts to be prepared."""
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


def _text_of(statement: Executable) -> _Text:
    """Compiled once; most statements are constants of a module."""
    found = _texts.get(statement)
    if found is None:
        found = _texts[statement] = _Text(statement)
    return found


def _address(path: Path, driver: str) -> URL:
    # The file is read over a URI, because only there can it be opened for reading alone.
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


def _refusal(error: DBAPIError) -> BrokerError:
    name = getattr(error.orig, "sqlite_errorname", "") or ""
    if name == "SQLITE_INTERRUPT":
        return Busy(f"a read of the store took over {READ_LIMIT:.0f} s")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreDamaged(f"reading the store failed with {name}: {error.orig}")
    return StoreFault(f"reading the store failed with {name}: {error.orig}")


# Executors: which writer and which reader a store gets.


class Executor(Protocol):
    """Where a store's SQL runs."""

    async def call(self, function: Callable[[], T]) -> T:
        """Run something that takes long, once."""
        ...

    def kept(self, path: Path) -> Connection | None:
        """A connection to this file that is still open; only simulations keep any."""
        ...

    def writer(self, connection: Connection, path: Path) -> Writer:
        """The writer on this connection, which is one to this file."""
        ...

    def reader(self, path: Path, clock: Clock) -> Reader:
        """The reader of this file."""
        ...


class Threaded:
    """For production: a writer thread, aiosqlite for reading."""

    def __init__(self, *, compiled: bool = True) -> None:
        """`compiled`: whether flushes and pages may leave the interpreter, where that was built."""
        self._compiled = compiled

    async def call(self, function: Callable[[], T]) -> T:
        """On a thread."""
        return await asyncio.to_thread(function)

    def kept(self, path: Path) -> None:
        """None: a file is looked at before it is opened."""

    def writer(self, connection: Connection, path: Path) -> Writer:
        """A thread of its own."""
        found = None
        if self._compiled:
            found = compiled_writer(
                connection, path, pragmas=WRITE_PRAGMAS, kept=KEPT_PRAGMAS, busy=BUSY_SECONDS
            )
        return found or ThreadWriter(connection)

    def reader(self, path: Path, clock: Clock) -> Reader:
        """The async engine."""
        return AsyncReader(path, clock, compiled=self._compiled)


class Inline:
    """For tests and simulation: no threads; a flush completes when `schedule` says (HK-3)."""

    def __init__(self, schedule: Schedule = soon) -> None:
        self._schedule = schedule

    async def call(self, function: Callable[[], T]) -> T:
        """Here and now."""
        return function()

    def kept(self, path: Path) -> Connection | None:
        """None, as in production."""
        return None

    def writer(self, connection: Connection, path: Path) -> Writer:
        """On the loop."""
        return InlineWriter(connection, self._schedule)

    def reader(self, path: Path, clock: Clock) -> Reader:
        """On the loop."""
        return InlineReader(path, clock)
