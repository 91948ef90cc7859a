"""Starts the command `brokerd` in processes that have imported it already.

Most of the processor time of a start goes into imports. So one process imports what the commands
need, and forks itself for each of them. What a test gets is a process like any other: with its own
id, environment, directory and files; it can be signalled, killed and waited for.

It differs from `python -m brokerd` in three ways: its command line in /proc is that of the process
it was forked from, it shares the memory of what was imported, and it would not miss a module that
nobody has imported. A test about one of these starts the command itself, with `subprocess`.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import brokerd
from brokerd.cli.main import COMMANDS

ROOT = Path(brokerd.__file__).parents[1]
_MOST = 1 << 17
"""Bytes of a request, which is mainly an environment."""
_AT_THE_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
"""How variables begin that an interpreter reads once, when it starts."""
_NOT_BY_COMMANDS = ("brokerd.process.daemon", "brokerd.http.listener")
"""What a daemon imports late."""

File = IO[Any] | int | None
COMMAND = [sys.executable, "-m", "brokerd"]
"""How a command that can be forked begins."""


class Process(subprocess.Popen[Any]):
    """A command: forked from a process that is warm if it begins with `COMMAND`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: File = None,
        stdout: File = None,
        stderr: File = None,
        text: bool = False,
    ) -> None:
        self._keeper: socket.socket | None = None
        """Tells its id, and its status once it is over; None = it was not forked."""
        super().__init__(
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=text,
        )

    def _execute_child(self, *given: Any) -> None:
        """Have it forked, unless it is another command or its interpreter is to start differently.

        This, `_try_wait` and `_internal_poll` are where `subprocess` starts a process and asks for
        its status; all the rest of it works with whatever they give.
        """
        command, cwd, env, handles = list(given[0]), given[5], given[6], given[10:16]
        wanted = dict(os.environ if env is None else env)
        starts_alike = _at_the_start(wanted) == _at_the_start(environment())
        if command[:3] != COMMAND or not starts_alike:
            super()._execute_child(*given)  # type: ignore[misc]  # it is not declared
            return
        chosen = (handles[0], handles[3], handles[5])
        files = [number if one == -1 else one for number, one in enumerate(chosen)]
        request = {"words": command[3:], "cwd": os.fspath(cwd or Path.cwd()), "env": wanted}
        self._keeper, far = socket.socketpair()
        with far:
            socket.send_fds(_control(), [json.dumps(request).encode()], [*files, far.fileno()])
        self.pid = self._told()
        self._child_created = True
        self._close_pipe_fds(*handles)  # type: ignore[attr-defined]  # it is not declared

    def _told(self) -> int:
        """The next number from the keeper.

        Raises:
            BlockingIOError: there is none yet, and the socket does not wait.
            EOFError: the keeper is gone.
        """
        assert self._keeper is not None
        told = self._keeper.recv(4)  # numbers are written whole, and one is read before the next
        if not told:
            raise EOFError("who keeps the process is gone")
        return int.from_bytes(told)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._keeper is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        self._keeper.setblocking(not wait_flags & os.WNOHANG)
        try:
            status = self._told()
        except BlockingIOError:
            return 0, 0
        self._keeper.close()
        return self.pid, status

    def _internal_poll(self, *given: Any, **options: Any) -> int | None:
        if self._keeper is None:
            return super()._internal_poll(*given, **options)  # type: ignore[misc,no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def run(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, and return its status and what it has printed."""
    pipe = subprocess.PIPE
    with Process(command, cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


_warm: tuple[int, socket.socket] | None = None
"""The process that is forked, as long as this process is the one that has started it."""


def _control() -> socket.socket:
    """Where forks are asked for; the first call starts the process that is forked."""
    global _warm  # noqa: PLW0603  # one serves all tests of a process
    if _warm is None or _warm[0] != os.getpid():
        control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            started = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(far.fileno())],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
            )
        _warm = os.getpid(), control

        @atexit.register
        def end() -> None:
            control.close()
            started.wait(30)

    return _warm[1]


def environment() -> dict[str, str]:
    """Without settings from outside; the code under test is found wherever it runs."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("BROKERD_")}
    return own | {"PYTHONPATH": str(ROOT)}


def _at_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: one for name, one in environment.items() if name.startswith(_AT_THE_START)}


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return it in the fork. None: nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at a terminal it is for the tests
    while True:
        request, files, _, _ = socket.recv_fds(control, _MOST, 4)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not request:
            return None
        if os.fork() == 0:
            control.close()
            return _keep(json.loads(request), *files)
        for one in files:
            os.close(one)


def _keep(request: dict[str, Any], *files: int) -> dict[str, Any]:
    """Fork again, tell the id, and wait for the status, which only a parent gets."""
    *standard, own = files
    pid = os.fork()
    if pid:
        for one in standard:
            os.close(one)
        os.write(own, pid.to_bytes(4))
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):  # the test is over
            os.write(own, status.to_bytes(4))
        os._exit(0)
    os.close(own)
    for number, one in enumerate(standard):
        os.dup2(one, number)
        os.close(one)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return request


def main(number: int) -> None:
    """Be the process that is forked, and in each fork the command."""
    for name in [*(one.module for one in COMMANDS), *_NOT_BY_COMMANDS]:
        import_module(name)
    assert threading.active_count() == 1, "a thread is not there after a fork"
    gc.collect()
    gc.freeze()  # what was imported stays shared
    request = _serve(socket.socket(fileno=number))
    if request is not None:
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv[1:] = request["words"]
        sys.path[0] = request["cwd"]
        runpy.run_module("brokerd", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
