"""A store on each executor, and rows for it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from brokerd.clock import Instant, SystemClock
from brokerd.errors import StoreFault
from brokerd.ids import (
    BrokerId,
    ConversationId,
    EndpointKey,
    GroupId,
    Handle,
    InstanceId,
    MessageId,
    QueueKey,
    SeededIds,
)
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State
from brokerd.storage.changes import OutgoingRow, QueueRow
from brokerd.storage.compiled import library
from brokerd.storage.executors import Executor, Inline, Threaded
from brokerd.storage.hashes import body_hash
from brokerd.storage.postgresql.executor import InlineOnServer, OnServer
from brokerd.storage.postgresql.opening import ServerOptions
from brokerd.storage.store import NewStore, Store
from tests.contract.look import Look, in_file, on_server

FAR = Instant(4_000_000_000_000_000)


class Rows:
    """Makes rows with sensible values, numbered by the store they are for."""

    def __init__(self, ids: SeededIds) -> None:
        self.ids = ids

    def endpoint(self, store: Store, **given: Any) -> DialogEndpoint:
        values: dict[str, Any] = {
            "key": store.next_endpoint_key(),
            "handle": Handle(self.ids.fresh()),
            "conversation_id": ConversationId(self.ids.fresh()),
            "is_initiator": False,
            "service": "urn:shop/orders",
            "contract": "urn:shop/order",
            "far_service": "urn:shop/desk",
            "encryption": False,
            "began_at": Instant(1),
            "expires_at": FAR,
            "priority": 5,
            "group_id": GroupId(self.ids.fresh()),
            "state": State.CONVERSING,
        }
        return DialogEndpoint(**(values | given))

    def message(
        self, store: Store, endpoint: DialogEndpoint, sequence: int, body: bytes, **given: Any
    ) -> QueueRow:
        row = QueueRow(
            queuing_order=store.next_queuing_order(),
            queue=QueueKey(1),
            endpoint=endpoint.key,
            sequence=sequence,
            message_type="urn:shop/line",
            priority=5,
            paged=1,
            enqueued_at=Instant(2),
            message_id=MessageId(self.ids.fresh()),
            body_hash=body_hash(
                endpoint.conversation_id, not endpoint.is_initiator, sequence, body
            ),
            body=body,
        )
        return row._replace(**given)

    def outgoing(
        self, store: Store, endpoint: DialogEndpoint, sequence: int, body: bytes, **given: Any
    ) -> OutgoingRow:
        row = OutgoingRow(
            transmission_order=store.next_transmission_order(),
            endpoint=endpoint.key,
            sequence=sequence,
            flags=0,
            message_type="urn:shop/line",
            fragment_size=32_000,
            paged=1,
            enqueued_at=Instant(2),
            message_id=MessageId(self.ids.fresh()),
            body_hash=body_hash(endpoint.conversation_id, endpoint.is_initiator, sequence, body),
            body=body,
        )
        return row._replace(**given)


@pytest.fixture
def rows() -> Rows:
    return Rows(SeededIds(Random(7)))


OF_FILES = ("threaded", "compiled", "inline")
ON_SERVERS = ("postgresql", "postgresql-inline")
_TEST_SERVER = ServerOptions(require_durable=False)


ON_BOTH = ("test_full", "test_opening", "test_tokens", "test_deferred_removals")
"""Modules that are run on both executors of a server. The others are run on the one of production:
both say the same to the server, and differ in when a job is over, and how a store ends."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every executor, unless it says that it is about files, and why."""
    names = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "executor" in metafunc.fixturenames and "executor" not in names:
        is_of_files = metafunc.definition.get_closest_marker("of_files") is not None
        is_on_both = metafunc.module.__name__.rpartition(".")[2] in ON_BOTH
        servers = ON_SERVERS if is_on_both else ON_SERVERS[:1]
        executors = OF_FILES if is_of_files else OF_FILES + servers
        metafunc.parametrize("executor", executors, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of tests with seeds, run the first alone on a server, where each takes a second or more."""
    items[:] = [item for item in items if not _is_further_seed(item)]


def _is_further_seed(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    given = {} if call is None else call.params
    return given.get("executor") in ON_SERVERS and given.get("random", 0) > 0


@pytest.fixture
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param in ON_SERVERS:
        stores = request.getfixturevalue("postgresql_stores")
        made = OnServer if request.param == "postgresql" else InlineOnServer
        return made(stores.url, _TEST_SERVER)
    if request.param == "inline":
        return Inline()
    if request.param == "compiled" and not library.IS_BUILT:
        pytest.skip("the flusher is not built: it needs a C compiler at set-up")
    return Threaded(compiled=request.param == "compiled")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def look(executor: Executor, path: Path) -> Look:
    """The rows of the store, whatever keeps them."""
    if isinstance(executor, OnServer | InlineOnServer):
        return on_server(executor._url, path.stem)
    return in_file(path)


@pytest.fixture
def faults() -> list[StoreFault]:
    return []


Open = Callable[..., Awaitable[Store]]


@pytest.fixture
async def open_store(
    path: Path, executor: Executor, faults: list[StoreFault], rows: Rows
) -> AsyncIterator[Open]:
    """Opens the store, making it when it is not there; what a test leaves open is closed."""
    opened: list[Store] = []

    async def open_it(**given: Any) -> Store:
        values: dict[str, Any] = {
            "ids": rows.ids,
            "clock": SystemClock(),
            "executor": executor,
            "on_fault": faults.append,
            "create": NewStore("shop", BrokerId(b"b" * 16), InstanceId(b"i" * 16)),
        }
        store = await Store.open(path, **(values | given))
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: Open) -> Store:
    return await open_store()


@pytest.fixture
def endpoint_key() -> Callable[[int], EndpointKey]:
    return EndpointKey
