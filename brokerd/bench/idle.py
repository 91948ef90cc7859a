"""`brokerd bench idle`: the cost of a daemon that has nothing to do.

Reads: the system's figures of the process.      Calls: a daemon, and clients that only connect.
Never: sends while it counts.

A million dialogs take minutes to begin, and then seconds to measure, so `--keep` keeps them to be
measured again.
"""

import asyncio
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

from brokerd.bench.daemons import OBJECTS, Daemon, running
from brokerd.bench.measuring import Options, Say, bench_directory, describe_settings
from brokerd.bench.opening import open_dialogs, send_beforehand
from brokerd.client.session import connect
from brokerd.clock import SystemClock
from brokerd.errors import Refusal
from brokerd.units import counted

_NAME = "idle"
_COUNT = "dialogs"
"""The file with the number of dialogs in the store."""
_AT_ONCE = 20_000
"""Number of dialogs begun before their messages are received; the daemon has these in memory."""
_CONNECTING = 100
"""Number of clients that connect at a time."""
_SETTLED = 3.0
"""Seconds between the connection of the last client and the measurement."""


class DirectoryTaken(Refusal):
    """The directory is in use by another run; its contents are unchanged."""

    code = "bench_directory"
    hint = "wait until that one has ended, or name another directory with --keep"


class IdleOptions(Options, frozen=True, kw_only=True):
    """The numbers of idle dialogs and clients."""

    dialogs: int = 10_000
    """Number of dialogs open at both sides, with one message each, received long ago."""
    connections: int = 100
    seconds: float = 20.0
    keep: Path | None = None
    """Directory in which daemon and dialogs are kept, and found again; None = a temporary one."""


async def idle(options: IdleOptions, say: Say) -> dict[str, object]:
    """Begin dialogs, restart the daemon, connect clients, and measure."""
    settings = describe_settings(options)
    del settings["keep"]
    kept = options.keep is not None
    with bench_directory(options) if options.keep is None else _kept(options.keep) as directory:
        daemon = Daemon(directory, _NAME, port=0, objects=OBJECTS)
        made = _made(daemon)
        if made > options.dialogs:
            say(f"{made} dialogs are there already: all of them are measured")
        if made < options.dialogs:
            async with running(daemon, kept=kept):
                await _converse(daemon, made, options.dialogs, say)
        clock = SystemClock()
        began = clock.monotonic()
        async with running(daemon, kept=kept):
            ready = clock.monotonic() - began
            started = daemon.processor_seconds
            spent = await _look_on(daemon, options, say)
            memory = daemon.memory
            began = clock.monotonic()
        stopped = clock.monotonic() - began
        there = max(made, options.dialogs)
    return {
        "benchmark": "idle",
        "settings": {**settings, "dialogs": there},
        "seconds_until_ready": round(ready, 2),
        "processor_seconds_until_ready": round(started, 2),
        "percent_of_one_processor": round(100 * spent / options.seconds, 2),
        "memory_bytes": memory,
        "seconds_until_stopped": round(stopped, 2),
    }


@contextmanager
def _kept(directory: Path) -> Iterator[Path]:
    """Lock the directory for this run; remove a new store that cannot be used again.

    The lock is on the directory itself, because a lock file would be left behind.
    """
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryTaken(f"another run has {directory}") from None
        own = directory / _NAME
        is_own = not own.exists()
        try:
            yield directory
        finally:
            if is_own and not (own / _COUNT).exists():
                shutil.rmtree(own, ignore_errors=True)
                if is_new:
                    with suppress(OSError):  # another program has put something into it
                        directory.rmdir()
    finally:
        os.close(lock)


def _made(daemon: Daemon) -> int:
    """Return the number of dialogs that earlier runs began in the store."""
    try:
        return int(_count(daemon).read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def _count(daemon: Daemon) -> Path:
    return daemon.directory / _COUNT


async def _converse(daemon: Daemon, made: int, count: int, say: Say) -> None:
    """Exchange one message on each dialog, so that both sides exist."""
    async with await connect(daemon.address, broker="main") as session:
        for first in range(made, count, _AT_ONCE):
            say(f"dialogs, {first} of {count}")
            left = some = min(_AT_ONCE, count - first)
            handles = await open_dialogs(session, some, "bench_source", ["bench_sink"])
            await send_beforehand(session, handles, some, b"")
            while left:
                async with session.transaction() as tx:
                    left -= len(await tx.receive("bench_q", 1_000, wait=1, groups=1_000))
            _count(daemon).write_text(str(first + some), encoding="ascii")


async def _look_on(daemon: Daemon, options: IdleOptions, say: Say) -> float:
    """Return the processor seconds that the daemon uses while it is idle."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        for first in range(0, options.connections, _CONNECTING):
            say(f"clients, {first} of {options.connections}")
            some = range(min(_CONNECTING, options.connections - first))
            opened = (_connected(daemon, stack) for _ in some)
            await asyncio.gather(*opened)
        say(f"{counted(options.connections, 'client')}, {options.seconds:g} s")
        await clock.sleep_until(clock.monotonic() + _SETTLED)
        before = daemon.processor_seconds
        await clock.sleep_until(clock.monotonic() + options.seconds)
        return daemon.processor_seconds - before


async def _connected(daemon: Daemon, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(await connect(daemon.address, broker="main"))
