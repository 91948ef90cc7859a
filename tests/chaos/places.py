"""Places: the processes of a run, and the files of its daemons.

Calls:  `brokerd serve` and the programs beside this module.
Never:  leaves a process behind: `end` is called whatever happens.
"""

import asyncio
import os
import signal
import socket
import sqlite3
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from itertools import permutations
from pathlib import Path
from random import SystemRandom
from typing import Final

import brokerd
from brokerd.bench.children import ending, killed, status_of
from brokerd.client.session import connect
from brokerd.demo.daemon import peak_of
from tests.chaos.plan import FOLDER
from tests.chaos.schedule import EAST, MIDDLE, WEST, Form, way
from tests.relay import LOOPBACK, Relay

READY_WITHIN: Final = 60.0
STOPPED_WITHIN: Final = 60.0
_PORTS: Final = range(12_000, 30_000)
"""Below those that a system gives to connections, so that no one has a port while its daemon is
down for a moment."""
_BEFORE_KILL: Final = 20.0
_SHOWN: Final = 12

SETTINGS: Final = """
[instance]
name = "{name}"
data_dir = "{name}"
[endpoint]
listen = "{address}"
port = {port}
encryption = "disabled"
authentication = "none"
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
TYPES: Final = """
[broker]
name = "main"
default_encryption = "off"
[[message_type]]
name = "Order"
[[message_type]]
name = "Reply"
[[contract]]
name = "chaos/v1"
types = { Order = "initiator", Reply = "target" }
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


class Daemon(Program):
    """A daemon with its files."""

    def __init__(self, folder: Path, name: str, *, guard: float) -> None:
        """`guard`: seconds that a closed dialog is remembered."""
        super().__init__(folder, name)
        self.port = _free_port()
        self.settings: Mapping[str, str] = {}
        """In place of those in its file, by environment variable."""
        self.compiled = True
        self.file = folder / f"{name}.toml"
        self.objects = folder / f"{name}.objects.toml"
        self.log = folder / f"{name}.log"
        self.store = folder / name / "main.db"
        self.address = f"unix:{folder / name / 'brokerd.sock'}"
        self.file.write_text(
            SETTINGS.format(
                name=name,
                address=LOOPBACK,
                port=self.port,
                forwarding="true" if name == MIDDLE else "false",
                guard=guard,
            )
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

    @property
    def size(self) -> int:
        """Bytes of its store's files."""
        return sum(path.stat().st_size for path in self.store.parent.glob("main.db*"))

    def rows(self) -> dict[str, int]:
        """How many rows each table of its store has that dialogs fill; endpoints by state."""
        with closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True, timeout=30)) as store:
            names = [name for (name,) in store.execute(_TABLES)]
            found = {
                name: store.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
                for name in names
                if name in _FILLED or name.startswith("shelf_")
            }
            states = store.execute(
                "SELECT 'endpoints ' || state, count(*) FROM conversation_endpoints GROUP BY 1"
            )
            return {name: count for name, count in [*found.items(), *states] if count}


_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1"
_FILLED: Final = frozenset(
    {
        "endpoint_progress",
        "queue_messages",
        "queue_removals",
        "queue_drops",
        "bodies",
        "body_pieces",
        "transmission_queue",
        "group_states",
        "held_groups",
        "conversation_timers",
        "undelivered_events",
        "dialog_log",
    }
)


