"""The catalog: whole or not at all, keys that stay."""

import asyncio

import pytest
from msgspec.structs import replace

from brokerd.clock import Instant
from brokerd.errors import InUse, ObjectsRefused
from brokerd.ids import BrokerId, QueueKey, ServiceKey
from brokerd.model import (
    AUTO_CREATED_LOCAL,
    CONFIGURATION_NOTICE,
    DEFAULT,
    EVENT_NOTIFICATION,
    FAILED_BINDING,
    FAILED_ROUTE,
    MISSING_BINDING,
    MISSING_ROUTE,
    POST_EVENT_NOTIFICATION,
    Activation,
    Contract,
    MessageType,
    Queue,
    Route,
    SentBy,
    Service,
    Validation,
)
from brokerd.protocol.transitions import State
from brokerd.storage.changes import Changes
from brokerd.storage.rows.catalog import CatalogChanges
from brokerd.storage.rows.references import Use

NO_KEY = QueueKey(0)
SHOP = CatalogChanges(
    services=(Service(ServiceKey(0), "orders", "inbox", frozenset({"order", DEFAULT})),),
    contracts=(Contract("order", {"line": SentBy.INITIATOR, "bill": SentBy.TARGET}),),
    queues=(Queue(NO_KEY, "inbox", activation=Activation("shop:work", 4)), Queue(NO_KEY, "late")),
    message_types=(MessageType("line"), MessageType("bill", Validation.EMPTY)),
    routes=(Route("away", "TCP://far:4022", "desk", BrokerId(b"f" * 16), Instant(9)),),
)


@pytest.mark.rule("OBJ-30", "OBJ-31", "RTE-68")
async def test_store_is_born_with_what_is_built_in(store):
    told = Contract(POST_EVENT_NOTIFICATION, {EVENT_NOTIFICATION: SentBy.INITIATOR})
    default = Contract(DEFAULT, {DEFAULT: SentBy.ANY})
    requests = {MISSING_ROUTE, FAILED_ROUTE, MISSING_BINDING, FAILED_BINDING}
    asked = Contract(CONFIGURATION_NOTICE, dict.fromkeys(requests, SentBy.INITIATOR))
    built_in = (default, told, asked)
    assert store.catalog.contracts == {one.name: one for one in built_in}
    assert set(store.catalog.message_types) == {DEFAULT, EVENT_NOTIFICATION, *requests}
    assert store.catalog.message_types[DEFAULT] == MessageType(DEFAULT)
    assert store.catalog.routes == {AUTO_CREATED_LOCAL.name: AUTO_CREATED_LOCAL}


async def test_objects_come_back_as_they_were_put(open_store):
    store = await open_store()
    catalog = await store.apply_catalog(SHOP)
    assert store.catalog is catalog
    assert catalog.contracts["order"] == SHOP.contracts[0]
    assert catalog.message_types["bill"] == SHOP.message_types[1]
    assert catalog.routes["away"] == SHOP.routes[0]
    assert catalog.services["orders"].contracts == frozenset({"order", DEFAULT})
    inbox = catalog.queues["inbox"]
    assert (inbox.activation, inbox.receive_enabled) == (Activation("shop:work", 4), True)
    assert len({queue.key for queue in catalog.queues.values()} - {0}) == 2
    await store.close()
    assert (await open_store()).catalog == catalog


async def test_altered_object_keeps_its_key_and_a_dropped_one_gives_its_key_to_nobody(store):
    before = await store.apply_catalog(SHOP)
    after = await store.apply_catalog(
        CatalogChanges(
            queues=(Queue(NO_KEY, "inbox", receive_enabled=False),),
            dropped_queues=("late",),
            contracts=(Contract("order", {"line": SentBy.ANY}),),
        )
    )
    assert after.queues["inbox"] == Queue(
        before.queues["inbox"].key, "inbox", receive_enabled=False
    )
    assert after.contracts["order"].types == {"line": SentBy.ANY}
    last = await store.apply_catalog(CatalogChanges(queues=(Queue(NO_KEY, "late"),)))
    assert last.queues["late"].key not in {queue.key for queue in before.queues.values()}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (CatalogChanges(dropped_queues=("inbox",)), "orders"),
        (CatalogChanges(dropped_message_types=("line",)), "line"),
        (CatalogChanges(dropped_contracts=("order",)), "order"),
        (CatalogChanges(dropped_routes=("nowhere",)), "nowhere"),
        (CatalogChanges(services=(Service(ServiceKey(0), "x", "no_queue"),)), "no_queue"),
    ],
    ids=["queue", "message_type", "contract", "route", "service"],
)
async def test_refused_change_changes_nothing(store, faults, changes, said):
    before = await store.apply_catalog(SHOP)
    beside = CatalogChanges(
        **{name: getattr(changes, name) for name in changes.__struct_fields__}
        | {"queues": (Queue(NO_KEY, "beside"),)}
    )
    with pytest.raises(ObjectsRefused, match=said):
        await store.apply_catalog(beside)
    assert store.catalog == before
    assert await store.apply_catalog(CatalogChanges()) == before
    assert faults == []


