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
import pwd
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peerbench.api import Client as BaseClient
from peerbench.api import Server as BaseServer
from peerbench.api import free_port, wait_port

from brokerd.client.session import Session, connect
from brokerd.client.tls import Tls
from brokerd.client.transaction import Transaction

DIALOGS = 4
"""Dialogs that one client sends on to one queue, in turn."""
OBJECTS = """
[broker]
name = "bench"
default_encryption = "{dialogs}"
[[message_type]]
name = "Item"
[[contract]]
name = "bench/v1"
types = {{ Item = "any" }}
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
listen = "{clients}"
[endpoint]
listen = ["127.0.0.1"]
port = {port}
{transport}
{store}
"""
HOST = os.environ.get("BROKERD_BENCH_HOST", "192.0.2.1")
"""Address beyond loopback that this machine has: only there do clients have to encrypt.

For example in a network namespace: `ip addr add 192.0.2.1/32 dev lo`."""
PLAIN = 'encryption = "disabled"\nauthentication = "none"'
CODE = re.compile(r"^\s*([0-9A-Z-]{40,})\s*$", re.MULTILINE)
"""The code that `brokerd peer pair` prints."""


class Server(BaseServer):
    """One daemon; two that are linked for W5."""

    driver = __name__
    durability = "in SQLite's WAL, synced (synchronous=FULL) before the confirm; receives too"
    settings = (
        f"{DIALOGS} dialogs a client and queue; receive, reply and acknowledgement in one "
        "transaction; all options at their defaults"
    )
    ack_modes = ("batch",)

    def __init__(
        self,
        *,
        linked: bool = False,
        in_transactions: bool = False,
        over_tcp: bool = False,
        tls: bool = False,
        secured: bool = False,
        postgresql: bool = False,
        standby: bool = False,
    ) -> None:
        """Describe a row.

        `over_tcp`: clients connect by TCP on loopback, and with `tls` encrypted. Between linked
        daemons `tls` encrypts the connection, and `secured` the dialogs from end to end as well.
        `postgresql`: the stores are in a server that the row starts, whose commits wait for a
        second one with `standby`."""
        super().__init__()
        self._cluster = Cluster(self, standby=standby) if postgresql else None
        self._in_transactions = in_transactions
        self._over_tcp, self._tls, self._secured = over_tcp, tls, secured
        self._client_ports: dict[str, int] = {}
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
        if self._cluster is not None:
            self._cluster.launch()
        for side in self._sides:
            self._ports[side], self._client_ports[side] = free_port(), free_port()
        for side in self._sides:
            directory = Path(self.root) / side
            directory.mkdir()
            settings, objects = self._settings(side), directory / "objects.toml"
            settings.write_text(
                SETTINGS.format(
                    name=side,
                    clients=self._listen(side),
                    port=self._ports[side],
                    transport="" if self._tls and len(self._sides) > 1 else PLAIN,
                    store="" if self._cluster is None else self._cluster.store,
                )
            )
            objects.write_text(OBJECTS.format(dialogs="on" if self._secured else "off"))
            command = [sys.executable, "-m", "brokerd", "serve", "-c", str(settings)]
            command += ["--objects", str(objects)]
            if self._has_tls_clients:
                self._certify(side, command)
            self.spawn(command, env=dict(os.environ))
        asyncio.run(self._reach_all())
        if self._tls and len(self._sides) > 1:
            self._pair()

    def _certify(self, side: str, first: list[str]) -> None:
        """Make the client's certificate, over a socket that is there for that alone."""
        daemon = self.spawn(first, env=dict(os.environ) | {"BROKERD_CLIENTS__LISTEN": ""})
        asyncio.run(self._reach_unix(side))
        self._run(side, "client", "new", "bench", "--out", str(self._keys(side)), unix=True)
        self._run(side, "grant", "control on * to client:bench", unix=True)
        self.terminate(daemon)
        self.procs.remove(daemon)

    def _settings(self, side: str) -> Path:
        return Path(self.root) / side / "settings.toml"

    def _pair(self) -> None:
        """Let the two daemons know each other's certificates."""
        shown = self._run("send", "peer", "pair", "--no-wait")
        code = CODE.search(shown)
        if code is None:
            raise RuntimeError(f"no pairing code in: {shown}")
        self._run("recv", "peer", "pair", code[1])
        for side, far in (("send", "recv"), ("recv", "send")):
            who = f"peer:{far}" if self._secured else "public"  # in clear nobody is proven
            self._run(side, "grant", f"send on * to {who}")

    @property
    def _has_tls_clients(self) -> bool:
        return self._tls and len(self._sides) == 1

    def _keys(self, side: str) -> Path:
        return Path(self.root) / side / "keys"

    def _socket(self, side: str) -> str:
        return f"unix:{Path(self.root) / side / 'data' / 'brokerd.sock'}"

    async def _reach_unix(self, side: str) -> None:
        await (await connect(self._socket(side), broker="bench", wait=30)).close()

    def _run(self, side: str, *command: str, unix: bool = False) -> str:
        full = [sys.executable, "-m", "brokerd", *command]
        where = self._socket(side) if unix else self._listen(side)
        done = subprocess.run(
            [*full, "--address", where],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    async def _reach_all(self) -> None:
        for side in self._sides:
            where = self.endpoint(side)
            await (await connect_to(where, wait=30)).close()

    def _listen(self, side: str) -> str:
        if self._over_tcp:
            return f"TCP://{HOST if self._tls else '127.0.0.1'}:{self._client_ports[side]}"
        return f"unix:{Path(self.root) / side / 's'}"

    def endpoint(self, side: str) -> dict[str, object]:
        """The daemon on that side."""
        mine = side if side in self._sides else "both"
        return {
            "address": self._listen(mine),
            "receives": mine != "send",
            "in_transactions": self._in_transactions,
            "tls": self._files(mine) if self._has_tls_clients else None,
        }

    def _files(self, side: str) -> dict[str, str]:
        keys = self._keys(side)
        files = {"certificate": "bench.pem", "key": "bench.key", "server": "server.pem"}
        return {name: str(keys / file) for name, file in files.items()}

    def link(self, q: str) -> None:
        """Routes there and back between two daemons."""
        asyncio.run(self._link(q))

    async def _link(self, q: str) -> None:
        for side, far, service in (("send", "recv", q), ("recv", "send", "sender")):
            async with await connect_to(self.endpoint(side)) as session:
                if any(one["name"] == f"to_{service}" for one in await session.objects("route")):
                    continue
                address = f"TCP://127.0.0.1:{self._ports[far]}"
                await session.create("route", f"to_{service}", service=service, address=address)
                if self._secured:
                    peer = f"peer:{far}"
                    await session.create(
                        "remote_service_binding", f"to_{service}", service=service, principal=peer
                    )


class Cluster:
    """The PostgreSQL servers of a row, with their settings at their defaults."""

    def __init__(self, server: Server, *, standby: bool) -> None:
        """Describe them."""
        self._server, self._standby = server, standby
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            owner = pwd.getpwnam("postgres")
            self._as = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        self._owner = self._as.get("user", os.getuid())
        self.store = ""
        """The settings of a daemon whose stores are there."""

    def launch(self) -> None:
        """Start a server, and a standby that its commits wait for if there is to be one."""
        primary = self._folder("primary")
        self._run("initdb", "-D", primary, "-A", "trust", "-U", "bench", "-E", "UTF8", "-N")
        port = self._spawn(primary)
        if self._standby:
            second = self._folder("standby")
            self._run("pg_basebackup", "-D", second, "-h", "127.0.0.1", "-p", port, "-U", "bench",
                      "-R", "-N", "-c", "fast", "-d", "application_name=second")  # fmt: skip
            self._spawn(second)
            for line in ("ALTER SYSTEM SET synchronous_standby_names = second",
                         "SELECT pg_reload_conf()"):  # fmt: skip
                self._run("psql", "-h", "127.0.0.1", "-p", port, "-U", "bench", "-d", "postgres",
                          "-qc", line)  # fmt: skip
        url = f"postgresql://bench@127.0.0.1:{port}/postgres"
        required = "\nrequire_standby = true" if self._standby else ""
        self.store = f'[store]\nurl = "{url}"{required}'

    def _folder(self, name: str) -> str:
        made = Path(self._server.root) / name
        made.mkdir(mode=0o700)
        os.chown(made, self._owner, -1)
        return str(made)

    def _run(self, program: str, *arguments: str) -> None:
        command = [_binary(program), *arguments]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, **self._as)

    def _spawn(self, data: str) -> str:
        port = free_port()
        options = ["listen_addresses=127.0.0.1", "unix_socket_directories="]
        process = self._server.spawn(
            [_binary("postgres"), "-D", data, "-p", str(port)]
            + [word for one in options for word in ("-c", one)],
            cwd="/",
            **self._as,
        )
        wait_port(port, process)
        return str(port)


def _binary(name: str) -> str:
    """Debian keeps the programs of each version in a folder of its own."""
    return str(max(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), default=name))


async def connect_to(ep: dict[str, object], *, wait: float = 0) -> Session:
    """Connect to a daemon as its `Server.endpoint` describes it."""
    files = ep["tls"]
    tls = Tls(**files) if isinstance(files, dict) else None
    return await connect(str(ep["address"]), broker="bench", wait=wait, tls=tls)


class Client(BaseClient):
    """One session; each send is a transaction of its own, or a hundred are one."""

    async def connect(self, ep: dict[str, object]) -> None:
        """Connect; what is below is filled in as queues are used."""
        self._ep = ep
        self.pipelined = not ep["in_transactions"]
        self._session: Session = await connect_to(ep, wait=30)
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
    "brokerd-postgresql": Server(postgresql=True),
    "brokerd-postgresql-standby": Server(postgresql=True, standby=True),
    "brokerd-link": Server(linked=True),
    "brokerd-tcp": Server(over_tcp=True),
    "brokerd-tls": Server(over_tcp=True, tls=True),
    "brokerd-link-tls": Server(linked=True, tls=True),
    "brokerd-link-secured": Server(linked=True, tls=True, secured=True),
}
