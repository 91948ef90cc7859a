"""A scene: two instances over TCP, with something of everything that the page shows."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from brokerd.config.settings import Authentication, Encryption, Endpoint
from brokerd.ids import show
from tests.integration.http.page.conftest import Site

PLAIN = Endpoint(
    listen=("127.0.0.1",),
    port=0,
    encryption=Encryption.DISABLED,
    authentication=Authentication.NONE,
)
HERE: dict[str, Any] = {
    "broker": {"name": "main", "default_encryption": "off"},
    "queue": [
        {"name": "shop"},
        {"name": "orders"},
        {"name": "invoices"},
        {"name": "mail", "max_messages": 3},
        {
            "name": "thumbnails",
            "activation": {"handler": "tests.integration.handlers:nothing", "max_readers": 2},
        },
        *({"name": f"region-{number:02d}"} for number in range(60)),
    ],
    "service": [
        {"name": "urn:shop", "queue": "shop", "contracts": ["DEFAULT"]},
        {"name": "urn:orders", "queue": "orders", "contracts": ["DEFAULT"]},
        {"name": "urn:invoices", "queue": "invoices", "contracts": ["DEFAULT"]},
        {"name": "urn:mail", "queue": "mail", "contracts": ["DEFAULT"]},
        {"name": "urn:region", "queue": "region-07", "contracts": ["DEFAULT"]},
        {"name": "urn:eleven", "queue": "region-11", "contracts": ["DEFAULT"]},
    ],
}
THERE: dict[str, Any] = {
    "broker": {"name": "store", "default_encryption": "off"},
    "queue": [{"name": "warehouse"}],
    "service": [{"name": "urn:warehouse", "queue": "warehouse", "contracts": ["DEFAULT"]}],
}
ERROR = """Traceback (most recent call last):
  File "/srv/shop/handlers.py", line 41, in on_order
    price = PRICES[order.sku]
KeyError: 'A-1009'"""


class Scene:
    """The two instances, and the dialogs between them."""

    def __init__(self, here: Site, there: Site) -> None:
        self.here = here
        self.there = there
        self.group = ""
        self.dialog = b""
        self.waiting = b""

    async def play(self) -> None:
        """Have everything happen."""
        here, there = self.here, self.there
        await here.session.apply(
            {"broker": {"name": "main"}, "route": [_route("warehouse", there, "urn:warehouse")]},
            ensure=True,
        )
        await there.session.apply(
            {"broker": {"name": "store"}, "route": [_route("shop", here, "urn:shop")]}, ensure=True
        )
        self.dialog = await here.send(
            b'{"sku": "A-7", "count": 2}', b'{"sku": "B-3", "count": 1}', to="urn:warehouse"
        )
        await self.arrived(2)
        async with there.session.transaction() as tx:
            (first, *_rest) = await tx.receive("warehouse", max_messages=1)
            await tx.send(first.handle, b'{"picked": true}')
        self.group = await here.park(
            b'{"sku": "A-1009", "count": 3, "customer": "Zo\xc3\xab"}', b"next", error=ERROR
        )
        for number in range(12):
            await here.send(b"invoice %d" % number, to="urn:invoices")
        await here.session.alter("queue", "invoices", status="off")
        for number in range(3):
            await here.send(b"mail %d" % number, to="urn:mail")
        await here.send(b"west", to="urn:region")
        self.waiting = await here.send(b"lost?", to="urn:nowhere")

    async def arrived(self, count: int) -> None:
        """Wait until messages have arrived at the other instance."""
        queue = self.there.instance.brokers["store"].queues["warehouse"]
        while queue.ready_count < count:
            await self.there.instance.surroundings.clock.sleep_until(0)

    @property
    def pages(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Every section, by a name for its picture."""
        return {
            "now": ("/", {}),
            "queues": ("/queues", {}),
            "queues-by-name": ("/queues", {"sort": "name"}),
            "queue": ("/queue", {"name": "invoices"}),
            "dialogs": ("/dialogs", {}),
            "dialog": ("/dialog", {"handle": show(self.dialog)}),
            "dialog-waiting": ("/dialog", {"handle": show(self.waiting)}),
            "parked": ("/parked", {}),
            "group": ("/group", {"group": self.group}),
            "network": ("/network", {}),
            "readers": ("/readers", {"queue": "thumbnails"}),
            "release": ("/confirm/release", {"group": self.group}),
            "discard": ("/confirm/discard", {"group": self.group}),
            "switch": ("/confirm/switch", {"queue": "invoices", "status": "on"}),
        }


def _route(name: str, to: Site, service: str) -> dict[str, str]:
    (address,) = to.instance.parts.destinations.listeners
    return {"name": name, "service": service, "address": str(address.address)}


async def scene_at(folder: Path) -> AsyncIterator[Scene]:
    """Run the two instances; the owner of the first looks at its page."""
    here = Site(folder / "here", HERE, endpoint=PLAIN)
    there = Site(folder / "there", THERE, name="depot", endpoint=PLAIN)
    await there.start()
    await here.start()
    try:
        await here.let_in()
        scene = Scene(here, there)
        await scene.play()
        yield scene
    finally:
        await here.stop()
        await there.stop()
