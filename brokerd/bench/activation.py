"""`brokerd bench activation`: how quickly readers start, in both homes of a handler (design D15).

Reads: the views of a daemon, the answers of handlers.    Calls: a daemon, the SDK.
Never: compares clocks of two machines; all processes of one machine share the clock `monotonic`.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic_ns  # noqa: TID251  # a benchmark measures

import msgspec

from brokerd.bench.children import with_children
from brokerd.bench.daemons import OBJECTS, Daemon, memory_of, running
from brokerd.bench.measuring import BenchFailed, Options, Say, bench_directory, describe_settings
from brokerd.client.session import Session, connect
from brokerd.client.transaction import Transaction
from brokerd.errors import UsageError
from brokerd.model import Host
from brokerd.units import counted

QUEUE = "bench_q"
_LIMIT = 60.0
"""Time limit of one step, in seconds."""
_LOAD_LIMIT = 300.0
"""Seconds for the whole load of a phase."""
_REPORT_EVERY = 5.0
_LOOK = 0.01
_NOT_COUNTED = 2
"""Number of first rounds that are not counted, because code is loaded in them."""
_STEP_RAMP = "1s"
_BLOCKING = 2.0
"""Seconds for which another client's calls are timed while a handler blocks."""


class ActivationOptions(Options, frozen=True, kw_only=True):
    """The size of the measurement."""

    rounds: int = 30
    """Number of messages that arrive at an idle queue, one at a time."""
    groups: int = 64
    """Number of conversation groups whose messages wait when activation begins."""
    messages: int = 100
    """Number of messages of each group."""
    max_readers: int = 8
    work: float = 0.01
    """Seconds of work per message."""
    host: Host | None = None
    """The only home to measure; None = both."""


async def activation(options: ActivationOptions, say: Say) -> dict[str, object]:
    """Measure first reader, step load, a poison group and a blocking handler, for each home."""
    refuse_too_much(options)
    homes: dict[str, object] = {}
    with bench_directory(options) as directory:
        for host in Host if options.host is None else (options.host,):
            homes[host.value] = await _measure(directory, host, options, say)
    return {"benchmark": "activation", "settings": describe_settings(options), **homes}


