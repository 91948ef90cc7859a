"""Daemons with a page, on real sockets and files, and people who look at it."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from brokerd.client.session import Session, connect
from brokerd.clock import SystemClock
from brokerd.config.settings import Clients, ClockSettings, Endpoint, HttpSettings, Settings
from brokerd.config.settings import Instance as InstanceSettings
from brokerd.ids import BootId, RandomIds, show
from brokerd.instance.instance import Instance
from brokerd.instance.surroundings import Surroundings
from brokerd.objects.declarations import parse
from brokerd.transport.network import SystemNetwork
from tests import stores
from tests.integration.peers import Log

OBJECTS: dict[str, Any] = {
    "broker": {"name": "main", "default_encryption": "off"},
    "queue": [{"name": "orders"}, {"name": "shop"}],
    "service": [
        {"name": "urn:orders", "queue": "orders", "contracts": ["DEFAULT"]},
        {"name": "urn:shop", "queue": "shop", "contracts": ["DEFAULT"]},
    ],
}


class Site:
    """One daemon with a page at a free port of loopback, and somebody who looks at it."""

    session: Session
    instance: Instance
    tick = timedelta(milliseconds=50)
    """Time between periodic passes."""

    def __init__(
        self,
        folder: Path,
        objects: dict[str, Any],
        *,
        name: str = "here",
        endpoint: Endpoint | None = None,
    ) -> None:
        self.name = name
        self.endpoint = endpoint
        self.folder = folder
        self.objects = objects
        self.log = Log()
        folder.mkdir(exist_ok=True)
        self.caller = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def start(self, grants: tuple[str, ...] = ()) -> None:
        ids = RandomIds()
        self.instance = Instance(
            Settings(
                instance=InstanceSettings(name=self.name, data_dir=self.folder),
                clients=Clients(listen=f"unix:{self.folder}/s", grants=grants),
                http=HttpSettings(listen="TCP://127.0.0.1:0"),
                endpoint=self.endpoint,
                clock=ClockSettings(tick=self.tick),
            ),
            Surroundings(
                clock=SystemClock(),
                ids=ids,
                rng=Random(1),
                network=SystemNetwork(),
                executor=stores.inline(self.folder),
                log=self.log,
                boot_id=BootId(ids.fresh()),
                serves_http=True,
            ),
        )
        await self.instance.start(parse(self.objects))
        broker = self.objects["broker"]["name"]
        self.session = await connect(f"unix:{self.folder}/s", broker=broker, retry=1.0)

    async def stop(self) -> None:
        await self.caller.close()
        await self.session.close()
        await self.instance.stop(timedelta(seconds=1))
        if self.instance.failed.done():
            raise self.instance.failed.result()

    @property
    def root(self) -> str:
        assert self.instance.http is not None
        return f"http://127.0.0.1:{self.instance.http.address.rpartition(':')[2]}"

    async def address(self) -> str:
        """Return an address that lets one browser in, as whoever runs the daemon."""
        return (await self.session.admin.open_page()).url

    async def let_in(self) -> None:
        async with self.caller.get(await self.address()) as answer:
            assert answer.status == 200, (await answer.text(), self.log.lines[-1])

    def look_again(self) -> None:
        """Have the next section show the state of that moment."""
        self.instance.parts.surveys.expire()
        self.instance.parts.own_doctor.expire()

    async def get(self, path: str, status: int = 200, /, **query: str) -> str:
        """Return a section as HTML."""
        async with self.caller.get(self.root + path, params=query) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text

    async def json(self, path: str, /, **query: str) -> Any:
        async with self.caller.get(self.root + path, params=query) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def send(
        self, *bodies: bytes, to: str = "urn:orders", handle: bytes | None = None
    ) -> bytes:
        """Send messages to a service, in a new dialog unless one is given."""
        if handle is None:
            handle = await self.session.begin_dialog("urn:shop", to)
        for body in bodies:
            await self.session.send(handle, body)
        return handle

    async def park(self, *bodies: bytes, error: str = "ValueError: it is odd") -> str:
        """Have a group of the queue `orders` parked, with these messages; return its id."""
        await self.send(*bodies)
        tx = self.session.transaction()
        async with tx:
            (first, *_rest) = await tx.receive("orders")
            options: dict[str, object] = {"error": error, "park": "the handler failed"}
            tx._undo(options)
        return show(first.group_id)


async def site_at(folder: Path, objects: dict[str, Any] = OBJECTS) -> AsyncIterator[Site]:
    """Run a daemon whose owner looks at its page."""
    site = Site(folder, objects)
    await site.start()
    try:
        await site.let_in()
        yield site
    finally:
        await site.stop()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """A daemon whose owner looks at its page."""
    async for one in site_at(tmp_path / "d"):
        yield one
