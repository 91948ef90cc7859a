"""What a command and all that it starts take: time, seconds of processors, memory at the peak."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

EVERY_S = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Measured:
    """`cpu_s` and `peak_bytes` are of the whole tree of processes, as seen four times a second."""

    status: int
    wall_s: float
    cpu_s: float
    peak_bytes: int

    def __str__(self) -> str:
        peak = self.peak_bytes / 2**20
        return f"{self.wall_s:.0f} s, {self.cpu_s:.0f} s of processors, {peak:,.0f} MiB at the peak"


def run(command: Sequence[str], environment: Mapping[str, str]) -> Measured:
    """Run it to its end."""
    began, peak = time.monotonic(), 0
    ticks: dict[int, int] = {}
    with subprocess.Popen(command, env=dict(environment)) as child:
        while child.poll() is None:
            resident = 0
            for pid, (used, pages) in _tree(child.pid).items():
                ticks[pid] = used
                resident += pages * _PAGE
            peak = max(peak, resident)
            time.sleep(EVERY_S)
    return Measured(child.returncode, time.monotonic() - began, sum(ticks.values()) / _TICKS, peak)


def _tree(root: int) -> dict[int, tuple[int, int]]:
    """Of each process below `root`, itself included: ticks used, and pages resident.

    One that was just started and is not yet the program it will be has its parent's memory, which
    is there once.
    """
    parents: dict[int, tuple[int, int, int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(path.parent.name)] = (
            int(fields[1]),
            int(fields[11]) + int(fields[12]),
            int(fields[21]),
            int(fields[20]),
        )
    found = {root}
    grew = True
    while grew:
        more = {pid for pid, (parent, *_) in parents.items() if parent in found} - found
        found |= more
        grew = bool(more)
    there = {pid: parents[pid] for pid in found if pid in parents}
    return {
        pid: (ticks, 0 if there.get(parent, (0, 0, 0, 0))[3] == size else pages)
        for pid, (parent, ticks, pages, size) in there.items()
    }
