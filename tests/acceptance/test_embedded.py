"""A broker in a file: in a program's own process, and in a daemon, one after the other (SDK-14)."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import brokerd
from brokerd.errors import StoreLocked
from tests.acceptance.serving import OBJECTS, Place

pytestmark = [pytest.mark.rule("SDK-14"), pytest.mark.of_files("an embedded broker is a file")]

PROGRAM = """
import sys, brokerd
with brokerd.sync.connect("file:" + sys.argv[1], service="shop") as bk:
    {block}
"""


def program(path: Path, block: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(block=block), str(path)]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(brokerd.__file__).parents[1])}


def run(path: Path, block: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        program(path, block),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.rule("REL-24")
def test_the_other_files_of_the_directory_are_left_alone(tmp_path: Path) -> None:
    """It is the program's own: what brokers keep there has the names of their stores."""
    own = {name: f"the program's {name}" for name in ("clock.json", "clock.new", "reserve", "x")}
    for name, content in own.items():
        (tmp_path / name).write_text(content)
    with brokerd.sync.connect(f"file:{tmp_path / 'main.db'}") as bk:
        bk.apply(tomllib.loads(OBJECTS))
    assert {name: (tmp_path / name).read_text() for name in own} == own
    made = {path.name for path in tmp_path.iterdir()} - own.keys()
    assert "msdb.db-clock" in made
    assert [name for name in made if not name.startswith(("main.db", "msdb.db"))] == []


def test_a_daemon_serves_the_file_and_the_file_serves_what_the_daemon_left(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path / "p")
    path = place.data_dir / "main.db"
    place.data_dir.mkdir()
    with brokerd.sync.connect(f"file:{path}") as bk:
        bk.apply(tomllib.loads(OBJECTS))
        broker_id = bk.status()["broker_id"]
        first = bk.begin_dialog("shop", "warehouse", "orders")
        bk.send(first, b"from the file", "Order")
    with place.serving() as daemon:
        with brokerd.sync.connect(place.address) as bk:
            assert bk.status()["broker_id"] == broker_id
            (came,) = bk.receive("warehouse_q", autocommit=True)
            assert came.body == b"from the file"
            bk.send(first, b"from the daemon", "Order")
            with pytest.raises(StoreLocked, match=f"process {daemon.pid}"):
                brokerd.sync.connect(f"file:{path}")
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
    with brokerd.sync.connect(f"file:{path}") as bk:
        (came,) = bk.receive("warehouse_q", autocommit=True)
        assert came.body == b"from the daemon"
        refused = place.serve()
        assert refused.returncode == 73
        assert f"process {os.getpid()}" in refused.stderr


def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    assert run(path, "bk.declare(service='shop')").returncode == 0
    block = (
        "c = brokerd.Contract('c', initiator={'Word': str}); "
        "bk.declare(c, service='shop'); bk.declare(c, service='w', target=True); "
        "h = bk.begin_dialog('shop', 'w', 'c'); "
        "[(bk.send(h, str(n).encode(), 'Word'), print(n, flush=True)) for n in range(10**6)]"
    )
    command = program(path, block)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as writer:
        assert writer.stdout is not None
        confirmed = [int(writer.stdout.readline()) for _ in range(200)]
        writer.kill()
        confirmed += [int(line) for line in writer.stdout.read().split()]
    with brokerd.sync.connect(f"file:{path}") as bk:
        came: list[int] = []
        while found := bk.receive("w_q", autocommit=True):
            came += [int(one.body or b"") for one in found]
    assert came == list(range(len(came)))
    assert len(confirmed) <= len(came) <= len(confirmed) + 1


def test_a_second_process_is_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with brokerd.sync.connect(f"file:{path}"):
        second = run(path, "pass")
    assert "StoreLocked" in second.stderr
    assert f"app.db is in use: {tmp_path / 'msdb.db'} is open in process {os.getpid()}" in (
        second.stderr
    )
    assert run(path, "pass").returncode == 0


def test_a_program_that_forgets_to_close_ends(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    script = (
        f"import brokerd; bk = brokerd.sync.connect('file:{path}'); print(bk.status()['state'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (0, "ready\n")
    assert run(path, "print('again')").stdout == "again\n"
