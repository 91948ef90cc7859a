"""Daemons with an HTTP listener, on real sockets and files, and callers of it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from brokerd.app.session import Session
from brokerd.cli.session import session_with
from brokerd.clock import SystemClock
from brokerd.config.settings import Clients, ClockSettings, HttpSettings, Settings
from brokerd.config.settings import Instance as InstanceSettings
from brokerd.http.listener import HttpListener
from brokerd.ids import BootId, RandomIds
from brokerd.instance.instance import Instance
from brokerd.instance.surroundings import Surroundings
from brokerd.objects.declarations import parse
from brokerd.transport.network import SystemNetwork
from tests import stores
from tests.integration.peers import Log

OBJECTS: dict[str, Any] = {
    "broker": {"name": "main", "default_encryption": "off"},
    "queue": [{"name": "box"}],
    "service": [
        {"name": "urn:shop", "queue": "box", "contracts": ["DEFAULT"]},
    ],
}


class Site:
    """One daemon with its HTTP listener."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = Log()
        self.objects = OBJECTS
        self.instance: Instance
        self.session: Any

    async def start(
        self, http: HttpSettings | None = None, *, grants: tuple[str, ...] = (), **sections: Any
    ) -> None:
        """Start it; by default it listens at a free port of loopback."""
        ids = RandomIds()
        chosen = http or HttpSettings(listen="TCP://127.0.0.1:0")
        surroundings = sections.pop("surroundings", {})
        self.instance = Instance(
            Settings(
                instance=InstanceSettings(name="here", data_dir=self.folder),
                clients=sections.pop("clients", None)
                or Clients(listen=f"unix:{self.folder}/s", grants=grants),
                http=chosen,
                **{"clock": ClockSettings(tick=timedelta(hours=1)), **sections},
            ),
            Surroundings(
                **{
                    "clock": SystemClock(),
                    "ids": ids,
                    "rng": Random(1),
                    "network": SystemNetwork(),
                    "executor": stores.inline(self.folder),
                    "log": self.log,
                    "boot_id": BootId(ids.fresh()),
                    "serves_http": True,
                    **surroundings,
                }
            ),
        )
        await self.instance.start(parse(self.objects))
        self.session = await session_with(f"unix:{self.folder}/s", "main", retry=1.0)

    @property
    def listener(self) -> HttpListener:
        assert self.instance.http is not None
        return self.instance.http

    @property
    def port(self) -> int:
        return int(self.listener.address.rpartition(":")[2])

    def url(self, path: str) -> str:
        """The address of a path, however the listener is reached."""
        if self.listener.address.startswith("unix:"):
            return f"http://localhost{path}"
        return f"http://127.0.0.1:{self.port}{path}"

    async def let_in(self, caller: aiohttp.ClientSession) -> None:
        """Give a caller the cookie, as a browser gets it."""
        found = await self.session.admin.open_page()
        async with caller.get(found.url, allow_redirects=False) as answer:
            assert answer.status == 303, await answer.text()

    async def stop(self) -> None:
        await self.session.close()
        await self.instance.stop(timedelta(seconds=1))
        if self.instance.failed.done():
            raise self.instance.failed.result()
        for line in self.log.of("broker.daemon"):
            if line.get("subclass") == "http_failed":
                raise line["exc_info"]

    async def as_self(self, broker: str) -> Session:
        return await self.instance.local_clients.open_session(broker)


Start = Callable[..., Awaitable[Site]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts daemons, which are stopped at the end."""
    sites: list[Site] = []

    async def started(*args: Any, **options: Any) -> Site:
        site = Site(tmp_path / f"d{len(sites)}")
        await site.start(*args, **options)
        sites.append(site)
        return site

    yield started
    for site in sites:
        await site.stop()


@pytest.fixture
async def caller() -> AsyncIterator[aiohttp.ClientSession]:
    """A browser, as far as cookies are concerned."""
    jar = aiohttp.CookieJar(unsafe=True)  # keeps cookies of addresses, as browsers do
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        yield session
