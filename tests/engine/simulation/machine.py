"""Machine: the executor of the stores of a simulated node, over all boots (HK-3).

A commit completes when the plan says. After a crash the files are reopened, as a new process would
do; or, in most runs, the connections are rolled back and reused, for reading as well. Both leave
equal rows, because SQLite's own recovery is not what is tested here, and reusing saves most of the
time of a start.
Reads:  files of stores.      Calls: the real writer and reader, in line.
Never:  keeps anything of a transaction that did not commit.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from brokerd.clock import Clock
from brokerd.errors import StoreLocked
from brokerd.storage.connections import Connection, connect_writer
from brokerd.storage.executors import Inline
from brokerd.storage.files.lock import OwnerLock
from brokerd.storage.opening import Opened
from brokerd.storage.readers import InlineReader, Values
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
        """`kept`: open connections to stores of the machine. `shared`: a directory of stores that
        another machine opens, too; connections to these are not kept. `reads`: called before each
        read."""
        super().__init__(schedule)
        self._schedule = schedule
        self._keep = keep
        self._shared = shared
        self._reads = reads
        self._in_use: dict[Path, Connection] = {}
        self._idle: dict[Path, Connection] = dict(kept or {})
        self._locks: list[OwnerLock] = []

    async def call(self, function: Callable[[], T]) -> T:
        """Call the function immediately.

        The message of `StoreLocked` is replaced: it names a directory and a process id, which
        differ from run to run (HK-1).
        """
        try:
            found = function()
        except StoreLocked as error:
            raise StoreLocked("the store is open in another machine") from error
        if isinstance(found, Opened):
            self._locks.append(found.lock)
        return found

    def power_off(self) -> None:
        """Release the locks of a dead process, as the operating system does.

        They include the lock of a store that was just opened and that no broker knows yet.
        """
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def kept(self, path: Path) -> Connection | None:
        """Return the connection of the boot before, rolled back, or else a new one.

        None if connections to this store are not kept, or if it does not exist yet.
        """
        if not self._keeps(path):
            return None
        if path not in self._idle and path.exists():
            return connect_writer(path)
        return self._idle.pop(path, None)

    def writer(self, connection: Connection, path: Path) -> InlineWriter:
        """Return a writer; on closing it gives its connection back, if this store's is kept."""
        if not self._keeps(path):
            return InlineWriter(connection, self._schedule)
        self._in_use[path] = connection

        def give_back() -> None:
            roll_back(connection)
            self._idle[path] = self._in_use.pop(path)

        return _Writer(connection, self._schedule, give_back)

    def reader(self, path: Path, clock: Clock) -> InlineReader:
        """Return a reader of a store, which uses the writer's connection if that is kept.

        That is correct because between two jobs the writer has nothing uncommitted.
        """
        if path not in self._in_use:
            return _Reader(path, clock, self._reads)
        return _KeptReader(path, clock, self._reads, self._in_use[path])

    def _keeps(self, path: Path) -> bool:
        return self._keep and path.parent != self._shared

    def give_back(self) -> dict[Path, Connection]:
        """Return all kept connections, rolled back; the machine has none afterwards."""
        found = self._idle | self._in_use
        for connection in found.values():
            roll_back(connection)
        self._idle.clear()
        self._in_use.clear()
        return found

    async def scrap(self) -> None:
        """Close all kept connections."""
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
        """Drop the jobs, roll back and give the connection back."""
        self._abandoned = True
        self._jobs.clear()
        self._give_back()


class _Reader(InlineReader):
    def __init__(self, path: Path, clock: Clock, reads: Callable[[], None]) -> None:
        super().__init__(path, clock)
        self._reads = reads

    async def rows(
        self,
        statement: Any,  # SQLAlchemy's, which only the storage package knows
        values: Mapping[str, object] | None = None,
    ) -> Sequence[Values]:
        """Pass the failpoint, then run the statement immediately."""
        self._reads()
        return await super().rows(statement, values)


class _KeptReader(_Reader):
    def __init__(
        self, path: Path, clock: Clock, reads: Callable[[], None], connection: Connection
    ) -> None:
        super().__init__(path, clock, reads)
        self._connection = connection

    async def close(self) -> None:
        """Do nothing: the connection belongs to the writer."""
