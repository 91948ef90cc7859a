"""Writers: run jobs one by one on the writing connection, and report the results on the loop (D3).

Reads:  nothing.      Calls: the jobs it is given.      Never: runs two at once, or out of order.
"""

import asyncio
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from brokerd.errors import StoreFault
from brokerd.storage.files.log_head import LogHead
from brokerd.storage.files.moved_files import refuse_moved_log
from brokerd.storage.statements import Script

Connection = sqlite3.Connection
A = TypeVar("A")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Job = Callable[[Connection], T]
Reported = Callable[[T | None, BaseException | None], None]


class Ended(NamedTuple):
    """The result of a script; times in seconds of the machine's monotonic clock."""

    error: sqlite3.Error | None
    is_fence_passed: bool
    is_committing: bool
    """Whether COMMIT had begun: after an error in it the outcome is unknown."""
    started: float
    committing: float
    ended: float


class Scripted(Protocol[T_co]):
    """A job that can also be given as a script, for writers that run scripts without Python."""

    def __call__(self, connection: Connection) -> T_co:
        """Run the job on the connection."""
        ...

    def script(self) -> Script | None:
        """Return the job as the script of one transaction; None = the job must be called."""
        ...

    def outcome(self, ended: Ended) -> T_co:
        """Return the value, or raise the error, that the call would have given."""
        ...


class Writer(Protocol):
    """A writer that runs jobs on the writing connection, one at a time, in order."""

    @property
    def contends(self) -> bool:
        """Whether the running job contends with the loop for the interpreter lock."""
        ...

    def write(self, job: Scripted[T], reported: Reported[T]) -> None:
        """Run the job later, as `submit` does, but possibly as its script."""
        ...

    def submit(self, job: Job[T], reported: Reported[T]) -> None:
        """Run the job later; `reported` gets its value or its error, on the loop."""
        ...

    def poll(self) -> None:
        """Report finished jobs now, without waiting for the loop."""
        ...

    def close(self) -> None:
        """Close the connection; every job must have been reported."""
        ...

    def abandon(self) -> None:
        """Stop as in a crash: roll back and close; run and report no further job."""
        ...


class ThreadWriter:
    """A writer with a thread of its own (design D3)."""

    contends = True

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[tuple[Job[Any], Reported[Any]] | None] = queue.SimpleQueue()
        self._done: deque[tuple[Reported[Any], Any, BaseException | None]] = deque()
        self._abandoned = False
        self._thread = threading.Thread(target=self._work, name="brokerd-writer", daemon=True)
        self._thread.start()

    def write(self, job: Scripted[T], reported: Reported[T]) -> None:
        """Run the job by calling it."""
        self.submit(job, reported)

    def submit(self, job: Job[T], reported: Reported[T]) -> None:
        """Pass the job to the thread."""
        self._jobs.put((job, reported))

    def poll(self) -> None:
        """Report finished jobs now: a busy loop reads all its sockets before the callback runs."""
        while self._done and not self._abandoned:
            reported, value, error = self._done.popleft()
            reported(value, error)

    def close(self) -> None:
        """End the thread, then close the connection."""
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()

    def abandon(self) -> None:
        """Let the running job end, report nothing, roll back and close."""
        self._abandoned = True
        self._jobs.put(None)
        self._thread.join()
        roll_back_and_close(self._connection)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, reported = item
            if self._abandoned:
                return
            value, error = run_job(job, self._connection)
            self._done.append((reported, value, error))
            with suppress(RuntimeError):  # the loop was closed: no listener is left
                self._loop.call_soon_threadsafe(self.poll)
            del item, job, reported, value, error  # a waiting thread must keep no object alive


Schedule = Callable[[Callable[[], None]], None]
"""Function that calls its argument later, on the loop: on the next turn, or after a drawn delay."""


def soon(function: Callable[[], None]) -> None:
    """Call the function on the loop's next turn."""
    asyncio.get_running_loop().call_soon(function)


