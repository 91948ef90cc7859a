"""Three real daemons: a sender, and two partners that share the file of one broker (RTE-50 to 59).

Between them are relays of this process, so that a way can be cut as a network cuts it: nothing
passes, and nobody is told."""

import asyncio
import inspect
import signal
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from brokerd.client.connecting import Connecting
from brokerd.client.session import Session, connect
from brokerd.errors import BrokerError
from brokerd.testing.check import Violation, check
from brokerd.testing.history import History
from brokerd.testing.trace import Trace
from tests import warm
from tests.acceptance.serving import free_port
from tests.engine.simulation.recording import (
    INITIATOR,
    TARGET,
    Label,
    Recording,
    make_body,
    read_label,
)
from tests.relay import Relay

SHARED = "app"
FIGURES = """
[clock]
tick = "200ms"
[transport]
connect_timeout = "1s"
login_timeout = "1s"
suppress_lost = "200ms"
suppress_failed = "200ms"
ping_after = "500ms"
ping_timeout = "500ms"
[dialog]
retry_first = "300ms"
retry_max = "1s"
"""
MESSAGES = """
[[message_type]]
name = "Order"
[[message_type]]
name = "Reply"
[[contract]]
name = "orders"
types = { "Order" = "initiator", "Reply" = "target" }
"""
SHOP = f"""
[broker]
name = "main"
default_encryption = "off"
{MESSAGES}
[[queue]]
name = "shop_q"
[[service]]
name = "shop"
queue = "shop_q"
"""
LOOK = 0.05
"""Seconds between two looks at what another process does."""


