"""Processes of a benchmark, none of which is left when the benchmark ends, however it ends.

Reads: the system's tables of processes.      Calls: nothing else.
Never: lets an interrupt at the terminal reach a process; the benchmark gets it and ends them all.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final

from brokerd.clock import SystemClock

_BELOW_LIMIT: Final = 5.0
"""Seconds that the descendants of an ended process have to end."""
UNKNOWN: Final = 255
"""Status of a process whose status another part of this program has collected."""


async def started(
    *command: str,
    stdin: int | None = None,
    stdout: int | IO[bytes],
    stderr: IO[bytes] | None = None,
) -> Process:
    """Start a process in a session of its own; kill it if the caller is cancelled meanwhile."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait({starting})
        if starting.exception() is None:
            await killed(starting.result())
        raise


async def killed(process: Process) -> None:
    """Kill the process if it still runs, and wait until it and all its descendants are gone.

    The process object's `kill` is not used, because it would collect the status of a process
    that has just ended before the loop does, and the loop would warn of that.
    """
    # Listed before the kill: afterwards the system no longer reports whose children they were.
    below = with_children({process.pid}) - {process.pid} if process.returncode is None else set()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    clock = SystemClock()
    deadline = clock.monotonic() + _BELOW_LIMIT
    while _running(below) and clock.monotonic() < deadline:
        await clock.sleep_until(clock.monotonic() + 0.01)


def status_of(process: Process) -> int | None:
    """Return the exit status of a process, negative for a signal; None while it runs.

    The status comes from the system, which has it before the loop does.
    """
    if process.returncode is not None:
        return process.returncode
    try:
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return UNKNOWN
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def ending(status: int) -> str:
    """Return how a process ended, in words."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def with_children(pids: set[int]) -> set[int]:
    """Return these processes and their descendants, as far as the system lists them."""
    found, more = set(pids), list(pids)
    while more:
        below = Path(f"/proc/{more[0]}/task/{more.pop(0)}/children")
        with contextlib.suppress(OSError):
            new = {int(word) for word in below.read_text(encoding="ascii").split()} - found
            found |= new
            more += new
    return found


def _running(pids: Iterable[int]) -> bool:
    for pid in pids:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
            if text.rpartition(")")[2].split()[0] not in {"Z", "X"}:
                return True
    return False
