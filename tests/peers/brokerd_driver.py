"""brokerd as one of the peers of a benchmark of durable queues: what a user of the SDK would write.

Reads:  the endpoint the harness hands over.      Calls: `brokerd serve`, the public SDK.
Never:  confirms before the commit is on disk, or does anything a program could not do.

It is loaded by the harness (`--driver tests/peers/brokerd_driver.py`), whose `peerbench.api` says
what the two classes provide. Each queue of the harness is a queue with a service of its own name;
each client sends on four dialogs in turn, because messages of one dialog are in order, and so are
received by one consumer at a time: with eight clients that is four dialogs for each of eight
consumers. With many more, what is measured is how dialogs begin: eight workers that reply to eight
queues on 64 dialogs each begin 4,096 while they are measured.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from peerbench.api import Client as BaseClient
from peerbench.api import Server as BaseServer
from peerbench.api import free_port

from brokerd.client.session import Session, connect
from brokerd.client.transaction import Transaction

DIALOGS = 4
"""Dialogs that one client sends on to one queue, in turn."""
OBJECTS = """
[broker]
name = "bench"
default_encryption = "off"
[[message_type]]
name = "Item"
[[contract]]
name = "bench/v1"
types = { Item = "any" }
[[queue]]
name = "senders"
[[service]]
name = "sender"
queue = "senders"
"""
SETTINGS = """
[instance]
name = "{name}"
data_dir = "data"
[clients]
listen = "unix:{socket}"
[endpoint]
listen = ["127.0.0.1"]
port = {port}
encryption = "disabled"
authentication = "none"
"""


class Server(BaseServer):
    """One daemon; two that are linked for W5."""

    driver = __name__
    durability = "in SQLite's WAL, synced (synchronous=FULL) before the confirm; receives too"
    settings = (
        f"{DIALOGS} dialogs a client and queue; receive, reply and acknowledgement in one "
        "transaction; all options at their defaults"
    )
    ack_modes = ("batch",)

    def __init__(self, *, linked: bool = False, in_transactions: bool = False) -> None:
        super().__init__()
        self._in_transactions = in_transactions
        self.workloads: tuple[str, ...] = BaseServer.workloads
        if in_transactions:
            self.workloads, self.windows = ("W1",), (100,)
            self.settings = "a hundred sends a transaction; all options at their defaults"
        self._sides = ("send", "recv") if linked else ("both",)
        self._ports: dict[str, int] = {}
        if linked:
            self.workloads = ("W5", "W5L")

    def version(self) -> str:
        """Of the installed distribution."""
        return "brokerd " + version("brokerd")

    def launch(self) -> None:
        """Start the daemons, each in a directory of its own, and wait for their sockets."""
        for side in self._sides:
            self._ports[side] = free_port()
        for side in self._sides:
            directory = Path(self.root) / side
            directory.mkdir()
            settings, objects = directory / "settings.toml", directory / "objects.toml"
            settings.write_text(
                SETTINGS.format(name=side, socket=directory / "s", port=self._ports[side])
            )
            objects.write_text(OBJECTS)
            command = [sys.executable, "-m", "brokerd", "serve", "-c", str(settings)]
            self.spawn([*command, "--objects", str(objects)], env=dict(os.environ))
        asyncio.run(self._reach_all())

    async def _reach_all(self) -> None:
        for side in self._sides:
            await (await connect(self._address(side), broker="bench", wait=30)).close()

    def _address(self, side: str) -> str:
        return f"unix:{Path(self.root) / side / 's'}"

    def endpoint(self, side: str) -> dict[str, object]:
        """The daemon on that side."""
        mine = side if side in self._sides else "both"
        return {
            "address": self._address(mine),
            "receives": mine != "send",
            "in_transactions": self._in_transactions,
        }

    def link(self, q: str) -> None:
        """Routes there and back between two daemons."""
        asyncio.run(self._link(q))

    async def _link(self, q: str) -> None:
        for side, far, service in (("send", "recv", q), ("recv", "send", "sender")):
            async with await connect(self._address(side), broker="bench") as session:
                if any(one["name"] == f"to_{service}" for one in await session.objects("route")):
                    continue
                address = f"TCP://127.0.0.1:{self._ports[far]}"
                await session.create("route", f"to_{service}", service=service, address=address)


class Client(BaseClient):
    """One session; each send is a transaction of its own, or a hundred are one."""

    async def connect(self, ep: dict[str, object]) -> None:
        """Connect; what is below is filled in as queues are used."""
        self._ep = ep
        self.pipelined = not ep["in_transactions"]
        self._session: Session = await connect(str(ep["address"]), broker="bench", wait=30)
        self._dialogs: dict[str, deque[bytes]] = {}
        self._queue = ""
        self._tx: Transaction | None = None

    async def close(self) -> None:
        """Give back what was received and not acknowledged."""
        if self._tx is not None:
            self._tx.rollback()
        await self._session.close()

    # Queues.

    async def ensure_queue(self, q: str) -> None:
        """A queue with a service of its name, where messages are received."""
        if self._ep["receives"]:
            await self._session.create("queue", q)
            await self._session.create("service", q, queue=q, contracts=["bench/v1"])

    async def delete_queue(self, q: str) -> None:
        """Drop both; dialogs that are open end."""
        if self._ep["receives"]:
            await self._session.drop("service", q, terminate_existing=True)
            await self._session.drop("queue", q)

    # Sending.

    async def _turn(self, q: str) -> bytes:
        dialogs = self._dialogs.get(q)
        if dialogs is None:
            async with self._session.transaction() as tx:
                made = [await tx.begin_dialog("sender", q, "bench/v1") for _ in range(DIALOGS)]
            dialogs = self._dialogs[q] = deque(made)
        dialogs.rotate(-1)
        return dialogs[0]

    async def submit(self, q: str, body: bytes) -> "asyncio.Future[None]":
        """A send that is a transaction of its own; the future is its commit."""
        return self._session.submit_send(await self._turn(q), body, "Item")

    async def send_batch(self, q: str, bodies: list[bytes]) -> None:
        """All in one transaction."""
        handles = [await self._turn(q) for _ in bodies]
        async with self._session.transaction() as tx:
            for handle, body in zip(handles, bodies, strict=True):
                await tx.send(handle, body, "Item")

    # Receiving.

    async def subscribe(self, q: str, prefetch: int) -> None:  # a receive says how many
        """The queue to receive from."""
        self._queue = q

    async def receive(self, max_n: int, timeout: float) -> list[tuple[object, bytes]]:  # noqa: ASYNC109  # the harness's signature
        """Messages of as many groups as it takes, in a transaction that `ack_batch` commits."""
        tx = self._session.transaction()
        messages = await tx.receive(self._queue, max_n, wait=timeout, groups=max_n)
        if not messages:
            tx.rollback()
            return []
        self._tx = tx
        return [(one.handle, one.body or b"") for one in messages]

    async def ack(self, tokens: list[object]) -> None:  # the transaction knows
        """Commit the receive."""
        tx, self._tx = self._tx, None
        if tx is not None:
            await tx.commit()

    async def serve(
        self,
        max_n: int,
        timeout: float,  # noqa: ASYNC109  # as the harness has it
        handler: Callable[[bytes], tuple[str, bytes]],
    ) -> int:
        """Requests, and a durable reply to each, in one transaction."""
        messages = await self.receive(max_n, timeout)
        tx = self._tx
        if tx is None:
            return 0
        for _, body in messages:
            q, reply = handler(body)
            await tx.send(await self._turn(q), reply, "Item")
        await self.ack([])
        return len(messages)


SERVERS = {
    "brokerd": Server(),
    "brokerd-transactions": Server(in_transactions=True),
    "brokerd-link": Server(linked=True),
}
