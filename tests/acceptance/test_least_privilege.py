"""A daemon under what its unit asks for: read-only files, no capabilities, few system calls."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

import brokerd
from tests.acceptance.serving import Place
from tests.restricted import directives

UNIT = Path(__file__).parents[2] / "deploy" / "brokerd.service"
HANDLER = """
async def answer(session):
    async with session.transaction() as tx:
        for message in await tx.receive("warehouse_q", 1, wait=5):
            await tx.send(message.handle, b'{"seen": 1}', "Order")
            await tx.end(message.handle)
"""
OBJECTS = """
[broker]
name = "main"
default_encryption = "off"
[[message_type]]
name = "Order"
validation = "well_formed_json"
[[contract]]
name = "orders"
types = { "Order" = "any" }
[[queue]]
name = "shop_q"
[[queue]]
name = "warehouse_q"
[queue.activation]
handler = "stock:answer"
host = "process"
max_readers = 1
[[service]]
name = "shop"
queue = "shop_q"
[[service]]
name = "warehouse"
queue = "warehouse_q"
contracts = ["orders"]
"""


def can_restrict() -> bool:
    """Whether this user may give a process mounts of its own."""
    tried = ["unshare", "--mount", "true"]
    return (
        os.geteuid() == 0
        and shutil.which("unshare") is not None
        and subprocess.run(tried, capture_output=True, check=False).returncode == 0
    )


pytestmark = [
    pytest.mark.rule("SX-16"),
    pytest.mark.skipif(not can_restrict(), reason="only root makes files read-only for a process"),
    pytest.mark.skipif(
        shutil.which("systemd-analyze") is None or find_library("seccomp") is None,
        reason="systemd-analyze and libseccomp say and apply what the unit asks for",
    ),
]


class Restricted(Place):
    """A place whose daemon may do what its unit permits, and write only here."""

    def serve_command(self) -> list[str]:
        return self.restricted(UNIT, super().serve_command())

    def restricted(self, unit: Path, command: list[str]) -> list[str]:
        restrict = [sys.executable, "-m", "tests.restricted", str(unit), str(self.folder)]
        return ["unshare", "--mount", *restrict, *command]


@pytest.fixture
def place(tmp_path: Path) -> Restricted:
    place = Restricted(tmp_path / "p")
    place.objects.write_text(OBJECTS)
    (place.folder / "stock.py").write_text(HANDLER)
    return place


@pytest.mark.of_files("it makes a backup, and the unit hides the socket of the server")
def test_a_daemon_does_all_its_work_under_its_unit(place: Restricted) -> None:
    """Messages, a reader process, the process for checks, a backup, a reload and a clean stop."""
    body = json.dumps({"order": "x" * 40_000}).encode()  # checked in the process for checks
    with place.serving() as process:
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        )
        assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == 0
        assert (status["NoNewPrivs"], status["Seccomp"], status["Umask"]) == ("1", "2", "0077")
        with pytest.raises(OSError, match="Read-only"):
            Path(f"/proc/{process.pid}/root/etc/made-by-brokerd").write_text("x")
        with brokerd.sync.connect(place.address, broker="main", wait=60.0) as broker:
            handle = broker.begin_dialog("shop", "warehouse", contract="orders")
            broker.send(handle, body, "Order")
            reply, *_ = broker.receive("shop_q", wait=60, autocommit=True)
            assert reply.body == b'{"seen": 1}'
        saved = place.data_dir / "backups" / "main.db"
        done = place.run("store", "backup", str(saved), "--address", place.address)
        assert done.returncode == 0, done.stderr
        process.send_signal(signal.SIGHUP)
        done = place.run("status", "--address", place.address, "--json")
        assert done.returncode in (0, 1), done.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    landing = place.folder / "landing"
    ship = [sys.executable, "-m", "brokerd", "ship", "-c", str(place.settings), str(landing)]
    shipped = subprocess.run(
        place.restricted(UNIT.with_name("brokerd-ship.service"), ship),
        capture_output=True,
        text=True,
        check=False,
    )
    assert shipped.returncode == 0, shipped.stderr
    assert list(landing.rglob("*.manifest"))


def test_the_limits_are_those_that_were_meant() -> None:
    """The unit, not this test, is what the daemon above ran under."""
    asked = directives(UNIT)
    assert asked["SystemCallFilter"] == "@system-service"
    assert asked["ProtectSystem"] == "strict"
    assert asked["MemoryDenyWriteExecute"] == "yes"
    assert asked["CapabilityBoundingSet"] == ""
