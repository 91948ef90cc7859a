"""What a command and all that it starts take: time, seconds of processors, memory at the peak."""

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

EVERY_S = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")
_JAVA = b"java"


@dataclass(frozen=True)
class Measured:
    """`cpu_s` and `peak_bytes` are of the whole tree of processes, as seen four times a second.

    A page of memory that several have counts once, divided among them (PSS).
    """

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
            tree = _tree(child.pid)
            ticks |= {pid: used for pid, (_, used) in tree.items()}
            peak = max(peak, sum(_memory(pid) for pid in tree if not _is_spawning(pid, tree)))
            time.sleep(EVERY_S)
    return Measured(child.returncode, time.monotonic() - began, sum(ticks.values()) / _TICKS, peak)


def _tree(root: int) -> dict[int, tuple[int, int]]:
    """Of each process below `root`, itself included: its parent, and ticks used."""
    every: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        every[int(path.parent.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    found = {root}
    while more := {pid for pid, (parent, _) in every.items() if parent in found} - found:
        found |= more
    return {pid: every[pid] for pid in found if pid in every}


def _memory(pid: int) -> int:
    """Bytes of it, its part of those that it shares."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0  # it has ended
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _is_spawning(pid: int, tree: Mapping[int, tuple[int, int]]) -> bool:
    """A Java that has just started something is seen twice: the other has its very memory."""
    parent = tree[pid][0]
    if parent not in tree:
        return False
    said = _command(pid)
    return said == _command(parent) and said.partition(b"\0")[0].endswith(_JAVA)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
