"""Programs bring what they need; what is there stays as it is (SDK-4)."""

import pytest

from brokerd import App, Contract
from brokerd.app.session import Session
from brokerd.errors import ObjectsRefused
from brokerd.testing.rig import RigInstance
from tests.integration.sdk.shop import Cancel, Order, Packed, orders

pytestmark = pytest.mark.rule("SDK-4")


def names(changes: list[object]) -> list[tuple[str, str, str]]:
    return [(one["action"], one["kind"], one["name"]) for one in changes if isinstance(one, dict)]


async def contracts(session: Session, service: str) -> set[str]:
    rows = await session.view("service_contract_usages", where={"service_id": service})
    return {row["service_contract_id"] for row in rows}


@pytest.mark.rule("SDK-10", "PSN-15")
async def test_what_is_added_parks_poison_and_what_is_there_stays(
    brokerd_instance: RigInstance,
) -> None:
    bk, app = brokerd_instance.session, App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> None: ...

    await bk.create("queue", "old_q", poison_mode="disable_queue")
    await bk.declare(app, service="shop")
    await bk.declare(service="old", queue="old_q")
    modes = {one["name"]: one.get("poison_mode") for one in await bk.objects("queue")}
    assert (modes["warehouse_q"], modes["shop_q"]) == ("park", "park")
    assert modes["old_q"] != "park"


async def test_what_is_missing_is_added_once(brokerd_instance: RigInstance) -> None:
    bk = brokerd_instance.session
    made = names(await bk.declare(orders, service="shop", dry_run=True))
    assert ("create", "contract", "orders/v1") in made
    assert ("create", "service", "shop") in made
    assert names(await bk.declare(orders, service="shop")) == made
    assert await bk.declare(orders, service="shop") == []


@pytest.mark.rule("PSN-15")
async def test_the_queues_that_an_app_or_a_service_brings_park(
    brokerd_instance: RigInstance,
) -> None:
    bk, app = brokerd_instance.session, App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> Packed:
        return Packed(order.sku)

    await bk.declare(app)
    await bk.declare(orders, service="shop")
    modes = {one["name"]: one.get("poison_mode") for one in await bk.objects("queue")}
    assert (modes["warehouse_q"], modes["shop_q"]) == ("park", "park")


async def test_a_service_gets_further_contracts_and_keeps_its_queue(
    brokerd_instance: RigInstance,
) -> None:
    bk = brokerd_instance.session
    other = Contract("other/v1", initiator=[Cancel])
    await bk.declare(orders, service="warehouse", queue="w", target=True)
    changes = await bk.declare(other, service="warehouse", target=True)
    assert ("alter", "service", "warehouse") in names(changes)
    assert await bk.queue_of("warehouse") == "w"
    assert await contracts(bk, "warehouse") == {"orders/v1", "other/v1"}


async def test_nothing_that_is_there_is_dropped_or_altered(brokerd_instance: RigInstance) -> None:
    bk = brokerd_instance.session
    await bk.apply(
        {
            "broker": {"name": "main", "default_encryption": "off"},
            "queue": [{"name": "shop_q", "status": "off"}],
            "service": [{"name": "shop", "queue": "shop_q"}],
            "route": [{"name": "shop", "service": "shop", "address": "TCP://far:4022"}],
        }
    )
    assert await bk.declare(service="shop") == []
    (queue,) = [row for row in await bk.view("service_queues") if isinstance(row, dict)]
    assert queue["name"] == "shop_q"
    routes = [{"name": "shop", "address": "LOCAL"}]
    other: dict[str, object] = {"broker": {"name": "main"}, "route": routes}
    assert await bk.apply(other, ensure=True) == []
    watch = {"name": "watch", "events": ["DROP_QUEUE"], "service": "ops"}
    more: dict[str, object] = {
        "broker": {"name": "main"},
        "queue": [{"name": "shop_q"}],
        "service": [
            {"name": "shop", "queue": "shop_q"},
            {"name": "ops", "queue": "shop_q", "contracts": ["urn:brokerd:PostEventNotification"]},
        ],
        "priority": [{"name": "first", "local_service": "shop", "level": 9}],
        "event_notification": [watch],
    }
    made = names(await bk.apply(more, ensure=True))
    assert {kind for _, kind, _ in made} == {"service", "priority", "event_notification"}
    assert await bk.apply(more, ensure=True) == []


async def test_another_contract_of_that_name_is_refused(brokerd_instance: RigInstance) -> None:
    bk = brokerd_instance.session
    await bk.declare(orders)
    with pytest.raises(ObjectsRefused, match=r"orders/v1 is there with other types: .*Cancel") as e:
        await bk.declare(Contract("orders/v1", initiator=[Order], target=[Packed]), service="new")
    assert "orders/v2" in e.value.hint
    with pytest.raises(Exception, match="no service new"):
        await bk.queue_of("new")


async def test_an_app_brings_its_queues_and_its_service(brokerd_instance: RigInstance) -> None:
    bk = brokerd_instance.session
    app = App("warehouse")

    @app.activate("fast", contract=orders)
    async def order(order: Order) -> None: ...

    @app.activate("slow")
    async def raw(body: bytes) -> None: ...

    await bk.declare(app)
    assert await bk.queue_of("warehouse") == "fast"
    assert await contracts(bk, "warehouse") == {"DEFAULT", "orders/v1"}
    queues = {row["name"] for row in await bk.view("service_queues") if isinstance(row, dict)}
    assert {"fast", "slow"} <= queues
