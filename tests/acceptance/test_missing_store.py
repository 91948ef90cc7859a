"""The file of a broker is not there when a real daemon starts: nothing is made in its place."""

import signal
from pathlib import Path

import pytest

import brokerd
from brokerd.ids import show
from brokerd.storage.file_checks import read_known_brokers
from tests.acceptance.serving import Done, Place, tree
from tests.acceptance.test_bad_input import assert_refused
from tests.acceptance.test_two_brokers_again import OBJECTS, Undeclared

pytestmark = pytest.mark.of_files("it takes store files away and puts them back")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Stores of the brokers main and two, with a message under way, left by a kill."""
    place = Place(tmp_path / "p")
    place.objects.write_text(OBJECTS)
    with place.serving() as daemon:
        with brokerd.sync.connect(place.address, broker="main") as main:
            main.send(main.begin_dialog("shop", "far"), b"under way")
        with brokerd.sync.connect(place.address, broker="two") as two:
            while not two.browse_page("far_q").messages:
                two.view("services")
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(30)
    return place


def assert_start_refused(place: Place, *words: str) -> None:
    """And nothing has changed but what SQLite makes anew of a log that a kill has left."""
    before = kept(place)
    assert_refused(place.serve(), 65, *words)
    assert kept(place) == before


def kept(place: Place) -> dict[str, str]:
    return {name: what for name, what in tree(place.folder).items() if not name.endswith("-shm")}


def take_away(place: Place, name: str, to: str) -> None:
    """Its log goes with it: the daemon was killed."""
    for end in ("", "-wal", "-shm"):
        file = place.data_dir / f"{name}.db{end}"
        if file.exists():
            file.rename(place.folder / f"{to}{end}")


def put_back(place: Place, name: str, of: str) -> None:
    for end in ("-wal", "-shm", ""):
        file = place.folder / f"{of}{end}"
        if file.exists():
            file.rename(place.data_dir / f"{name}.db{end}")


def undeclared(place: Place, tick: str = "1h") -> Undeclared:
    again = Undeclared(place.folder)
    again.port = place.port
    again.write()
    again.settings.write_text(again.settings.read_text().replace('"1h"', f'"{tick}"'))
    return again


def forget(place: Place, name: str, *words: str) -> Done:
    return place.run("broker", "forget", name, "-c", str(place.settings), *words)


@pytest.mark.rule("MAN-17", "BI-D1")
def test_a_start_with_the_objects_is_refused_until_it_is_back(place: Place) -> None:
    take_away(place, "two", "moved")
    assert_start_refused(
        place, f"{place.data_dir}/two.db is not there", "mount", "brokerd broker forget two"
    )
    checked = place.run("config", "check", str(place.settings))
    assert checked.returncode == 0
    assert f"warning: {place.data_dir}/two.db is not there" in checked.stdout
    put_back(place, "two", "moved")
    with place.serving(), brokerd.sync.connect(place.address, broker="two") as two:
        (message,) = two.receive("far_q", autocommit=True)
        assert message.body == b"under way"


@pytest.mark.rule("MAN-17", "CLK-6")
def test_it_is_missed_while_the_others_serve_and_comes_back_by_itself(place: Place) -> None:
    take_away(place, "two", "moved")
    again = undeclared(place, tick="200ms")
    with again.serving():
        listed = again.run("broker", "ls", "--address", again.address)
        assert "two.db is not there" in listed.stdout
        assert again.run("status", "--check", "--address", again.address).returncode == 2
        doctor = again.run("doctor", "--address", again.address)
        assert "brokerd broker forget two" in doctor.stdout
        refused = forget(again, "main")
        assert_refused(refused, 65, "broker main is here")
        put_back(place, "two", "moved")
        with brokerd.sync.connect(again.address, broker="two", wait=60) as two:
            (message,) = two.receive("far_q", autocommit=True)
            assert message.body == b"under way"


@pytest.mark.rule("MAN-18")
def test_it_is_forgotten_without_a_daemon_and_made_anew(place: Place) -> None:
    take_away(place, "two", "moved")
    known = read_known_brokers(place.data_dir / "msdb.db")
    assert_start_refused(place, "two.db is not there")
    before = kept(place)
    assert_refused(forget(place, "main"), 65, "broker main is here")
    assert_refused(forget(place, "tow"), 67, "no broker 'tow'", "main, two")
    assert kept(place) == before
    done = forget(place, "two")
    assert done.returncode == 0, done.stderr
    assert "forgotten" in done.stdout
    assert read_known_brokers(place.data_dir / "msdb.db") == {"main": known["main"]}
    with place.serving(), brokerd.sync.connect(place.address, broker="two") as two:
        assert two.browse_page("far_q").messages == []
        assert two.status()["broker_id"] != show(known["two"])


@pytest.mark.rule("MAN-18", "REL-16")
def test_the_only_broker_that_is_gone(tmp_path: Path) -> None:
    place = Place(tmp_path / "p")
    with place.serving() as daemon:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(30)
    take_away(place, "main", "moved")
    again = undeclared(place)
    assert_start_refused(again, "main.db is not there")
    assert forget(again, "main").returncode == 0
    with place.serving() as daemon:
        assert_refused(forget(place, "main"), 65, "broker main is here")
        place.write(listen=f"unix:{place.folder}/nobody")  # the daemon is there, but not found
        assert_refused(forget(place, "main"), 73, f"process {daemon.pid}")
