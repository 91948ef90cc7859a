"""Daemons made for a benchmark: each a process of its own, watched from outside.

Reads: the system's figures of the process, the views of the daemon.    Calls: `brokerd serve`.
Never: runs a daemon with less durability than the default.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from brokerd.bench.children import ending, killed, started, status_of
from brokerd.bench.measuring import BenchFailed
from brokerd.client.session import Session, connect
from brokerd.clock import SystemClock
from brokerd.config.bounds import MAX_SOCKET_PATH
from brokerd.config.loading import load
from brokerd.errors import DaemonUnreachable, ProcessEnded, UsageError
from brokerd.instance.store_engine import executor_of
from brokerd.model import MSDB
from brokerd.storage.files.private_files import make_private_directory

START_LIMIT = 30.0
_STOP_LIMIT = 30.0
_NOTICE_LIMIT = 1.0
"""Longest time, in seconds, from the loss of a client's connection to the report of the system that
the daemon has ended."""
UPKEEP_LIMIT = 90.0
"""The longest wait, in seconds, for maintenance to give space back."""
_ALL_THREADS = 2
"""Linux's number for the processor clock of a whole process: the time of all its threads."""
_SHOWN = 500
"""Most characters of a line that are shown."""
_SAYS: Final = "brokerd: "
"""The beginning of the line in which a daemon reports why it stops; `_FIX` begins its hint."""
_FIX: Final = "  fix: "
_IN_CLEAR: Final = 'encryption = "disabled"\nauthentication = "none"\n'
_LIMITS: Final = ("MemoryError", "Cannot allocate memory", "start new thread", "Too many open")
"""Texts in the last line of a process that has reached a limit of the system."""

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
    """Return a declaration of a route to the service of a daemon at a port of this machine."""
    return (
        f'[[{kind}]]\nname = "to_{service}"\nservice = "{service}"\n'
        f'address = "TCP://127.0.0.1:{port}"\n'
    )


