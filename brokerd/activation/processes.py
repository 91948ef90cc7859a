"""Processes: readers that are child processes, each with its own process group (SX-8).

Reads:  the output of the child, up to a limit.      Calls: the operating system.
Never:  keeps more than the last lines of a child's output, or leaves a process of its group behind.
Fails:  `ended` returns the reason if the command cannot be started, as for one that failed;
        `start` raises if the account does not exist or the guard cannot be started.
"""

import asyncio
import os
import pwd
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from brokerd.activation import child_guard
from brokerd.model import OWNER, Activation

DIED_OF_SIGNAL: Final = 128
NO_PROGRAM: Final = 127
UNUSABLE: Final = 78
"""Exit status of a handler's process: the handler cannot be imported, or is not a handler."""
FAILED: Final = 70
"""Exit status of a handler's process: the handler raised, or left a transaction open."""
OUTPUT_LINES: Final = 200
OUTPUT_BYTES: Final = 64 * 1024
"""Limits on the logged output of one reader, in lines and in bytes; the rest is counted."""
_SAID_NOTHING: Final = "it printed nothing: run it by hand to see why"
_SAID_WHY: Final = "see the rest of what it printed in the event log (task_output)"
_LINE: Final = 2000
_TAIL: Final = 3
"""Number of last lines that are kept to report why a child ended."""
_CHUNK: Final = 64 * 1024
_OWN: Final = (OWNER, "definer")
_CLOSING: Final = 1.0
"""Seconds for which the output may stay open after the end of the process."""
_KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR")
"""Variables that a child inherits from the environment of the daemon (SX-8)."""


class Child(msgspec.Struct, frozen=True):
    """The command of a child process, with its environment and limits."""

    words: Sequence[str]
    environment: Mapping[str, str]
    run_as: str = OWNER
    """Account of the operating system; `owner` = the daemon's own account."""
    memory: int = 0
    """Number of bytes of data that the child may have; 0 = no limit."""
    last_words: float = 0.0
    """Seconds that the child has to end after SIGTERM once this process has ended; 0 = it is killed
    at once."""
    directory: str | None = None
    """Working directory of the child; None = that of this process."""
    descriptors: tuple[int, ...] = ()
    """Descriptors of open files that the child, its guard and its own children inherit."""
    says_why: bool = False
    """Whether the last output line of the child gives the reason of a failure, and the remedy."""


class Running:
    """A running child: `start` starts it, `ended` awaits it, `terminate` asks it to end."""

    def __init__(
        self, process: Process, on_line: Callable[[str], None], *, says_why: bool = False
    ) -> None:
        self._process = process
        self._on_line = on_line
        self._says_why = says_why
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._logged = self._lines = 0
        self.dropped = 0
        """Number of bytes of output that are not in the log."""
        self.pid = process.pid
        self._reading = asyncio.ensure_future(self._read())

    async def ended(self) -> str:
        """Wait for the child's end; return why it failed, or "". Cancelling kills the child."""
        try:
            status = await self._process.wait()
        # Also after a normal end: kills the processes that the child has left in its group, which
        # could hold the output open. The wait for the output is at most `_CLOSING`.
        finally:
            self.kill()
            if self._process.returncode is None:
                await self._process.wait()
            await asyncio.wait({self._reading}, timeout=_CLOSING)
            self._reading.cancel()
            if self._process.stdin is not None:
                self._process.stdin.close()
        return self._describe_end(status)

    def terminate(self) -> None:
        """Ask the child to end: send SIGTERM to its process group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the child and all processes in its process group."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _describe_end(self, status: int) -> str:
        if status == 0:
            return ""
        if status < 0:
            how = f"killed by {_name(-status)}"
        elif status > DIED_OF_SIGNAL:
            how = f"killed by {_name(status - DIED_OF_SIGNAL)}"
        else:
            if self._says_why and status in (FAILED, UNUSABLE) and self._tail:
                return self._tail[-1]
            how = f"exit status {status}"
        if status == NO_PROGRAM:
            return f"{self._tail[-1] if self._tail else how}; fix: give a command that is there"
        if not self._tail:
            return f"{how}; fix: {_SAID_NOTHING}"
        return f"{how}: {' | '.join(self._tail)}; fix: {_SAID_WHY}"

    async def _read(self) -> None:
        assert self._process.stdout is not None, "it was started with a pipe"
        rest = b""
        while chunk := await self._process.stdout.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._line(line)
            if len(rest) > _CHUNK:  # a line without end is cut
                self._line(rest)
                rest = b""
        if rest:
            self._line(rest)

    def _line(self, line: bytes) -> None:
        text = line[:_LINE].decode("utf-8", "replace").rstrip()
        if text:
            self._tail.append(text)
        if self._lines >= OUTPUT_LINES or self._logged + len(line) > OUTPUT_BYTES:
            self.dropped += len(line) + 1
        elif text:
            self._lines += 1
            self._logged += len(line)
            self._on_line(text)


async def start(child: Child, on_line: Callable[[str], None]) -> Running:
    """Start a child under a guard. Raises `OSError` or `LookupError` if it cannot be started."""
    account = _account(child.run_as)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(Path(child_guard.__file__)),
        str(child.memory),
        "" if account is None else f"{account.pw_uid}:{account.pw_gid}",
        str(child.last_words),
        *child.words,
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
        cwd=child.directory,
        pass_fds=child.descriptors,
        env=environment(child.environment),
    )
    return Running(process, on_line, says_why=child.says_why)


def _account(name: str) -> pwd.struct_passwd | None:
    """Return the account with this name; None = the daemon's own account."""
    if name in _OWN:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise LookupError(
            f"there is no account {name!r} on this machine; fix: add it, or let run_as name another"
        ) from None


def words_of(activation: Activation, queue: str) -> list[str]:
    """Return the command of a queue's readers: the queue's own, or Python with its handler."""
    if activation.command:
        return list(activation.command)
    return [sys.executable, "-m", "brokerd.activation.child", activation.handler, queue]


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: a few of the daemon's variables, and the given ones."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "PYTHONUNBUFFERED": "1", **given}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
