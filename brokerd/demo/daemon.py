"""A daemon of the demo: a process that is started, watched, killed and stopped.

Reads:  its exit status, its memory as the system reports it, the end of its log.
Calls:  `brokerd serve`; the SDK, to check whether the daemon answers.
Never:  leaves a process behind: `end` must be called whatever happens.
"""

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import Final

from brokerd.client.session import connect
from brokerd.clock import Clock
from brokerd.demo.place import Site
from brokerd.errors import BrokerError

READY_WITHIN: Final = 30.0
STOPPED_WITHIN: Final = 20.0
_LOOK_EVERY: Final = 0.05
_TAIL: Final = 4096
_SHOWN: Final = 8


class DemoFailed(Exception):
    """The demo cannot continue; the text is the verdict."""


class Daemon:
    """One instance and its processes, one after the other."""

    def __init__(self, site: Site, *, clock: Clock) -> None:
        self.site = site
        self.peaks: list[int] = []
        """Peak memory of each process, in bytes, at the last sample; 0 = the system does not report
        it."""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Future of a sentence for the user, set when the process has ended by itself."""
        self._clock = clock
        self._spawning: asyncio.Future[Process] | None = None
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._wanted = False
        self._answered = False

    @property
    def name(self) -> str:
        """The name of the instance."""
        return self.site.name

    async def start(self) -> None:
        """Start the process and wait until it answers; raise `DemoFailed` if it does not.

        The spawn is shielded, so that `end` can kill the process of a cancelled start.
        """
        command = ["-m", "brokerd", "serve", "-c", str(self.site.settings)]
        command += ["--objects", str(self.site.objects)]
        with self.site.log.open("ab") as log:
            self._spawning = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    sys.executable,
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # an interrupt at the terminal is for the demo alone
                )
            )
            self._process = await asyncio.shield(self._spawning)
        self._wanted, self._answered = True, False
        self._watch = asyncio.get_running_loop().create_task(self._watched(self._process))
        self.peaks.append(0)
        await self._ready()

    async def kill(self) -> None:
        """End the process without a warning (SIGKILL)."""
        self.sample()
        await self._signalled(signal.SIGKILL)

    async def stop(self) -> int:
        """Stop the process (SIGTERM, after `STOPPED_WITHIN` SIGKILL); return its exit status."""
        self.sample()
        process = self._process
        assert process is not None, "it has been started"
        deadline = self._clock.monotonic() + STOPPED_WITHIN
        try:
            async with asyncio.timeout_at(self._loop_time(deadline)):
                return await self._signalled(signal.SIGTERM)
        except TimeoutError:
            return await self._signalled(signal.SIGKILL)

    async def end(self) -> None:
        """Kill the process, if it exists, and wait for its end."""
        if self._spawning is not None:
            await asyncio.wait({self._spawning})
            if self._spawning.exception() is None:  # otherwise `start` has raised the exception
                self._process = self._spawning.result()
                await self._signalled(signal.SIGKILL)
        if self._watch is not None:
            await asyncio.wait({self._watch})
        if self.lost.done():
            self.lost.exception()

    def sample(self) -> None:
        """Update the peak memory of the running process."""
        if self._process is not None and self._process.returncode is None:
            self.peaks[-1] = max(self.peaks[-1], peak_of(self._process.pid))

    def tail(self) -> str:
        """Return the last lines of the log."""
        return _tail(self.site.log)

    async def _ready(self) -> None:
        address = self.site.address
        waiting = asyncio.ensure_future(_answers(address, self._clock))
        lost = asyncio.shield(self.lost)
        try:
            await asyncio.wait({waiting, lost}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise DemoFailed(f"{lost.result()}\n{self.tail()}")
            problem = waiting.result()
            if problem:
                raise DemoFailed(f"{self.name} does not answer: {problem}\n{self.tail()}")
            self._answered = True
        finally:
            waiting.cancel()
            lost.cancel()

    async def _signalled(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None, "it has been started"
        self._wanted = False
        if process.returncode is None:
            process.send_signal(number)
        return await process.wait()

    async def _watched(self, process: Process) -> None:
        status = await process.wait()
        if self._wanted and process is self._process and not self.lost.done():
            how = "ended by itself" if self._answered else "did not start: it ended"
            self.lost.set_result(f"{self.name} {how} with status {status}")

    def _loop_time(self, deadline: float) -> float:
        return asyncio.get_running_loop().time() + deadline - self._clock.monotonic()


def peak_of(pid: int) -> int:
    """Return the peak memory of a process, in bytes; 0 = the system does not report it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


async def _answers(address: str, clock: Clock) -> str:
    """Return "" once a daemon answers, or after `READY_WITHIN` the reason why none does."""
    deadline = clock.monotonic() + READY_WITHIN
    while True:
        try:
            async with connect(address, broker="main", clock=clock):
                return ""
        except BrokerError as error:
            if clock.monotonic() > deadline:
                return error.message
        await clock.sleep_until(clock.monotonic() + _LOOK_EVERY)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_SHOWN:])
