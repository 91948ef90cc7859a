"""What the tests of the comfortable layer talk about: orders from a shop to a warehouse."""

from dataclasses import dataclass

from brokerd import Contract
from brokerd.testing.rig import RigInstance


@dataclass
class Order:
    sku: str
    qty: int = 1


@dataclass
class Cancel:
    sku: str


@dataclass
class Packed:
    sku: str


@dataclass
class Rejected:
    why: str


orders = Contract("orders/v1", initiator=[Order, Cancel], target=[Packed, Rejected])


async def declare(one: RigInstance) -> None:
    """Both services in one broker."""
    await one.session.declare(orders, service="shop")
    await one.session.declare(orders, service="warehouse", target=True)
    one.session.service = "shop"


async def endpoints(one: RigInstance) -> list[tuple[str, str]]:
    """Service and state of every dialog endpoint that is there."""
    rows = await one.session.view("conversation_endpoints")
    return sorted((row["service_id"], row["state"]) for row in rows if isinstance(row, dict))
