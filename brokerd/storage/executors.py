"""Executors: choose the writer and the reader of a store, on threads or on the loop (HK-3).

Reads: nothing.      Calls: writers and readers.      Never: runs a statement by itself.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from brokerd.clock import Clock
from brokerd.storage.compiled.writer import compiled_writer
from brokerd.storage.connections import BUSY_SECONDS, KEPT_PRAGMAS, WRITE_PRAGMAS, Connection
from brokerd.storage.readers import AsyncReader, InlineReader, Reader
from brokerd.storage.writers import InlineWriter, Schedule, ThreadWriter, Writer, soon

T = TypeVar("T")


class Executor(Protocol):
    """The choice of where the SQL of a store runs."""

    async def call(self, function: Callable[[], T]) -> T:
        """Run a long function once."""
        ...

    def kept(self, path: Path) -> Connection | None:
        """Return an open connection to this file; None = not open. Only simulations keep one."""
        ...

    def writer(self, connection: Connection, path: Path) -> Writer:
        """Return a writer that uses this connection to this file."""
        ...

    def reader(self, path: Path, clock: Clock) -> Reader:
        """Return a reader of this file."""
        ...


class Threaded:
    """Executor for production: a writer thread, aiosqlite for reading."""

    def __init__(self, *, compiled: bool = True) -> None:
        """Create the executor.

        `compiled`: whether to use the compiled writer and reader, if they were built.
        """
        self._compiled = compiled

    async def call(self, function: Callable[[], T]) -> T:
        """Run the function on a thread."""
        return await asyncio.to_thread(function)

    def kept(self, path: Path) -> None:
        """Return None: each file is checked before it is opened."""

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


class Inline:
    """Executor for tests and simulation: no threads; `schedule` completes flushes (HK-3)."""

    def __init__(self, schedule: Schedule = soon) -> None:
        self._schedule = schedule

    async def call(self, function: Callable[[], T]) -> T:
        """Call the function on the loop."""
        return function()

    def kept(self, path: Path) -> Connection | None:
        """Return None, as in production."""
        return None

    def writer(self, connection: Connection, path: Path) -> Writer:
        """Return a writer on the loop."""
        return InlineWriter(connection, self._schedule)

    def reader(self, path: Path, clock: Clock) -> Reader:
        """Return a reader on the loop."""
        return InlineReader(path, clock)
