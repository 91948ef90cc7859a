"""Bad input: one screen that names the thing and the fix, a status of its own, nothing changed."""

import os
import re
import signal
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import brokerd
from brokerd.clock import Instant
from brokerd.ids import BrokerId, Incarnation, InstanceId
from brokerd.storage.opening import NewStore, make_file
from tests.acceptance.serving import OBJECTS, Done, Place, tree

SCREEN = 24
TABLE = Path(__file__).resolve().parents[2] / "docs/how-to/operate.md"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "p")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place whose daemon runs through all tests that use it."""
    place = Place(tmp_path_factory.mktemp("running") / "p")
    with place.serving() as process:
        yield place
        assert process.poll() is None, "what was refused has ended the daemon that runs"


def assert_refused(done: Done, status: int, *words: str) -> None:
    assert done.returncode == status, done.stderr
    assert f"\n| {status} | " in TABLE.read_text()
    lines = done.stderr.splitlines()
    assert len(lines) <= SCREEN
    assert lines[0].startswith("brokerd: ")
    assert any(line.startswith("  fix: ") for line in lines)
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert done.stdout == ""


def assert_start_refused(place: Place, status: int, *words: str, running: bool = False) -> None:
    """`config check` says so as well, before whoever restarts a daemon has stopped it; what a
    daemon that is `running` has in use itself is no reason for it."""
    before = tree(place.folder)
    assert_refused(place.serve(), status, *words)
    checked = place.check()
    if running:
        assert checked.returncode == 0, checked.stderr
        assert all(word in checked.stdout for word in words[:2])
    else:
        assert checked.returncode == status, checked.stderr
        assert all(word in checked.stderr for word in words)
    assert tree(place.folder) == before


# Settings.


@pytest.mark.rule("BI-C3", "FO-1")
def test_unknown_keys_are_told_all_at_once_with_the_nearest_known_one(place: Place) -> None:
    text = place.settings.read_text()
    place.settings.write_text(text.replace("tick", "tik").replace("[clients]", "[client]"))
    assert_start_refused(
        place,
        78,
        'clock.tik: unknown key; did you mean "tick"?',
        'client: unknown key; did you mean "clients"?',
        "brokerd config show",
    )


@pytest.mark.rule("END-2")
@pytest.mark.parametrize(
    ("port", "problem"),
    [("70000", "endpoint.port: "), ("-1", "endpoint.port: "), ('"4o22"', "endpoint.port: ")],
)
def test_a_port_that_is_none(port: str, problem: str, place: Place) -> None:
    place.write(port=port)
    assert_start_refused(place, 78, f"{place.settings}", problem)


@pytest.mark.rule("BI-C5")
def test_a_port_that_is_taken(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        place.write(port=port)
        assert_start_refused(place, 69, f"TCP://127.0.0.1:{port}", "in use", "endpoint.port")


@pytest.mark.rule("BI-C5")
def test_a_client_socket_that_another_daemon_listens_at(running: Place, tmp_path: Path) -> None:
    place = Place(tmp_path / "p")
    place.write(listen=running.address)
    assert_start_refused(place, 69, running.address, "in use", "clients.listen")
    assert running.run("status", "--address", running.address).returncode == 0


def test_a_client_socket_that_is_a_file(place: Place) -> None:
    (place.folder / "s").write_text("mine")
    place.write(listen=f"unix:{place.folder}/s")
    assert_start_refused(place, 69, f"unix:{place.folder}/s", "not a socket", "clients.listen")


def test_a_data_directory_that_is_a_file(place: Place) -> None:
    place.data_dir.write_text("mine")
    assert_start_refused(place, 78, f"instance.data_dir: {place.data_dir}", "not a directory")


def test_a_data_directory_that_cannot_be_made(place: Place) -> None:
    (place.folder / "f").write_text("mine")
    place.write(data_dir=place.folder / "f" / "d")
    assert_start_refused(place, 78, "instance.data_dir", f"{place.folder}/f is not a directory")


def test_a_data_directory_that_cannot_be_written_to(place: Place) -> None:
    place.data_dir.mkdir(mode=0o500)
    if os.access(place.data_dir, os.W_OK):
        pytest.skip("this user may write everywhere")
    assert_start_refused(place, 78, f"instance.data_dir: {place.data_dir}", "cannot be written")


@pytest.mark.rule("SX-24")
def test_files_that_are_not_the_daemons_alone_are_told_all_at_once(place: Place) -> None:
    other = place.folder / "other"
    other.write_text("what somebody else wrote")
    place.data_dir.mkdir()
    place.data_dir.chmod(0o777)
    (place.data_dir / "main.db.lock").symlink_to(other)
    (place.data_dir / "reserve").hardlink_to(other)
    assert_start_refused(
        place,
        78,
        f"{place.data_dir} has mode 0777: others may write to it; chmod go-w {place.data_dir}",
        f"{place.data_dir}/main.db.lock is a symbolic link; ",
        f"{place.data_dir}/reserve has 2 names (hard links)",
    )
    assert other.read_text() == "what somebody else wrote"
    found = place.run("doctor", "-c", str(place.settings), "--json")
    assert "D42" in found.stdout
    assert "reserve has 2 names" in found.stdout


# Objects.


@pytest.mark.rule("BI-C3")
def test_objects_that_name_what_is_not_there(place: Place) -> None:
    wrong = OBJECTS.replace('queue = "shop_q"', 'queue = "shop"').replace('["orders"]', '["order"]')
    place.objects.write_text(wrong)
    words = (
        f"{place.objects}",
        'no queue "shop" is declared; did you mean "shop_q"?',
        'no contract "order" is declared; did you mean "orders"?',
    )
    assert_start_refused(place, 78, *words)
    checked = place.run("config", "check", str(place.settings), "--objects", str(place.objects))
    assert checked.returncode == 78
    assert all(word in checked.stderr for word in words)


@pytest.mark.rule("BI-C5", "ACT-24")
@pytest.mark.parametrize(
    ("code", "handler", "problem"),
    [
        (None, "packer:pack", "No module named 'packer'"),
        ("import nothing_like_it\n", "packer:pack", "No module named 'nothing_like_it'"),
        ("async def pack(session): ...\n", "packer:puck", "has no attribute 'puck'"),
        ("def pack(session): ...\n", "packer:pack", "not an async callable"),
    ],
)
def test_a_handler_that_cannot_be_used(
    code: str | None, handler: str, problem: str, place: Place
) -> None:
    if code is not None:
        (place.folder / "packer.py").write_text(code)
    activated = f'name = "warehouse_q"\n[queue.activation]\nhandler = "{handler}"\n'
    place.objects.write_text(OBJECTS.replace('name = "warehouse_q"\n', activated))
    assert_start_refused(place, 78, "queue warehouse_q", handler, problem)


@pytest.mark.rule("BI-C5")
def test_a_handler_is_found_in_the_working_directory(place: Place) -> None:
    (place.folder / "packer.py").write_text("async def pack(session): ...\n")
    activated = 'name = "warehouse_q"\n[queue.activation]\nhandler = "packer:pack"\n'
    place.objects.write_text(OBJECTS.replace('name = "warehouse_q"\n', activated))
    words = ("config", "check", str(place.settings), "--objects", str(place.objects))
    assert place.run(*words).returncode == 0
    with place.serving() as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


# Stores.


@pytest.mark.rule("REL-16", "FP-9")
@pytest.mark.of_files("a second daemon on a server waits for the first one to end")
def test_a_second_daemon_on_the_same_store(running: Place) -> None:
    assert_start_refused(
        running, 73, f"{running.data_dir}", "is open in process", "instance.data_dir", running=True
    )
    with brokerd.sync.connect(running.address, broker="main") as session:
        session.send(session.begin_dialog("shop", "warehouse", "orders"), b"x", "Order")


@pytest.mark.rule("BI-D1")
@pytest.mark.of_files("it damages a store file")
def test_a_store_that_is_something_else(place: Place) -> None:
    place.data_dir.mkdir()
    store = place.data_dir / "main.db"
    store.write_text("a shopping list\n" * 20)
    assert_start_refused(place, 65, f"{store} is not an SQLite file")
    store.write_bytes(b"")
    assert_start_refused(place, 65, f"{store} is an empty file")


@pytest.mark.rule("BI-D1")
@pytest.mark.of_files("it damages a store file")
def test_a_store_of_another_application(place: Place) -> None:
    place.data_dir.mkdir()
    store = place.data_dir / "msdb.db"
    _query(store, "PRAGMA journal_mode = WAL", "CREATE TABLE mail (body)")
    assert_start_refused(place, 65, f"{store} belongs to another application")


@pytest.mark.rule("REL-29", "BI-D1")
@pytest.mark.of_files("it damages a store file")
def test_a_store_of_a_newer_version(place: Place) -> None:
    store = _store(place)
    _query(store, "PRAGMA journal_mode = WAL", "UPDATE alembic_version SET version_num = '9876'")
    assert_start_refused(place, 78, f"{store} has schema version 9876", "this program knows")


@pytest.mark.rule("REL-29", "BI-D1")
@pytest.mark.of_files("it damages a store file")
def test_a_newer_store_whose_last_daemon_was_killed(place: Place) -> None:
    store = _store(place)
    left = sqlite3.connect(store, isolation_level=None)
    left.execute("PRAGMA journal_mode = WAL")
    left.execute("UPDATE alembic_version SET version_num = '9876'")
    copies = {end: Path(f"{store}{end}").read_bytes() for end in ("", "-wal")}
    left.close()
    for end, content in copies.items():
        Path(f"{store}{end}").write_bytes(content)
    assert copies["-wal"]
    assert_start_refused(place, 78, f"{store} has schema version 9876")


# Commands.


def test_sending_from_a_service_that_is_not_there(running: Place) -> None:
    before = tree(running.folder)
    words = ("--to", "warehouse", "--contract", "orders", "--type", "Order", "--body", "x")
    done = running.run("send", "--from", "shopp", *words, "--address", running.address)
    assert_refused(done, 67, "'shopp'", "shop, warehouse", 'did you mean "shop"?')
    waits = running.run(
        "send", "--from", "Shop", *words, "--wait", "1", "-c", str(running.settings)
    )
    assert_refused(waits, 67, "'Shop'", 'did you mean "shop"?')
    assert tree(running.folder) == before


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("receive", "shop_queue", "--ack"), "'shop_queue'"),
        (("queue", "browse", "shop_queue"), "'shop_queue'"),
        (("send", "--from", "shop", "--to", "warehouse", "--contract", "ordres"), "'ordres'"),
    ],
)
def test_naming_a_queue_or_a_contract_that_is_not_there(
    words: tuple[str, ...], name: str, running: Place
) -> None:
    before = tree(running.folder)
    assert_refused(running.run(*words, "--address", running.address), 67, name)
    assert tree(running.folder) == before


def test_asking_a_daemon_that_does_not_run(place: Place) -> None:
    before = tree(place.folder)
    done = place.run("status", "-c", str(place.settings))
    assert_refused(done, 69, place.address, "brokerd serve")
    assert tree(place.folder) == before


def test_the_page_gives_each_status_once() -> None:
    statuses = re.findall(r"^\| (\d+) \| ", TABLE.read_text(), re.MULTILINE)
    assert statuses == sorted(set(statuses), key=int)


def _store(place: Place) -> Path:
    place.data_dir.mkdir()
    new = NewStore("main", BrokerId(b"b" * 16), InstanceId(b"i" * 16))
    store = place.data_dir / "main.db"
    make_file(store, new, incarnation=Incarnation(b"c" * 16), now=Instant(1))
    return store


def _query(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()
