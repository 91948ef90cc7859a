"""SIGHUP on a real daemon: the calls that logrotate and `systemctl reload` make."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import brokerd
from tests.acceptance.serving import OBJECTS, Place

WITHIN = 60.0
pytestmark = pytest.mark.rule("REL-38")


class Logged(Place):
    """A place whose daemon logs into a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log = folder / "brokerd.log"
        self.configure()

    def configure(self, **log: str) -> None:
        self.write()
        keys = {"file": str(self.log), "level": "info", **log}
        more = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
        with self.settings.open("a") as settings:
            settings.write(f"[log]\n{more}")

    def add(self, text: str) -> None:
        with self.settings.open("a") as settings:
            settings.write(text)


def lines(path: Path, subclass: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [one for one in found if one.get("subclass") == subclass]


def reload(place: Logged, process: Any, number: int = 1) -> dict[str, Any]:
    """Send SIGHUP, and wait for what the daemon writes of it into the file of the settings."""
    process.send_signal(signal.SIGHUP)
    return written(place, number)


def written(place: Logged, number: int = 1) -> dict[str, Any]:
    """Each request is answered after the signals before it; so one that is enough, or a few."""
    with brokerd.sync.connect(place.address, broker="main") as session:
        for _ in range(10_000):
            if place.log.exists():
                found = lines(place.log, "reloaded") + lines(place.log, "reload_refused")
                if len(found) >= number:
                    return found[number - 1]
            session.status()
    raise AssertionError("nothing is written about SIGHUP")


@pytest.fixture
def place(tmp_path: Path) -> Logged:
    return Logged(tmp_path / "p")


@pytest.fixture
def process(place: Logged) -> Iterator[Any]:
    with place.serving() as running:
        yield running
        assert running.poll() is None, "SIGHUP has ended the daemon"
        running.send_signal(signal.SIGTERM)
        assert running.wait(WITHIN) == 0


def test_a_log_file_that_was_renamed_is_made_anew(place: Logged, process: Any) -> None:
    """As logrotate does it: rename, create, and the command behind `postrotate`."""
    old = place.log.rename(place.folder / "brokerd.log.1")
    place.log.touch(mode=0o640)
    size = old.stat().st_size
    subprocess.run(["/bin/kill", "-HUP", str(process.pid)], check=True)
    assert written(place)["severity"] == "info"
    assert old.stat().st_size == size
    assert old.name in {one.name for one in place.folder.iterdir()}


@pytest.mark.skipif(shutil.which("logrotate") is None, reason="logrotate is not installed")
@pytest.mark.parametrize("how", ["create 0640", "nocreate"])
def test_logrotate_itself(place: Logged, process: Any, how: str, tmp_path: Path) -> None:
    os.chmod(place.folder, 0o755)
    rules = tmp_path / "rules"
    rules.write_text(
        f"{place.log} {{\n  rotate 3\n  {how}\n  postrotate\n"
        f"    /bin/kill -HUP {process.pid}\n  endscript\n}}\n"
    )
    rules.chmod(0o644)
    command = ["logrotate", "--force", "--state", str(tmp_path / "state"), str(rules)]
    subprocess.run(command, check=True)
    assert written(place)
    assert lines(Path(f"{place.log}.1"), "ready")


@pytest.mark.rule("BI-C6")
def test_what_may_change_does_and_the_rest_is_named(place: Logged, process: Any) -> None:
    place.configure(level="debug", summary="2min")
    place.add('[checks]\ntime = "2s"\n[daemon]\ndrain = "1s"\n')
    told = reload(place, process)
    assert told["applied"] == {
        "checks.time": '"2s"',
        "daemon.drain": '"1s"',
        "log.level": '"debug"',
    }
    assert told["needs_restart"] == {"log.summary": '"2min"'}
    way = ("service=far", "address=TCP://127.0.0.1:1", "--address", place.address)
    assert place.run("route", "create", "r", *way).returncode == 0
    with brokerd.sync.connect(place.address, broker="main") as session:
        session.send(session.begin_dialog("shop", "far", "orders"), b"x", "Order")
        while not session.view("transmission_queue"):
            session.status()
    assert any('"severity":"debug"' in line for line in place.log.read_text().splitlines())
    place.configure(level="info", summary="2min")
    assert reload(place, process, 2)["applied"]["log.level"] == '"info"'


def test_lines_go_to_the_new_file_where_that_has_another_name(place: Logged, process: Any) -> None:
    before = place.log
    place.log = place.folder / "logs" / "other.log"
    place.configure()
    assert reload(place, process)["applied"] == {"log.file": f'"{place.log}"'}
    assert lines(before, "reloaded") == []


@pytest.mark.rule("FO-1")
@pytest.mark.parametrize(
    ("text", "reason"), [("[log\n", "not TOML"), ('[clok]\ntick = "1s"\n', "clok: unknown key")]
)
def test_settings_that_cannot_be_used_are_refused_and_the_file_is_opened_anew_all_the_same(
    place: Logged, process: Any, text: str, reason: str
) -> None:
    place.add(text)
    place.log.rename(place.folder / "brokerd.log.1")
    told = reload(place, process)
    assert (told["subclass"], told["severity"]) == ("reload_refused", "warning")
    assert reason in told["error"]


def test_a_log_file_that_cannot_be_opened_is_refused_into_the_one_in_effect_opened_anew(
    place: Logged, process: Any
) -> None:
    in_effect = place.log
    place.log = place.folder / "b.toml" / "x.log"
    place.configure()
    place.log = in_effect
    rotated = in_effect.rename(place.folder / "brokerd.log.1")
    told = reload(place, process)
    assert told["subclass"] == "reload_refused"
    assert "b.toml" in told["error"]
    assert len(lines(in_effect, "reload_refused")) == 1
    assert lines(rotated, "reload_refused") == []


def test_a_signal_during_the_start_counts_once_it_is_ready(place: Logged) -> None:
    """A handler sends it while it is imported, which is before there is a loop or a store."""
    hangs_up = "import os, signal\nos.kill(os.getpid(), signal.SIGHUP)\n"
    (place.folder / "hangs_up.py").write_text(hangs_up + "async def handle(batch): ...\n")
    activated = 'name = "warehouse_q"\n[queue.activation]\nhandler = "hangs_up:handle"\n'
    place.objects.write_text(OBJECTS.replace('name = "warehouse_q"\n', activated))
    with place.serving() as running:
        assert written(place)["subclass"] == "reloaded"
        running.send_signal(signal.SIGTERM)
        assert running.wait(WITHIN) == 0
    told = [json.loads(line) for line in place.log.read_text().splitlines()]
    words = [one["subclass"] for one in told if one["event"] == "broker.daemon"]
    order = ("starting", "ready", "reloaded", "draining", "stopped")
    assert [one for one in words if one in order] == list(order)


def test_the_unit_reloads_with_this_signal() -> None:
    unit = Path(__file__).resolve().parents[2] / "deploy" / "brokerd.service"
    assert "ExecReload=/bin/kill -HUP $MAINPID" in unit.read_text()
