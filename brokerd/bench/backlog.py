"""`brokerd bench backlog`: the cost of a long queue, while it is long and after it is drained.

Reads: the daemon's memory from the system, its store from the disk.   Calls: a daemon, the SDK.
Never: compares with an earlier run; all figures come from one daemon and one client.

One daemon passes through all states: empty, some messages waiting, very many waiting, drained.
Receives are timed one by one, each a transaction of its own, so the figures are those of one
reader.
"""

import asyncio
import statistics
from time import perf_counter

import msgspec

from brokerd.bench.daemons import OBJECTS, Daemon, running
from brokerd.bench.measuring import Options, Say, bench_directory, describe_settings
from brokerd.bench.opening import open_dialogs
from brokerd.client.session import Session, connect
from brokerd.units import counted

_FEW = 1_000
_SAMPLES = 200
_PIPELINED = 8
"""Transactions of sends under way while the queue is filled."""
_REPORT_EVERY = 5.0


class BacklogOptions(Options, frozen=True, kw_only=True):
    """The length of the queue."""

    messages: int = 1_000_000
    dialogs: int = 64
    size: int = 256
    batch: int = 100
    """Messages in one transaction."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The figures for one number of waiting messages."""

    messages: int
    memory_bytes: int
    """Memory of the daemon at that time, in bytes."""
    store_bytes: int
    """Size of the store's files, logs included, or of its schema on a server."""
    receive_us: int
    """Median time of a receive of one message with its commit, or of an empty one if none waits."""
    receive_p95_us: int


async def backlog(options: BacklogOptions, say: Say) -> dict[str, object]:
    """Measure with 0, 1,000 and `options.messages` messages waiting, and with the queue drained."""
    with bench_directory(options) as directory:
        daemon = Daemon(directory, "backlog", port=0, objects=OBJECTS)
        async with running(daemon), await connect(daemon.address, broker="main") as session:
            return await _phases(daemon, session, options, say)


async def _phases(
    daemon: Daemon, session: Session, options: BacklogOptions, say: Say
) -> dict[str, object]:
    handles = await open_dialogs(session, options.dialogs, "bench_source", ["bench_sink"])
    empty = await _measure(daemon, session, 0)
    say(f"filling the queue with {_FEW} messages")
    await _fill(session, handles, _FEW + _SAMPLES, options)
    few = await _measure(daemon, session, _FEW)
    say(f"filling it with {counted(options.messages, 'message')}")
    began = perf_counter()
    await _fill(session, handles, options.messages, options, say)
    filled = perf_counter() - began
    many = await _measure(daemon, session, options.messages)
    say("draining it")
    began = perf_counter()
    drained_messages = await _drain(session, options, say)
    drained_seconds = perf_counter() - began
    say("waiting for the store to give back what it does not need")
    await daemon.shrunk(empty.store_bytes)
    drained = await _measure(daemon, session, 0)
    return {
        "benchmark": "backlog",
        "settings": describe_settings(options),
        "fill_rate": round(options.messages / filled, 1),
        "drain_rate": round(drained_messages / drained_seconds, 1),
        "empty": empty,
        "few": few,
        "many": many,
        "drained": drained,
        "memory_of_backlog_bytes": many.memory_bytes - empty.memory_bytes,
        "receive_ratio": round(many.receive_us / few.receive_us, 2),
        "empty_receive_ratio": round(drained.receive_us / empty.receive_us, 2),
        "store_ratio": round(drained.store_bytes / empty.store_bytes, 2),
    }


async def _fill(
    session: Session,
    handles: list[bytes],
    count: int,
    options: BacklogOptions,
    say: Say | None = None,
) -> None:
    """Send `count` messages, in transactions of `options.batch`, on the dialogs in turn."""
    body = bytes(options.size)
    left, reported_at = count, perf_counter()

    async def fill_some(turn: int) -> None:
        nonlocal left, reported_at
        while left > 0:
            some = min(options.batch, left)
            left -= some
            async with session.transaction() as tx:
                for at in range(some):
                    await tx.send(handles[(turn + at) % len(handles)], body, "Item")
            turn += some
            if say is not None and perf_counter() - reported_at > _REPORT_EVERY:
                reported_at = perf_counter()
                say(f"  {left} to go")

    await asyncio.gather(*(fill_some(at * 7) for at in range(_PIPELINED)))


async def _drain(session: Session, options: BacklogOptions, say: Say) -> int:
    """Receive all messages, in transactions of up to `options.batch`; return their number."""
    taken, reported_at = 0, perf_counter()

    async def drain_some() -> None:
        nonlocal taken, reported_at
        while True:
            async with session.transaction() as tx:
                messages = await tx.receive("bench_q", options.batch)
            if not messages:
                return
            taken += len(messages)
            if perf_counter() - reported_at > _REPORT_EVERY:
                reported_at = perf_counter()
                say(f"  {taken} taken")

    await asyncio.gather(*(drain_some() for _ in range(_PIPELINED)))
    return taken


async def _measure(daemon: Daemon, session: Session, waiting: int) -> Waiting:
    """Time receives of one message each, after which `waiting` messages are left."""
    await daemon.quiet()
    times = []
    for _ in range(_SAMPLES):
        began = perf_counter()
        async with session.transaction() as tx:
            await tx.receive("bench_q", 1)
        times.append(perf_counter() - began)
    return Waiting(
        messages=waiting,
        memory_bytes=daemon.memory,
        store_bytes=await daemon.store_bytes(),
        receive_us=round(statistics.median(times) * 1e6),
        receive_p95_us=round(sorted(times)[len(times) * 95 // 100] * 1e6),
    )
