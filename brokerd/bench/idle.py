"""`brokerd bench idle`: what a daemon costs of which nobody wants anything.

Reads: what the system tells of the process.      Calls: a daemon, and clients that only connect.
Never: sends while it counts.
"""

import asyncio
from contextlib import AsyncExitStack

from brokerd.bench.daemons import OBJECTS, Daemon
from brokerd.bench.measuring import Options, Say, bench_directory, describe_settings
from brokerd.bench.opening import open_dialogs, send_beforehand
from brokerd.client.session import connect
from brokerd.clock import SystemClock

_AT_ONCE = 20_000
"""Dialogs that are begun before their messages are received: what a daemon keeps in memory."""
_SETTLED = 3.0
"""Seconds after the last client has come."""


class IdleOptions(Options, frozen=True, kw_only=True):
    """What is there, and is not used."""

    dialogs: int = 10_000
    """Open at both sides, a message of each received long ago."""
    connections: int = 100
    seconds: float = 20.0


async def idle(options: IdleOptions, say: Say) -> dict[str, object]:
    """Make dialogs, start the daemon anew, connect, and look on."""
    with bench_directory(options) as directory:
        daemon = Daemon(directory, "idle", port=0, objects=OBJECTS)
        await daemon.start()
        try:
            await _converse(daemon, options.dialogs, say)
        finally:
            await daemon.stop()
        clock = SystemClock()
        began = clock.monotonic()
        await daemon.start()
        ready = clock.monotonic() - began
        try:
            started = daemon.processor_seconds
            say(f"{options.connections} clients, {options.seconds:g} s")
            spent = await _look_on(daemon, options)
            memory = daemon.memory
        finally:
            await daemon.stop()
    return {
        "benchmark": "idle",
        "settings": describe_settings(options),
        "seconds_until_ready": round(ready, 2),
        "processor_seconds_until_ready": round(started, 2),
        "percent_of_one_processor": round(100 * spent / options.seconds, 2),
        "memory": memory,
    }


async def _converse(daemon: Daemon, count: int, say: Say) -> None:
    """One message on each dialog, so that both sides are there."""
    async with await connect(daemon.address, broker="main") as session:
        for first in range(0, count, _AT_ONCE):
            say(f"dialogs, {first} of {count}")
            some = min(_AT_ONCE, count - first)
            handles = await open_dialogs(session, some, "bench_source", ["bench_sink"])
            await send_beforehand(session, handles, some, b"")
            while some:
                async with session.transaction() as tx:
                    some -= len(await tx.receive("bench_q", 1_000, wait=1, groups=1_000))


async def _look_on(daemon: Daemon, options: IdleOptions) -> float:
    """Processor seconds of the daemon while nothing happens."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        sessions = [connect(daemon.address, broker="main") for _ in range(options.connections)]
        for session in await asyncio.gather(*sessions):
            await stack.enter_async_context(session)
        await clock.sleep_until(clock.monotonic() + _SETTLED)
        before = daemon.processor_seconds
        await clock.sleep_until(clock.monotonic() + options.seconds)
        return daemon.processor_seconds - before
