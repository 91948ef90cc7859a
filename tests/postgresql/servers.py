"""Servers: real PostgreSQL clusters that tests start, kill, pause, promote and remove.

    with Servers() as servers:
        server = servers.started()
        server.create_database("orders")
        asyncpg.connect(server.url("orders"))

Calls:  initdb, postgres and pg_basebackup; as a user without privileges if the tests run as root.
Never:  listens beyond loopback, nor on TCP at all unless asked to; a socket is in a folder that
        nobody else may enter, so no password is asked for there.
Leaves: nothing. A process beside this one ends the servers and removes their files when this one
        is gone, even if it was killed (`processes.py`).
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from tests.full_disk import Ballast, mount
from tests.postgresql import processes, wire
from tests.postgresql.installed import binaries, environment, give, owner

ADMIN = "postgres"
"""The role that may do everything."""
USER = "brokerd"
"""The role that owns databases, and may do nothing else."""
MEMORY = Path("/dev/shm")
ROOM = 2 * 1024**3
UNIX_PORT = 5432
"""Names the socket of a server that has no TCP port."""
PATIENCE = processes.PATIENCE
_PAUSE = 0.004
"""Seconds between two looks at a server that starts or stops."""

Settings = Mapping[str, str | int | float | bool]

_SETTINGS: Settings = {
    "listen_addresses": "",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    # Small and without work of its own: a test that is about such work asks for it.
    "shared_buffers": "16MB",
    "max_connections": 100,
    "autovacuum": False,
    "jit": False,
    "checkpoint_timeout": "1h",
    "min_wal_size": "4MB",
    "max_wal_size": "64MB",
    # Nothing outside the data folder: a killed server leaves no file in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    "huge_pages": "off",
    # Every server can have a standby.
    "wal_level": "replica",
    "max_wal_senders": 10,
    "max_replication_slots": 10,
    "hot_standby": True,
    # A standby that has lost its primary looks five seconds later whether it is to be promoted.
    "wal_retrieve_retry_interval": "50ms",
}
_UNSYNCED: Settings = {"fsync": False, "full_page_writes": False}


class Servers:
    """A folder with servers, and what ends them all."""

    def __init__(self, folder: Path | None = None) -> None:
        """Make a folder below `folder`, which is memory unless named.

        Raises:
            NoServer: Servers cannot be run here.
        """
        binaries()
        owner()
        if folder is None and os.access(MEMORY, os.W_OK):
            folder = MEMORY if shutil.disk_usage(MEMORY).free >= ROOM else None
        self.folder = Path(tempfile.mkdtemp(prefix="brokerd-pg-", dir=folder))
        give(self.folder)
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", processes.__file__, str(self.folder)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError:
            self.folder.rmdir()
            raise
        self._numbers = count(1)
        self.made: list[Server] = []
        """All servers that there are."""
        self._template: Path | None = None

    def new(
        self,
        name: str = "main",
        *,
        fsync: bool = False,
        tcp: bool = False,
        settings: Settings | None = None,
        initdb: bool = False,
        disk: str | None = None,
    ) -> "Server":
        """Return a server with an empty cluster, not yet started.

        Clusters are copies of one, and so have the same system identifier, which PostgreSQL uses
        to tell clusters apart; with `initdb` this one gets an identifier of its own. With `disk`
        the data folder is a file system of that size (64m is enough), which `Server.ballast` fills.
        """
        server = self._server(name, tcp=tcp, disk=disk)
        if initdb:
            self._initdb(server.data)
        else:
            self._copy(server.data)
        own = {**_SETTINGS, **({} if fsync else _UNSYNCED), "cluster_name": name}
        server.configure({**own, **(settings or {})})
        return server

    def started(
        self,
        name: str = "main",
        *,
        fsync: bool = False,
        tcp: bool = False,
        settings: Settings | None = None,
        initdb: bool = False,
        disk: str | None = None,
    ) -> "Server":
        """Return a new server that is ready."""
        server = self.new(name, fsync=fsync, tcp=tcp, settings=settings, initdb=initdb, disk=disk)
        server.start()
        return server

    def standby_of(
        self,
        primary: "Server",
        name: str = "standby",
        *,
        synchronous: bool = True,
        tcp: bool = False,
    ) -> "Server":
        """Return a standby that has caught up, with a replication slot of its own name.

        If it is synchronous, commits at the primary wait for it from now on.
        """
        server = self._server(name, tcp=tcp)
        self.run(
            "pg_basebackup", f"--pgdata={server.data}", "--checkpoint=fast", "--no-sync",
            "--wal-method=stream", "--create-slot", f"--slot={name}", "--write-recovery-conf",
            f"--host={primary.folder}", f"--port={primary.port}", f"--username={ADMIN}",
        )  # fmt: skip
        server.configure({"cluster_name": name, "synchronous_standby_names": ""})
        server.start()
        if synchronous:
            primary.configure({"synchronous_standby_names": f'FIRST 1 ("{name}")'})
        wanted = "sync" if synchronous else "async"
        wait(
            lambda: (
                primary.query(
                    "SELECT sync_state FROM pg_stat_replication"
                    f" WHERE application_name = '{name}' AND state = 'streaming'"
                )
                == [(wanted,)]
            ),
            f"{name} follows {primary.name}",
        )
        return server

    def remove(self, server: "Server") -> None:
        """End a server and remove its files."""
        server.kill()
        processes.end(server.folder)
        self.made.remove(server)

    def run(self, program: str, *arguments: str | Path, given: str | None = None) -> str:
        """Run one of PostgreSQL's programs, as the owner of the servers; return what it says."""
        made = subprocess.run(
            [binaries() / program, *arguments],
            cwd=self.folder,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
            **owner(),
        )
        if made.returncode:
            raise RuntimeError(f"{program} failed: {made.stderr.strip()}")
        return made.stdout

    def close(self) -> None:
        """End all servers and remove all their files."""
        assert self._guard.stdin is not None, "it is a pipe"
        self._guard.stdin.close()
        self._guard.wait()
        for server in self.made:
            server.kill()  # nothing is left to be killed, but to be waited for

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _server(self, name: str, *, tcp: bool, disk: str | None = None) -> "Server":
        # A path in here is short: that of a socket may have 107 bytes.
        folder = self.folder / str(next(self._numbers))
        folder.mkdir(mode=0o700)
        give(folder)
        data = folder / "data"
        if disk is None:
            data.mkdir(mode=0o700)
        else:
            mount(data, size=disk)
        give(data)
        server = Server(folder, name, tcp=tcp)
        self.made.append(server)
        return server

    def _copy(self, data: Path) -> None:
        if self._template is None:
            template = self.folder / "template"
            self._initdb(template)
            self._template = template
        subprocess.run(["cp", "-a", f"{self._template}/.", str(data)], check=True)

    def _initdb(self, data: Path) -> None:
        most = [f"--pgdata={data}", f"--username={ADMIN}", "--auth=trust", "--no-sync",
                "--no-instructions", "--wal-segsize=1", "--encoding=UTF8"]  # fmt: skip
        # The order of a language, as on most servers, and not that of bytes: who compares text
        # here and in SQLite finds out that they differ.
        languages = ["--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US"]
        try:
            self.run("initdb", *most, *languages)
        except RuntimeError:  # built without ICU
            self.run("initdb", *most, "--locale=C")
        self.run(
            "postgres", "--single", "-D", data, "-c", "fsync=off", "-c", "log_checkpoints=off",
            ADMIN, given=f"CREATE ROLE {USER} LOGIN\n",
        )  # fmt: skip


