"""The compiled writer: flushes on a thread that needs no interpreter, where it was built (D3).

Reads:  nothing.      Calls: the flusher, which is written in C, and a `ThreadWriter` for the rest.
Never:  runs a script and a job at the same time. A checkpoint beside a commit that begins the log
        anew loses commits: SQLite's own fault, mended in 3.51.3, and many have older ones.

A thread of Python's needs the interpreter between statements, and a busy loop gives it away late:
what passes between a flush's statements costs more than these. The flusher is given the rows of a
flush at once, has a connection of its own, and meets the interpreter again when all is synced.
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
    """What `flusher.c` makes."""

    def keep_head(self, index: int, head: int, /) -> None:
        """Record each commit beside the store, before its result: `LogHead.descriptors`."""
        ...

    def submit(self, script: tuple[Step, ...], is_fenced: bool, /) -> None:
        """Hand a script over; the one before has been asked for."""
        ...

    def result(self) -> tuple[int, str, bool, bool, float, float, float] | None:
        """Result code and message, then the rest of an `Ended`; None = it is still written."""
        ...


def compiled_writer(
    connection: Connection,
    path: Path,
    *,
    pragmas: Iterable[str],
    kept: Mapping[str, object],
    busy: float,
) -> "CompiledWriter | None":
    """A writer to this store beside its connection; None = it is not built, or does not fit here.

    It fits where it finds the very SQLite that the connection is made with, and where that keeps
    its promises (REL-1). `kept`: what pragmas have to say then."""
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
        fits = False  # Python's writer meets the same, or does without
    if flusher is not None and fits:
        if (head := head_of(connection)) is not None and head.descriptors is not None:
            flusher.keep_head(*head.descriptors)
        return CompiledWriter(connection, flusher)
    if flusher is not None:
        flusher.close()
    return None


class CompiledWriter:
    """Scripts go to the flusher, other jobs to a thread: one at a time, in order."""

    def __init__(self, connection: Connection, flusher: Flusher) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadWriter(connection)
        self._flusher = flusher
        self._waiting: deque[tuple[Job[Any], Scripted[Any] | None, Reported[Any]]] = deque()
        self._is_busy = False
        self._written: tuple[Scripted[Any], Reported[Any]] | None = None
        self._abandoned = self._closed = False
        self._loop.add_reader(flusher.fileno(), self._hear)

    @property
    def contends(self) -> bool:
        """While a job has the connection."""
        return self._is_busy and self._written is None

    def submit(self, job: Job[T], reported: Reported[T]) -> None:
        """Run it on the connection when its turn comes."""
        self._waiting.append((job, None, reported))
        self._go_on()

    def write(self, job: Scripted[T], reported: Reported[T]) -> None:
        """Run its script when its turn comes."""
        self._waiting.append((job, job, reported))
        self._go_on()

    def poll(self) -> None:
        """Report what is done."""
        if self._written is not None and not self._abandoned:
            found = self._flusher.result()
            if found is not None:
                (scripted, reported), self._written = self._written, None
                error = sqlite_error(*found[:2]) if found[0] else None
                self._tell(reported, *outcome_of(scripted.outcome, Ended(error, *found[2:])))
        self._thread.poll()

    def _hear(self) -> None:
        self._flusher.hear()
        self.poll()

    def close(self) -> None:
        """Close both connections; what is left in the queue is run before."""
        self._closed = True
        self._loop.remove_reader(self._flusher.fileno())
        self._flusher.close()
        for job, _, reported in self._waiting:
            self._thread.submit(job, reported)
        self._thread.close()

    def abandon(self) -> None:
        """Let what runs end, tell nobody, and close."""
        self._abandoned = self._closed = True
        self._waiting.clear()
        with suppress(RuntimeError):  # the loop was closed
            self._loop.remove_reader(self._flusher.fileno())
        self._flusher.close()
        self._thread.abandon()

    def _go_on(self) -> None:
        if self._is_busy or not self._waiting or self._closed:
            return
        self._is_busy = True
        job, scripted, reported = self._waiting.popleft()
        try:
            script = None if scripted is None else scripted.script()
            if scripted is None or script is None:
                self._thread.submit(job, partial(self._tell, reported))
            else:
                self._written = scripted, reported
                self._hand_over(script)
        except BaseException as error:  # noqa: BLE001  # told on the loop, which decides
            self._written = None
            self._loop.call_soon(self._tell, reported, None, error)

    def _hand_over(self, script: Script) -> None:
        try:
            self._flusher.submit(script.steps(), script.is_fenced)
        except SqliteError as error:
            raise sqlite_error(*error.args) from None

    def _tell(self, reported: Reported[T], value: T | None, error: BaseException | None) -> None:
        self._is_busy = False
        self._go_on()
        if not self._abandoned:
            reported(value, error)
