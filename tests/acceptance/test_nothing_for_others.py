"""What a daemon leaves to other users of the machine: no file to read, no core, no memory."""

import json
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import brokerd
from tests.acceptance.serving import Place

DUMPABLE = """
import ctypes, os, resource
from brokerd.process.secrecy import keep_private
keep_private(core_dumps={core_dumps})
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE)[1])
"""


class OpenHanded(Place):
    """A place whose daemon is started with a umask of 000, by whoever forgot to set one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "logs").mkdir(mode=0o700)
        self.write()
        with self.settings.open("a") as settings:
            settings.write(
                f'[log]\nfile = "{folder}/logs/brokerd.log"\nmetrics_dir = "{folder}/metrics"\n'
            )

    def serve_command(self) -> list[str]:
        return ["sh", "-c", 'umask 000; exec "$@"', "sh", *super().serve_command()]


@pytest.fixture
def place(tmp_path: Path) -> OpenHanded:
    return OpenHanded(tmp_path / "p")


@pytest.mark.rule("SX-1", "SX-24")
@pytest.mark.of_files("it looks at the modes of store files")
def test_all_that_a_daemon_makes_is_its_own_whatever_the_umask(place: OpenHanded) -> None:
    """Stores, locks, socket, reserve, logs, segments and their manifests, and a backup."""
    there = {path.name for path in place.folder.iterdir()} - {"logs"}
    with place.serving() as process:
        with brokerd.sync.connect(place.address, broker="main", wait=60.0) as broker:
            handle = broker.begin_dialog("shop", "warehouse", contract="orders")
            broker.send(handle, b"one", "Order")
            (message,) = broker.receive("warehouse_q", wait=30, autocommit=True)
            assert message.body == b"one"
        saved = str(place.data_dir / "backups" / "main.db")
        done = place.run("store", "backup", saved, "--address", place.address, "--json")
        assert done.returncode == 0, done.stderr
        socket = place.data_dir / "brokerd.sock"
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    made = {
        path.relative_to(place.folder): path.stat()
        for path in place.folder.rglob("*")
        if path.relative_to(place.folder).parts[0] not in there and "__pycache__" not in path.parts
    }
    kinds = {path.suffix for path in made}
    assert {".db", ".lock", ".log", ".gz", ".manifest"} <= kinds, made
    wrong = {
        str(path): oct(found.st_mode)
        for path, found in made.items()
        if stat.S_IMODE(found.st_mode) != (0o700 if stat.S_ISDIR(found.st_mode) else 0o600)
    }
    assert wrong == {}


@pytest.mark.rule("SX-9", "SX-16")
def test_a_daemon_that_crashes_leaves_no_core(place: Place) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == 0:
        pytest.skip("no core dumps here anyway")
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))  # for the daemon, which inherits it
    try:
        with place.serving() as process:
            limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
            (core,) = (line.split()[4:6] for line in limits if line.startswith("Max core"))
            assert core == ["0", "0"]
            process.send_signal(signal.SIGSEGV)
            _pid, status = os.waitpid(process.pid, 0)
            assert os.WTERMSIG(status) == signal.SIGSEGV
            assert not os.WCOREDUMP(status)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@pytest.mark.rule("SX-9")
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
@pytest.mark.parametrize("core_dumps", [False, True])
def test_the_memory_of_the_daemon_is_its_own_unless_a_setting_says_otherwise(
    core_dumps: bool,
) -> None:
    script = DUMPABLE.format(core_dumps=core_dumps)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    assert done == (["1", str(hard)] if core_dumps else ["0", "0"])


@pytest.mark.rule("SX-9")
def test_the_setting_is_shown_with_its_default(place: Place) -> None:
    shown = json.loads(place.run("config", "show", "-c", str(place.settings), "--json").stdout)
    assert "core_dumps" in json.dumps(shown)
