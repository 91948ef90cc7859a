"""A real daemon whose log is damaged, removed or replaced says so and loses nothing silently."""

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import brokerd
from tests.acceptance.serving import Place
from tests.acceptance.test_bad_input import assert_refused, assert_start_refused

pytestmark = pytest.mark.of_files("a log is a file beside that of the store")

FRAME = 4096 + 24
MESSAGES = 60


def send(place: Place, first: int, count: int) -> None:
    """Each is confirmed by itself."""
    with brokerd.sync.connect(place.address, broker="main") as main:
        dialog = main.begin_dialog("shop", "warehouse", contract="orders")
        for number in range(first, first + count):
            main.send(dialog, str(number).encode(), message_type="Order")


def waiting(place: Place) -> int:
    with brokerd.sync.connect(place.address, broker="main") as main:
        return len(main.browse_page("warehouse_q", limit=1000).messages)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "p")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory that a kill leaves after sixty confirmed messages."""
    place = Place(tmp_path_factory.mktemp("left") / "p")
    with place.serving() as daemon:
        send(place, 0, MESSAGES)
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(30)
    for socket in place.data_dir.glob("*.sock"):
        socket.unlink()
    return place.data_dir


@pytest.fixture
def killed(place: Place, left: Path) -> Place:
    shutil.copytree(left, place.data_dir)
    return place


def log_of(place: Place, broker: str = "main") -> Path:
    return place.data_dir / f"{broker}.db-wal"


def flip(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 4
    log.write_bytes(data)


def cut(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-FRAME])


def replace(log: Path) -> None:
    other = log.with_name("msdb.db-wal" if log.name != "msdb.db-wal" else "main.db-wal")
    log.write_bytes(other.read_bytes())


def kept(place: Place) -> dict[str, bytes]:
    """The stores and their logs; SQLite makes the index anew for whoever reads."""
    files = [path for path in place.data_dir.glob("*.db*") if path.suffix != ".lock"]
    return {path.name: path.read_bytes() for path in files if not path.name.endswith("-shm")}


@pytest.mark.rule("REL-7", "FP-1")
def test_a_healthy_log_is_recovered(killed: Place) -> None:
    with killed.serving():
        assert waiting(killed) == MESSAGES


@pytest.mark.rule("REL-39", "REL-6", "FD-8", "FD-9")
@pytest.mark.parametrize("broker", ["main", "msdb"])
@pytest.mark.parametrize("harm", [flip, cut, Path.unlink, replace])
def test_a_start_is_refused_and_everything_that_looks_says_why(
    killed: Place, harm: Callable[[Path], object], broker: str
) -> None:
    log = log_of(killed, broker)
    harm(log)
    before = kept(killed)
    words = (str(log), "confirmed", "store accept-loss")
    assert_start_refused(killed, 65, *words)
    assert kept(killed) == before
    verified = killed.run("store", "verify", str(log.with_name(f"{broker}.db")), "--json")
    assert verified.returncode == 65
    assert str(log) in json.loads(verified.stdout)["rows"][0]["problem"]


@pytest.mark.rule("REL-39", "REL-40", "REL-6")
def test_an_administrator_goes_on_after_a_loss(killed: Place) -> None:
    log = log_of(killed)
    flip(log)
    damaged = log.read_bytes()
    store = str(log.with_name("main.db"))
    assert_refused(killed.run("store", "accept-loss", store), 65, "--yes")
    assert log.read_bytes() == damaged
    accepted = killed.run("store", "accept-loss", store, "--yes", "--json")
    assert accepted.returncode == 0, accepted.stderr
    told = json.loads(accepted.stdout)
    assert told["loss"]["commits"] > 0
    assert Path(told["kept"]).read_bytes() == damaged
    with killed.serving():
        left = waiting(killed)
    with killed.serving():  # it is told after each start, until somebody removes the file
        at = ("--address", killed.address)
        status = killed.run("status", "--check", *at)
        assert status.returncode == 2
        assert "store main: a loss was accepted at 20" in status.stdout
        assert str(log) in status.stdout
        assert "D63" in killed.run("doctor", *at).stdout
        Path(f"{store}-loss").unlink()
        assert "a loss was accepted" not in killed.run("status", *at).stdout
    assert MESSAGES - told["loss"]["commits"] <= left < MESSAGES
    assert "loss_accepted" in killed.folder.with_name("p.log").read_text()
    assert "nothing is missing" in killed.run("store", "accept-loss", store).stdout


def ended(daemon: "subprocess.Popen[bytes]") -> int:
    return daemon.wait(60)


def ticking(place: Place) -> Place:
    place.settings.write_text(place.settings.read_text().replace('"1h"', '"200ms"'))
    return place


@pytest.mark.rule("REL-37", "FD-9", "REL-5")
@pytest.mark.parametrize("harm", [Path.unlink, replace])
def test_a_log_that_goes_under_a_daemon_stops_it_and_comes_back(
    place: Place, harm: Callable[[Path], object]
) -> None:
    log = log_of(ticking(place))
    with place.serving(is_damaged=True) as daemon:
        send(place, 0, MESSAGES)
        if harm is replace:
            log.with_name("new").write_bytes(log_of(place, "msdb").read_bytes())
            log.with_name("new").rename(log)
        else:
            log.unlink()
        assert ended(daemon) == 65
    told = place.folder.with_name("p.log").read_text()
    saved = log.with_name("main.db-wal.saved-0")
    assert f"move {saved} to {log}" in told
    store = str(log.with_name("main.db"))
    move_back = f"mv {saved} {log}"
    assert_refused(place.serve(), 65, str(log), f"fix: {move_back}")
    verified = place.run("store", "verify", store)
    assert move_back in verified.stdout
    assert_refused(place.run("store", "accept-loss", store), 65, move_back)
    away = f"or move {saved} to another directory"
    assert_refused(place.run("store", "accept-loss", store, "--yes"), 65, move_back, away)
    saved.replace(log)
    with place.serving():
        assert waiting(place) == MESSAGES
