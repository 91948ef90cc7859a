"""The main job, from the outside: orders and replies across two kills, and how it fails."""

import json
import os
import re
import signal
import sqlite3
import subprocess
from contextlib import closing

import pytest

from tests.acceptance.running import Demo

pytestmark = pytest.mark.of_files("the demo makes its stores in files")

SMALL = ("--dialogs", "50", "--orders", "2000", "--no-report")
LONG_ENOUGH = ("--dialogs", "50", "--orders", "6000", "--no-report")
"""Long enough that it is not over before it is interrupted."""


@pytest.mark.rule("REL-1", "REL-2", "REL-3", "REL-12")
def test_a_small_one_settles_across_both_kills(demo: Demo) -> None:
    done = demo.run(*SMALL, "--json", "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["verdict"] == "demo: settled: 2000 sent, 2000 answered, 0 lost, 0 doubled"
    result = said["result"]
    assert [kill["instance"] for kill in result["kills"]] == ["west", "east"]
    assert all(0 < kill["answered"] < 0.9 * 2000 for kill in result["kills"])
    assert all(len(one["peaks"]) == 2 for one in result["memory"])
    assert all(0 < peak < 200 * 1024**2 for one in result["memory"] for peak in one["peaks"])
    assert result["exit_statuses"] == {"east": 0, "west": 0}
    assert (demo.directory / "east" / "main.db").exists()


@pytest.mark.rule("SEC-81")
def test_its_daemons_are_paired_and_its_dialogs_encrypted(demo: Demo) -> None:
    done = demo.run("--dialogs", "5", "--orders", "50", "--no-report", "--no-kill", "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "paired     east and west, encrypted" in done.stdout
    for name, other, service in (("east", "west", "warehouse"), ("west", "east", "shop")):
        with closing(sqlite3.connect(demo.directory / name / "main.db")) as store:
            bound = store.execute("SELECT name, service_name FROM remote_service_bindings")
            assert bound.fetchall() == [(f"{other}/{service}", service)]
    log = (demo.directory / "west.log").read_text()
    assert "peer:east" in log


def test_it_can_be_repeated_and_keeps_logs_without_stores(demo: Demo) -> None:
    words = ("--dialogs", "5", "--orders", "50", "--no-report", "--no-kill")
    for _ in range(2):
        done = demo.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == (
            "demo: settled: 50 sent, 50 answered, 0 lost, 0 doubled"
        )
        left = {path.name for path in demo.directory.iterdir()}
        assert {"east.log", "west.log", "metrics", "config"} <= left
        assert not left & {"east", "west"}


def test_a_daemon_that_cannot_start_is_a_failure_with_its_words(demo: Demo) -> None:
    done = demo.run(*SMALL, BROKERD_DIALOG__FRAGMENT_SIZE="much")
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"demo: FAILED: (east|west) did not start: it ended with status 78", last)
    assert "dialog.fragment_size" in done.stdout


def test_a_daemon_that_dies_unasked_is_a_failure(demo: Demo) -> None:
    running = demo.start(*SMALL, "--no-kill")
    _wait_for(running, "started")
    os.kill(demo.daemon("west"), signal.SIGKILL)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    assert output.splitlines()[-1] == "demo: FAILED: west ended by itself with status -9"
    assert (demo.directory / "west" / "main.db").exists(), "the stores of a failed demo stay"


@pytest.mark.parametrize("moment", ["directory", "started", "killed"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interruption_stops_the_daemons(number: signal.Signals, moment: str, demo: Demo) -> None:
    running = demo.start(*LONG_ENOUGH)
    _wait_for(running, moment)
    assert moment == "directory" or any(demo.daemons().values())
    running.send_signal(number)
    running.send_signal(number)  # whoever is impatient leaves no daemon behind either
    running.communicate(timeout=60)
    assert running.returncode == 130  # the fixture sees that no daemon is left


def test_a_directory_that_is_no_demos_is_refused(demo: Demo) -> None:
    demo.directory.mkdir()
    (demo.directory / "thesis.txt").write_text("important")
    done = demo.run(*SMALL)
    assert done.returncode == 73
    assert "no demo has made" in done.stderr
    assert "--dir" in done.stderr
    assert [path.name for path in demo.directory.iterdir()] == ["thesis.txt"]


def test_more_dialogs_than_orders_is_refused(demo: Demo) -> None:
    done = demo.run("--dialogs", "10", "--orders", "9")
    assert done.returncode != 0
    assert "at least one order" in done.stderr
    assert not demo.directory.exists()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.rule("REL-1", "REL-2", "REL-3", "REL-12", "REL-31")
def test_the_whole_one_with_its_report(demo: Demo) -> None:
    done = demo.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == (
        "demo: settled: 20000 sent, 20000 answered, 0 lost, 0 doubled"
    )
    page = demo.directory / "report" / "report.html"
    assert str(page) in done.stdout
    assert "all accounted for" in page.read_text(encoding="utf-8")


def _wait_for(running: "subprocess.Popen[str]", word: str) -> None:
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith(word):
            return
    pytest.fail(f"the demo ended before it said {word!r}")
