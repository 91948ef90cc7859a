"""Processes: programs and daemons that are ended and started again, and a daemon's files.

Calls:  `brokerd serve` and the programs beside this module.
"""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Final

import brokerd
from brokerd.bench.children import ending, killed, status_of
from brokerd.client.session import connect
from brokerd.demo.daemon import peak_of
from tests.chaos.plan import FOLDER
from tests.chaos.schedule import MIDDLE
from tests.chaos.stores import FileStore, ServerStore, Store
from tests.postgresql.servers import Server
from tests.relay import LOOPBACK

READY_WITHIN: Final = 60.0
STOPPED_WITHIN: Final = 60.0
_PORTS: Final = range(12_000, 30_000)
"""Below those that a system gives to connections, so that no one has a port while its daemon is
down for a moment."""
_SHOWN: Final = 12

SETTINGS: Final = """
[instance]
name = "{name}"
data_dir = "{name}"
fast_paths = {fast_paths}
[endpoint]
listen = "{address}"
port = {port}
forwarding = {forwarding}
[transport]
connect_timeout = "2s"
login_timeout = "3s"
suppress_lost = "500ms"
suppress_failed = "500ms"
suppress_mode = "backoff"
ping_after = "2s"
ping_timeout = "2s"
arbitration_ping = "1s"
[clock]
tick = "1s"
[dialog]
retry_first = "1s"
retry_max = "4s"
replay_guard = "{guard:g}s"
[log]
format = "json"
file = "{name}.log"
segment_age = "30s"
"""


class Program:
    """A process that may be ended and started again."""

    def __init__(self, folder: Path, name: str, *words: str) -> None:
        self.name = name
        self.folder = folder
        self._words = words
        self._process: Process | None = None
        self.starts = 0
        self.peak = 0
        """Most bytes of memory that it has had."""

    def words(self) -> Sequence[str]:
        """What the interpreter is told."""
        return self._words

    def environment(self) -> Mapping[str, str]:
        """What it is told by its environment, besides the usual."""
        return {}

    @property
    def pid(self) -> int:
        """Process id; 0 while it does not run."""
        running = self._process is not None and status_of(self._process) is None
        return self._process.pid if self._process is not None and running else 0

    @property
    def status(self) -> int | None:
        """What it has ended with; None while it runs, or was not started."""
        return None if self._process is None else status_of(self._process)

    @property
    def ended_how(self) -> str:
        return "" if self.status is None else f"ended {ending(self.status)}"

    @property
    def is_done(self) -> bool:
        """Whether it has ended because it had done all."""
        return self.status == 0

    def tail(self) -> str:
        """What it has said last."""
        with suppress(OSError):
            text = (self.folder / f"{self.name}.out").read_text(errors="replace")
            return "\n".join(text.splitlines()[-_SHOWN:])
        return ""

    async def start(self) -> None:
        own = {name: text for name, text in os.environ.items() if not name.startswith("BROKERD_")}
        own |= {"PYTHONPATH": str(Path(brokerd.__file__).parents[1]), FOLDER: str(self.folder)}
        with (self.folder / f"{self.name}.out").open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self.words(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                env=own | dict(self.environment()),
                preexec_fn=_end_with_parent,
                start_new_session=True,  # an interrupt at the terminal is for the run as a whole
            )
        self.starts += 1

    def sample(self) -> None:
        """See how much memory it has had at most."""
        if self.pid:
            self.peak = max(self.peak, peak_of(self.pid))

    def signal(self, number: signal.Signals) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def kill(self) -> None:
        """kill -9, and wait until it and what it has started are gone."""
        self.sample()
        if self._process is not None:
            await killed(self._process)

    async def stop(self) -> int:
        """Ask it to end; its exit status. It is killed if that takes too long."""
        self.sample()
        assert self._process is not None, "it has been started"
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOPPED_WITHIN)
        except TimeoutError:
            await self.kill()
        return await self._process.wait()


_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1


def _end_with_parent() -> None:
    """Runs in a process before its program: it is killed when the run is, however that ends."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Daemon(Program):
    """A daemon with its files."""

    def __init__(
        self, folder: Path, name: str, *, guard: float, fast_paths: bool, server: Server | None
    ) -> None:
        """`guard`: seconds that a closed dialog is remembered; `server`: has the store."""
        super().__init__(folder, name)
        self.port = _free_port()
        self.settings: Mapping[str, str] = {}
        """In place of those in its file, by environment variable."""
        self.compiled = True
        self.file = folder / f"{name}.toml"
        self.objects = folder / f"{name}.objects.toml"
        self.log = folder / f"{name}.log"
        self.directory = folder / name
        self.store: Store = (
            FileStore(self.directory / "main.db")
            if server is None
            else ServerStore(server, f"{name}_")
        )
        self.backups = folder / name / "backups"
        self.address = f"unix:{folder / name / 'brokerd.sock'}"
        self.file.write_text(
            SETTINGS.format(
                name=name,
                address=LOOPBACK,
                port=self.port,
                forwarding="true" if name == MIDDLE else "false",
                guard=guard,
                fast_paths="true" if fast_paths else "false",
            )
            + self.store.settings
        )

    @property
    def is_done(self) -> bool:
        """Never: a daemon has nothing that it could be through with."""
        return False

    def words(self) -> Sequence[str]:
        module = "brokerd" if self.compiled else "tests.chaos.uncompiled"
        return ("-m", module, "serve", "-c", str(self.file), "--objects", str(self.objects))

    def environment(self) -> Mapping[str, str]:
        return self.settings

    async def start(self) -> None:
        """Start it and wait until it answers."""
        await super().start()
        async with connect(self.address, broker="main", wait=READY_WITHIN):
            pass


def _free_port() -> int:
    """A port that nobody uses, and that no connection is given while its daemon is down."""
    while True:
        port = SystemRandom().choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
