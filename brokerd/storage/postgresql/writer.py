"""Writer: runs the jobs of a store on its connection to PostgreSQL, one by one, on the loop.

Reads:  nothing.      Calls: the jobs it is given, in greenlets.
Never:  runs two at once, or out of order.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from sqlalchemy.util import greenlet_spawn

from brokerd.clock import Clock
from brokerd.storage.connections import Connection
from brokerd.storage.postgresql.connection import ServerConnection
from brokerd.storage.postgresql.errors import ServerError
from brokerd.storage.postgresql.one_statement import at_once
from brokerd.storage.writers import Ended, Job, Reported, Scripted, outcome_of

T = TypeVar("T")


class ServerWriter:
    """A writer whose jobs wait for the server while the loop does other work."""

    contends = False

    def __init__(self, connection: Connection, clock: Clock) -> None:
        """Create the writer. `clock`: measures the flushes."""
        self._connection = connection
        self._clock = clock
        self._jobs: deque[tuple[Job[Any], Reported[Any]]] = deque()
        self._running: asyncio.Future[Any] | None = None
        self._abandoned = False

    def write(self, job: Scripted[T], reported: Reported[T]) -> None:
        """Run the job as a single statement if its script allows that, otherwise by calling it."""
        script = job.script()
        joined = None if script is None else at_once(script)
        if joined is None:
            self.submit(job, reported)
            return
        text, values = joined

        def flush(connection: Connection) -> T:
            server = cast("ServerConnection", connection)
            return job.outcome(_run_at_once(server, text, values, self._clock))

        self.submit(flush, reported)

    def submit(self, job: Job[T], reported: Reported[T]) -> None:
        """Run the job after those that were submitted before."""
        if self._abandoned:
            return
        self._jobs.append((job, reported))
        if self._running is None:
            self._start()

    def poll(self) -> None:
        """Do nothing: results arrive as any other input of the loop."""

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def abandon(self) -> None:
        """Drop the jobs and close; the server rolls back."""
        self._abandoned = True
        self._jobs.clear()
        self._connection.close()

    def _start(self) -> None:
        job, reported = self._jobs.popleft()
        running = greenlet_spawn(outcome_of, job, self._connection)
        self._running = asyncio.ensure_future(running)

        def done(ended: "asyncio.Future[tuple[Any, BaseException | None]]") -> None:
            self._running = None
            if self._abandoned:
                if not ended.cancelled():
                    ended.exception()
                return
            value, error = (None, asyncio.CancelledError()) if ended.cancelled() else ended.result()
            # The next job first: the server works while the loop reports this one.
            if self._jobs:
                self._start()
            reported(value, error)

        self._running.add_done_callback(done)


def _run_at_once(
    connection: ServerConnection, text: str, values: Sequence[object], clock: Clock
) -> Ended:
    """Run a flush that is a single statement, and say how it ended."""
    started = clock.monotonic()
    error: ServerError | None = None
    is_passed = False
    try:
        is_passed = connection.run_at_once(text, values)
    except ServerError as failed:
        error = failed
    return Ended(
        error,
        is_fence_passed=is_passed,
        is_committing=error is not None and not error.is_outcome_known,
        started=started,
        committing=started,
        ended=clock.monotonic(),
    )
