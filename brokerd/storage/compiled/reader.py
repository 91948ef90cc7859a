"""The compiled reader: pages on a thread that needs no interpreter, where it was built (design D4).

Reads:  what it is asked for.      Calls: the reader, which is written in C.
Never:  reads two pages at a time.

The driver lets go of the interpreter for each row of a result, and a busy loop gives it back late.
The reader meets it again when all rows of a page are there.
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
"""`most` of a statement whose rows have no sizes."""


class Reader(Worker, Protocol):
    """What `reader.c` makes."""

    def submit(self, text: str, values: Values, most: int, /) -> None:
        """Have a statement run; what `most` means is in `CompiledReader.rows`."""
        ...

    def result(self) -> tuple[int, str, list[Values]] | None:
        """Result code, message, rows; None = it is still read."""
        ...


def compiled_reader(path: Path, *, pragmas: Iterable[str], limit: float) -> "CompiledReader | None":
    """A reader of this store; None = it is not built, or does not fit here.

    `limit`: seconds after which a read is cut."""
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
        return None  # Python's way meets the same, or does without
    return CompiledReader(reader)


class CompiledReader:
    """One page after the other, in the order they are asked for."""

    def __init__(self, reader: Reader) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._waiting: deque[tuple[str, Values, int, asyncio.Future[list[Values]]]] = deque()
        self._asked: asyncio.Future[list[Values]] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._loop.add_reader(reader.fileno(), self._hear)

    async def rows(self, text: str, values: Values, most: int = ALL) -> list[Values]:
        """The rows of a statement. `sqlite3.Error`: it failed.

        `most`: the last column is the size of a row, and not among the values; no further row is
        read once the sizes of those before make so much."""
        future: asyncio.Future[list[Values]] = self._loop.create_future()
        self._waiting.append((text, values, most, future))
        self._go_on()
        return await future

    async def close(self) -> None:
        """Read what was asked for, and close."""
        while self._asked is not None:
            if self._idle is None or self._idle.done():
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)
        if self._reader.fileno() >= 0:
            self._loop.remove_reader(self._reader.fileno())
            self._reader.close()

    def _go_on(self) -> None:
        while self._asked is None and self._waiting:
            text, values, most, future = self._waiting.popleft()
            if future.done():  # nobody waits for it any more
                continue
            try:
                self._reader.submit(text, values, most)
                self._asked = future
            except SqliteError as error:
                future.set_exception(sqlite_error(*error.args))
            except Exception as error:  # noqa: BLE001  # told to who asked
                future.set_exception(error)
        if self._asked is None and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _hear(self) -> None:
        self._reader.hear()
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
        self._go_on()
        if future is None or future.done():
            return
        if error is None:
            future.set_result(rows)
        else:
            future.set_exception(error)
