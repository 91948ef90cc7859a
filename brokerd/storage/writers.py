"""Writers: run one job after the other on the writing connection, and report on the loop (D3).

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
from brokerd.storage.log_head import LogHead
from brokerd.storage.places import refuse_moved_log
from brokerd.storage.statements import Script

Connection = sqlite3.Connection
A = TypeVar("A")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Job = Callable[[Connection], T]
Reported = Callable[[T | None, BaseException | None], None]


class Ended(NamedTuple):
    """What became of a script; times in seconds of the machine's monotonic clock."""

    error: sqlite3.Error | None
    is_fence_passed: bool
    is_committing: bool
    """Whether COMMIT had begun: its error leaves open whether it took effect."""
    started: float
    committing: float
    ended: float


class Scripted(Protocol[T_co]):
    """A job that can be told as a script, for a writer that runs these by themselves."""

    def __call__(self, connection: Connection) -> T_co:
        """Do it on the connection."""
        ...

    def script(self) -> Script | None:
        """What it does, as one transaction; None = it has to be called."""
        ...

    def outcome(self, ended: Ended) -> T_co:
        """What the call would have returned or raised."""
        ...


class Writer(Protocol):
    """Runs jobs on the writing connection, one at a time, in order."""

    @property
    def contends(self) -> bool:
        """Whether what it does now contends with the loop for the interpreter."""
        ...

    def write(self, job: Scripted[T], reported: Reported[T]) -> None:
        """As `submit`; the job may be run as the script it is."""
        ...

    def submit(self, job: Job[T], reported: Reported[T]) -> None:
        """Run the job later; `reported` gets its value or its error, on the loop."""
        ...

    def poll(self) -> None:
        """Report what is done now, if the loop has not come to it yet."""
        ...

    def close(self) -> None:
        """Close the connection; every job has been reported."""
        ...

    def abandon(self) -> None:
        """Crash: roll back, close; no job runs and none is reported from here on."""
        ...


class ThreadWriter:
    """A thread of its own (design D3)."""

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
        """It is called."""
        self.submit(job, reported)

    def submit(self, job: Job[T], reported: Reported[T]) -> None:
        """Hand the job over."""
        self._jobs.put((job, reported))

    def poll(self) -> None:
        """Report what the thread has done. A busy loop reads all its sockets before it hears."""
        while self._done and not self._abandoned:
            reported, value, error = self._done.popleft()
            reported(value, error)

    def close(self) -> None:
        """End the thread, then close."""
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()

    def abandon(self) -> None:
        """Let the job that runs end, tell nobody, and close."""
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
            with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self.poll)
            del item, job, reported, value, error  # a waiting thread holds nothing


Schedule = Callable[[Callable[[], None]], None]
"""Calls the function later, on the loop: soon, or after a drawn delay."""


def soon(function: Callable[[], None]) -> None:
    """On the loop's next turn."""
    asyncio.get_running_loop().call_soon(function)


class InlineWriter:
    """On the loop, for tests and simulation: the same SQL, completing when `schedule` says."""

    contends = False

    def __init__(self, connection: Connection, schedule: Schedule) -> None:
        self._connection = connection
        self._schedule = schedule
        self._jobs: deque[tuple[Job[Any], Reported[Any]]] = deque()
        self._running = False
        self._abandoned = False

    def write(self, job: Scripted[T], reported: Reported[T]) -> None:
        """It is called."""
        self.submit(job, reported)

    def submit(self, job: Job[T], reported: Reported[T]) -> None:
        """Run it after a delay, and report it after another."""
        self._jobs.append((job, reported))
        if not self._running:
            self._running = True
            self._schedule(self._run)

    def poll(self) -> None:
        """Nothing: a job is reported when `schedule` says."""

    def close(self) -> None:
        """Close."""
        self._connection.close()

    def abandon(self) -> None:
        """Forget the jobs, roll back and close."""
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
    """Roll back and close. SQLite folds the log as the last connection closes, and removes it: so
    that it may be gone has to be in the record first."""
    roll_back(connection)
    with suppress(sqlite3.Error, StoreFault):  # then SQLite cannot fold it either, and it stays
        fold(connection)
    connection.close()


class NotRecorded(sqlite3.OperationalError):  # one of the errors of a job
    """A job was done, and the record of the log does not say so: nobody may hear of it."""


def run_job(job: Job[T], connection: Connection) -> tuple[T | None, BaseException | None]:
    """Run a job, and write down how far the log has got before anybody hears of it."""
    value, error = outcome_of(job, connection)
    if (head := head_of(connection)) is not None:
        _, failure = outcome_of(_recording, head.advance)
        error = error or failure
    return value, error


def sync_head(connection: Connection) -> None:
    """Make the record of the log durable."""
    if (head := head_of(connection)) is not None:
        _recording(head.sync)


def _recording(step: Callable[[], None]) -> None:
    """A step of the record's; where it fails, the store does."""
    try:
        step()
    except OSError as error:
        raise NotRecorded(f"the record of the log cannot be written: {error.strerror}") from error


def head_of(connection: Connection) -> LogHead | None:
    """The record beside the store of a connection that writes."""
    return getattr(connection, "head", None)


def fold(connection: Connection) -> int:
    """Fold the log into the file as far as readers allow; pages that are left."""
    refuse_moved_log(connection)
    _, pages, folded = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if (head := head_of(connection)) is not None:
        _recording(head.advance)
    return max(0, int(pages) - int(folded))


def fold_and_cut(connection: Connection) -> None:
    """The same, waiting for readers as long as the connection waits for locks; then cut the log.

    The record is durable in between: a log that is gone has to be known not to be needed."""
    refuse_moved_log(connection)
    busy, pages, folded = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
    if busy or pages != folded:
        return
    if (head := head_of(connection)) is not None:
        _recording(head.advance)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def outcome_of(call: Callable[[A], T], given: A) -> tuple[T | None, BaseException | None]:
    """What the call returns, or what it raises."""
    try:
        return call(given), None
    except BaseException as error:  # noqa: BLE001  # told on the loop, which decides
        return None, error


def roll_back(connection: Connection) -> None:
    """Undo what is open. A failure changes nothing: SQLite has then rolled back by itself."""
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