MOST_OPEN = 50


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for what no signal of another process tells."""
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        await asyncio.sleep(LOOK)


class Node:
    """One daemon, its files and its relay."""

    def __init__(self, folder: Path, name: str, *, shared: Path | None) -> None:
        self.name = name
        self._folder = folder / name
        self._folder.mkdir()
        self._shared = shared
        self.port = free_port()
        self.relay = Relay(self.port)
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = self._folder / "b.toml"
        self._objects = self._folder / "o.toml"
        mirroring = ""
        if shared is not None:
            mirroring = f'[mirroring]\nbrokers = ["{SHARED}"]\ndirectory = "{shared}"\n'
        self._settings.write_text(
            f'[instance]\nname = "{name}"\ndata_dir = "d"\n{mirroring}'
            f'[endpoint]\nlisten = ["127.0.0.1"]\nport = {self.port}\n'
            f'encryption = "disabled"\nauthentication = "none"\n{FIGURES}'
        )

    @property
    def address(self) -> str:
        return f"unix:{self._folder}/d/brokerd.sock"

    @property
    def relayed(self) -> str:
        return f"TCP://127.0.0.1:{self.relay.port}"

    def declare(self, objects: str) -> None:
        self._objects.write_text(objects)

    async def start(self) -> None:
        words = ["serve", "-c", str(self._settings), "--objects", str(self._objects)]
        with (self._folder / "log").open("ab") as log:
            self._process = warm.Process(
                [*warm.COMMAND, *words], stdout=log, stderr=log, env=warm.environment()
            )
        async with connect(self.address, broker="msdb", wait=60):
            pass

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill -9, and wait until it is gone: its lock is free then."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    async def row(self, view: str, **where: object) -> dict[str, object]:
        async with connect(self.address, broker="msdb", wait=10) as session:
            (row,) = await session.view(view, where=where)
            return dict(row)

    async def role(self) -> object:
        return (await self.row("brokers", name=SHARED))["role"]

    async def received(self) -> object:
        """Fragments that came to it since it was started."""
        return (await self.row("transport_counters"))["fragment_receives_total"]

    async def becomes(self, role: str) -> None:
        await until(lambda: self._is(role))

    async def _is(self, role: str) -> bool:
        return await self.role() == role


class Trio:
    """The three of them, under load; what clients asked and were told is recorded."""

    def __init__(self, folder: Path) -> None:
        shared = folder / "s"
        shared.mkdir()
        self.sender = Node(folder, "sender", shared=None)
        self.left = Node(folder, "left", shared=shared)
        self.right = Node(folder, "right", shared=shared)
        self.nodes = (self.sender, self.left, self.right)
        loop = asyncio.get_running_loop()
        self.history = History(loop.time)
        self._recording = Recording(self.history, Trace(loop.time), Counter())
        self._hurry = False
        self._open: set[str] = set()
        self._tries: Counter[str] = Counter()
        self.answered = 0

    async def start(self) -> None:
        for node in self.nodes:
            await node.relay.start()
        self.sender.declare(SHOP)
        objects = SHOP.replace('name = "main"', f'name = "{SHARED}"', 1)
        objects = objects.replace("shop", "warehouse")
        objects += 'contracts = ["orders"]\n'
        objects += (
            f'[[route]]\nname = "back"\nservice = "shop"\naddress = "{self.sender.relayed}"\n'
        )
        for node in (self.left, self.right):
            node.declare(objects)
        await asyncio.gather(self.sender.start(), self.left.start())
        await self.right.start()
        row = await self.left.row("brokers", name=SHARED)
        async with connect(self.sender.address, broker="main") as session:
            await session.create(
                "route",
                "to_warehouse",
                service="warehouse",
                broker=str(row["broker_id"]),
                address=self.left.relayed,
                mirror=self.right.relayed,
            )

    async def stop(self) -> None:
        for node in self.nodes:
            node.kill()
            await node.relay.stop()

    async def status(self) -> str:
        """The status of what waits at the sender; empty if nothing does."""
        async with connect(self.sender.address, broker="main") as session:
            rows = await session.view("transmission_queue")
            return str(rows[0]["status_key"]) if rows else ""

    async def waits_with(self, status: str) -> None:
        await until(lambda: self._waits(status))

    async def _waits(self, status: str) -> bool:
        return await self.status() == status

    async def more(self, count: int = 30) -> None:
        """Until so many more orders have been answered."""
        wanted = self.answered + count
        await until(lambda: self.answered >= wanted)

    async def work(self) -> None:
        """Send, answer and read, until `finish` and all is answered."""
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._answer(self.left)),
                tasks.create_task(self._answer(self.right)),
                tasks.create_task(self._read()),
            ]
            await self._write()
            await until(lambda: not self._open)
            for task in running:
                task.cancel()

    def finish(self) -> None:
        self._hurry = True

    def judge(self) -> list[Violation]:
        """What the history says; nothing is stored any more."""
        return check(self.history, stores=())

    async def _write(self) -> None:
        number = 0
        async with self._session(self.sender, "main") as session:
            while not self._hurry:
                name = f"d{number}"
                handle = await session.begin_dialog("shop", "warehouse", "orders", encryption=False)
                for _ in range(10):
                    number += 1
                    label = Label(f"o{number}", name, INITIATOR)
                    self._open.add(label.uid)
                    await session.send(handle, make_body(label, 100), "Order")
                    await until(lambda: len(self._open) < MOST_OPEN or self._hurry)

    async def _read(self) -> None:
        async with self._session(self.sender, "main") as session:
            while True:
                async with session.transaction() as tx:
                    messages = await tx.receive("shop_q", 50, wait=1.0)
                for label in filter(None, (read_label(one.body) for one in messages)):
                    self._open.discard(label.uid.removeprefix("re-").partition("-try")[0])
                    self.answered += 1

    async def _answer(self, node: Node) -> None:
        """At one partner, whenever it is principal."""
        while True:
            with suppress(BrokerError):
                async with self._session(node, SHARED) as session:
                    while True:
                        async with session.transaction() as tx:
                            for message in await tx.receive("warehouse_q", 20, wait=1.0):
                                label = read_label(message.body)
                                assert label is not None
                                self._tries[label.uid] += 1
                                tries = self._tries[label.uid]
                                uid = f"re-{label.uid}" + (f"-try{tries}" if tries > 1 else "")
                                body = make_body(Label(uid, label.dialog, TARGET), 100)
                                await tx.send(message.handle, body, "Reply")
            await asyncio.sleep(LOOK)

    def _session(self, node: Node, broker: str) -> Connecting[Session]:
        return connect(node.address, broker=broker, wait=0, retry=0.1, recorder=self._recording)
