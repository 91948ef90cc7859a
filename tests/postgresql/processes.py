"""The processes of servers: found by the folder they work in, so that none is missed.

    python -I -S processes.py FOLDER

As a program it waits until its standard input ends, which it does when the process that holds the
other end is gone, however it went. Then it ends all servers below the folder and removes it.

Reads:  /proc.      Never:  imports anything of this project: the program starts in 20 ms.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

IPC_RMID = 0
PATIENCE = 120.0
"""Seconds after which what is waited for here is never going to happen."""


def within(folder: Path) -> list[int]:
    """Return the processes that work in a folder or below it; a server works in its data folder."""
    found = []
    place = str(folder)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it is gone, or somebody else's
                works_in = os.readlink(f"/proc/{entry.name}/cwd").removesuffix(" (deleted)")
                if works_in == place or works_in.startswith(f"{place}/"):
                    found.append(int(entry.name))
    return sorted(found)


def send(number: signal.Signals, processes: list[int]) -> None:
    """Send a signal to each of them that is still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def kill(folder: Path) -> None:
    """Kill all that work in a folder, and wait until none does.

    They are stopped first: a process that is half-way through a fork leaves no child behind.
    """
    until = time.monotonic() + PATIENCE
    send(signal.SIGSTOP, within(folder))
    while remaining := within(folder):
        send(signal.SIGKILL, remaining)
        if time.monotonic() > until:
            raise TimeoutError(f"processes {remaining} in {folder} do not die")
        time.sleep(0.002)


def end(folder: Path) -> None:
    """Kill the servers in a folder and remove it, with what is mounted and shared there."""
    kill(folder)
    for file in folder.rglob("postmaster.pid"):
        _release(file)
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        places = [line.split()[1] for line in mounts]
    for place in reversed([place for place in places if place.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", place], check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _release(file: Path) -> None:
    """Remove the segment of shared memory that a killed server has left in the kernel."""
    lines = file.read_text().splitlines()
    if len(lines) > 6 and len(numbers := lines[6].split()) == 2:  # its key and its id
        ctypes.CDLL(None).shmctl(int(numbers[1]), IPC_RMID, None)


if __name__ == "__main__":
    # It outlives an interrupt from the keyboard, which goes to the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(Path(sys.argv[1]))
