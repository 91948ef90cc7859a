"""Compiled writer: flushes on a thread that needs no interpreter, if it was built (D3).

Reads:  nothing.      Calls: the flusher, which is written in C, and a `ThreadWriter` for the rest.
Never:  runs a script and a job at the same time. Commits are lost if a checkpoint runs while
        another connection commits and restarts the log. This is a bug of SQLite, fixed in 3.51.3,
        and many systems have an older version.

A Python thread needs the interpreter lock between statements, and a busy loop releases it late:
waiting for the lock costs a flush more than its statements do. The flusher is given all rows of a
flush at once, has its own connection, and takes the lock again when everything is synced.
"""

import asyncio
import os
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from brokerd.storage.compiled import library
from brokerd.storage.compiled.library import SqliteError, Worker, sqlite_error
from brokerd.storage.statements import Script, Step
from brokerd.storage.writers import (
    Connection,
    Ended,
    Job,
    Reported,
    Scripted,
    ThreadWriter,
    head_of,
    outcome_of,
)

T = TypeVar("T")


class Flusher(Worker, Protocol):
    """The interface of the flusher in `flusher.c`."""

    def keep_head(self, index: int, head: int, /) -> None:
        """Record each commit beside the store, before its result is reported.

        The arguments are `LogHead.descriptors`.
        """
        ...

    def submit(self, script: tuple[Step, ...], is_fenced: bool, /) -> None:
        """Submit a script; the result of the previous script must have been read."""
        ...

    def result(self) -> tuple[int, str, bool, bool, float, float, float] | None:
        """Return result code, message and the other fields of an `Ended`; None = still writing."""
        ...


def compiled_writer(
    connection: Connection,
    path: Path,
    *,
    pragmas: Iterable[str],
    kept: Mapping[str, object],
    busy: float,
) -> "CompiledWriter | None":
    """Return a compiled writer to the store at `path`; None = it is not built or not usable.

    It is usable if it finds the same SQLite library that `connection` uses, and if its own
    connection keeps its promises (REL-1): each pragma in `kept` must return the value given there.
    """
    if library.BUILT is None:
        return None
    flusher: Flusher | None = None
    try:
        flusher = library.BUILT.Flusher(
            library.driver(), os.fsencode(path.absolute()), int(busy * 1000)
        )
        for pragma in pragmas:
            flusher.execute(f"PRAGMA {pragma}")
        fits = all(flusher.execute(f"PRAGMA {one}") == str(wanted) for one, wanted in kept.items())
    except (OSError, RuntimeError, SqliteError):
        fits = False  # Python's writer meets the same error, or does not need what failed
    if flusher is not None and fits:
        if (head := head_of(connection)) is not None and head.descriptors is not None:
            flusher.keep_head(*head.descriptors)
        return CompiledWriter(connection, flusher)
    if flusher is not None:
        flusher.close()
    return None


class CompiledWriter:
    """A writer that sends scripts to the flusher and other jobs to a thread, one at a time."""

    def __init__(self, connection: Connection, flusher: Flusher) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadWriter(connection)
        self._flusher = flusher
        self._waiting: deque[tuple[Job[Any], Scripted[Any] | None, Reported[Any]]] = deque()
        self._is_busy = False
        self._written: tuple[Scripted[Any], Reported[Any]] | None = None
        self._abandoned = self._closed = False
        self._loop.add_reader(flusher.fileno(), self._on_result)

    @property
    def contends(self) -> bool:
        """Whether a job is running on the thread, not a script in the flusher."""
        return self._is_busy and self._written is None

    def submit(self, job: Job[T], reported: Reported[T]) -> None:
        """Run the job on the connection when its turn comes."""
        self._waiting.append((job, None, reported))
        self._submit_next()

    def write(self, job: Scripted[T], reported: Reported[T]) -> None:
        """Run the job's script when its turn comes."""
        self._waiting.append((job, job, reported))
        self._submit_next()

    def poll(self) -> None:
        """Report finished scripts and jobs."""
        if self._written is not None and not self._abandoned:
            found = self._flusher.result()
            if found is not None:
                (scripted, reported), self._written = self._written, None
                error = sqlite_error(*found[:2]) if found[0] else None
                self._report(reported, *outcome_of(scripted.outcome, Ended(error, *found[2:])))
        self._thread.poll()

    def _on_result(self) -> None:
        self._flusher.drain()
        self.poll()

    def close(self) -> None:
        """Run the remaining scripts and jobs, and close both connections."""
        self._closed = True
        self._loop.remove_reader(self._flusher.fileno())
        self._flusher.close()
        for job, _, reported in self._waiting:
            self._thread.submit(job, reported)
        self._thread.close()

    def abandon(self) -> None:
        """Let the running job end, report nothing, and close."""
        self._abandoned = self._closed = True
        self._waiting.clear()
        with suppress(RuntimeError):  # the loop was closed
            self._loop.remove_reader(self._flusher.fileno())
        self._flusher.close()
        self._thread.abandon()

    def _submit_next(self) -> None:
        if self._is_busy or not self._waiting or self._closed:
            return
        self._is_busy = True
        job, scripted, reported = self._waiting.popleft()
        try:
            script = None if scripted is None else scripted.script()
            if scripted is None or script is None:
                self._thread.submit(job, partial(self._report, reported))
            else:
                self._written = scripted, reported
                self._hand_over(script)
        except BaseException as error:  # noqa: BLE001  # reported on the loop, which decides
            self._written = None
            self._loop.call_soon(self._report, reported, None, error)

    def _hand_over(self, script: Script) -> None:
        try:
            self._flusher.submit(script.steps(), script.is_fenced)
        except SqliteError as error:
            raise sqlite_error(*error.args) from None

    def _report(self, reported: Reported[T], value: T | None, error: BaseException | None) -> None:
        self._is_busy = False
        self._submit_next()
        if not self._abandoned:
            reported(value, error)