def binding(service: str, far: str) -> str:
    """Return a declaration that secures the dialogs with a service of another daemon."""
    return (
        f'[[remote_service_binding]]\nname = "to_{service}"\nservice = "{service}"\n'
        f'principal = "peer:{far}"\n'
    )


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that no program uses now."""
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
        encrypted: bool = False,
        replay_guard: float | None = None,
        store: str = "",
    ) -> None:
        """Create the daemon, without starting it.

        `encrypted`: whether connections to other daemons are, which then have to be introduced.
        `replay_guard`: seconds for which closed dialogs are kept; None = the default. `store`: the
        section [store] of its settings.
        """
        self.name = name
        self.directory = directory.absolute() / name  # the settings are relative to their own file
        self.address = f"unix:{self.directory / 's'}"
        self._settings = self.directory / "settings.toml"
        self._port = port
        self._objects = objects
        self._forwarding = forwarding
        self._transport = "" if encrypted else _IN_CLEAR
        self._guard = "" if replay_guard is None else f'replay_guard = "{replay_guard:g}s"'
        self._store = store
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start the daemon, for the first time or again, and wait until it accepts clients."""
        self._check_path()
        make_private_directory(self.directory)
        settings = self._settings
        objects = self.directory / "objects.toml"
        settings.write_text(
            f'[instance]\nname = "{self.name}"\ndata_dir = "data"\n'
            f'[clients]\nlisten = "{self.address}"\n'
            f'[endpoint]\nlisten = ["127.0.0.1"]\nport = {self._port}\n'
            f"{self._transport}"
            f"forwarding = {str(self._forwarding).lower()}\n"
            f"[dialog]\n{self._guard}\n{self._store}"
        )
        objects.write_text(self._objects)
        command = (sys.executable, *self.command(settings), "--objects", str(objects))
        with (self.directory / "log").open("wb") as log:
            self._process = await started(*command, stdout=log, stderr=log)
        await self._started(self._process)

    def _check_path(self) -> None:
        length = len(os.fsencode(self.address.removeprefix("unix:")))
        if length > MAX_SOCKET_PATH:
            raise UsageError(
                f"the path of a socket in {self.directory} has {length} bytes, the system takes "
                f"{MAX_SOCKET_PATH}",
                hint="name a directory with a shorter path",
            )

    async def _started(self, process: Process) -> None:
        """Wait for the daemon's first answer, or its end."""
        answering = asyncio.ensure_future(self._answers())
        ended = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait((answering, ended), return_when=asyncio.FIRST_COMPLETED)
            failure = answering.exception() if answering.done() else None
        finally:
            answering.cancel()
            ended.cancel()
        if (status := status_of(process)) is not None:
            raise self._gone("did not start: it ended", status)
        if isinstance(failure, DaemonUnreachable):
            raise BenchFailed(
                f"daemon {self.name} has not let clients in after {START_LIMIT:g} s: "
                f"{self._words()[0] or failure}"
            )
        if failure is not None:
            raise failure

    async def _answers(self) -> None:
        session = await connect(self.address, broker="main", wait=START_LIMIT)
        await session.close()

    def check(self) -> None:
        """Raise `ProcessEnded` if the daemon no longer runs."""
        if self._process is not None and (status := status_of(self._process)) is not None:
            raise self._gone("ended", status)

    async def ended(self) -> None:
        """Wait until the daemon has ended."""
        assert self._process is not None, "it has been started"
        await self._process.wait()

    def _gone(self, what: str, status: int) -> ProcessEnded:
        """Return the error for an ended daemon, with the daemon's last message and hint.

        It has the daemon's exit status only if a hint was found."""
        words, hint = self._words()
        message = f"daemon {self.name} {what} {ending(status)}"
        return ProcessEnded(
            f"{message}: {words}" if words else message,
            hint=hint,
            exit_status=status if status > 0 and hint else None,
        )

    def _words(self) -> tuple[str, str]:
        """Return the daemon's last message and its hint, from its log; "" if one is missing."""
        try:
            text = (self.directory / "log").read_text(errors="replace")
        except OSError:
            return "", ""
        lines = [line[:_SHOWN] for line in text.splitlines() if line.strip()]
        said = [at for at, line in enumerate(lines) if line.startswith(_SAYS)]
        if said:
            own = lines[said[-1] :]
            fixes = [line.removeprefix(_FIX) for line in own if line.startswith(_FIX)]
            own = [line.removeprefix(_SAYS) for line in own if not line.startswith(_FIX)]
            return "\n".join(own), "; ".join(fixes)
        plain = [line for line in lines if not line.startswith("{")]  # those are events
        last = plain[-1] if plain else ""
        is_limited = any(one in last for one in _LIMITS)
        return last, "its limits are those of this shell: see `ulimit -a`" if is_limited else ""

    def command(self, settings: Path) -> tuple[str, ...]:
        """Return the arguments of the interpreter that run the daemon."""
        return ("-m", "brokerd", "serve", "-c", str(settings))

    @property
    def memory(self) -> int:
        """Current memory in bytes; 0 = not reported. Raises `ProcessEnded`."""
        self.check()
        return memory_of(self.pid)

    @property
    def processor_seconds(self) -> float:
        """Processor seconds since the start; 0 = not reported. Raises `ProcessEnded`."""
        self.check()
        return processor_seconds_of(self.pid)

    async def store_bytes(self) -> int:
        """Return the size of the daemon's stores: their files, logs included, or their schemas."""
        settings = load(self._settings).settings
        if not settings.is_on_server:
            return sum(path.stat().st_size for path in settings.instance.data_dir.glob("*.db*"))
        paths = [settings.store_path(broker) for broker in (MSDB, "main")]
        facts = await executor_of(settings).server_facts(paths)
        return 0 if facts is None else sum(facts.sizes.values())

    async def quiet(self) -> None:
        """Wait until the daemon no longer writes for earlier work: no flush within 1 s."""
        clock, before = SystemClock(), -1
        deadline = clock.monotonic() + UPKEEP_LIMIT
        while clock.monotonic() < deadline:
            flushes = (await self.counters())["flushes"]
            if flushes == before:
                return
            before = flushes
            await clock.sleep_until(clock.monotonic() + 1.0)

    async def shrunk(self, size: int) -> None:
        """Wait until its stores are at most 1.2 times `size`, for at most `UPKEEP_LIMIT` s."""
        clock = SystemClock()
        deadline = clock.monotonic() + UPKEEP_LIMIT
        while clock.monotonic() < deadline and await self.store_bytes() > size * 1.2:
            await clock.sleep_until(clock.monotonic() + 0.5)

    async def counters(self) -> dict[str, int]:
        """Return the daemon's totals since its start."""
        async with await connect(self.address, broker="main") as session:
            return await counters_of(session)

    async def ready(self, queue: str) -> int:
        """Return the number of ready messages on a queue."""
        async with await connect(self.address, broker="main") as session:
            rows = msgspec.convert(await session.view("service_queues"), list[_QueueRow])
        return next(row.ready_count for row in rows if row.name == queue)

    async def stop(self) -> None:
        """Stop the daemon in an orderly way; kill it if that is interrupted or takes too long."""
        if self._process is None:
            return
        try:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                    self._process.send_signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), _STOP_LIMIT)
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Kill the daemon, and wait for the end of all its descendants."""
        if self._process is not None:
            await killed(self._process)


@contextlib.asynccontextmanager
async def running(*daemons: Daemon, kept: bool = False) -> AsyncIterator[None]:
    """Run the daemons inside the block; no daemon is left after it, however the block ends.

    A daemon that ends by itself ends the block; `ProcessEnded` names it. If the block fails, the
    daemons are killed, because their stores are of no use, unless they are `kept`.
    """
    is_orderly = kept
    try:
        await _all(one.start() for one in daemons)
        async with _watched(daemons):
            yield
        is_orderly = True
    finally:
        await _all(one.stop() if is_orderly else one.kill() for one in daemons)


@contextlib.asynccontextmanager
async def _watched(daemons: tuple[Daemon, ...]) -> AsyncIterator[None]:
    """Interrupt the block when one of the daemons ends.

    If the block fails with another error, the end of a daemon is reported instead, because the
    error is most likely its consequence.
    """
    task, is_over = asyncio.current_task(), False
    assert task is not None, "it runs as one"
    before = task.cancelling()

    # Cancelled at most once, and not once the block is over: the count of `uncancel` below would no
    # longer distinguish this cancellation from a caller's.
    def on_end(_watch: asyncio.Future[None]) -> None:
        if not is_over and not any(other.done() for other in watches if other is not _watch):
            task.cancel()

    watches = [asyncio.ensure_future(one.ended()) for one in daemons]
    for watch in watches:
        watch.add_done_callback(on_end)
    try:
        yield
        _check(daemons)
    except asyncio.CancelledError:
        if any(watch.done() for watch in watches) and task.uncancel() <= before:
            _check(daemons)
        raise
    except Exception:
        is_over = True
        await asyncio.wait(watches, timeout=_NOTICE_LIMIT, return_when=asyncio.FIRST_COMPLETED)
        _check(daemons)
        raise
    finally:
        is_over = True
        for watch in watches:
            watch.cancel()


def _check(daemons: Iterable[Daemon]) -> None:
    for one in daemons:
        one.check()


async def _all(steps: Iterable[Awaitable[None]]) -> None:
    """Run all steps to their end, even if one fails or the caller is cancelled meanwhile."""
    for failure in await asyncio.gather(*steps, return_exceptions=True):
        if failure is not None:
            raise failure


def memory_of(pid: int) -> int:
    """Return the current memory of a process in bytes; 0 = the system does not report it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s*(\d+)", text)
    return int(found[1]) * 1024 if found else 0


