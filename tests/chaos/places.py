"""Places: all that runs in one directory: daemons, programs, and the ways between daemons.

Calls:  processes, relays.
Never:  leaves a process behind: `end` is called whatever happens.
"""

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Final

from tests.chaos.processes import Daemon, Program
from tests.chaos.schedule import EAST, MIDDLE, WEST, Form, way
from tests.postgresql.servers import Server
from tests.relay import LOOPBACK, Relay

_BEFORE_KILL: Final = 20.0
"""Seconds in which readers end after their daemon."""
TYPES: Final = """
[broker]
name = "main"
default_encryption = "on"
[[message_type]]
name = "Order"
[[message_type]]
name = "Reply"
[[contract]]
name = "chaos/v1"
types = { Order = "initiator", Reply = "target" }
"""


class Places:
    """All that runs: daemons, programs, and relays on each way between daemons."""

    def __init__(
        self,
        folder: Path,
        form: Form,
        *,
        guard: float,
        fast_paths: bool,
        server: Server | None = None,
    ) -> None:
        """`server`: has the stores of all daemons; None = they are in files."""
        self.folder = folder
        self.form = form
        self.daemons = {
            name: Daemon(folder, name, guard=guard, fast_paths=fast_paths, server=server)
            for name in form.daemons
        }
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

    def address_of(self, here: str, there: str) -> str | None:
        """Where a daemon reaches another one; None = by way of others."""
        relay = self.relays.get((here, there))
        return None if relay is None else f"TCP://{LOOPBACK}:{relay.port}"

    def neighbour(self, daemon: str) -> str:
        """The daemon that one of the two ends is connected with."""
        (there,) = [ends[1] for ends in self.relays if ends[0] == daemon]
        return there

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
        there, far = {EAST: ("ledger", WEST), WEST: ("client", EAST)}[daemon]
        binding = {"service": there, "principal": f"peer:{far}"}
        return (
            text
            + _declared(*self.route(daemon))
            + _declared("remote_service_binding", f"to_{there}", binding)
        )


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
