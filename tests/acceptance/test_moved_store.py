"""A daemon whose stores are moved to PostgreSQL while dialogs are under way, and back (REL-62)."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import brokerd
from tests.acceptance.serving import Place
from tests.postgresql.servers import Server, Servers

pytestmark = pytest.mark.of_files("it begins with stores in files")

FIGURES = """
[clock]
tick = "200ms"
[transport]
connect_timeout = "1s"
login_timeout = "1s"
suppress_lost = "200ms"
suppress_failed = "200ms"
[dialog]
retry_first = "300ms"
retry_max = "1s"
"""
OBJECTS = """
[broker]
name = "main"
default_encryption = "off"
[[queue]]
name = "inbox"
[[service]]
name = "{own}"
queue = "inbox"
contracts = ["DEFAULT"]
[[route]]
name = "there"
service = "{other}"
address = "TCP://127.0.0.1:{port}"
"""
DIALOGS = range(3)
HALF, ALL = 10, 20


@pytest.fixture
def server(postgresql_servers: Servers) -> Iterator[Server]:
    """A server that writes what it confirms, as daemons demand it."""
    made = postgresql_servers.started("durable", fsync=True)
    made.create_database("stores")
    return made


def partners(folder: Path) -> tuple[Place, Place]:
    """Two daemons that send to each other: west has the service shop, east has ledger."""
    west, east = Place(folder / "w"), Place(folder / "e")
    for place, own, other, to in ((west, "shop", "ledger", east), (east, "ledger", "shop", west)):
        place.objects.write_text(OBJECTS.format(own=own, other=other, port=to.port))
        settings = place.settings.read_text()
        place.settings.write_text(settings.replace('[clock]\ntick = "1h"\n', FIGURES))
    return west, east


def receive(main: brokerd.sync.Session) -> dict[bytes, list[bytes]]:
    """What one receive returns, by dialog."""
    got = main.receive("inbox", wait=60, autocommit=True)
    assert got
    assert all(one.error is None for one in got), [one.error for one in got]
    found: dict[bytes, list[bytes]] = {}
    for one in got:
        found.setdefault(one.handle, []).append(one.body or b"")
    return found


def drain(main: brokerd.sync.Session, found: dict[bytes, list[bytes]], count: int) -> None:
    """Receive until there are as many messages."""
    while sum(map(len, found.values())) < count:
        for handle, bodies in receive(main).items():
            found.setdefault(handle, []).extend(bodies)


def stop(process: "object", sign: int = signal.SIGTERM) -> None:
    process.send_signal(sign)  # type: ignore[attr-defined]
    process.wait(30)  # type: ignore[attr-defined]


def use(place: Place, url: str | None) -> None:
    """Set where the stores are."""
    text = place.settings.read_text().partition("\n[store]\n")[0]
    place.settings.write_text(text + (f'\n[store]\nurl = "{url}"\n' if url else ""))


def put_away(place: Place, name: str) -> None:
    """Move the marked files away."""
    (place.folder / name).mkdir(mode=0o700)
    for path in place.data_dir.glob("*.db*"):
        path.rename(place.folder / name / path.name)


@pytest.mark.rule("REL-61", "REL-62")
def test_dialogs_of_two_daemons_go_on_while_one_is_moved_there_and_back(  # noqa: PLR0915
    tmp_path: Path, server: Server
) -> None:
    west, east = partners(tmp_path)
    url = server.url("stores")
    words = ("store", "copy", "-c", str(east.settings), "--json")
    with west.serving(), brokerd.sync.connect(west.address, broker="main") as main:
        dialogs = [main.begin_dialog("shop", "ledger") for _ in DIALOGS]

        def send(numbers: range) -> None:
            for number in numbers:
                for dialog in dialogs:
                    main.send(dialog, b"%d" % number)

        there: dict[bytes, list[bytes]] = {}
        back: dict[bytes, list[bytes]] = {}
        with east.serving() as daemon:
            send(range(HALF))
            with brokerd.sync.connect(east.address, broker="main") as other:
                drain(other, there, HALF)
                for handle, bodies in there.items():
                    for body in bodies:
                        other.send(handle, b"re " + body)
                replied = sum(map(len, there.values()))
                refused = east.run(*words, "--to", url)
                assert refused.returncode == 73, refused.stderr  # its daemon runs
                assert f"process {daemon.pid}" in refused.stderr
            stop(daemon, signal.SIGKILL)
        send(range(HALF, ALL))  # these wait, for a daemon on PostgreSQL
        moved = east.run(*words, "--to", url)
        assert moved.returncode == 0, moved.stderr
        done = json.loads(moved.stdout)
        assert [one["broker"] for one in done] == ["msdb", "main"]
        assert all(one["is_moved"] and not one["was_done"] for one in done)
        again = east.run(*words, "--to", url)
        assert all(one["was_done"] for one in json.loads(again.stdout))
        refused = east.serve()  # the settings still name the files
        assert refused.returncode == 65
        assert "was moved to postgresql://" in refused.stderr
        use(east, url)
        with east.serving() as daemon:
            with brokerd.sync.connect(east.address, broker="main") as other:
                drain(other, there, len(DIALOGS) * ALL - 7)
            stop(daemon)
        use(east, None)
        put_away(east, "marked")
        moved = east.run(*words, "--from", url)
        assert moved.returncode == 0, moved.stderr
        with east.serving() as daemon:
            with brokerd.sync.connect(east.address, broker="main") as other:
                drain(other, there, len(DIALOGS) * ALL)
                for handle, bodies in there.items():
                    other.send(handle, b"the last of %d" % len(bodies))
            drain(main, back, replied + len(DIALOGS))
            stop(daemon)
    wanted = [b"%d" % number for number in range(ALL)]
    assert list(there.values()) == [wanted] * len(DIALOGS)
    for bodies in back.values():
        *replies, last = bodies
        assert last == b"the last of %d" % ALL
        assert replies == [b"re %d" % number for number in range(len(replies))]
    assert set(back) == set(dialogs)
