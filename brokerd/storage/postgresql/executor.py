"""Executors: stores in schemas of one PostgreSQL database (design D11, HK-3).

Reads: nothing.      Calls: the opening, the writer and the readers of this package.
Never: runs a statement by itself.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy.util import greenlet_spawn

from brokerd.clock import Clock, SystemClock
from brokerd.model import MSDB
from brokerd.storage.connections import Connection
from brokerd.storage.opening import Opened, Wanted
from brokerd.storage.postgresql import survey
from brokerd.storage.postgresql.connecting import HISTORY, Rivals, connect, find_rivals
from brokerd.storage.postgresql.connection import ServerConnection, Wait, in_greenlet, in_thread
from brokerd.storage.postgresql.errors import ServerError
from brokerd.storage.postgresql.last_history import History
from brokerd.storage.postgresql.opening import ServerOptions, open_schema
from brokerd.storage.postgresql.reader import Run, ServerReader
from brokerd.storage.postgresql.writer import ServerWriter
from brokerd.storage.readers import READ_LIMIT, Reader
from brokerd.storage.server_facts import ServerFacts
from brokerd.storage.writers import InlineWriter, Schedule, Writer, soon

T = TypeVar("T")

_READING: Final = {
    "application_name": "brokerd (reads)",
    "default_transaction_read_only": "on",
}
_GRACE: Final = 2.0
"""Seconds that the answer to a read may be late: then nobody answers, and the server has not ended
it."""


async def _at_once(function: Callable[..., T], /, *given: Any) -> T:  # noqa: ANN401
    return function(*given)


class _OnServer:
    """The parts that both executors share: the store named `x.db` is in the schema `x`."""

    _wait: Wait
    _run: Run

    def __init__(self, url: str, options: ServerOptions | None = None) -> None:
        """Create the executor.

        `url`: the database, as `postgresql://user@host/database`.
        """
        self._url = url
        self._options = options or ServerOptions()
        self._histories: dict[Path, History] = {}
        """The server and timeline on which each store was opened."""

    async def call(self, function: Callable[[], T]) -> T:
        """Run a long function once."""
        return await self._run(function)

    async def open(self, path: Path, wanted: Wanted) -> Opened:
        """Open the store of this name."""
        return await self._run(
            functools.partial(
                open_schema,
                functools.partial(self._connect_writer, path),
                path,
                schema=self._schema(path),
                options=self._options,
                wanted=wanted,
            )
        )

    async def is_missing(self, path: Path) -> bool:
        """Return whether the database has no store of this name."""
        schema = self._schema(path)
        return not await self._looking(lambda server: survey.exists(server, schema))

    async def server_facts(self, paths: Sequence[Path]) -> ServerFacts | None:
        """Return what is known of the server."""
        schemas = [self._schema(path) for path in paths]
        facts = await self._looking(
            lambda server: survey.read_facts(server, self._options.shown, schemas)
        )
        history = self._histories.get(Path(MSDB)) or self._options.last_history()
        if history is None:
            return facts
        found = await self._run(self._rivals, history)
        return msgspec.structs.replace(facts, former=found.former, newer=found.newer)

    def _rivals(self, history: History) -> Rivals:
        return self._wait(
            find_rivals(
                self._url,
                self._schema(Path(MSDB)),
                settings=_READING,
                patience=self._options.connect_timeout,
                history=history,
            )
        )

    async def _looking(self, look: Callable[[ServerConnection], T]) -> T:
        """Return what a look at the server finds, on a connection of its own."""
        try:
            server = await self._connect_reader(Path(MSDB))
            try:
                return await self._run(look, server)
            finally:
                server.close()
        except ServerError as error:
            raise survey.unreachable(error) from error

    def reader(self, path: Path, clock: Clock) -> Reader:
        """Return a reader of the store of this name."""
        del clock  # the server limits the time of a read
        return ServerReader(functools.partial(self._connect_reader, path), self._run)

    def _schema(self, path: Path) -> str:
        return survey.schema_of(self._options, path.stem)

    def _connect_writer(self, path: Path) -> ServerConnection:
        settings = {
            "application_name": "brokerd",
            "synchronous_commit": self._options.synchronous_commit,
        }
        connection = ServerConnection(self._wait(self._connect(path, settings)), self._wait)
        try:
            self._histories[path] = History(*connection.execute(HISTORY).fetchall()[0])
        except ServerError:
            connection.close()
            raise
        return connection

    async def _connect_reader(self, path: Path) -> ServerConnection:
        # A job that reads in several statements reads one state of the store.
        settings = {
            **_READING,
            "default_transaction_isolation": "repeatable read",
            "statement_timeout": str(int(READ_LIMIT * 1000)),
        }

        def connected() -> ServerConnection:
            connecting = self._connect(
                path, settings, limit=READ_LIMIT + _GRACE, history=self._histories.get(path)
            )
            return ServerConnection(self._wait(connecting), self._wait)

        return await self._run(connected)

    def _connect(
        self,
        path: Path,
        settings: dict[str, str],
        *,
        limit: float | None = None,
        history: History | None = None,
    ) -> Awaitable[Any]:
        return connect(
            self._url,
            self._schema(path),
            settings=settings,
            patience=self._options.connect_timeout,
            limit=limit,
            history=history,
            last=self._options.last_history(),
        )


class OnServer(_OnServer):
    """Executor for production: everything on the loop, in greenlets that wait for the server."""

    _wait = staticmethod(in_greenlet)
    _run = staticmethod(greenlet_spawn)

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function that does not concern the server, such as one on files, on a thread."""
        return await asyncio.to_thread(function)

    def writer(self, connection: Connection, path: Path) -> Writer:
        """Return a writer that uses this connection."""
        del path
        return ServerWriter(connection, SystemClock())


class InlineOnServer(_OnServer):
    """Executor for tests in virtual time: the loop stands still while the server works."""

    _wait = staticmethod(in_thread)
    _run = staticmethod(_at_once)

    def __init__(
        self, url: str, options: ServerOptions | None = None, schedule: Schedule = soon
    ) -> None:
        """Create the executor; `schedule` decides when a job completes."""
        super().__init__(url, options)
        self._schedule = schedule

    def writer(self, connection: Connection, path: Path) -> Writer:
        """Return a writer on the loop."""
        del path
        return InlineWriter(connection, self._schedule)
