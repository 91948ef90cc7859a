"""Many: runs of seeds spread over processes (HK-8).

Each process is this program again, with a given PYTHONHASHSEED; it reads numbers of seeds and
answers each with one line. Results come in the order of the seeds, whatever the number of
processes, so that the output of a batch depends on nothing but its seeds.
Reads:  the answers of its processes.      Calls: `python -m tests.engine.simulation --serve`.
"""

import faulthandler
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Final, TextIO

import msgspec

from tests.engine.simulation.runs import simulator
from tests.engine.simulation.world import Result

ROOT: Final = Path(__file__).parents[3]
AHEAD: Final = 64
"""Seeds for each process that may be handed out before the oldest result is passed on.

The limit keeps memory small."""


LONGEST: Final = 300.0
"""Processor seconds after which a seed counts as endless: its process shows where it stands, and
dies. They do not pass while the machine is suspended."""


def serve(
    asked: TextIO, answers: TextIO, artefacts: Path | None, *, fast_paths: bool = True
) -> None:
    """Run the seeds whose numbers are read, one a line, until the end of the input."""
    faulthandler.enable()  # a crash of the interpreter shows where it happened
    faulthandler.register(signal.SIGVTALRM, chain=True)  # chained: the signal then kills it
    with simulator(artefacts, fast_paths=fast_paths) as simulated:
        for line in asked:
            # A callback that never returns cannot be noticed from within the run.
            signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
            result = simulated.run(int(line))
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            answers.write(msgspec.json.encode(result).decode() + "\n")
            answers.flush()


def run_many(
    seeds: Iterable[int],
    *,
    processes: int,
    hash_seed: int = 0,
    artefacts: Path | None = None,
    fast_paths: bool = True,
) -> Iterator[Result]:
    """Run seeds in several processes; yield the results in the order of the seeds."""
    batch = _Batch(iter(seeds), processes, fast_paths=fast_paths)
    threads = [
        threading.Thread(target=batch.work, args=(hash_seed, artefacts), daemon=True)
        for _ in range(processes)
    ]
    for thread in threads:
        thread.start()
    try:
        yield from batch.results()
    finally:
        batch.stop()


class _Batch:
    """The state shared by the threads, each of which drives one process."""

    def __init__(self, seeds: Iterator[int], processes: int, *, fast_paths: bool) -> None:
        self._seeds = enumerate(seeds)
        self._processes = processes
        self._fast_paths = fast_paths
        self._lock = threading.Lock()
        self._done: Queue[tuple[int, Result] | Exception | None] = Queue()
        self._room = threading.Semaphore(AHEAD * processes)
        self._children: list[subprocess.Popen[str]] = []

    def work(self, hash_seed: int, artefacts: Path | None) -> None:
        """Run seeds in a process until none is left; replace the process if it dies.

        The seed over which it died is not run again: it has failed.
        """
        try:
            found = self._next()
            while found is not None:
                with self._child(hash_seed, artefacts) as child:
                    while found is not None and (line := _ask(child, found[1])):
                        self._done.put((found[0], msgspec.json.decode(line, type=Result)))
                        found = self._next()
                    assert child.stdin is not None
                    with suppress(BrokenPipeError):
                        child.stdin.close()
                if found is not None:
                    result = _died(found[1], child.returncode, fast_paths=self._fast_paths)
                    self._done.put((found[0], result))
                    found = self._next()
            self._done.put(None)
        except Exception as error:  # noqa: BLE001  # whatever it is, the batch ends with it
            self._done.put(error)

    def results(self) -> Iterator[Result]:
        """Yield all results in the order of the seeds; raise the error of a thread."""
        early: dict[int, Result] = {}
        wanted = 0
        running = self._processes
        while running:
            got = self._done.get()
            if got is None:
                running -= 1
                continue
            if isinstance(got, Exception):
                raise got
            early[got[0]] = got[1]
            while wanted in early:
                self._room.release()
                yield early.pop(wanted)
                wanted += 1

    def stop(self) -> None:
        """Kill the processes."""
        for child in self._children:
            child.kill()

    def _next(self) -> tuple[int, int] | None:
        self._room.acquire()
        with self._lock:
            return next(self._seeds, None)

    def _child(self, hash_seed: int, artefacts: Path | None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.engine.simulation", "--serve"]
        if artefacts is not None:
            command += ["--artefacts", str(artefacts)]
        if not self._fast_paths:
            command.append("--no-fast-paths")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(hash_seed)},
            text=True,
        )
        self._children.append(child)
        return child


def _ask(child: subprocess.Popen[str], seed: int) -> str:
    """Return the line with the result of a seed; empty if the process has died."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(f"{seed}\n")
        child.stdin.flush()
    except BrokenPipeError:
        return ""
    return child.stdout.readline()


def _died(seed: int, status: int, *, fast_paths: bool) -> Result:
    """Return the result of a seed whose process died, with the exit status or signal."""
    how = f"ended with status {status}"
    if status < 0:
        how = f"was ended by {signal.Signals(-status).name}"
    problem = f"the process that ran it {how}"
    return Result(
        seed=seed,
        problems=(problem,),
        digest="",
        seconds=0.0,
        counts={},
        fast_paths=fast_paths,
    )
