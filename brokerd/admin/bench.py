"""`brokerd bench`: daemons and load processes of their own, measured, as one result.

Reads: nothing.      Calls: `brokerd serve` and `bench_load` as child processes.
Never: asserts a speed, or measures anything with less durability than the defaults have.
"""

import asyncio
import contextlib
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from brokerd.admin.bench_load import Load, Outcome, Times
from brokerd.client.session import connect
from brokerd.clock import Clock, SystemClock
from brokerd.errors import Refusal
from brokerd.metrics import bucket_value
from brokerd.storage.engine import SQLITE_VERSION

_T = TypeVar("_T")
WARM_UP = 1.0
"""Seconds at the start that are not counted."""
START_LIMIT = 30.0
UPKEEP_LIMIT = 90.0
"""Seconds that maintenance has at most, to give space back."""

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


Say = Callable[[str], None]
Measure = Callable[["Options", Say], Coroutine[None, None, dict[str, object]]]
"""A benchmark: options and where to say how far it is, to its result."""


class BenchFailed(Refusal):
    """A benchmark could not be run to its end."""

    code = "bench_failed"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    seconds: float = 5.0
    clients: int = 8
    outstanding: int = 100
    dialogs: int = 64
    size: int = 256
    batch: int = 100
    cap: int = 1600
    """For `peer`: messages sent and not yet received at most, so that the rate is a steady one."""
    processes: int = 1
    """Load processes for each side."""
    messages: int = 1_000_000
    """For `backlog`: messages that wait when there are many."""
    routes: int = 10_000
    """For `route`: in the table."""
    peer: bool = False
    """For `dialogs`: with the two sides in daemons of their own."""
    replay_guard: float = 1.0
    """For `dialogs`: seconds that a closed target endpoint is kept (DLP-55)."""
    directory: Path | None = None
    forwarder: bool = False
    """For `peer`: a third daemon between the two."""
    compare: bool = False
    """For `peer`: without it and with it, one after the other, and the ratio."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One measured phase."""

    messages: int
    seconds: float
    rate: float
    """Messages per second."""
    latency_us: dict[str, int]
    """p50, p95, p99 and p999, in microseconds."""
    flushes: int = 0
    syncs_per_message: float = 0.0


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
        """Start it and wait until clients are let in."""
        self.directory.mkdir(parents=True)
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
        command = (sys.executable, "-m", "brokerd", "serve", "-c", str(settings))
        self._process = await asyncio.create_subprocess_exec(
            *command, "--objects", str(objects), stdout=log, stderr=log
        )
        log.close()
        session = await connect(self.address, broker="main", wait=START_LIMIT)
        await session.close()

    @property
    def memory(self) -> int:
        """Bytes of memory it has now; 0 where the system does not say."""
        return memory_of(self.pid)

    @property
    def processor_seconds(self) -> float:
        """Processor time it has taken since its start; 0 where the system does not say."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        except OSError:
            return 0.0
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

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
            rows = msgspec.convert(await session.view("counters"), list[dict[str, object]])
        return {key: value for key, value in rows[0].items() if isinstance(value, int)}

    async def ready(self, queue: str) -> int:
        """Messages that wait on a queue."""
        async with await connect(self.address, broker="main") as session:
            rows = msgspec.convert(await session.view("service_queues"), list[_QueueRow])
        return next(row.ready_count for row in rows if row.name == queue)

    async def stop(self) -> None:
        """Stop it in an orderly way."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), 30)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()


def memory_of(pid: int) -> int:
    """Bytes of memory a process has now; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s*(\d+)", text)
    return int(found[1]) * 1024 if found else 0


class _QueueRow(msgspec.Struct):
    name: str
    ready_count: int


class Loads:
    """The load processes of one phase."""

    def __init__(self, loads: list[Load], clock: Clock) -> None:
        self._loads = loads
        self._clock = clock
        self._processes: list[asyncio.subprocess.Process] = []

    async def run(self, seconds: float, *, warm_up: float = WARM_UP) -> list[Outcome]:
        """Start them together; their outcomes, in order."""
        for load in self._loads:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "brokerd.admin.bench_load",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            self._processes.append(process)
            _pipe(process.stdin).write(msgspec.json.encode(load) + b"\n")
        for process in self._processes:
            if await _pipe(process.stdout).readline() != b"ready\n":
                raise BenchFailed("a load process could not connect")
        start = self._clock.monotonic() + 0.2
        times = Times(start, start + warm_up, start + warm_up + seconds)
        for process in self._processes:
            _pipe(process.stdin).write(msgspec.json.encode(times) + b"\n")
        outcomes = []
        for process in self._processes:
            line = await _pipe(process.stdout).readline()
            if not line:
                raise BenchFailed("a load process ended without a result")
            outcomes.append(msgspec.json.decode(line, type=Outcome))
            await process.wait()
        return outcomes

    def kill(self) -> None:
        """End what still runs."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


