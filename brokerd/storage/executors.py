"""Executors: choose the writer and the reader of a store, on threads or on the loop (HK-3).

Reads: nothing.      Calls: writers and readers.      Never: runs a statement by itself.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from brokerd.clock import Clock
from brokerd.storage.compiled.writer import compiled_writer
from brokerd.storage.connections import BUSY_SECONDS, KEPT_PRAGMAS, WRITE_PRAGMAS, Connection
from brokerd.storage.file_checks import is_missing
from brokerd.storage.opening import Opened, Wanted, open_file
from brokerd.storage.readers import AsyncReader, InlineReader, Reader
from brokerd.storage.server_facts import ServerFacts
from brokerd.storage.writers import InlineWriter, Schedule, ThreadWriter, Writer, soon

T = TypeVar("T")


class Executor(Protocol):
    """The choice of where the SQL of a store runs."""

    async def call(self, function: Callable[[], T]) -> T:
        """Run a long function once."""
        ...

    async def open(self, path: Path, wanted: Wanted) -> Opened:
        """Open the store of this name."""
        ...

    async def is_missing(self, path: Path) -> bool:
        """Return whether there is no store of this name."""
        ...

    async def server_facts(self, paths: Sequence[Path]) -> ServerFacts | None:
        """Return what is known of the server that has these stores; None = they are files."""
        ...

    def writer(self, connection: Connection, path: Path) -> Writer:
        """Return a writer that uses this connection to this store."""
        ...

    def reader(self, path: Path, clock: Clock) -> Reader:
        """Return a reader of this store."""
        ...


class _InFiles:
    """The opening of stores in files."""

    async def call(self, function: Callable[[], T]) -> T:
        """Run a long function once."""
        raise NotImplementedError  # each executor has its own way

    async def open(self, path: Path, wanted: Wanted) -> Opened:
        """Open the file."""
        return await self.call(lambda: open_file(path, **wanted._asdict(), kept=self.kept(path)))

    async def is_missing(self, path: Path) -> bool:
        """Return whether there is no such file."""
        return await self.call(lambda: is_missing(path))

    async def server_facts(self, paths: Sequence[Path]) -> ServerFacts | None:
        """Return None: there is no server."""
        del paths
        return None

    def kept(self, path: Path) -> Connection | None:
        """Return an open connection to this file; None = it is checked and opened.

        Only simulations keep one."""
        return None


class Threaded(_InFiles):
    """Executor for production: a writer thread, aiosqlite for reading."""

    def __init__(self, *, compiled: bool = True) -> None:
        """Create the executor.

        `compiled`: whether to use the compiled writer and reader, if they were built.
        """
        self._compiled = compiled

    async def call(self, function: Callable[[], T]) -> T:
        """Run the function on a thread."""
        return await asyncio.to_thread(function)

    def writer(self, connection: Connection, path: Path) -> Writer:
        """Return a writer with a thread of its own."""
        found = None
        if self._compiled:
            found = compiled_writer(
                connection, path, pragmas=WRITE_PRAGMAS, kept=KEPT_PRAGMAS, busy=BUSY_SECONDS
            )
        return found or ThreadWriter(connection)

    def reader(self, path: Path, clock: Clock) -> Reader:
        """Return the asynchronous reader."""
        return AsyncReader(path, clock, compiled=self._compiled)


class Inline(_InFiles):
    """Executor for tests and simulation: no threads; `schedule` completes flushes (HK-3)."""

    def __init__(self, schedule: Schedule = soon) -> None:
        self._schedule = schedule

    async def call(self, function: Callable[[], T]) -> T:
        """Call the function on the loop."""
        return function()

    def writer(self, connection: Connection, path: Path) -> Writer:
        """Return a writer on the loop."""
        return InlineWriter(connection, self._schedule)

    def reader(self, path: Path, clock: Clock) -> Reader:
        """Return a reader on the loop."""
        return InlineReader(path, clock)
