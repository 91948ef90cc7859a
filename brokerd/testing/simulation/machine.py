"""Machine: what a simulated node runs its stores on, over all boots (HK-3).

A commit completes when the plan says. After a crash the files are opened anew, as a new process
would; or, in most runs, the connections are rolled back and used again, for reading as well. That
leaves the same rows, for SQLite's own recovery is not what is tried here, and spares most of a
start's time.
Reads:  files of stores.      Calls: the real writer and reader, in line.
Never:  keeps anything of a transaction that did not commit.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from brokerd.clock import Clock
from brokerd.errors import StoreLocked
from brokerd.storage.engine import Connection, Inline, InlineReader, Values, connect_writer
from brokerd.storage.files import Opened
from brokerd.storage.lock import OwnerLock
from brokerd.storage.writers import InlineWriter, Schedule, roll_back

T = TypeVar("T")


class Machine(Inline):
    """The executor of all boots of a node."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        keep: bool,
        kept: Mapping[Path, Connection] | None = None,
        shared: Path | None = None,
        reads: Callable[[], None] = lambda: None,
    ) -> None:
        """`kept`: connections to stores it has, which are open already. `shared`: a directory with
        stores that another machine opens as well; connections to these are not kept. `reads`:
        called before each read."""
        super().__init__(schedule)
        self._schedule = schedule
        self._keep = keep
        self._shared = shared
        self._reads = reads
        self._in_use: dict[Path, Connection] = {}
        self._idle: dict[Path, Connection] = dict(kept or {})
        self._locks: list[OwnerLock] = []

    async def call(self, function: Callable[[], T]) -> T:
        """Here and now. Who has a store open is told by its directory and the number of its
        process, which no seed decides (HK-1): so by neither."""
        try:
            found = function()
        except StoreLocked as error:
            raise StoreLocked("the store is open in another machine") from error
        if isinstance(found, Opened):
            self._locks.append(found.lock)
        return found

    def power_off(self) -> None:
        """The process is gone, and the system gives up its locks: also that of a store which it
        had just opened, and knows of nowhere yet."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def kept(self, path: Path) -> Connection | None:
        """The connection of the boot before, rolled back; a new one where there is none."""
        if not self._keeps(path):
            return None
        if path not in self._idle and path.exists():
            return connect_writer(path)
        return self._idle.pop(path, None)

    def writer(self, connection: Connection, path: Path) -> InlineWriter:
        """A writer that gives its connection back, if any is kept."""
        if not self._keeps(path):
            return InlineWriter(connection, self._schedule)
        self._in_use[path] = connection

        def give_back() -> None:
            roll_back(connection)
            self._idle[path] = self._in_use.pop(path)

        return _Writer(connection, self._schedule, give_back)

    def reader(self, path: Path, clock: Clock) -> InlineReader:
        """The reader of this file: between two jobs, what the writer sees has been committed."""
        if path not in self._in_use:
            return _Reader(path, clock, self._reads)
        return _KeptReader(path, clock, self._reads, self._in_use[path])

    def _keeps(self, path: Path) -> bool:
        return self._keep and path.parent != self._shared

    def give_back(self) -> dict[Path, Connection]:
        """It is used no more: every connection it has kept, with nothing open on it."""
        found = self._idle | self._in_use
        for connection in found.values():
            roll_back(connection)
        self._idle.clear()
        self._in_use.clear()
        return found

    async def scrap(self) -> None:
        """Close everything."""
        for connection in self.give_back().values():
            connection.close()


class _Writer(InlineWriter):
    def __init__(
        self, connection: Connection, schedule: Schedule, give_back: Callable[[], None]
    ) -> None:
        super().__init__(connection, schedule)
        self._give_back = give_back

    def close(self) -> None:
        """Give the connection back."""
        self._give_back()

    def abandon(self) -> None:
        """Forget the jobs, roll back and give the connection back."""
        self._abandoned = True
        self._jobs.clear()
        self._give_back()


class _Reader(InlineReader):
    def __init__(self, path: Path, clock: Clock, reads: Callable[[], None]) -> None:
        super().__init__(path, clock)
        self._reads = reads

    async def rows(
        self,
        statement: Any,  # noqa: ANN401  # SQLAlchemy's, which only the storage package knows
        values: Mapping[str, object] | None = None,
    ) -> Sequence[Values]:
        """Run it here and now."""
        self._reads()
        return await super().rows(statement, values)


class _KeptReader(_Reader):
    def __init__(
        self, path: Path, clock: Clock, reads: Callable[[], None], connection: Connection
    ) -> None:
        super().__init__(path, clock, reads)
        self._connection = connection

    async def close(self) -> None:
        """The connection is the writer's."""