@pytest.mark.rule("OBJ-35")
async def test_messages_follow_their_service_whether_written_or_not(store, rows):
    """Some are in the file, some being written, some only joined; all go, and in their order."""
    before = await store.apply_catalog(SHOP)
    old = before.queues["inbox"].key
    moves = rows.endpoint(store, service="orders")
    stays = rows.endpoint(store, service="desk")
    written = Changes()
    for endpoint in (moves, stays):
        written.create(endpoint)
        written.enqueued.append(rows.message(store, endpoint, sequence=0, body=b"x", queue=old))
    await store.commit(written)
    for _ in range(3):  # the first is handed to the writer, the others gather behind it
        changes = Changes()
        changes.enqueued.append(rows.message(store, moves, sequence=0, body=b"x", queue=old))
        changes.enqueued.append(rows.message(store, stays, sequence=0, body=b"x", queue=old))
        store.join(changes, lambda: None)
        await asyncio.sleep(0)
    moved = Service(ServiceKey(0), "orders", "late", SHOP.services[0].contracts)
    new = before.queues["late"].key
    tried = await store.try_catalog(CatalogChanges(services=(moved,)))
    assert (tried.services["orders"].queue, store.catalog.services["orders"].queue) == (
        "late",
        "inbox",
    )
    changes = Changes()
    changes.enqueued.append(rows.message(store, moves, sequence=0, body=b"x", queue=old))
    store.join(changes, lambda: None)
    store.redirect({moves.key}, new)
    await store.apply_catalog(CatalogChanges(services=(moved,)))
    await store.commit(Changes())
    held = {
        key: [row.endpoint for row in (await store.messages.browse(key, 100, 1_000_000)).rows]
        for key in (old, new)
    }
    assert held == {old: [stays.key] * 4, new: [moves.key] * 5}


@pytest.mark.rule("OBJ-37")
async def test_uses_are_counted_and_guard_the_commit(store, rows):
    await store.apply_catalog(SHOP)
    changes = Changes()
    for state in (State.CONVERSING, State.ERROR, State.CLOSED):
        changes.create(rows.endpoint(store, service="orders", contract="order", state=state))
    await store.commit(changes)
    uses = (Use(service="orders"), Use(contract="order"), Use(contract=DEFAULT))
    assert await store.count_uses(uses) == [2, 1, 0]
    drop = CatalogChanges(dropped_services=("orders",), unused=uses[:1])
    before = store.catalog
    for attempt in (store.try_catalog, store.apply_catalog):
        with pytest.raises(InUse, match="2 open dialogs need service orders"):
            await attempt(drop)
    assert store.catalog == before


@pytest.mark.rule("OBJ-35")
async def test_a_queue_gets_the_key_that_was_settled_when_it_was_tried(open_store):
    store = await open_store()
    await store.apply_catalog(SHOP)
    added = CatalogChanges(queues=(Queue(NO_KEY, "more"),))
    key = (await store.try_catalog(added)).queues["more"].key
    assert "more" not in store.catalog.queues
    await store.apply_catalog(replace(added, new_keys={"more": key}))
    assert store.catalog.queues["more"].key == key
    await store.apply_catalog(CatalogChanges(queues=(Queue(NO_KEY, "another"),)))
    assert store.catalog.queues["another"].key > key
    await store.close()


async def test_options_of_the_broker_are_part_of_the_commit(open_store):
    store = await open_store()
    await store.apply_catalog(CatalogChanges(options={"honor_priority": True}))
    assert store.identity.honor_priority
    refused = CatalogChanges(options={"honor_priority": False}, dropped_queues=("none",))
    with pytest.raises(ObjectsRefused):
        await store.apply_catalog(refused)
    assert store.identity.honor_priority
    await store.close()
    assert (await open_store()).identity.honor_priority
