"""Store places: where the stores are and how much room they take, for reports.

Reads:  the sizes of files; of a server, what the last look at it has found.
Calls:  the executor, at each tick, if the stores are on a server.
Never:  makes a report wait for a server.
Fails:  while the server cannot be looked at, the figures stay as they were.
"""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from brokerd.config.settings import Settings
from brokerd.errors import BrokerError
from brokerd.storage.executors import Executor
from brokerd.storage.server_facts import ServerFacts, SessionWait
from brokerd.telemetry.status import ServerStatus, StoreStatus


class StorePlaces:
    """The places of the stores of one instance."""

    def __init__(self, settings: Settings, executor: Executor, names: Collection[str]) -> None:
        """Create it; `names`: the brokers whose stores are open."""
        self._settings = settings
        self._executor = executor
        self._names = names
        self._facts: ServerFacts | None = None

    async def read_server(self, *, with_waits: bool = False) -> int:
        """Run the pass: look at the server; return 1 if more than sizes and waits has changed."""
        if not self._settings.is_on_server:
            return 0
        paths = [self._settings.store_path(name) for name in self._names]
        before = self._facts
        facts = before and msgspec.structs.replace(before, waits={})
        with suppress(BrokerError):
            facts = await self._executor.server_facts(paths)
            if not with_waits and facts is not None:
                facts = msgspec.structs.replace(facts, waits={})
        self._facts = facts
        return int(_lasting(before) != _lasting(self._facts))

    @property
    def server(self) -> ServerStatus | None:
        """Facts about the server; None = the stores are files."""
        facts = self._facts
        if facts is None:
            return None
        return ServerStatus(
            place=facts.server,
            version=facts.version,
            redundancy=facts.redundancy,
            standbys=facts.standbys,
            former=facts.former,
            newer=facts.newer,
            waits_for_standby=bool(facts.wanted_standbys) and facts.sees_standbys,
        )

    def place_of(self, name: str) -> StoreStatus:
        """Return the place and the size of the store of a broker."""
        if not self._settings.is_on_server:
            path = self._settings.store_path(name)
            size, wal = _size(path), _size(path.with_name(path.name + "-wal"))
            return StoreStatus(broker=name, path=str(path), size_bytes=size, wal_bytes=wal)
        schema = self._settings.store.schema_prefix + name
        sizes = {} if self._facts is None else self._facts.sizes
        return StoreStatus(broker=name, schema=schema, size_bytes=sizes.get(schema, 0))

    def wait_of(self, name: str) -> str:
        """Return what a commit of a broker that takes long waits for."""
        if not self._settings.is_on_server:
            return "for the disk"
        wait = self._session_wait(name)
        return "for the server" if wait is None else f"for the server: {wait.text}"

    def hung_session(self, name: str) -> int | None:
        """Return the server process of a broker's commit if it stood still at the last look."""
        wait = self._session_wait(name)
        return wait.pid if wait is not None and wait.is_hung else None

    def waits_for_standby(self, name: str) -> bool:
        """Return whether a broker's commit waited for the standby at the last look."""
        wait = self._session_wait(name)
        return wait is not None and wait.is_for_standby

    def _session_wait(self, name: str) -> SessionWait | None:
        if self._facts is None:
            return None
        return self._facts.waits.get(self._settings.store.schema_prefix + name)

    def sizes(self, name: str) -> tuple[int, int]:
        """Return the bytes of a store and of its log, which only a file has."""
        found = self.place_of(name)
        return found.size_bytes, found.wal_bytes


def _lasting(facts: ServerFacts | None) -> ServerFacts | None:
    return None if facts is None else msgspec.structs.replace(facts, sizes={}, waits={})


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