def processor_seconds_of(pid: int) -> float:
    """Return the processor seconds of a process, ended threads included.

    0: the system does not report them. They are read from the process's own clock, which counts
    nanoseconds; /proc/PID/stat has ticks of 10 ms, which are half the time of a short run.
    """
    try:
        return time.clock_gettime(~pid << 3 | _ALL_THREADS)
    except OSError:
        return 0.0


class _QueueRow(msgspec.Struct):
    name: str
    ready_count: int


async def counters_of(session: Session) -> dict[str, int]:
    """Return the totals since the start of the daemon."""
    rows = msgspec.convert(await session.view("counters"), list[dict[str, object]])
    return {key: value for key, value in rows[0].items() if isinstance(value, int)}


D = TypeVar("D", bound=Daemon)


def pair(
    kind: type[D], directory: Path, *, secured: bool = False, encrypted: bool = False
) -> list[D]:
    """Return the sending daemon, east, and the receiving one, west, with routes to each other.

    `secured`: whether their dialogs are; `encrypted`: whether their connection is. For either they
    have to be introduced once they run."""
    east, west = free_ports(2)
    bound = binding("bench_sink", "west") if secured else ""
    there, back = route("bench_sink", west) + bound, route("bench_source", east)
    return [
        kind(directory, "east", port=east, objects=OBJECTS + there, encrypted=encrypted),
        kind(directory, "west", port=west, objects=OBJECTS + back, encrypted=encrypted),
    ]


async def introduce(*daemons: Daemon) -> None:
    """Install the certificates of running daemons at each other; each may reach all others."""
    async with contextlib.AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(await connect(one.address, broker="msdb"))
            for one in daemons
        ]
        for there, session in zip(daemons, sessions, strict=True):
            files = [one.pem.encode() for one in await session.admin.own_certificates()]
            principal = f"peer:{there.name}"
            for here in sessions:
                if here is not session:
                    await here.admin.install_principal(principal, certificates=files)
                    await here.admin.grant(f"connect on endpoint to {principal}")
        for session in sessions:  # without security nobody is proven
            await session.admin.grant("send on bench_sink to public")
