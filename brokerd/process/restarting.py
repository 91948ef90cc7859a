"""Restarting: a daemon that lost the server of its stores begins again in its process (REL-57).

Reads:  its own command line.      Calls: the operating system, which runs the program anew.
Never:  keeps anything of the failed instance: connections, files and threads end with it, as in a
        crash, so that nothing it began can be confirmed later.

A supervisor sees one process that goes on, and is asked for nothing.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

_VARIABLE: Final = "BROKERD_RESTARTED"
"""Variable that says that the program was run anew, and when: seconds of the machine's clock."""
_SOON: Final = 5.0
"""Seconds between two failures below which the second one waits."""
_PAUSE: Final = 1.0


def is_restarted() -> bool:
    """Return whether this daemon has run before in this process."""
    return _VARIABLE in os.environ


def restart() -> NoReturn:
    """Run the same command again in this process, with nothing of what it has now."""
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    with suppress(ValueError):
        if now - float(os.environ.get(_VARIABLE, "")) < _SOON:
            time.sleep(_PAUSE)
            now += _PAUSE
    os.environ[_VARIABLE] = f"{now:.3f}"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # its own command


def reap_former_children() -> None:
    """Take note of the ends of processes that the failed instance had started, on a thread.

    They end when they lose its connections. Called before this instance starts any."""
    if not is_restarted():
        return
    left: list[int] = []
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError, ValueError):
            left += map(int, file.read_text().split())
    if left:
        threading.Thread(target=_reap, args=(left,), name="reaper", daemon=True).start()


def _reap(left: list[int]) -> None:
    for child in left:
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
