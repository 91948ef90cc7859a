"""One daemon without peers on virtual time: the real instance, its stores written in line."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from brokerd.broker.broker import Broker
from brokerd.broker.options import BrokerOptions
from brokerd.broker.state import Live
from brokerd.client.session import Session, connect
from brokerd.clock import Instant
from brokerd.config.settings import Clients, ClockSettings, Dialog, Settings
from brokerd.config.settings import Instance as InstanceSettings
from brokerd.ids import BootId, Handle, SeededIds
from brokerd.instance.instance import Instance, Surroundings
from brokerd.maintenance.disk_space import Disk
from brokerd.objects.declarations import parse
from brokerd.objects.declared import Declared
from brokerd.storage.rows.deferred_drops import DROPPED
from brokerd.storage.rows.deferred_removals import NOTED
from brokerd.storage.shelves import SHELVES
from brokerd.storage.stretches import table_at
from brokerd.telemetry.metrics_log import MetricsLog
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import VirtualLoop, run
from brokerd.testing.network import SimNetwork
from brokerd.testing.rng import Streams
from tests import stores

T = TypeVar("T")
START = Instant(1_700_000_000_000_000)
ADDRESS = "TCP://daemon:7001"

OBJECTS: dict[str, Any] = {
    "broker": {"name": "main", "default_encryption": "off"},
    "message_type": [
        {"name": "Ask"},
        {"name": "Answer"},
        {"name": "Both"},
        {"name": "Nudge", "validation": "empty"},
        {"name": "Alone"},
    ],
    "contract": [
        {
            "name": "talk",
            "types": {"Ask": "initiator", "Answer": "target", "Both": "any", "Nudge": "any"},
        },
        {"name": "other", "types": {"Both": "any"}},
    ],
    "queue": [{"name": "desk"}, {"name": "shop"}, {"name": "spare"}],
    "service": [
        {"name": "urn:desk", "queue": "desk"},
        {"name": "urn:shop", "queue": "shop", "contracts": ["talk", "DEFAULT"]},
        {"name": "urn:spare", "queue": "spare", "contracts": ["talk"]},
    ],
}


class Log:
    """Keeps what was logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def _write(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    debug = info = warning = error = _write


class Daemon:
    """The instance and what it stands on; it can be stopped or killed, and started again."""

    def __init__(
        self, loop: VirtualLoop, streams: Streams, folder: Path, limits: dict[str, Any]
    ) -> None:
        self.loop = loop
        self.streams = streams
        self.limits = limits
        self.clock = SimClock(loop, utc_start=START)
        self.network = SimNetwork(loop, streams.stream("network"))
        self.log = Log()
        self.objects = dict(OBJECTS)
        self.host: bytes | None = None
        """The machine it believes to be on."""
        self.disk: Disk | None = None
        """The file system it believes to be on."""
        self.executor = stores.inline(folder)
        """Runs the SQL of its stores."""
        self.metrics: Callable[[BootId], MetricsLog] | None = None
        """Makes the metrics log of a boot; without it there is none."""
        self._folder = folder
        self._boots = 0
        self.instance: Instance

    @property
    def broker(self) -> Broker:
        """The broker the tests use."""
        return self.instance.brokers["main"]

    async def start(self, *, declare: bool = True, **settings: Any) -> None:
        """Start the daemon on its stores."""
        self._boots += 1
        boot = self.streams.child(f"boot{self._boots}")
        sizes = {
            k: v
            for k, v in self.limits.items()
            if k in ("max_message", "fragment_size", "check_aside")
        }
        if sizes:
            settings.setdefault("dialog", Dialog(**sizes))
        chosen = Settings(
            instance=InstanceSettings(name="daemon", data_dir=self._folder),
            clients=settings.pop("clients", None) or Clients(listen=ADDRESS, trust_network=True),
            clock=ClockSettings(),
            **settings,
        )
        boot_id = BootId(boot.stream("boot").randbytes(16))
        around = Surroundings(
            clock=self.clock,
            ids=SeededIds(boot.stream("ids")),
            rng=boot.stream("rng"),
            network=self.network.for_node("daemon"),
            executor=self.executor,
            log=self.log,
            boot_id=boot_id,
            metrics=None if self.metrics is None else self.metrics(boot_id),
            host=self.host,
            disk=self.disk,
            limits=BrokerOptions(**self.limits),
        )
        self.instance = Instance(chosen, around)
        await self.instance.start(self.declared() if declare else None)
        for name, value in self.limits.items():
            if name != "max_message":
                assert getattr(self.broker.options, name) == value

    def declared(self) -> Declared:
        """The objects."""
        return parse(self.objects)

    async def restart(self, **settings: Any) -> None:
        """Stop in order and start again, with other settings."""
        await self.stop()
        await self.start(**settings)

    async def stop(self) -> None:
        """Stop in order."""
        await self.instance.stop(timedelta(seconds=1))
        self.check()

    def check(self) -> None:
        """Nothing has failed behind the scenes."""
        if self.instance.failed.done():
            raise self.instance.failed.result()

    async def session(
        self,
        client_id: bytes | None = None,
        broker: str = "main",
        node: str = "client",
        **options: Any,
    ) -> Session:
        """A client over the network."""
        network = self.network.for_node(node)

        async def connector(
            factory: Callable[[], asyncio.Protocol],
        ) -> tuple[asyncio.Transport, asyncio.Protocol]:
            return await network.connect(factory, ADDRESS)

        return await connect(
            broker=broker,
            connector=connector,
            clock=self.clock,
            client_id=client_id,
            ids=SeededIds(self.streams.stream("client ids")),
            rng=Random(1),
            **options,
        )

    async def switch(self, queue: str, *, on: bool) -> None:
        """Switch a queue on or off, as `apply` does."""
        queues = [dict(one) for one in self.objects["queue"]]
        for one in queues:
            if one["name"] == queue:
                one["status"] = "on" if on else "off"
        self.objects = {**self.objects, "queue": queues}
        async with await self.session() as admin:
            await admin.apply(self.objects)

    async def pass_time(self, seconds: float) -> None:
        """Let virtual time go by."""
        await self.clock.sleep_until(self.loop.time() + seconds)


Scenario = Callable[[Daemon], Coroutine[object, object, T]]


def play(
    scenario: Scenario[T], folder: Path, *, seed: int = 1, limit: float = 20_000, **limits: Any
) -> T:
    """Run a scenario against a started daemon, on virtual time, and look for hidden failures."""

    async def main(loop: VirtualLoop, streams: Streams) -> T:
        daemon = Daemon(loop, streams, folder, limits)
        await daemon.start()
        result = await scenario(daemon)
        daemon.check()
        await daemon.stop()
        return result

    return run(main, seed=seed, limit=limit)


def live_of(daemon: Daemon, handle: bytes) -> Live:
    """An endpoint that is in memory."""
    live = daemon.broker.endpoints.find(Handle(handle))
    assert live is not None
    return live


_ON_SHELVES = " UNION ALL ".join(f"SELECT * FROM {table_at(number)}" for number in SHELVES)
WAITING = (
    "(SELECT * FROM (SELECT * FROM queue_messages UNION ALL"
    f" SELECT * FROM ({_ON_SHELVES}) AS shelved WHERE queuing_order NOT IN ({NOTED})) AS stored"
    f" WHERE endpoint_key NOT IN ({DROPPED})) AS queue_messages"
)
"""Messages that wait for local services: what was received from a shelf may stay there for a while,
and so may what an ended dialog had unread (design D4); elsewhere a sweep deletes it."""


async def rows(daemon: Daemon, table: str) -> int:
    """How many rows a table of the broker's store has, once what was received is deleted; that of
    messages with its shelves."""
    table = table.replace("queue_messages", WAITING)
    daemon.broker.store.sweep()
    return await daemon.broker.store.run(
        lambda connection: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    )


@asynccontextmanager
async def closing(*sessions: Session) -> AsyncIterator[None]:
    """Close sessions at the end."""
    try:
        yield
    finally:
        for one in sessions:
            await one.close()


Waiter = Callable[[], Awaitable[None]]
