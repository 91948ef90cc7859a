"""Check process: a child that runs the checks, started when needed, again if it ends (OBJ-61).

Reads:  nothing.      Calls: the operating system.
Never:  checks a body in this process, or blames a body for the end of the child unless the child
        had no other body.
Wakes:  once per turn of the loop, for all checks requested meanwhile.
Fails:  a check that exceeds its time or memory, or ends its process, has `Outcome.OVERRUN`; all
        waiting checks have `Outcome.UNAVAILABLE` once the child has failed to start a few times in
        a row.
"""

import asyncio
import os
import signal
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import msgspec

from brokerd.checking import child
from brokerd.checking.checker import (
    CANCELLED,
    FIT,
    Counts,
    Done,
    Limits,
    Outcome,
    Pending,
    Verdict,
)
from brokerd.model import MessageType, Validation
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import CHECKS

MOST_SENT: Final = 256
"""Most bodies that the child has at a time."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of the bodies that the child has at a time, unless a single body has more."""
STALLED_AFTER: Final = 10.0
"""Seconds without an answer, in addition to ten times the processor time of the check, after which
the child is killed: it was stopped, or waits for memory that is swapped out."""
START_WITHIN: Final = 60.0
"""Seconds within which the child has to be ready."""
MOST_STARTS: Final = 3
"""Number of successive failed starts after which waiting checks are given up as unavailable."""
FIRST_DELAY: Final = 0.1
"""Seconds before the second attempt to start the child; doubled with each further attempt."""
LONGEST_DELAY: Final = 30.0
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV")
_MIB: Final = 1024 * 1024


