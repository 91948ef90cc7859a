"""Two machines with a daemon each, on virtual time, that know nothing of each other."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

from brokerd.broker.broker import Broker
from brokerd.client.session import Session, connect
from brokerd.config.settings import Clients, Encryption, Endpoint, Settings
from brokerd.config.settings import Instance as InstanceSettings
from brokerd.ids import BootId, SeededIds
from brokerd.instance.instance import Instance, Surroundings
from brokerd.objects.declarations import parse
from brokerd.security.credentials import Credentials
from brokerd.storage.executors import Inline
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import VirtualLoop, run
from brokerd.testing.network import SimNetwork
from brokerd.testing.rng import Streams
from tests.integration.one_daemon import START, Log

PORT = 4022
CLIENTS = 7001


def objects(name: str) -> dict[str, Any]:
    return {
        "broker": {"name": "main", "default_encryption": "on"},
        "message_type": [{"name": "Ask"}],
        "contract": [{"name": "talk", "types": {"Ask": "any"}}],
        "queue": [{"name": "box"}],
        "service": [
            {"name": f"urn:{name}", "queue": "box", "contracts": ["talk"]},
            {"name": f"urn:{name}-secret", "queue": "box", "contracts": ["talk"]},
        ],
    }


class Machine:
    """One daemon; it can be stopped and started again."""

    def __init__(self, loop: VirtualLoop, streams: Streams, network: SimNetwork, name: str) -> None:
        self.name = name
        self.clock = SimClock(loop, utc_start=START)
        self.network = network
        self.log = Log()
        self.encryption = Encryption.REQUIRED
        self.has_endpoint = True
        self.accept_rotation = True
        self.fault: Callable[[str], None] | None = None
        self._streams = streams
        self._boots = 0
        self.folder: Path
        self.instance: Instance
        self.session: Session

    @property
    def address(self) -> str:
        return f"tcp://{self.name}:{PORT}"

    @property
    def broker(self) -> Broker:
        return self.instance.brokers["main"]

    @property
    def credentials(self) -> Credentials:
        return self.instance.parts.credentials

    async def start(self, folder: Path) -> None:
        self._boots += 1
        self.folder = folder
        boot = self._streams.child(f"{self.name}{self._boots}")
        endpoint = Endpoint(
            listen=(self.name,),
            port=PORT,
            encryption=self.encryption,
            accept_rotation=self.accept_rotation,
        )
        settings = Settings(
            instance=InstanceSettings(name=self.name, data_dir=folder / self.name),
            clients=Clients(listen=f"TCP://{self.name}:{CLIENTS}", trust_network=True),
            endpoint=endpoint if self.has_endpoint else None,
        )
        settings.instance.data_dir.mkdir(exist_ok=True)
        around = Surroundings(
            clock=self.clock,
            ids=SeededIds(boot.stream("ids")),
            rng=boot.stream("rng"),
            network=self.network.for_node(self.name),
            executor=Inline(),
            log=self.log,
            boot_id=BootId(boot.stream("boot").randbytes(16)),
            keys=boot.stream("keys").randbytes,
            fault=self.fault,
        )
        self.instance = Instance(settings, around)
        await self.instance.start(parse(objects(self.name)))
        network = self.network.for_node("client")

        async def connector(
            factory: Callable[[], asyncio.Protocol],
        ) -> tuple[asyncio.Transport, asyncio.Protocol]:
            return await network.connect(factory, f"TCP://{self.name}:{CLIENTS}")

        self.session = await connect(
            broker="main",
            connector=connector,
            clock=self.clock,
            ids=SeededIds(boot.stream("client ids")),
            rng=Random(1),
        )

    async def stop(self) -> None:
        await self.session.close()
        await self.instance.stop(timedelta(seconds=1))
        if self.instance.failed.done():
            raise self.instance.failed.result()

    def picture(self) -> tuple[object, ...]:
        """Everything that a pairing may change."""
        catalog = self.broker.store.catalog
        return (
            dict(self.credentials.principals),
            dict(self.credentials.certificates),
            {str(one) for one in self.instance.parts.grants.online},
            catalog.routes,
            catalog.remote_service_bindings,
        )


Program = Callable[[Machine, Machine], Awaitable[None]]


def two_machines(test: Program) -> Callable[[Path], None]:
    """Run a test with two machines."""

    @wraps(test)
    def play(tmp_path: Path) -> None:
        async def main(loop: VirtualLoop, streams: Streams) -> None:
            network = SimNetwork(loop, streams.stream("network"))
            east, west = (Machine(loop, streams, network, name) for name in ("east", "west"))
            for one in (east, west):
                await one.start(tmp_path)
            await test(east, west)
            for one in (east, west):
                await one.stop()

        run(main, seed=1, limit=20_000)

    del play.__wrapped__  # its arguments are not fixtures
    return play
