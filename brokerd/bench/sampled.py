"""A daemon that reports the processor time of its loop by module: `brokerd` with a sampler.

    python -m brokerd.bench.sampled REPORT serve -c settings.toml …

At every millisecond of processor time the sampler finds the module that the loop is in, and adds
to it the time that the loop's thread has used since the last sample; so the sum is exact, and the
parts are samples. Time in C (sockets, SQLite, the collector) is added to the module that called C,
or to the module that runs next. At SIGUSR2 the sampler writes a report of the totals so far.

Reads: the frames of its own loop.      Calls: the command line, unchanged.
Never: runs in a daemon that was not started through it, or changes the behaviour of the daemon.
"""

import contextlib
import resource
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import msgspec

from brokerd.clock import SystemClock

EVERY = 0.001
"""Seconds of processor time, of all threads, from one sample to the next."""
ELSEWHERE = "(loop)"
"""Name for the interpreter and the event loop, while no module of brokerd is at work."""

_NOT_IT = ("brokerd.bench.", "brokerd.cli.", "brokerd.__main__")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the start."""

    number: int
    """The number of the report, which rises by one."""
    at: float
    """Time of the report in seconds, on a clock that never goes back."""
    loop: dict[str, float]
    """Seconds of the loop's thread by module."""
    threads: dict[str, float]
    """Seconds of each thread by name, the loop's too."""
    kernel: float
    """Seconds of the whole process in the kernel."""


class Sampler:
    """A sampler of the loop, which adds up the samples and writes a report on a signal."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spent: dict[str, float] = {}
        self._last = time.thread_time()
        self._number = 0

    def start(self) -> None:
        """Begin to sample, on the main thread, which runs the loop and handles signals."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(signal.SIGUSR2, self._report)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        now, module = time.thread_time(), module_of(frame)
        self._spent[module] = self._spent.get(module, 0.0) + now - self._last
        self._last = now

    def _report(self, number: int, frame: FrameType | None) -> None:
        self._sample(number, frame)
        self._number += 1
        report = Report(
            number=self._number,
            at=SystemClock().monotonic(),
            loop=dict(self._spent),
            threads=threads(),
            kernel=resource.getrusage(resource.RUSAGE_SELF).ru_stime,  # finer than ticks
        )
        aside = self._path.with_suffix(".new")
        aside.write_bytes(msgspec.json.encode(report))
        aside.rename(self._path)


def module_of(frame: FrameType | None) -> str:
    """Return the module of brokerd that runs in a frame, or that has called the running code."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("brokerd.") and not name.startswith(_NOT_IT):
            return name.removeprefix("brokerd.")
        frame = frame.f_back
    return ELSEWHERE


def threads() -> dict[str, float]:
    """Return the processor seconds of the threads of this process, if the system reports them.

    Threads that are not Python's have the name that the system knows them by.
    """
    names = {str(one.native_id): one.name for one in threading.enumerate()}
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):
            name = names.get(task.name) or (task / "comm").read_text(encoding="utf-8").strip()
            spent = (task / "schedstat").read_text(encoding="ascii").split()[0]
            found[name] = found.get(name, 0.0) + int(spent) / 1e9
    return found


def main() -> None:
    """Run `brokerd`, sampled, with the arguments after the first, which names the report."""
    Sampler(Path(sys.argv[1])).start()
    sys.argv = ["brokerd", *sys.argv[2:]]
    runpy.run_module("brokerd", run_name="__main__")


if __name__ == "__main__":
    main()