class Server:
    """One cluster in a folder of its own, and the processes that serve it."""

    def __init__(self, folder: Path, name: str, *, tcp: bool) -> None:
        """`Servers` makes them."""
        self.folder = folder
        self.name = name
        self.data = folder / "data"
        self.port = UNIX_PORT
        self.ballast = Ballast(self.data)
        """Fills the data folder's file system, if it has one of its own."""
        self._tcp = tcp
        self._postmaster: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._postmaster is not None and self._postmaster.poll() is None

    @property
    def socket(self) -> Path:
        """The Unix socket, which it has with a TCP port too."""
        return self.folder / f".s.PGSQL.{self.port}"

    @property
    def log(self) -> str:
        """What the server has said since it was made."""
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def url(self, database: str = ADMIN, *, user: str = USER) -> str:
        """Return where a client connects to: over TCP if the server has a port, or its socket."""
        if self._tcp:
            return f"postgresql://{user}@127.0.0.1:{self.port}/{quote(database)}"
        return f"postgresql://{user}@/{quote(database)}?host={quote(str(self.folder))}&port={self.port}"

    def start(self) -> None:
        """Start it, and wait until it takes connections; after a kill, until it has recovered.

        Raises:
            RuntimeError: It ended instead, and said why.
        """
        assert not self.is_running, f"{self.name} runs already"
        attempts = 5 if self._tcp else 1
        for attempt in range(1, attempts + 1):
            if self._tcp and (attempt > 1 or self.port == UNIX_PORT):
                self.port = _free_port()
            said = len(self.log)
            if self._begin():
                return
            reason = self.log[said:].strip()
            # Somebody else may have taken the port meanwhile.
            if attempt == attempts or "could not bind" not in reason:
                raise RuntimeError(f"{self.name} does not start: {reason[-2000:]}")

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop it as an operator does, and wait until all its processes are gone."""
        if self._postmaster is None:
            return
        self.resume()
        number = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
        self._postmaster.send_signal(number)
        self._postmaster.wait(PATIENCE)
        self._postmaster = None
        wait(lambda: not self.processes(), f"{self.name} stops")

    def kill(self) -> None:
        """Kill all its processes at once, as when the machine's memory has run out."""
        processes.kill(self.data)
        if self._postmaster is not None:
            self._postmaster.wait(PATIENCE)
            self._postmaster = None

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def reload(self) -> None:
        """Have it read its settings again; those that need a restart have to wait for one."""
        assert self._postmaster is not None, "it has been started"
        self._postmaster.send_signal(signal.SIGHUP)

    def pause(self) -> None:
        """Stop all its processes where they are: connections stay open, and nobody answers."""
        # Once the first, which starts all others, stands still, there are no new ones.
        assert self._postmaster is not None, "it has been started"
        self._postmaster.send_signal(signal.SIGSTOP)
        processes.send(signal.SIGSTOP, self.processes())

    def resume(self) -> None:
        """Let its processes go on."""
        processes.send(signal.SIGCONT, self.processes())

    def processes(self) -> list[int]:
        """Return the ids of all its processes."""
        return processes.within(self.data)

    def configure(self, settings: Settings) -> None:
        """Change settings, as of now if it runs and they need no restart."""
        with (self.data / "postgresql.auto.conf").open("a") as file:
            for name, value in settings.items():
                text = ("off", "on")[value] if isinstance(value, bool) else str(value)
                file.write("{} = '{}'\n".format(name, text.replace("'", "''")))
        if self.is_running:
            self.reload()

    def promote(self) -> None:
        """Make a primary of a standby, and wait until it takes changes.

        Raises:
            wire.ServerError: It is no standby.
        """
        assert self.query(f"SELECT pg_promote(wait_seconds => {PATIENCE:.0f})") == [("t",)]

    def is_in_recovery(self) -> bool:
        """Whether it follows a primary and takes no changes."""
        return self.query("SELECT pg_is_in_recovery()") == [("t",)]

    def create_database(
        self, name: str, *, owner: str = USER, template: str = "template1", tablespace: str = ""
    ) -> None:
        """Create a database; it is empty unless a template is named."""
        where = f' TABLESPACE "{tablespace}"' if tablespace else ""
        # Copied as files: 8 ms, and 49 ms if each page went through the log of changes.
        self.query(
            f'CREATE DATABASE "{name}" OWNER "{owner}" TEMPLATE "{template}"{where}'
            " STRATEGY file_copy"
        )

    def has_database(self, name: str) -> bool:
        return bool(self.query(f"SELECT FROM pg_database WHERE datname = '{name}'"))

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        self.query(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def create_tablespace(self, name: str, *, size: str) -> Ballast:
        """Create a tablespace on a file system of that size; return what fills it.

        When it is full, statements fail and the server goes on. A full data folder is worse: the
        server ends when its log of changes finds no room.
        """
        folder = self.folder / name
        mount(folder, size=size)
        give(folder)
        self.query(f'CREATE TABLESPACE "{name}" OWNER "{USER}" LOCATION \'{folder}\'')
        return Ballast(folder)

    def query(
        self, sql: str, *, database: str = ADMIN, user: str = ADMIN
    ) -> list[tuple[str | None, ...]]:
        """Carry out statements on a connection of their own; return all rows, as text.

        Raises:
            wire.ServerError: The server refused one.
            OSError: The server is not there.
        """
        with self.session(database, user=user) as session:
            return session.query(sql)

    def session(self, database: str = ADMIN, *, user: str = ADMIN) -> wire.Session:
        """Return a connection that waits for its answers, for a `with` block."""
        return wire.Session(str(self.socket), user=user, database=database)

    def _begin(self) -> bool:
        """Start the first process; return whether the server got ready, or ended."""
        arguments = [str(binaries() / "postgres"), "-D", str(self.data), "-k", str(self.folder)]
        arguments += ["-c", f"port={self.port}"]
        if self._tcp:
            arguments += ["-c", "listen_addresses=127.0.0.1"]
        with (self.folder / "log").open("ab") as log:
            started = subprocess.Popen(
                arguments,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment(),
                **owner(),
            )
        self._postmaster = started
        wait(lambda: started.poll() is not None or self._is_ready(started.pid), "a server starts")
        if started.returncode is not None:
            self._postmaster = None
        return self._postmaster is not None

    def _is_ready(self, postmaster: int) -> bool:
        """Whether the first process has written down that connections are welcome."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        if len(lines) < 8 or lines[0] != str(postmaster):
            return False
        # A standby is ready as soon as it takes readers.
        return lines[7].strip() in ("ready", "standby") and self._takes_connections()

    def _takes_connections(self) -> bool:
        try:
            self.query("SELECT 1")
        except (OSError, wire.ServerError):
            return False
        return True


def url_of_all(servers: Sequence[Server], database: str, *, user: str = USER) -> str:
    """Return one URL with the sockets of several servers; the one that takes changes is meant."""
    hosts = ",".join(str(server.folder) for server in servers)
    ports = ",".join(str(server.port) for server in servers)
    return (
        f"postgresql://{user}@/{quote(database)}?host={quote(hosts, safe=',/')}&port={ports}"
        "&target_session_attrs=read-write"
    )


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait(is_so: Callable[[], bool], what: str) -> None:
    """Return as soon as something is so.

    Raises:
        TimeoutError: It never was.
    """
    until = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(f"it has taken more than {PATIENCE:.0f} s until {what}")
        time.sleep(_PAUSE)
