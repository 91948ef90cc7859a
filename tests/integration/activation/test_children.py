"""Child processes of the operating system: what becomes of good and of bad ones (SX-8, ACT-20)."""

import asyncio
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import brokerd
from brokerd.activation.processes import OUTPUT_LINES, Child, Running, environment, start

HERE = str(Path(brokerd.__file__).parents[1])


async def run(code: str, memory: int = 0) -> tuple[str, list[str], Running]:
    """Run some Python to its end: what was wrong, what it printed, and it."""
    lines: list[str] = []
    child = Child(words=[sys.executable, "-c", code], environment={}, memory=memory)
    running = await start(child, lines.append)
    async with asyncio.timeout(60):
        return await running.ended(), lines, running


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.rule("ACT-20")
@pytest.mark.rule("ACT-21")
async def test_a_child_that_ends_well_is_told_by_what_it_printed() -> None:
    assert (await run("print('one'); print('two')"))[:2] == ("", ["one", "two"])


@pytest.mark.rule("PSN-16")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (
            "import sys; print('no stock'); sys.exit(3)",
            "exit status 3: no stock; fix: see",
        ),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL; fix: it printed nothing"),
        ("import os; os.abort()", "killed by SIGABRT; fix: it printed nothing"),
    ],
)
async def test_how_it_ended_is_told_with_its_last_words(code: str, error: str) -> None:
    assert (await run(code))[0].startswith(error)


async def test_a_command_that_is_not_there() -> None:
    running = await start(Child(words=["/no/such/program"], environment={}), lambda _line: None)
    error = await running.ended()
    assert error == (
        "/no/such/program cannot be started: No such file or directory; "
        "fix: give a command that is there"
    )


@pytest.mark.rule("ACT-21", "ACT-52")
async def test_a_hundred_megabytes_of_output_harm_nobody() -> None:
    code = "import sys\nfor _ in range(100): sys.stdout.write('x' * 99 + '\\n' * 1 + 'y' * 1048476)"
    error, lines, running = await run(code)
    assert not error
    assert len(lines) <= OUTPUT_LINES
    assert sum(map(len, lines)) <= 64 * 1024
    assert running.dropped > 90 * 1024 * 1024


@pytest.mark.rule("ACT-52")
@pytest.mark.parametrize(
    ("code", "lines", "dropped"),
    [
        (f"for n in range({OUTPUT_LINES + 3}): print('%04d' % n)", OUTPUT_LINES, 3 * 5),
        ("for n in range(70): print('x' * 1023)", 64, 6 * 1024),
    ],
    ids=["lines", "bytes"],
)
async def test_so_much_of_what_it_prints_is_kept_and_the_rest_is_counted(
    code: str, lines: int, dropped: int
) -> None:
    error, kept, running = await run(code)
    assert (error, len(kept), running.dropped) == ("", lines, dropped)


@pytest.mark.rule("ACT-46", "ACT-52", "FP-4")
async def test_what_it_has_forked_ends_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import os, time, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pid = os.fork()\n"
        f"if pid: open({str(pid_file)!r}, 'w').write(str(pid))\n"
        "else: time.sleep(600)\n"
    )
    assert (await run(code))[0] == ""
    await gone(int(pid_file.read_text()))


async def gone(pid: int) -> None:
    async with asyncio.timeout(30):
        while is_alive(pid):  # noqa: ASYNC110  # of another process nothing else is heard
            await asyncio.sleep(0.01)


@pytest.mark.rule("ACT-46", "FP-4")
async def test_one_that_ignores_sigterm_is_killed() -> None:
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    ready = asyncio.Event()
    child = Child(words=[sys.executable, "-c", code], environment={})
    running = await start(child, lambda _line: ready.set())
    ending = asyncio.ensure_future(running.ended())
    async with asyncio.timeout(30):
        await ready.wait()
        running.terminate()
        ending.cancel()  # as a drain does when its grace is over
        with pytest.raises(asyncio.CancelledError):
            await ending
    await gone(running.pid)


@pytest.mark.rule("SX-8")
async def test_memory_is_limited() -> None:
    code = "kept = bytearray(300 * 1024 * 1024)"
    assert (await run(code, memory=0))[0] == ""
    error, _, _ = await run(code, memory=128 * 1024 * 1024)
    assert error.startswith("exit status 1: ")
    assert "MemoryError" in error


@pytest.mark.rule("SX-8")
async def test_it_sees_little_of_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")
    assert "DATABASE_PASSWORD" not in environment({})
    assert environment({"BROKERD_QUEUE": "q"})["BROKERD_QUEUE"] == "q"
    with (tmp_path / "store.db").open("wb") as held:
        os.set_inheritable(held.fileno(), True)
        code = "import os; print(sorted(os.listdir('/proc/self/fd'))[:-1])"
        _, lines, _ = await run(code)
    assert lines == ["['0', '1', '2']"]


@pytest.mark.rule("ACT-46", "ACT-52")
@pytest.mark.parametrize("last_words", [0, 1], ids=["reader", "program of an activator"])
async def test_a_killed_daemon_leaves_no_child_behind(tmp_path: Path, last_words: int) -> None:
    """Somebody who starts a child dies by SIGKILL: the guard ends the child, which ignores SIGTERM.

    A reader is not even asked; a program of an activator is, and has some time."""
    pid_file, asked = tmp_path / "pid", tmp_path / "asked"
    child = (
        "import os, signal, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: open({str(asked)!r}, 'w').close())\n"
        f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
        "while True: time.sleep(600)\n"
    )
    code = (
        "import asyncio, sys\n"
        "from brokerd.activation.processes import Child, start\n"
        "async def main():\n"
        f"    one = Child(words=[sys.executable, '-c', {child!r}], environment={{}},\n"
        f"                last_words={last_words})\n"
        "    await (await start(one, print)).ended()\n"
        "asyncio.run(main())\n"
    )
    daemon = subprocess.Popen(  # noqa: ASYNC220  # it is killed below
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": HERE}
    )
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    pid = int(pid_file.read_text())
    assert is_alive(pid)
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    await gone(pid)
    assert asked.exists() == bool(last_words)


@pytest.mark.rule("ACT-24", "ACT-51")
async def test_an_account_that_is_not_there_is_told() -> None:
    child = Child(words=["true"], environment={}, run_as="no-such-account")
    with pytest.raises(LookupError, match=r"no account 'no-such-account' on this machine; fix: "):
        await start(child, lambda _line: None)


@pytest.mark.rule("ACT-21", "ACT-51")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run something as somebody else")
async def test_it_runs_as_the_account_that_is_named() -> None:
    nobody = pwd.getpwnam("nobody")
    lines: list[str] = []
    code = "import os; print(os.getuid(), os.getgid(), os.getgroups())"
    child = Child(words=["python3", "-c", code], environment={"PATH": "/usr/bin:/bin"},
                  run_as="nobody")  # fmt: skip
    running = await start(child, lines.append)
    assert await running.ended() == ""
    assert lines == [f"{nobody.pw_uid} {nobody.pw_gid} []"]
