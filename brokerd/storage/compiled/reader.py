"""Compiled reader: pages on a thread that needs no interpreter, if it was built (design D4).

Reads:  the statements it is given.      Calls: the reader in C.
Never:  reads two pages at a time.

The driver releases the interpreter lock for each row of a result, and a busy loop returns it late.
This reader takes the lock once, when all rows of a page have been read.
"""

import asyncio
import os
import sqlite3
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from brokerd.storage.compiled import library
from brokerd.storage.compiled.library import SqliteError, Worker, sqlite_error

Values = tuple[Any, ...]
ALL: Final = -1
"""The value of `most` for a statement whose rows have no sizes."""


class Reader(Worker, Protocol):
    """The interface of the reader in `reader.c`."""

    def submit(self, text: str, values: Values, most: int, /) -> None:
        """Submit a statement; for `most` see `CompiledReader.rows`."""
        ...

    def result(self) -> tuple[int, str, list[Values]] | None:
        """Return result code, message and rows; None = the reader is still reading."""
        ...


def compiled_reader(path: Path, *, pragmas: Iterable[str], limit: float) -> "CompiledReader | None":
    """Return a compiled reader of the store at `path`; None = it is not built or not usable.

    `limit`: seconds after which a read is interrupted.
    """
    if library.BUILT is None:
        return None
    reader: Reader | None = None
    try:
        reader = library.BUILT.Reader(library.driver(), os.fsencode(path.absolute()), limit)
        for pragma in pragmas:
            reader.execute(f"PRAGMA {pragma}")
    except (OSError, RuntimeError, SqliteError):
        if reader is not None:
            reader.close()
        return None  # Python's reader meets the same error, or does not need what failed
    return CompiledReader(reader)


class CompiledReader:
    """A reader of one page after another, in the order of the requests."""

    def __init__(self, reader: Reader) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._waiting: deque[tuple[str, Values, int, asyncio.Future[list[Values]]]] = deque()
        self._asked: asyncio.Future[list[Values]] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._loop.add_reader(reader.fileno(), self._on_result)

    async def rows(self, text: str, values: Values, most: int = ALL) -> list[Values]:
        """Return the rows of a statement. `sqlite3.Error`: the statement failed.

        `most`: end with the row at which the total of the sizes reaches `most`. The last column
        is the size of the row, and is left out of the returned values.
        """
        future: asyncio.Future[list[Values]] = self._loop.create_future()
        self._waiting.append((text, values, most, future))
        self._submit_next()
        return await future

    async def close(self) -> None:
        """Finish the running read, and close."""
        while self._asked is not None:
            if self._idle is None or self._idle.done():
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)
        if self._reader.fileno() >= 0:
            self._loop.remove_reader(self._reader.fileno())
            self._reader.close()

    def _submit_next(self) -> None:
        while self._asked is None and self._waiting:
            text, values, most, future = self._waiting.popleft()
            if future.done():  # its caller no longer waits
                continue
            try:
                self._reader.submit(text, values, most)
                self._asked = future
            except SqliteError as error:
                future.set_exception(sqlite_error(*error.args))
            except Exception as error:  # noqa: BLE001  # reported to the caller
                future.set_exception(error)
        if self._asked is None and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _on_result(self) -> None:
        self._reader.drain()
        error: Exception | None = None
        rows: list[Values] = []
        try:
            found = self._reader.result()
            if found is None:
                return
            code, message, rows = found
            error = sqlite_error(code, message) if code else None
        except UnicodeDecodeError as damage:
            error = sqlite_error(sqlite3.SQLITE_CORRUPT, f"a name that is no text: {damage}")
        except MemoryError as none_left:
            error = none_left
        future, self._asked = self._asked, None
        self._submit_next()
        if future is None or future.done():
            return
        if error is None:
            future.set_result(rows)
        else:
            future.set_exception(error)
