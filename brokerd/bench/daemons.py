"""Daemons made for a benchmark: each a process of its own, watched from outside.

Reads: what the system tells of the process, the views of the daemon.    Calls: `brokerd serve`.
Never: runs with less durability than the defaults have.
"""

import asyncio
import contextlib
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec

from brokerd.bench.measuring import BenchFailed
from brokerd.client.session import Session, connect
from brokerd.clock import SystemClock
from brokerd.errors import DaemonUnreachable

START_LIMIT = 30.0
UPKEEP_LIMIT = 90.0
"""Seconds that maintenance has at most, to give space back."""
_ALL_THREADS = 2
"""In the number that Linux has for the clock of a process: what all its threads have run for."""
_SHOWN = 500
"""Characters of a line, at most."""

OBJECTS = """
[broker]
name = "main"
default_encryption = "off"
[[message_type]]
name = "Item"
[[contract]]
name = "bench/v1"
types = { Item = "any" }
[[queue]]
name = "bench_q"
[[queue]]
name = "bench_source_q"
[[service]]
name = "bench_source"
queue = "bench_source_q"
[[service]]
name = "bench_sink"
queue = "bench_q"
contracts = ["bench/v1"]
"""


def route(service: str, port: int, *, kind: str = "route") -> str:
    """Objects with the way to a service of a daemon at that port of this machine."""
    return (
        f'[[{kind}]]\nname = "to_{service}"\nservice = "{service}"\n'
        f'address = "TCP://127.0.0.1:{port}"\n'
    )


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Daemon:
    """A daemon made for a benchmark, in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        port: int,
        objects: str,
        forwarding: bool = False,
        replay_guard: float | None = None,
    ) -> None:
        """`replay_guard`: seconds that closed dialogs are kept, where it is not the usual time."""
        self.name = name
        self.directory = directory / name
        self.address = f"unix:{self.directory / 's'}"
        self._port = port
        self._objects = objects
        self._forwarding = forwarding
        self._guard = "" if replay_guard is None else f'replay_guard = "{replay_guard:g}s"'
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it, or start it again, and wait until clients are let in."""
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = self.directory / "settings.toml"
        objects = self.directory / "objects.toml"
        settings.write_text(
            f'[instance]\nname = "{self.name}"\ndata_dir = "data"\n'
            f'[clients]\nlisten = "{self.address}"\n'
            f'[endpoint]\nlisten = ["127.0.0.1"]\nport = {self._port}\n'
            'encryption = "disabled"\nauthentication = "none"\n'
            f"forwarding = {str(self._forwarding).lower()}\n"
            f"[dialog]\n{self._guard}\n"
        )
        objects.write_text(self._objects)
        log = (self.directory / "log").open("wb")
        command = (sys.executable, *self.command(settings), "--objects", str(objects))
        self._process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        log.close()
        await self._started(self._process)

    async def _started(self, process: asyncio.subprocess.Process) -> None:
        """Wait for its first answer, or its end."""
        answering = asyncio.ensure_future(self._answers())
        ending = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait((answering, ending), return_when=asyncio.FIRST_COMPLETED)
            failure = answering.exception() if answering.done() else None
        finally:
            answering.cancel()
            ended = not ending.cancel()
        if ended or isinstance(failure, DaemonUnreachable):
            raise BenchFailed(
                f"daemon {self.name} did not start: {self._last_line() or failure or 'it ended'}",
                hint="its limits are those of this shell: see `ulimit -a`",
            )
        if failure is not None:
            raise failure

    async def _answers(self) -> None:
        session = await connect(self.address, broker="main", wait=START_LIMIT)
        await session.close()

    def _last_line(self) -> str:
        """The last that it has written."""
        lines = (self.directory / "log").read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")[-_SHOWN:]

    def command(self, settings: Path) -> tuple[str, ...]:
        """What the interpreter is told, to run it."""
        return ("-m", "brokerd", "serve", "-c", str(settings))

    @property
    def memory(self) -> int:
        """Bytes of memory it has now; 0 where the system does not say."""
        return memory_of(self.pid)

    @property
    def processor_seconds(self) -> float:
        """Processor time it has taken since its start; 0 where the system does not say."""
        return processor_seconds_of(self.pid)

    @property
    def store_size(self) -> int:
        """Bytes of its stores' files, logs included."""
        return sum(path.stat().st_size for path in (self.directory / "data").glob("*.db*"))

    async def quiet(self) -> None:
        """Wait until it writes nothing any more that earlier work has left to it."""
        clock, before = SystemClock(), -1
        deadline = clock.monotonic() + UPKEEP_LIMIT
        while clock.monotonic() < deadline:
            flushes = (await self.counters())["flushes"]
            if flushes == before:
                return
            before = flushes
            await clock.sleep_until(clock.monotonic() + 1.0)

    async def shrunk(self, size: int) -> None:
        """Wait until its stores are about as small as that, or for as long as that may take."""
        clock = SystemClock()
        deadline = clock.monotonic() + UPKEEP_LIMIT
        while clock.monotonic() < deadline and self.store_size > size * 1.2:
            await clock.sleep_until(clock.monotonic() + 0.5)

    async def counters(self) -> dict[str, int]:
        """Totals since its start."""
        async with await connect(self.address, broker="main") as session:
            return await counters_of(session)

    async def ready(self, queue: str) -> int:
        """Messages that wait on a queue."""
        async with await connect(self.address, broker="main") as session:
            rows = msgspec.convert(await session.view("service_queues"), list[_QueueRow])
        return next(row.ready_count for row in rows if row.name == queue)

    async def stop(self) -> None:
        """Stop it in an orderly way."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), 30)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()


@contextlib.asynccontextmanager
async def running(*daemons: Daemon) -> AsyncIterator[None]:
    """They run inside the block, and none of them after it, however it is left or not reached."""
    try:
        starts = (one.start() for one in daemons)
        for failure in await asyncio.gather(*starts, return_exceptions=True):
            if failure is not None:
                raise failure
        yield
    finally:
        await asyncio.gather(*(one.stop() for one in daemons))


def memory_of(pid: int) -> int:
    """Bytes of memory a process has now; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s*(\d+)", text)
    return int(found[1]) * 1024 if found else 0


def processor_seconds_of(pid: int) -> float:
    """Processor time of all threads of a process, ended ones too; 0 where the system does not say.

    By the process's own clock, which counts nanoseconds: /proc/PID/stat has ticks of 10 ms, which
    are half of what a short run takes."""
    try:
        return time.clock_gettime(~pid << 3 | _ALL_THREADS)
    except OSError:
        return 0.0


class _QueueRow(msgspec.Struct):
    name: str
    ready_count: int


async def counters_of(session: Session) -> dict[str, int]:
    """Totals since the start of the daemon."""
    rows = msgspec.convert(await session.view("counters"), list[dict[str, object]])
    return {key: value for key, value in rows[0].items() if isinstance(value, int)}


D = TypeVar("D", bound=Daemon)


def pair(kind: type[D], directory: Path) -> list[D]:
    """East, where is sent, and west, where is received; each knows the way to the other."""
    east, west = free_ports(2)
    return [
        kind(directory, "east", port=east, objects=OBJECTS + route("bench_sink", west)),
        kind(directory, "west", port=west, objects=OBJECTS + route("bench_source", east)),
    ]