class InlineWriter:
    """A writer on the loop, for tests and simulation; `schedule` decides when a job completes."""

    contends = False

    def __init__(self, connection: Connection, schedule: Schedule) -> None:
        self._connection = connection
        self._schedule = schedule
        self._jobs: deque[tuple[Job[Any], Reported[Any]]] = deque()
        self._running = False
        self._abandoned = False

    def write(self, job: Scripted[T], reported: Reported[T]) -> None:
        """Run the job by calling it."""
        self.submit(job, reported)

    def submit(self, job: Job[T], reported: Reported[T]) -> None:
        """Run the job after one delay, and report it after another one."""
        self._jobs.append((job, reported))
        if not self._running:
            self._running = True
            self._schedule(self._run)

    def poll(self) -> None:
        """Do nothing: `schedule` decides when a job is reported."""

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def abandon(self) -> None:
        """Drop the jobs, roll back and close."""
        self._abandoned = True
        self._jobs.clear()
        roll_back_and_close(self._connection)

    def _run(self) -> None:
        if self._abandoned:
            return
        job, reported = self._jobs.popleft()
        value, error = run_job(job, self._connection)
        if not self._abandoned:
            self._schedule(lambda: self._report(reported, value, error))

    def _report(self, reported: Reported[Any], value: object, error: BaseException | None) -> None:
        if self._abandoned:
            return
        self._running = bool(self._jobs)
        if self._running:
            self._schedule(self._run)
        reported(value, error)


def roll_back_and_close(connection: Connection) -> None:
    """Roll back and close.

    SQLite folds and removes the log when the last connection closes. The record must say before
    then that the log may be missing, so this function folds the log, which updates the record.
    """
    roll_back(connection)
    with suppress(sqlite3.Error, StoreFault):  # SQLite then cannot fold the log either: it stays
        fold(connection)
    connection.close()


class NotRecorded(sqlite3.OperationalError):  # one of the errors of a job
    """Error of a job that was done but not recorded: it must not be confirmed."""


def run_job(job: Job[T], connection: Connection) -> tuple[T | None, BaseException | None]:
    """Run a job, and record the position of the log before the result is reported."""
    value, error = outcome_of(job, connection)
    if (head := head_of(connection)) is not None:
        _, failure = outcome_of(_recording, head.advance)
        error = error or failure
    return value, error


def sync_head(connection: Connection) -> None:
    """Sync the record of the log."""
    if (head := head_of(connection)) is not None:
        _recording(head.sync)


def _recording(step: Callable[[], None]) -> None:
    """Run a step that updates the record; convert its failure to `NotRecorded`."""
    try:
        step()
    except OSError as error:
        raise NotRecorded(f"the record of the log cannot be written: {error.strerror}") from error


def head_of(connection: Connection) -> LogHead | None:
    """Return the record of the log's head for a writing connection; None = it has no record."""
    return getattr(connection, "head", None)


def has_log(connection: Connection) -> bool:
    """Return whether the store is a file with a log; a database server keeps its own."""
    return isinstance(connection, sqlite3.Connection)


def fold(connection: Connection) -> int:
    """Fold the log into the file as far as readers allow; return the number of pages left."""
    if not has_log(connection):
        return 0
    refuse_moved_log(connection)
    _, pages, folded = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if (head := head_of(connection)) is not None:
        _recording(head.advance)
    return max(0, int(pages) - int(folded))


def fold_and_cut(connection: Connection) -> None:
    """Fold the whole log, then cut it; wait for readers as `connection` waits for locks.

    In between, the record is made durable: it must say that the log is not needed before the log
    is gone.
    """
    if not has_log(connection):
        return
    refuse_moved_log(connection)
    busy, pages, folded = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
    if busy or pages != folded:
        return
    if (head := head_of(connection)) is not None:
        _recording(head.advance)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def outcome_of(call: Callable[[A], T], given: A) -> tuple[T | None, BaseException | None]:
    """Return the value of the call and None, or None and its error."""
    try:
        return call(given), None
    except BaseException as error:  # noqa: BLE001  # reported on the loop, which decides
        return None, error


def roll_back(connection: Connection) -> None:
    """Roll back an open transaction. On a failure SQLite has rolled back by itself."""
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
