"""A backup that follows a real daemon: killed half-way, restored at two times, seen by the peer."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

import brokerd
from brokerd.storage.verifying import verify
from tests import warm
from tests.acceptance.serving import Done, Place

pytestmark = pytest.mark.of_files("a backup chain has the pages of files")

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


class Follower:
    """`brokerd store backup --follow --json`, whose lines a test waits for."""

    def __init__(self, place: Place, chain: Path) -> None:
        words = ["store", "backup", str(chain), "--follow", "--every", "50ms", "--json"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "brokerd", *words, "-c", str(place.settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=warm.environment(),
        )

    def next_piece(self) -> dict[str, object]:
        """The next piece that it has added; there will be one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        found: dict[str, object] = json.loads(line)["piece"]
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)

    def stop(self) -> tuple[int, str]:
        """The exit status and the errors of an orderly stop."""
        self.process.terminate()
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@contextmanager
def following(place: Place, chain: Path) -> Iterator[Follower]:
    follower = Follower(place, chain)
    try:
        yield follower
    finally:
        if follower.process.poll() is None:
            follower.kill()


def restore(place: Place, chain: Path, target: Path, *words: str) -> Done:
    return place.run("store", "restore", str(chain), str(target), *words)


def bodies(store: Path) -> list[bytes]:
    """What waits in the queues of a store, in order."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT body FROM queue_messages ORDER BY queuing_order")
        return [body for (body,) in rows]


def incarnation(store: Path) -> bytes:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        found: bytes = connection.execute("SELECT incarnation FROM store").fetchone()[0]
        return found


def now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.rule("REL-46", "REL-47", "REL-49", "REL-50", "REL-52")
def test_two_states_are_what_was_confirmed_by_then(tmp_path: Path) -> None:
    place, chain = Place(tmp_path / "p"), tmp_path / "chain"
    confirmed: list[tuple[datetime, datetime, bytes]] = []

    def send_some(main: brokerd.sync.Session, dialog: bytes, count: int) -> None:
        for _ in range(count):
            began, body = now(), str(len(confirmed)).encode() * 100
            main.send(dialog, body, message_type="Order")
            confirmed.append((began, now(), body))

    with place.serving() as daemon:
        with brokerd.sync.connect(place.address, broker="main") as main:
            dialog = main.begin_dialog("shop", "warehouse", contract="orders")
            with following(place, chain) as follower:
                assert follower.next_piece()["number"] == 0
                for _ in range(3):
                    send_some(main, dialog, 40)
                    follower.next_piece()
                send_some(main, dialog, 40)
                follower.kill()  # it is writing a piece, or about to
            send_some(main, dialog, 40)
            with following(place, chain) as follower:
                follower.next_piece()
                send_some(main, dialog, 40)
                follower.next_piece()
                middle = now()
                send_some(main, dialog, 40)
                daemon.send_signal(signal.SIGKILL)
                daemon.wait(30)
                status, errors = follower.stop()  # it adds what the daemon has left
                assert (status, errors) == (0, "")
        listed = place.run("store", "restore", "--list", "--verify", str(chain), "--json")
        assert listed.returncode == 0, listed.stderr
        kinds = [row["kind"] for row in json.loads(listed.stdout)["rows"]]
        assert kinds == ["full"] + ["increment"] * (len(kinds) - 1)
        for name, words in (("then", ("--at", middle.isoformat())), ("last", ())):
            done = restore(place, chain, tmp_path / name, *words, "--json")
            assert done.returncode == 0, done.stderr
            said = json.loads(done.stdout)
            found = bodies(tmp_path / name / "main.db")
            taken_at = datetime.fromisoformat(said["taken_at"])
            began_at = datetime.fromisoformat(said["began_at"])
            assert found == [body for _, _, body in confirmed][: len(found)]
            assert len(found) >= sum(ended < began_at for _, ended, _ in confirmed)
            assert len(found) <= sum(began <= taken_at for began, _, _ in confirmed)
            assert verify(tmp_path / name / "main.db") == verify(tmp_path / name / "msdb.db") == []
        assert 200 <= len(bodies(tmp_path / "then" / "main.db")) < len(confirmed)
        assert len(bodies(tmp_path / "last" / "main.db")) == len(confirmed)
        again = restore(place, chain, tmp_path / "last")
        assert again.returncode == 74
        assert "is there already" in again.stderr


class Partner(Place):
    """One of two daemons that send to each other."""

    def __init__(self, folder: Path, own: str, other: str) -> None:
        super().__init__(folder)
        self._own, self._other = own, other

    def route_to(self, port: int) -> None:
        self.objects.write_text(OBJECTS.format(own=self._own, other=self._other, port=port))
        self.settings.write_text(
            self.settings.read_text().replace('[clock]\ntick = "1h"\n', FIGURES)
        )


@pytest.mark.rule("REL-50", "REL-15")
def test_the_peer_of_a_restored_store_notices(tmp_path: Path) -> None:
    west, east = (
        Partner(tmp_path / "w", "shop", "ledger"),
        Partner(tmp_path / "e", "ledger", "shop"),
    )
    west.route_to(east.port)
    east.route_to(west.port)
    chain, target = tmp_path / "chain", east.data_dir
    with west.serving(), brokerd.sync.connect(west.address, broker="main") as main:
        old = main.begin_dialog("shop", "ledger")
        with east.serving() as daemon, following(east, chain) as follower:
            follower.next_piece()
            main.send(old, b"1")
            arrived_at = wait_for_arrival(east)
            while datetime.fromisoformat(str(follower.next_piece()["began_at"])) < arrived_at:
                nudge(east)  # a piece is added when something has changed
            at = now()
            assert received(east, 1) == [b"1"]
            main.send(old, b"2")
            assert received(east, 1) == [b"2"]  # confirmed, and not in the state of that time
            refused = restore(east, chain, target)
            assert refused.returncode == 73  # its daemon runs
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)
            assert follower.stop()[0] == 0
        former = incarnation(target / "main.db")
        aside = target / "aside"
        aside.mkdir(0o700)
        for path in target.glob("*.db*"):
            path.rename(aside / path.name)
        done = restore(east, chain, target, "--at", at.isoformat())
        assert done.returncode == 0, done.stderr
        assert "is lost" in done.stdout
        assert incarnation(target / "main.db") != former
        with east.serving():
            main.send(old, b"3")
            (told,) = main.receive("inbox", wait=60, autocommit=True)
            assert told.error is not None
            assert told.error.code == "history_lost"
            new = main.begin_dialog("shop", "ledger")
            main.send(new, b"4")
            error, *bodies_ = received(east, 3)  # the error of the old dialog at this side, too
            assert json.loads(error)["code"] == -60001
            assert bodies_ == [b"1", b"4"]  # as the backup has it, "1" was not received


def wait_for_arrival(place: Place) -> datetime:
    """Wait until a message is in the queue; return when it certainly was."""
    with brokerd.sync.connect(place.address, broker="main") as main:
        while not list(main.browse("inbox")):
            pass
    return now()


def nudge(place: Place) -> None:
    """Change something in the store."""
    with brokerd.sync.connect(place.address, broker="main") as main:
        main.end(main.begin_dialog("ledger", "shop"))


def received(place: Place, count: int) -> list[bytes]:
    """What a daemon has in its queue; waits for that many messages."""
    found: list[bytes] = []
    with brokerd.sync.connect(place.address, broker="main") as main:
        while len(found) < count:
            got = main.receive("inbox", wait=60, autocommit=True)
            assert got
            found += [one.body or b"" for one in got]
    return found


@pytest.mark.rule("REL-46")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory away")
def test_another_user_is_told_as_whom_to_follow(tmp_path: Path) -> None:
    place = Place(tmp_path / "p")
    place.data_dir.mkdir()
    os.chown(place.data_dir, 65_534, -1)
    words = ("store", "backup", str(tmp_path / "chain"), "--follow", "-c", str(place.settings))
    refused = place.run(*words)
    assert refused.returncode == 78
    assert "sudo -u '#65534'" in refused.stderr
    assert not (tmp_path / "chain").exists()


@pytest.mark.rule("REL-46")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("backup", "x", "--every", "5s"), "go with --follow"),
        (("backup", "x", "--follow", "--every", "soon"), "is no duration"),
        (("backup", "x", "--follow", "--address", "unix:/x"), "give -c, not --address"),
        (("backup", "p/d", "--follow", "-c", "p/b.toml"), "is a directory of stores"),
        (("restore", "p"), "name the directory to restore to"),
        (("restore", "p", "r", "--at", "yesterday"), "is no time"),
        (("restore", "p", "r", "--list"), "--list goes with DIR"),
    ],
)
def test_wrong_words_are_named(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    place = Place(tmp_path / "p")
    place.data_dir.mkdir()
    place.folder = tmp_path
    refused = place.run("store", *words)
    assert refused.returncode == 64, refused.stderr
    assert said in refused.stderr


@pytest.mark.rule("REL-46", "REL-49")
def test_the_drill_of_the_page_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/continuous-backup.md").read_text()
    block = page.partition("## Drill")[2].partition("```sh\n")[2].partition("```")[0]
    commands = tmp_path / "bin"
    commands.mkdir()
    program = commands / "brokerd"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m brokerd "$@"\n')
    program.chmod(0o755)
    place = tmp_path / "drill"
    place.mkdir()
    environment = warm.environment()
    done = subprocess.run(
        ["bash", "-c", block],
        cwd=place,
        env=environment | {"PATH": f"{commands}:{environment['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    last = done.stdout.splitlines()[-4:]
    assert last == ["before.txt:1", "newest.txt:1", "before.txt:0", "newest.txt:1"], done
