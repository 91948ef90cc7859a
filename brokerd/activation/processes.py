"""Processes: readers that are child processes, each with a process group of its own (SX-8).

Reads:  what the child prints, as much as is wanted.      Calls: the operating system.
Never:  waits for a child that was killed, keeps more than the last lines of what it prints, or
        leaves anything of its group behind.
Fails:  a child that cannot be started is told in words, as one that ended with an error.
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

from brokerd.activation import guard
from brokerd.model import OWNER, Activation

DIED_OF_SIGNAL: Final = 128
NO_PROGRAM: Final = 127
UNUSABLE: Final = 78
"""Exit status of a handler's process: the handler cannot be imported, or is none."""
FAILED: Final = 70
"""The same: it raised, or left a transaction open."""
OUTPUT_LINES: Final = 200
OUTPUT_BYTES: Final = 64 * 1024
"""So much of what one reader prints goes to the log; the rest is counted."""
_SAID_NOTHING: Final = "it printed nothing: run it by hand to see why"
_SAID_WHY: Final = "see the rest of what it printed in the event log (task_output)"
_LINE: Final = 2000
_TAIL: Final = 3
"""Lines that say why it ended."""
_CHUNK: Final = 64 * 1024
_OWN: Final = (OWNER, "definer")
_CLOSING: Final = 1.0
"""Seconds that its output may stay open once it is gone."""
_KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR")
"""What a child inherits of the environment (SX-8)."""


class Child(msgspec.Struct, frozen=True):
    """What is to be run."""

    words: Sequence[str]
    environment: Mapping[str, str]
    run_as: str = OWNER
    """An account of the operating system; the owner's is the daemon's own."""
    memory: int = 0
    """Bytes of data it may have; 0 = no limit."""
    last_words: float = 0.0
    """Seconds it has to end after SIGTERM once we are gone; 0 = it is killed at once."""
    directory: str | None = None
    """Where it is started; None = where we are."""
    descriptors: tuple[int, ...] = ()
    """Open files that it, its guard and what it starts hold as well."""
    says_why: bool = False
    """The last line it prints is why it ended, and says what to do."""


class Running:
    """One child: started by `start`, awaited by `ended`, told to stop by `terminate`."""

    def __init__(
        self, process: Process, on_line: Callable[[str], None], *, says_why: bool = False
    ) -> None:
        self._process = process
        self._on_line = on_line
        self._says_why = says_why
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._logged = self._lines = 0
        self.dropped = 0
        """Bytes of output that are not in the log."""
        self.pid = process.pid
        self._reading = asyncio.ensure_future(self._read())

    async def ended(self) -> str:
        """Wait for its end; what was wrong with it, else empty. Cancelled: it is killed."""
        try:
            status = await self._process.wait()
        finally:
            self.kill()
            if self._process.returncode is None:
                await self._process.wait()
            await asyncio.wait({self._reading}, timeout=_CLOSING)
            self._reading.cancel()
            if self._process.stdin is not None:
                self._process.stdin.close()
        return self._told(status)

    def terminate(self) -> None:
        """Ask it to end: SIGTERM to its group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, and whatever it has started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _told(self, status: int) -> str:
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
            if len(rest) > _CHUNK:  # it never ends a line
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
    """Start a child under its guard. `OSError`, `LookupError`: it cannot be, and why."""
    account = _account(child.run_as)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(Path(guard.__file__)),
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
    """The account of that name; None = the daemon's own."""
    if name in _OWN:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise LookupError(
            f"there is no account {name!r} on this machine; fix: add it, or let run_as name another"
        ) from None


def words_of(activation: Activation, queue: str) -> list[str]:
    """What is run for a queue: its command, or Python with its handler."""
    if activation.command:
        return list(activation.command)
    return [sys.executable, "-m", "brokerd.activation.child", activation.handler, queue]


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """What a child sees: little of the daemon's own, and what is given."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "PYTHONUNBUFFERED": "1", **given}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