class CheckProcess:
    """The child, and the bodies that wait for it."""

    def __init__(
        self,
        *,
        limits: Limits,
        log: Log,
        command: tuple[str, ...] = (sys.executable, "-P", "-m", child.__name__),
    ) -> None:
        self.counts = Counts()
        self._limits = limits
        self._log = log
        self._command = command
        self._queue: deque[Pending] = deque()
        self._sent: deque[Pending] = deque()
        self._sent_bytes = 0
        self._definitions: dict[tuple[Validation, str | None], int] = {}
        self._child: _Pipes | None = None
        self._starting: asyncio.Task[None] | None = None
        self._failed_starts = 0
        self._retry: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._stalled = False
        self._scheduled = False
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Number of bodies that have no verdict yet."""
        return len(self._queue) + len(self._sent)

    @property
    def pid(self) -> int | None:
        """Process id of the child; None = it has not started."""
        return None if self._child is None else self._child.pid

    def check(self, kind: MessageType, body: bytes, done: Done) -> Pending:
        """Check a body, and call `done` on a later turn of the loop."""
        pending = Pending(kind, body, done)
        self._queue.append(pending)
        self._soon()
        return pending

    def limit(self, limits: Limits) -> None:
        """Use other limits for checks from now on; replace a child with another memory limit."""
        if limits.memory != self._limits.memory and self._child is not None:
            for asked in self._sent:
                asked.alone = False  # the child does not end because of any of these
            self._child.kill()
        self._limits = limits

    async def stop(self) -> None:
        """End the child; pending checks get no verdict."""
        self._stopped = True
        self._queue.clear()
        self._sent.clear()
        for timer in (self._retry, self._stall):
            if timer is not None:
                timer.cancel()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        running, self._child = self._child, None
        if running is not None:
            running.kill()
            await running.ended

    # Sending.

    def _soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """Send as many bodies as the child may have, in one write."""
        self._scheduled = False
        running = self._child
        if running is None:
            self._start()
            return
        frames: list[bytes] = []
        while self._queue and self._has_room(self._queue[0]):
            asked = self._queue.popleft()
            if asked.cancelled:
                asked.done(CANCELLED)
                continue
            self._sent.append(asked)
            self._sent_bytes += len(asked.body)
            seconds = self._limits.seconds(len(asked.body))
            frames.append(child.frame((seconds, self._define(asked.kind), asked.body)))
        if frames:
            running.write(b"".join(frames))
            if self._stall is None:
                self._watch()

    def _has_room(self, following: Pending) -> bool:
        if not self._sent:
            return True
        if following.alone or self._sent[-1].alone or len(self._sent) >= MOST_SENT:
            return False
        return self._sent_bytes + len(following.body) <= MOST_BYTES

    def _define(self, kind: MessageType) -> child.Definition:
        key = kind.validation, kind.schema
        number = self._definitions.get(key)
        if number is not None:
            return number
        number = self._definitions[key] = len(self._definitions)
        return number, *key

    # Starting.

    def _start(self) -> None:
        if self._starting is not None or self._stopped or self._retry is not None:
            return
        if not self._queue:
            return
        self._starting = asyncio.get_running_loop().create_task(self._start_child())

    async def _start_child(self) -> None:
        running = _Pipes(self)
        failed = ""
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: running,
                *self._command,
                str(self._limits.memory),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                close_fds=True,
                env=_environment(),
            )
            await asyncio.wait(
                (running.ready, running.ended),
                timeout=START_WITHIN,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if running.ended.done():
                failed = f"it ended before it was ready: {_how(running.returncode)}"
            elif not running.ready.done():
                running.kill()
                await running.ended
                failed = f"it was not ready within {START_WITHIN:g} s"
        # For any error, `_not_started` answers the waiting checks.
        except Exception as error:  # noqa: BLE001
            failed = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            running.kill()
            self._starting = None
            raise
        self._starting = None
        if self._stopped:
            running.kill()
        elif failed:
            self._not_started(failed)
        else:
            self._failed_starts, self.counts.failing = 0, ""
            self._definitions.clear()
            self._child = running
            self._send()

    def _not_started(self, why: str) -> None:
        self.counts.restarts += 1
        self._failed_starts += 1
        self.counts.failing = why
        self._log.warning(
            CHECKS,
            subclass="not_started",
            attempts=self._failed_starts,
            error=why,
            hint=f"run it by hand: {' '.join(self._command)} {self._limits.memory}",
        )
        delay = min(FIRST_DELAY * 2 ** (self._failed_starts - 1), LONGEST_DELAY)
        self._retry = asyncio.get_running_loop().call_later(delay, self._start_again)
        if self._failed_starts >= MOST_STARTS:
            waiting, self._queue = self._queue, deque()
            self.counts.unavailable += len(waiting)
            for asked in waiting:
                asked.done(Verdict(Outcome.UNAVAILABLE, f"checks cannot be run: {why}"))

    def _start_again(self) -> None:
        self._retry = None
        self._start()

    # Answers.

    def answered(self, running: "_Pipes", answers: list[child.Answer]) -> None:
        """Report the child's answers as verdicts, in the order of the bodies sent."""
        if running is not self._child:
            return
        for what, text in answers:
            if what == child.REFUSED:
                self._sent[0].refused = True
                continue
            asked = self._done_with_first()
            match what:
                case child.FIT:
                    self._report(asked, FIT)
                case child.UNFIT:
                    self._report(asked, Verdict(Outcome.UNFIT, text))
                case child.NO_MEMORY:
                    self._report(asked, self._overrun("memory"), "memory")
                case _:
                    verdict = Verdict(Outcome.OVERRUN, f"its check gave up: {text}")
                    self._report(asked, verdict, "gave_up")
        self._watch()
        if self._queue:
            self._soon()

    def _done_with_first(self) -> Pending:
        asked = self._sent.popleft()
        self._sent_bytes -= len(asked.body)
        return asked

    def _report(self, asked: Pending, verdict: Verdict, cause: str = "") -> None:
        self.counts.checked += 1
        if cause:
            self.counts.overruns[cause] += 1
        elif verdict.outcome is Outcome.UNFIT:
            self.counts.unfit += 1
        asked.done(verdict)

    def _overrun(self, cause: str, how: str = "", size: int = 0) -> Verdict:
        limits = self._limits
        texts = {
            "time": f"took more than {limits.seconds(size):g} s of processor time (checks.time)",
            "memory": f"took more than {limits.memory // _MIB} MiB of memory (checks.memory)",
            "crash": f"ended the process that ran it ({how}), most likely for want of memory "
            f"beyond {limits.memory // _MIB} MiB (checks.memory)",
        }
        return Verdict(Outcome.OVERRUN, f"its check {texts[cause]}")

    # The end of the child.

    def ended(self, running: "_Pipes") -> None:
        """Send the bodies of an ended child to the next one.

        A body that is known to have ended the child is not sent again."""
        if running is not self._child or self._stopped:
            return
        self._child = None
        if self._sent:
            self.counts.restarts += 1
            self._blame(running.returncode)
        self._stalled = False
        # It is unknown which body ended the child: each is sent alone now, so that an end of the
        # child is attributed to the right body.
        for asked in self._sent:
            asked.alone = True
        self._queue.extendleft(reversed(self._sent))
        self._sent.clear()
        self._sent_bytes = 0
        self._watch()
        self._start()

    def _blame(self, status: int) -> None:
        """Give the first body a verdict if it was refused or alone; the others are sent again."""
        first, how = self._sent[0], _how(status)
        if first.refused:
            text = "not valid (to find out where takes more than a check may)"
            self._report(self._done_with_first(), Verdict(Outcome.UNFIT, text))
            return
        if not first.alone:
            return
        is_time = self._stalled or status == -signal.SIGPROF
        cause = "time" if is_time else "crash"
        self._done_with_first()
        self._report(first, self._overrun(cause, how, len(first.body)), cause)

    def _watch(self) -> None:
        """Start the timer that kills the child if the first outstanding answer does not come."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self._sent:
            seconds = STALLED_AFTER + 10 * self._limits.seconds(len(self._sent[0].body))
            self._stall = asyncio.get_running_loop().call_later(seconds, self._kill_stalled)

    def _kill_stalled(self) -> None:
        self._stall = None
        if self._child is not None:
            self._stalled = True
            self._child.kill()


class _Pipes(asyncio.SubprocessProtocol):
    """One child, with its pipes and its unread output."""

    def __init__(self, owner: CheckProcess) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.returncode = 0
        self.pid = 0
        self._owner = owner
        self._left = bytearray()
        self._transport: asyncio.SubprocessTransport | None = None
        self._decoder = msgspec.msgpack.Decoder(child.Answer)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self.pid = self._transport.get_pid()

    def write(self, data: bytes) -> None:
        """Write to the child's standard input."""
        assert self._transport is not None, "it was started"
        pipe = cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))
        # Otherwise the child has ended, and will be replaced.
        if pipe is not None and not pipe.is_closing():
            pipe.write(data)

    def kill(self) -> None:
        """Kill the child."""
        if self._transport is not None:
            with suppress(ProcessLookupError):
                self._transport.kill()

    def pipe_data_received(self, _fd: int, data: bytes) -> None:
        self._left += data
        answers: list[child.Answer] = []
        at, left = 0, self._left
        while len(left) - at >= child.LENGTH:
            end = at + child.LENGTH + int.from_bytes(left[at : at + child.LENGTH], "big")
            if end > len(left):
                break
            answers.append(self._decoder.decode(left[at + child.LENGTH : end]))
            at = end
        del left[:at]
        if answers and not self.ready.done():
            self.ready.set_result(None)
            del answers[0]
        if answers:
            self._owner.answered(self, answers)

    def connection_lost(self, _error: Exception | None) -> None:
        """Report the end of the child, after all of its output has been read."""
        assert self._transport is not None, "it was started"
        self.returncode = self._transport.get_returncode() or 0
        self._transport.close()
        if not self.ended.done():
            self.ended.set_result(None)
        self._owner.ended(self)


def _environment() -> dict[str, str]:
    """Return the child's environment: a few of the daemon's variables, and this program's path."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    ours = str(Path(__file__).parents[2])
    path = [ours, *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
