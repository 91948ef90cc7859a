"""The catalog: whole or not at all, keys that stay."""

import pytest

from brokerd.clock import Instant
from brokerd.errors import ObjectsRefused
from brokerd.ids import BrokerId, QueueKey, ServiceKey
from brokerd.model import (
    AUTO_CREATED_LOCAL,
    DEFAULT,
    Activation,
    Contract,
    MessageType,
    Queue,
    Route,
    SentBy,
    Service,
    Validation,
)
from brokerd.storage.catalog import CatalogChanges

NO_KEY = QueueKey(0)
SHOP = CatalogChanges(
    services=(Service(ServiceKey(0), "orders", "inbox", frozenset({"order", DEFAULT})),),
    contracts=(Contract("order", {"line": SentBy.INITIATOR, "bill": SentBy.TARGET}),),
    queues=(Queue(NO_KEY, "inbox", activation=Activation("shop:work", 4)), Queue(NO_KEY, "late")),
    message_types=(MessageType("line"), MessageType("bill", Validation.EMPTY)),
    routes=(Route("away", "TCP://far:4022", "desk", BrokerId(b"f" * 16), Instant(9)),),
)


@pytest.mark.rule("OBJ-30", "RTE-68")
async def test_store_is_born_with_what_is_built_in(store):
    assert store.catalog.contracts == {DEFAULT: Contract(DEFAULT, {DEFAULT: SentBy.ANY})}
    assert store.catalog.message_types == {DEFAULT: MessageType(DEFAULT)}
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