class Places:
    """All that runs: daemons, programs, and relays on each way between daemons."""

    def __init__(self, folder: Path, form: Form, *, guard: float) -> None:
        self.folder = folder
        self.form = form
        self.daemons = {name: Daemon(folder, name, guard=guard) for name in form.daemons}
        self.programs = {name: Program(folder, name, *_command(name)) for name in form.programs}
        self.relays = {
            ends: Relay(self.daemons[ends[1]].port, seed=number)
            for number, ends in enumerate(permutations(form.daemons, 2))
            if way(*ends) in form.ways
        }
        """By the daemon that connects and the one that is reached."""

    def __getitem__(self, name: str) -> Program:
        return self.daemons.get(name) or self.programs[name]

    @property
    def all(self) -> list[Program]:
        return [*self.daemons.values(), *self.programs.values()]

    async def start_daemons(self) -> None:
        for relay in self.relays.values():
            await relay.start()
        for daemon in self.daemons.values():
            daemon.objects.write_text(self._objects(daemon.name))
        await asyncio.gather(*(one.start() for one in self.daemons.values()))

    async def start_programs(self) -> None:
        await asyncio.gather(*(one.start() for one in self.programs.values()))

    def route(self, daemon: str) -> tuple[str, str, dict[str, str]]:
        """The kind of a route of that daemon, its name, and how it is declared."""
        if daemon == MIDDLE:
            return "instance_route", "to_ledger", self._route("ledger", (MIDDLE, WEST))
        there = {EAST: "ledger", WEST: "client"}[daemon]
        (ends,) = [ends for ends in self.relays if ends[0] == daemon]
        return "route", f"to_{there}", self._route(there, ends)

    def between(self, name: str) -> list[Relay]:
        """The relays of a way, one for each direction in which connections are made."""
        return [relay for ends, relay in self.relays.items() if way(*ends) == name]

    def readers(self) -> list[int]:
        """Processes below the daemon that starts readers."""
        pid = self.daemons[WEST].pid
        with suppress(OSError):
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
            return [int(word) for word in text.split()]
        return []

    async def end(self) -> None:
        """Leave nothing behind."""
        await asyncio.gather(*(one.kill() for one in self.all), return_exceptions=True)
        for relay in self.relays.values():
            await relay.stop()

    def left_over(self) -> list[int]:
        """Processes that run in this directory although all have been ended."""
        deadline = time.monotonic() + _BEFORE_KILL
        while (found := self._running()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def _running(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                if Path(path.readlink()) == self.folder and int(path.parent.name) != os.getpid():
                    found.append(int(path.parent.name))
        return found

    def _route(self, service: str, ends: tuple[str, str]) -> dict[str, str]:
        return {"service": service, "address": f"TCP://{LOOPBACK}:{self.relays[ends].port}"}

    def _objects(self, daemon: str) -> str:
        if daemon == MIDDLE:
            back = self._route("client", (MIDDLE, EAST))
            routes = {"to_ledger": self.route(MIDDLE)[2], "to_client": back}
            return '[broker]\nname = "main"\n' + "".join(
                _declared("instance_route", name, route) for name, route in routes.items()
            )
        here, contracts = {EAST: ("client", "[]"), WEST: ("ledger", '["chaos/v1"]')}[daemon]
        text = f'{TYPES}[[queue]]\nname = "{here}_q"\npoison_handling = "off"\n'
        if daemon == WEST and self.form is Form.ACTIVATED:
            text += _ACTIVATION
        text += f'[[service]]\nname = "{here}"\nqueue = "{here}_q"\ncontracts = {contracts}\n'
        return text + _declared(*self.route(daemon))


_ACTIVATION: Final = """[queue.activation]
handler = "tests.chaos.receivers:activated"
host = "process"
max_readers = 3
ramp_interval = "2s"
"""


def _declared(kind: str, name: str, values: Mapping[str, str]) -> str:
    lines = [f'{key} = "{text}"\n' for key, text in {"name": name, **values}.items()]
    return f"[[{kind}]]\n" + "".join(lines)


def _command(name: str) -> tuple[str, ...]:
    role = name.rstrip("0123456789")
    if role == "sender":
        return ("-m", "tests.chaos.sender", name.removeprefix(role))
    return ("-m", "tests.chaos.receivers", role)


def _free_port() -> int:
    """A port that nobody uses, and that no connection is given while its daemon is down."""
    while True:
        port = SystemRandom().choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
