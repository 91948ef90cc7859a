"""Machine: what a simulated node runs its stores on, over all boots (HK-3).

A commit completes when the plan says. After a crash the files are opened anew, as a new process
would; or, in most runs, the connections are rolled back and used again. That leaves the same rows,
for SQLite's own recovery is not what is tried here, and takes a third of the time.
Reads:  files of stores.      Calls: the real writer and reader, in line.
Never:  keeps anything of a transaction that did not commit.
"""

from collections.abc import Callable
from pathlib import Path

from brokerd.clock import Clock
from brokerd.storage.engine import Connection, Inline, InlineReader
from brokerd.storage.writers import InlineWriter, Schedule, roll_back


class Machine(Inline):
    """The executor of all boots of a node."""

    def __init__(self, schedule: Schedule, *, keep: bool) -> None:
        super().__init__(schedule)
        self._schedule = schedule
        self._keep = keep
        self._paths: dict[Connection, Path] = {}
        self._idle: dict[Path, Connection] = {}
        self._readers: dict[Path, _Reader] = {}
        self._newest: Path | None = None

    def kept(self, path: Path) -> Connection | None:
        """The connection of the boot before, rolled back."""
        self._newest = path
        return self._idle.pop(path, None)

    def writer(self, connection: Connection) -> InlineWriter:
        """A writer that gives its connection back, if any is kept."""
        assert self._newest is not None, "a store is opened before it is written"
        if not self._keep:
            return InlineWriter(connection, self._schedule)
        self._paths[connection] = self._newest
        return _Writer(connection, self._schedule, self._give_back)

    def reader(self, path: Path, clock: Clock) -> InlineReader:
        """The reader of this file."""
        if not self._keep:
            return InlineReader(path, clock)
        found = self._readers.get(path)
        if found is None:
            found = self._readers[path] = _Reader(path, clock)
        return found

    async def scrap(self) -> None:
        """Close everything."""
        for connection in self._idle.values():
            connection.close()
        self._idle.clear()
        for reader in self._readers.values():
            await reader.scrap()
        self._readers.clear()

    def _give_back(self, connection: Connection) -> None:
        roll_back(connection)
        self._idle[self._paths.pop(connection)] = connection


class _Writer(InlineWriter):
    def __init__(
        self, connection: Connection, schedule: Schedule, give_back: Callable[[Connection], None]
    ) -> None:
        super().__init__(connection, schedule)
        self._give_back = give_back

    def close(self) -> None:
        """Give the connection back."""
        self._give_back(self._connection)

    def abandon(self) -> None:
        """Forget the jobs, roll back and give the connection back."""
        self._abandoned = True
        self._jobs.clear()
        self._give_back(self._connection)


class _Reader(InlineReader):
    async def close(self) -> None:
        """Stay open for the next boot."""

    async def scrap(self) -> None:
        """Close."""
        await super().close()
