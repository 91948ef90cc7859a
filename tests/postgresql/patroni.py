"""A cluster of two PostgreSQL servers that Patroni looks after, with an etcd of its own.

Reads:  what the nodes say over HTTP.      Calls: etcd, patroni; as the owner of the servers.
Never:  listens beyond loopback.
Leaves: nothing: all works in the folder of `Servers`, which ends and removes what is there.

Patroni's times are short: a leader that is gone is replaced after six seconds instead of thirty.
"""

import json
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.postgresql import processes, wire
from tests.postgresql.installed import binaries, environment, give, owner
from tests.postgresql.servers import ADMIN, USER, Servers, wait

PROGRAMS = ("patroni", "etcd")
_TTL = 6
_FOLLOWS = (
    "SELECT FROM pg_stat_replication"
    " WHERE application_name = '{}' AND state = 'streaming' AND sync_state = 'sync'"
)
_ROLES = f"CREATE ROLE {USER} LOGIN; GRANT pg_read_all_stats TO {USER}"


def missing() -> list[str]:
    """Return the programs that are not installed here."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Node:
    """One server with its Patroni."""

    def __init__(self, folder: Path, name: str, etcd: int) -> None:
        """`Cluster` makes them."""
        self.folder = folder
        self.name = name
        self.port = _free_port()
        self._api = _free_port()
        self._patroni: subprocess.Popen[bytes] | None = None
        folder.mkdir(mode=0o700)
        give(folder)
        here = f"127.0.0.1:{self.port}"
        user = {"username": ADMIN}
        settings = {
            "scope": "brokerd",
            "name": name,
            "restapi": {
                "listen": f"127.0.0.1:{self._api}",
                "connect_address": f"127.0.0.1:{self._api}",
            },
            "etcd": {"host": f"127.0.0.1:{etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": _TTL,
                    "loop_wait": 1,
                    "retry_timeout": 2,
                    "synchronous_mode": True,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "parameters": {"max_connections": 100, "wal_keep_size": "64MB"},
                    },
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}],
            },
            "postgresql": {
                "listen": here,
                "connect_address": here,
                "bin_dir": str(binaries()),
                "data_dir": str(folder / "data"),
                "authentication": {"superuser": user, "replication": user, "rewind": user},
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
                "parameters": {
                    "unix_socket_directories": str(folder),
                    "shared_buffers": "16MB",
                    "dynamic_shared_memory_type": "mmap",
                    "huge_pages": "off",
                },
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }
        # JSON is YAML.
        (folder / "patroni.yml").write_text(json.dumps(settings, indent=1))

    @property
    def log(self) -> str:
        """What Patroni and its server have said."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start Patroni, which starts the server."""
        self._patroni = _started(["patroni", "patroni.yml"], self.folder)

    def kill(self) -> None:
        """Kill Patroni and its server at once, as a machine that loses its power does."""
        processes.kill(self.folder)
        if self._patroni is not None:
            self._patroni.wait()

    def pause(self) -> None:
        """Stop both where they are."""
        processes.send(signal.SIGSTOP, processes.within(self.folder))

    def resume(self) -> None:
        """Let both go on."""
        processes.send(signal.SIGCONT, processes.within(self.folder))

    def is_leader(self) -> bool:
        """Whether Patroni says that this node has the lock of the leader."""
        return self._answers("/leader")

    def is_synchronous_standby(self) -> bool:
        """Whether Patroni says that commits wait for this node."""
        return self._answers("/synchronous")

    def switch_over(self, candidate: "Node") -> None:
        """Hand the lead over to the other node."""
        body = json.dumps({"leader": self.name, "candidate": candidate.name}).encode()
        with urlopen(Request(f"{self._url}/switchover", data=body), timeout=60):
            pass

    def query(self, sql: str, *, database: str = ADMIN) -> list[tuple[str | None, ...]]:
        """Carry out statements as the administrator; errors as `Server.query`."""
        place = str(self.folder / f".s.PGSQL.{self.port}")
        with wire.Session(place, user=ADMIN, database=database) as session:
            return session.query(sql)

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._api}"

    def _answers(self, path: str) -> bool:
        with suppress(URLError, OSError), urlopen(f"{self._url}{path}", timeout=2) as answer:
            return bool(answer.status == 200)
        return False


class Cluster:
    """Two nodes, one of which follows the other."""

    def __init__(self, servers: Servers) -> None:
        """Make it, not yet started, in the folder of `servers`."""
        self._folder = servers.folder / "etcd"
        self._folder.mkdir(mode=0o700)
        give(self._folder)
        self._port = _free_port()
        self._etcd: subprocess.Popen[bytes] | None = None
        self.nodes = [Node(servers.folder / name, name, self._port) for name in ("n1", "n2")]

    def start(self) -> None:
        """Start etcd and both nodes; return once the second is a synchronous standby."""
        here, peer = f"http://127.0.0.1:{self._port}", f"http://127.0.0.1:{_free_port()}"
        self._etcd = _started(
            [
                "etcd", "--name=e", "--data-dir=data", "--enable-v2",
                f"--listen-client-urls={here}", f"--advertise-client-urls={here}",
                f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=e={peer}",
            ],
            self._folder,
        )  # fmt: skip
        first, second = self.nodes
        first.start()
        wait(first.is_leader, "the first node leads")
        second.start()
        self.wait_until_whole()
        first.query(_ROLES)
        first.query(f"CREATE DATABASE stores OWNER {USER}")

    def close(self) -> None:
        """End all processes."""
        for node in self.nodes:
            node.kill()
        processes.kill(self._folder)
        if self._etcd is not None:
            self._etcd.wait()

    def leader(self) -> Node | None:
        """Return the node that leads; None = none does now."""
        return next((one for one in self.nodes if one.is_leader()), None)

    def other(self, node: Node) -> Node:
        """Return the other node."""
        return self.nodes[1 - self.nodes.index(node)]

    def wait_until_whole(self) -> None:
        """Return once one node leads, and commits wait for the other one."""
        wait(self._is_whole, "one node leads and the other one follows")

    def _is_whole(self) -> bool:
        leader = self.leader()
        if leader is None or not (other := self.other(leader)).is_synchronous_standby():
            return False
        # What Patroni says of the standby may be from before the last failover.
        return bool(leader.query(_FOLLOWS.format(other.name)))

    @property
    def url(self) -> str:
        """The URL of the database, with both servers."""
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.nodes)
        return f"postgresql://{USER}@{hosts}/stores?target_session_attrs=primary"


def _started(words: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            words,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment(),
            **owner(),
        )


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
