"""Stores on PostgreSQL servers that fail, and changesets to write to them."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from brokerd.clock import SystemClock
from brokerd.errors import StoreFault
from brokerd.ids import BrokerId, ClientId, InstanceId, SeededIds
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.storage.changes import Changes
from brokerd.storage.store import NewStore, Store, TokenOutcome
from tests.contract.conftest import Rows
from tests.postgresql.cut import ServerRelay
from tests.postgresql.fixtures import SHARED, Schema
from tests.postgresql.servers import Server

CLIENT = ClientId(b"c" * 16)
FLUSH = re.compile("^WITH fence_")
"""A flush that is a single statement, and commits as it ends."""


class Daemon(NamedTuple):
    """An open store, as a daemon has it: what it was told, and what it has confirmed."""

    store: Store
    rows: Rows
    faults: list[StoreFault]
    faulted: asyncio.Event
    heard: list[str]
    """`full` each time a write found no room, `room` when it was written."""

    def changes(self, token: int | None = None, size: int = 4) -> tuple[Changes, DialogEndpoint]:
        """Return a changeset that begins a dialog with one message."""
        changes, endpoint = Changes(), self.rows.endpoint(self.store)
        changes.create(endpoint)
        changes.enqueued.append(self.rows.message(self.store, endpoint, 0, noise(size)))
        if token is not None:
            changes.tokens[CLIENT] = token
        return changes, endpoint

    async def begin(self, token: int | None = None, size: int = 4) -> DialogEndpoint:
        """Commit such a changeset."""
        changes, endpoint = self.changes(token, size)
        await self.store.commit(changes)
        return endpoint

    async def has(self, endpoint: DialogEndpoint) -> bool:
        return await self.store.endpoints.by_handle(endpoint.handle) is not None

    def outcome(self, token: int) -> TokenOutcome:
        return self.store.token_outcome(CLIENT, token)

    async def number_of_session(self) -> int:
        """Return the process id of the server's process that writes."""

        def ask(connection: Any) -> int:
            return int(connection.execute("SELECT pg_backend_pid()").fetchone()[0])

        return await self.store.run(ask, writes=False)

    async def fault(self) -> str:
        """Wait for the fault of the store, and return what it says."""
        await self.faulted.wait()
        (fault,) = self.faults
        return str(fault)


class Daemons:
    """Opens stores; what a test leaves open is closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids = SeededIds(Random(7))
        self.opened: list[Store] = []

    async def open(self, url: str, name: str, **given: Any) -> Daemon:
        """Open the store of a name at a server, making it if it is not there.

        Options of `ServerOptions` are taken as well.
        """
        from brokerd.storage.postgresql.executor import OnServer  # noqa: PLC0415  # it needs the driver
        from brokerd.storage.postgresql.opening import ServerOptions  # noqa: PLC0415

        of_server = {
            option: given.pop(option)
            for option in ServerOptions.__struct_fields__
            if option in given
        }
        options = ServerOptions(**{"require_durable": False, "connect_timeout": 20.0} | of_server)
        faults: list[StoreFault] = []
        heard: list[str] = []
        faulted = asyncio.Event()

        def on_fault(fault: StoreFault) -> None:
            faults.append(fault)
            faulted.set()

        def on_full() -> bool:
            heard.append("full")
            return False

        values: dict[str, Any] = {
            "ids": self._ids,
            "clock": SystemClock(),
            "executor": OnServer(url, options),
            "on_fault": on_fault,
            "on_full": on_full,
            "on_room": lambda: heard.append("room"),
            "create": NewStore("shop", BrokerId(b"b" * 16), InstanceId(b"i" * 16)),
        }
        store = await Store.open(self._folder / f"{name}.db", **(values | given))
        self.opened.append(store)
        return Daemon(store, Rows(self._ids), faults, faulted, heard)

    async def close(self) -> None:
        for store in self.opened:
            await store.abandon()
            await store.close()


@pytest.fixture
async def daemons(tmp_path: Path) -> AsyncIterator[Daemons]:
    pytest.importorskip("asyncpg")
    daemons = Daemons(tmp_path)
    yield daemons
    await daemons.close()


@pytest.fixture
async def relay(postgresql_server: Server) -> AsyncIterator[ServerRelay]:
    async with ServerRelay(postgresql_server) as relay:
        yield relay


@pytest.fixture
def relayed(relay: ServerRelay, postgresql_schema: Schema) -> Schema:
    """The place of a store behind the relay."""
    return Schema(relay.url(SHARED), postgresql_schema.name)


def noise(size: int) -> bytes:
    """Return bytes that the server cannot compress."""
    return Random(size).randbytes(size)


async def is_waiting(task: "asyncio.Future[Any]") -> bool:
    """Return whether a task is not done although all that is on its way has arrived."""
    done, _ = await asyncio.wait([task], timeout=0.05)
    return not done


def is_blocked(server: Server, number: int) -> Awaitable[None]:
    """Wait until a process of the server waits for another one's lock, or for a standby."""
    ask = (
        f"SELECT FROM pg_stat_activity WHERE pid = {number}"
        " AND (wait_event_type = 'Lock' OR wait_event = 'SyncRep')"
    )
    return until(lambda: bool(server.query(ask)))


async def until(is_so: Callable[[], bool]) -> None:
    """Return as soon as something is so, which nothing reports; other tasks go on meanwhile."""
    while not is_so():  # noqa: ASYNC110  # a process of the server has no event to wait for
        await asyncio.sleep(0)