def refuse_too_much(options: ActivationOptions) -> None:
    """Raise `UsageError` if the work of all groups would take longer than the limit."""
    in_turn = -(-options.groups // options.max_readers)
    seconds = in_turn * options.messages * options.work
    if seconds > _LOAD_LIMIT:
        raise UsageError(
            f"{counted(options.groups, 'group')} of {counted(options.messages, 'message')}, "
            f"{options.work:g} s each, are {seconds:g} s of work for "
            f"{counted(options.max_readers, 'reader')}; it may be {_LOAD_LIMIT:g} s",
            hint="ask for less with --work, --messages or --groups, or for more with --max-readers",
        )


async def _measure(
    directory: Path, host: Host, options: ActivationOptions, say: Say
) -> dict[str, object]:
    daemon = Daemon(directory, f"activation-{host.value}", port=0, objects=OBJECTS)
    async with running(daemon), await connect(daemon.address, broker="main") as session:
        say(f"{host.value}: a message for an idle queue, {counted(options.rounds, 'time')}")
        first = await _first_readers(session, host, options)
        say(f"{host.value}: {counted(options.groups, 'group')} at once")
        step = await _step_load(session, daemon, host, options, say)
        say(f"{host.value}: the same beside a group that always fails")
        poisoned = await _step_load(session, daemon, host, options, say, poison=True)
        say(f"{host.value}: a handler that blocks")
        blocked = await _blocking(session, host)
    return {
        "first_reader_ms": first,
        "step_load": step,
        "beside_poison": poisoned,
        "poison_ratio": round(poisoned.rate / step.rate, 3),
        "send_beside_blocking_ms": blocked,
    }


# The first reader of an idle queue.


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles, in milliseconds."""

    p50: float
    p99: float
    most: float


async def _first_readers(session: Session, host: Host, options: ActivationOptions) -> Times:
    """Measure the times from the confirmed commit of a send to the first line of the handler."""
    await _use(session, host, "begins", drain_wait="10ms")
    times = []
    for at in range(options.rounds + _NOT_COUNTED):
        await _idle(session, wait_for_spare=host is Host.PROCESS)
        handle = await session.begin_dialog("bench_source", "bench_sink", "bench/v1")
        await session.send(handle, b"x", "Item")
        committed = monotonic_ns()
        began = int((await _answers(session, 1))[0])
        if at >= _NOT_COUNTED:
            times.append((began - committed) / 1e6)
    return _times(times)


def _times(found: list[float]) -> Times:
    found.sort()
    last = found[-1]
    p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
    return Times(p50=round(statistics.median(found), 2), p99=round(p99, 2), most=round(last, 2))


# Step load.


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a load that waits when activation begins."""

    readers: int
    """Highest number of readers that ran at a time."""
    full_after_seconds: float
    """Seconds until that number of readers ran."""
    rate: float
    """Messages per second, of the groups that do not fail."""
    memory_bytes: int
    """Peak memory of the daemon and its readers together."""


async def _step_load(
    session: Session,
    daemon: Daemon,
    host: Host,
    options: ActivationOptions,
    say: Say,
    *,
    poison: bool = False,
) -> Step:
    await session.alter("queue", QUEUE, activation={"status": "off"})
    for number in range(options.groups):
        async with session.transaction() as tx:
            handle = await tx.begin_dialog("bench_source", "bench_sink", "bench/v1")
            for _ in range(options.messages):
                await tx.send(handle, str(options.work).encode(), "Item")
            if poison and number == options.groups // 2:
                await _poison(tx)
    began = time.monotonic()  # noqa: TID251  # a benchmark measures
    await _use(
        session,
        host,
        "works",
        max_readers=options.max_readers,
        ramp_interval=_STEP_RAMP,
        drain_wait="500ms",
    )
    readers, full, memory, reported_at = 0, 0.0, 0, 0.0
    most = options.groups * options.messages
    while True:
        tasks = await session.view("activated_tasks")
        now = time.monotonic() - began  # noqa: TID251
        if len(tasks) > readers:
            readers, full = len(tasks), now
        pids = {int(str(row["pid"])) for row in tasks if isinstance(row, dict)} | {daemon.pid}
        memory = max(memory, sum(memory_of(pid) for pid in with_children(pids)))
        if (left := await _depth(session)) <= (1 if poison else 0):
            break
        if now > _LOAD_LIMIT:
            raise BenchFailed(
                f"{left} of {most} messages are left after {_LOAD_LIMIT:g} s",
                hint="ask for less with --work, --messages or --groups",
            )
        if now - reported_at > _REPORT_EVERY:
            reported_at = now
            say(f"  {counted(left, 'message')} to go")
        await asyncio.sleep(_LOOK)  # noqa: TID251
    rate = most / (time.monotonic() - began)  # noqa: TID251
    await _clear(session)
    return Step(
        readers=readers, full_after_seconds=round(full, 2), rate=round(rate, 1), memory_bytes=memory
    )


async def _poison(tx: Transaction) -> None:
    handle = await tx.begin_dialog("bench_source", "bench_sink", "bench/v1")
    await tx.send(handle, b"poison", "Item")


async def _clear(session: Session) -> None:
    """End the dialogs of this phase, so that the next one begins without them."""
    await session.admin.drain_queue(QUEUE, grace=5)
    await session.admin.clean_up_endpoints("between two phases of a benchmark")


async def _depth(session: Session) -> int:
    (row,) = await session.view("service_queues", where={"name": QUEUE})
    assert isinstance(row, dict)
    return int(row["ready_count"]) + int(row["parked_count"])


# A handler that blocks.


async def _blocking(session: Session, host: Host) -> Times:
    """Time the calls of another client while a handler sleeps without awaiting."""
    await _use(session, host, "blocks", drain_wait="10ms")
    handle = await session.begin_dialog("bench_source", "bench_sink", "bench/v1")
    await session.send(handle, b"x", "Item")
    times, until = [], monotonic_ns() + round(_BLOCKING * 1e9)
    while monotonic_ns() < until:
        began = monotonic_ns()
        await session.begin_dialog("bench_sink", "bench_source", "bench/v1")
        times.append((monotonic_ns() - began) / 1e6)
    await _clear(session)
    return _times(times)


# Helpers for both homes of a handler.


async def _use(session: Session, host: Host, handler: str, **more: object) -> None:
    activation = {
        "handler": f"{__name__}:{handler}",
        "host": host.value,
        "status": "on",
        "max_readers": 1,
        **more,
    }
    await session.alter("queue", QUEUE, poison_mode="park", activation=activation)


async def _idle(session: Session, *, wait_for_spare: bool) -> None:
    """Wait until no reader runs, and a spare is ready if `wait_for_spare`."""

    clients = 2 if wait_for_spare else 1  # a spare that is ready has its session

    async def is_idle() -> bool:
        status = await session.status()
        return not await session.view("activated_tasks") and status["clients"] == clients

    await _until(is_idle)


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with _limited("readers have not come to rest"):
        while not await holds():  # noqa: ASYNC110  # a daemon is asked
            await asyncio.sleep(_LOOK)  # noqa: TID251


@asynccontextmanager
async def _limited(otherwise: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_LIMIT):
            yield
    except TimeoutError:
        raise BenchFailed(f"{otherwise} after {_LIMIT:g} s") from None


async def _answers(session: Session, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with _limited("a handler has not answered"):
        while len(found) < count:
            for one in await session.receive("bench_source_q", autocommit=True, wait=5):
                if one.body:
                    found.append(one.body)
                elif one.is_end:
                    await session.end(one.handle)
    return found


# Handlers.


async def begins(session: Session) -> None:
    """Send back the time at which the handler began."""
    began = monotonic_ns()
    async with session.transaction() as tx:
        for one in await tx.receive(QUEUE, 1, wait=5):
            if one.body:
                await tx.send(one.handle, str(began).encode(), "Item")
            await tx.end(one.handle)


async def works(session: Session) -> None:
    """Receive messages one at a time and work on each, until no message waits.

    Continue after a message that fails, as a good handler does (ACT-27).
    """
    while True:
        with suppress(ValueError):
            async with session.transaction() as tx:
                messages = await tx.receive(QUEUE, 1, wait=session.drain_wait)
                for one in messages:
                    if one.body == b"poison":
                        raise ValueError("it always fails")
                    if one.body:
                        await asyncio.sleep(float(one.body))  # noqa: TID251
            if not messages:
                return


async def blocks(session: Session) -> None:
    """Sleep without awaiting, like code that was not written for an event loop."""
    async with session.transaction() as tx:
        await tx.receive(QUEUE, 1, wait=1)
    for _ in range(20):
        time.sleep(0.1)  # noqa: ASYNC251
        await asyncio.sleep(0)  # noqa: TID251
