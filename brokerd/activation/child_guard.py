"""Guard: a process between the daemon and one child reader; the child outlives neither of them.

Started as leader of its own process group: `child_guard.py MEMORY ACCOUNT SECONDS COMMAND...`.
Reads:  its standard input, which its parent holds open: end of file means that the parent ended.
Calls:  nothing of brokerd: it has to start in a few milliseconds.
Never:  ends before its child does. SIGTERM is for the child, which gets it with the group.
Exits:  with the status of the child; with 128 plus the signal number if a signal killed it.
"""

import contextlib
import os
import resource
import select
import signal
import sys
import time

ROUNDS = 20
"""Largest number of searches of the group: new processes may start during each search."""


def main(memory: int, account: str, last_words: float, command: list[str]) -> int:
    """Run the command until it ends; return the exit status.

    `memory`: bytes of data that the command may have; 0 = no limit. `account`: UID:GID with whose
    rights the command runs; empty = those of the guard. `last_words`: seconds between SIGTERM and
    SIGKILL once the parent has ended; 0 = SIGKILL at once, as for a reader of a daemon: a
    survivor could connect to the restarted daemon, which has not started this reader."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    usual = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE]
    try:
        if account:
            uid, _, gid = account.partition(":")
            os.setgroups([])
            os.setgid(int(gid))
            os.setuid(int(uid))
        child = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            setsigdef=usual,
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        return 127
    return _wait(child, woken, last_words)


# The end of the parent shows in select on standard input, the end of the child in SIGCHLD, which
# writes to `woken`, so that a signal between waitpid and select is not lost.
def _wait(child: int, woken: int, last_words: float) -> int:
    deadline: float | None = None
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _kill_the_rest()
            return _status(status)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())  # noqa: TID251
        if left == 0.0:
            os.killpg(0, signal.SIGKILL)
        watched = [woken] if deadline is not None else [woken, 0]
        ready, _, _ = select.select(watched, [], [], left)
        if woken in ready:
            os.read(woken, 512)
        if 0 in ready and not os.read(0, 512):  # the parent has ended
            deadline = time.monotonic() + last_words  # noqa: TID251  # no Clock without brokerd
            os.killpg(0, signal.SIGTERM if last_words else signal.SIGKILL)


def _kill_the_rest() -> None:
    """Kill the remaining processes of the child's group, which may hold the output open."""
    own = os.getpid()
    for _ in range(ROUNDS):
        left = [pid for pid in _group() if pid != own]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _group() -> list[int]:
    """Return the process ids of our process group, as far as the system shows them."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
            if os.getpgid(int(name)) == os.getpgrp():
                found.append(int(name))
    return found


def _status(status: int) -> int:
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4:]))
