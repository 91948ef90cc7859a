"""The fixtures that come with the package, used as a user uses them (SDK-16)."""

from dataclasses import dataclass

import pytest

from brokerd import App, Contract
from brokerd.testing.rig import RigClock, RigInstance

pytestmark = pytest.mark.rule("SDK-16")
Pair = tuple[RigInstance, RigInstance]


@dataclass
class PlaceOrder:
    sku: str
    qty: int


@dataclass
class Accepted:
    sku: str


orders = Contract("orders/v1", initiator=[PlaceOrder], target=[Accepted])


def make_app() -> App:
    app = App("warehouse")

    @app.activate(contract=orders)
    async def on_order(order: PlaceOrder) -> Accepted | None:
        return Accepted(order.sku) if order.qty else None

    return app


async def test_two_sides_and_a_cut_link(brokerd_pair: Pair, brokerd_clock: RigClock) -> None:
    shop, warehouse = brokerd_pair
    await warehouse.run(make_app())
    shop.link.cut()
    receipt = await shop.post("warehouse", PlaceOrder("A1", 0))
    await brokerd_clock.advance("2h")
    shop.link.heal(duplicate=0.2, reorder=0.2, drop=0.2)
    await receipt.processed()
    warehouse.assert_once(PlaceOrder)
    await shop.assert_settled()
    await warehouse.assert_settled()