async def local(options: Options, say: Say) -> dict[str, object]:
    """One daemon: sends each confirmed on its own, then receives in transactions."""
    clock = SystemClock()
    with bench_directory(options) as directory:
        daemon = Daemon(directory, "local", port=0, objects=OBJECTS)
        await daemon.start()
        try:
            say(f"sending for {options.seconds:g} s: {options.clients} clients")
            before = await daemon.counters()
            sends = await _phase(daemon, senders(options, daemon.address), options, clock)
            sent = delta(before, await daemon.counters())
            waiting = await daemon.ready("bench_q")
            say(f"receiving what waits: {waiting} messages")
            before = await daemon.counters()
            receives = await _drain(daemon, options, waiting, clock)
            received = delta(before, await daemon.counters())
            memory = (await daemon.counters())["peak_memory"]
        finally:
            await daemon.stop()
    return {
        "benchmark": "local",
        "settings": describe_settings(options),
        "send": _with_flushes(sends, sent),
        "receive": _with_flushes(receives, received),
        "peak_memory": memory,
    }


async def _phase(_daemon: Daemon, loads: list[Load], options: Options, clock: Clock) -> Phase:
    running = Loads(loads, clock)
    try:
        return summed(await running.run(options.seconds), options.seconds)
    finally:
        running.kill()


async def _drain(daemon: Daemon, options: Options, waiting: int, clock: Clock) -> Phase:
    """Receive what waits; the time is that from the first to the last commit."""
    loads = [
        msgspec.structs.replace(one, expect=waiting // options.processes)
        for one in receivers(options, daemon.address)
    ]
    running = Loads(loads, clock)
    try:
        outcomes = await running.run(max(2.0, waiting / 40_000), warm_up=0.0)
    finally:
        running.kill()
    first = min(one.first for one in outcomes if one.counted)
    last = max(one.last for one in outcomes if one.counted)
    return summed(outcomes, max(last - first, 0.001))


def senders(options: Options, address: str) -> list[Load]:
    """What the load processes that send are told."""
    return [
        Load(
            role="send",
            address=address,
            clients=count,
            dialogs=options.dialogs,
            outstanding=options.outstanding,
            size=options.size,
        )
        for count in _shares(options)
    ]


def receivers(options: Options, address: str) -> list[Load]:
    """What those that receive are told."""
    return [
        Load(role="receive", address=address, clients=count, batch=options.batch)
        for count in _shares(options)
    ]


def _shares(options: Options) -> list[int]:
    each, rest = divmod(options.clients, options.processes)
    return [each + (at < rest) for at in range(options.processes)]


def summed(outcomes: list[Outcome], seconds: float) -> Phase:
    """What all load processes of a side did, as one."""
    buckets: Counter[int] = Counter()
    for one in outcomes:
        buckets.update({int(bucket): count for bucket, count in one.latency.items()})
    counted = sum(one.counted for one in outcomes)
    return Phase(
        messages=counted,
        seconds=round(seconds, 3),
        rate=round(counted / seconds, 1),
        latency_us={
            name: _quantile(buckets, part)
            for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
        },
    )


def _quantile(buckets: Counter[int], part: float) -> int:
    rest = part * sum(buckets.values())
    for bucket in sorted(buckets):
        rest -= buckets[bucket]
        if rest <= 0:
            return round(bucket_value(bucket))
    return 0


def _with_flushes(phase: Phase, counters: dict[str, int]) -> Phase:
    flushes = counters.get("flushes", 0)
    return msgspec.structs.replace(
        phase, flushes=flushes, syncs_per_message=round(flushes / max(1, phase.messages), 5)
    )


def delta(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What counters have grown by."""
    return {key: value - before.get(key, 0) for key, value in after.items() if key != "peak_memory"}


def describe_settings(options: Options) -> dict[str, object]:
    """What a result says about how it was made."""
    return {
        **{
            key: value
            for key, value in msgspec.structs.asdict(options).items()
            if key != "directory"
        },
        "warm_up": WARM_UP,
        "durability": "each confirmation after an fsync (WAL, synchronous=FULL)",
        "python": platform.python_version(),
        "sqlite": SQLITE_VERSION,
        "processors": os.cpu_count(),
        "load_average": [round(one, 2) for one in os.getloadavg()],
    }


@contextlib.contextmanager
def bench_directory(options: Options) -> Iterator[Path]:
    """A directory that is gone afterwards."""
    made = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _pipe(stream: _T | None) -> _T:
    assert stream is not None, "the process was started with pipes"
    return stream
