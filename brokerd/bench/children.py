"""Processes that a benchmark starts: none is left when it ends, however it ends.

Reads: what the system tells of processes.      Calls: nothing else.
Never: lets an interrupt at the terminal reach one: it is for the benchmark, which then ends them.
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
"""Seconds in which what a process has started ends after it."""
UNKNOWN: Final = 255
"""In place of the status of one that somebody else has waited for."""


async def started(
    *command: str,
    stdin: int | None = None,
    stdout: int | IO[bytes],
    stderr: IO[bytes] | None = None,
) -> Process:
    """A process in a session of its own. Whoever is interrupted meanwhile has none."""
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
    """End it now if it still runs, and wait until it and all that it has started are gone.

    Not by `kill` of a process: it would take the status of one that has just ended away from
    the loop, which warns of that."""
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
    """The status it has ended with, negative for a signal; None while it runs.

    Asked of the system, which knows it before the loop does."""
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
    """How a process has ended, in words."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def with_children(pids: set[int]) -> set[int]:
    """These processes and those below them, as far as the system tells."""
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
