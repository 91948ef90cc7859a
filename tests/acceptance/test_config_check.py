"""`config check` covers all that `serve` refuses: each item of their list, with a real start."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import brokerd
from brokerd.cli.main import main
from brokerd.instance.preflight import START_CHECKS
from tests.acceptance.serving import OBJECTS, Place
from tests.acceptance.test_bad_input import assert_start_refused

Fault = Callable[[Place], Iterator[tuple[int, str]]]


def log_file_that_is_a_directory(place: Place) -> Iterator[tuple[int, str]]:
    (place.folder / "log").mkdir()
    with place.settings.open("a") as settings:
        settings.write(f'[log]\nfile = "{place.folder}/log"\n')
    yield 78, "log.file"


def shared_store_in_the_wrong_place(place: Place) -> Iterator[tuple[int, str]]:
    place.data_dir.mkdir()
    (place.data_dir / "main.db").write_bytes(b"x")
    (place.folder / "shared").mkdir()
    with place.settings.open("a") as settings:
        settings.write(f'[mirroring]\nbrokers = ["main"]\ndirectory = "{place.folder}/shared"\n')
    yield 78, "is shared with a partner"


def lock_file_that_is_a_link(place: Place) -> Iterator[tuple[int, str]]:
    place.data_dir.mkdir(mode=0o700)
    (place.data_dir / "msdb.db.lock").symlink_to(place.folder / "elsewhere")
    yield 78, "is a symbolic link"


def store_that_is_none(place: Place) -> Iterator[tuple[int, str]]:
    place.data_dir.mkdir()
    (place.data_dir / "main.db").write_text("mine")
    yield 65, "not an SQLite file"


def contract_that_open_dialogs_need(place: Place) -> Iterator[tuple[int, str]]:
    """The daemon that runs is not in the way of finding it."""
    changed = OBJECTS.replace('"Order" = "initiator"', '"Order" = "any"')
    with place.serving() as daemon:
        with brokerd.sync.connect(place.address, broker="main") as session:
            session.send(session.begin_dialog("shop", "warehouse", "orders"), b"x", "Order")
        place.objects.write_text(changed)
        checked = place.check()
        assert checked.returncode == 65
        assert "need contract orders" in checked.stderr
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0
    yield 65, "need contract orders"


def address_of_another_program(place: Place) -> Iterator[tuple[int, str]]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place.write(port=other.getsockname()[1])
        yield 69, "in use"


def handler_that_is_missing(place: Place) -> Iterator[tuple[int, str]]:
    activated = 'name = "warehouse_q"\n[queue.activation]\nhandler = "packer:pack"\n'
    place.objects.write_text(OBJECTS.replace('name = "warehouse_q"\n', activated))
    yield 78, "No module named 'packer'"


FAULTS: dict[str, Fault] = {
    "directories and the log file": log_file_that_is_a_directory,
    "owners and modes of files": lock_file_that_is_a_link,
    "stores that are shared with a partner": shared_store_in_the_wrong_place,
    "stores": store_that_is_none,
    "objects against those in the stores": contract_that_open_dialogs_need,
    "addresses to listen at": address_of_another_program,
    "handlers": handler_that_is_missing,
}

ABOUT_FILES = ("stores that are shared with a partner", "stores")
OF_FILES = pytest.mark.of_files("its faults are of store files")


@pytest.mark.rule("BI-C5", "REL-84")
@pytest.mark.parametrize(
    "about",
    [
        pytest.param(check.about, marks=OF_FILES if check.about in ABOUT_FILES else ())
        for check in START_CHECKS
    ],
)
def test_a_start_that_would_be_refused_is_told_before_it_is_tried(
    about: str, tmp_path: Path
) -> None:
    """A check that joins the list fails here until it has a fault of its own."""
    place = Place(tmp_path / "p")
    with contextmanager(FAULTS[about])(place) as (status, problem):
        assert_start_refused(place, status, problem)


@pytest.mark.rule("BI-C5", "REL-84")
def test_an_address_of_another_program_is_a_reason_beside_a_daemon_that_runs(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path / "p")
    with place.serving(), socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        place.write(port=port)
        checked = place.check()
        assert checked.returncode == 69
        assert f"cannot listen at TCP://127.0.0.1:{port}" in checked.stderr
        assert f"cannot listen at {place.address}" in checked.stdout  # the daemon's own
        place.write()
        checked = place.check()
        assert checked.returncode == 0
        assert "could not be told" not in checked.stdout


@pytest.mark.rule("BI-C5")
@pytest.mark.of_files("a lock file says which process has a file")
def test_a_daemon_of_another_machine_leaves_open_who_listens(tmp_path: Path) -> None:
    place = Place(tmp_path / "p")
    with place.serving():
        lock = place.data_dir / "msdb.db.lock"
        owner = json.loads(lock.read_text())
        lock.write_text(json.dumps(owner | {"host": "elsewhere"}))
        checked = place.check()
        assert checked.returncode == 0, checked.stderr
        assert "could not be told whether the running daemon or another program" in checked.stdout


@pytest.mark.rule("BI-C5")
def test_an_address_of_another_machine_leads_to_the_setting(tmp_path: Path) -> None:
    place = Place(tmp_path / "p")
    settings = place.settings.read_text()
    assert 'listen = ["127.0.0.1"]' in settings
    open_to_others = settings.replace("127.0.0.1", "192.0.2.1")
    place.settings.write_text(f"{open_to_others}\n[transport]\nallow_plaintext = true\n")
    checked = place.check()
    assert checked.returncode == 69
    assert "this machine has no such address; change endpoint.listen" in checked.stderr
    assert "stop the program" not in checked.stderr


@pytest.mark.rule("BI-C5", "REL-84")
def test_a_daemon_that_runs_is_no_reason_and_a_wrong_setting_beside_it_is(tmp_path: Path) -> None:
    place = Place(tmp_path / "p")
    with place.serving() as daemon:
        checked = place.check()
        assert checked.returncode == 0, checked.stderr
        assert "warning: cannot listen at" in checked.stdout
        next(log_file_that_is_a_directory(place))
        checked = place.check()
        assert checked.returncode == 78
        assert "log.file" in checked.stderr
        assert "cannot listen" not in checked.stderr
        assert daemon.poll() is None


@pytest.mark.rule("BI-C5")
def test_files_for_another_machine_are_checked_alone(tmp_path: Path) -> None:
    place = Place(tmp_path / "p")
    next(log_file_that_is_a_directory(place))
    checked = place.run("config", "check", str(place.settings), "--file-only")
    assert checked.returncode == 0, checked.stderr
    assert "the settings are usable" in checked.stdout


@pytest.mark.rule("BI-C5")
@pytest.mark.of_files("the fault is in a store file")
def test_another_user_than_the_daemons_is_told_so_instead_of_faults_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "p")
    place.data_dir.mkdir(mode=0o700)
    (place.data_dir / "main.db").write_text("whatever it is, this user could not see it")
    if os.geteuid() == 0:
        os.chown(place.data_dir, 12_345, -1)
    owner = place.data_dir.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert main(["config", "check", str(place.settings)]) == 0
    said = capsys.readouterr().out
    assert f"belongs to user {owner}" in said
    assert f"this runs as user {owner + 1}" in said
    assert f"sudo -u '#{owner}' brokerd config check {place.settings}" in said
    assert main(["doctor", "-c", str(place.settings), "--json"]) == 3
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["code"], row["sort"]) for row in rows] == [("D48", "problem"), ("D42", "problem")]
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    assert main(["config", "check", str(place.settings)]) == 65
