"""The first programs of the documents, run as they say: the README, alone, and on two machines."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.serving import free_port

ROOT = Path(__file__).parents[2]
MOST_LINES = 25


def files_of(document: str) -> dict[str, str]:
    """Return the blocks of a document that are files, by the name in their first line."""
    text = (ROOT / document).read_text()
    found = re.findall(r"```(?:python|toml)\n(# ([\w.]+\.(?:py|toml)).*?\n)```", text, re.DOTALL)
    return {name: source for source, name in found}


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, source in files.items():
        (folder / name).write_text(source)
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return write(tmp_path, files_of("README.md"))


@contextmanager
def running(place: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    with (place / f"{words[0]}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "brokerd", *words],
            stdout=log,
            stderr=log,
            cwd=place,
            env=environment(),
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)


def environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("BROKERD_")}
    return own | {"PYTHONPATH": str(ROOT)}


def ask(place: Path, program: str = "shop.py") -> str:
    asked = subprocess.run(
        [sys.executable, program],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert asked.returncode == 0, asked.stderr
    return asked.stdout.strip()


def test_two_short_files() -> None:
    files = files_of("README.md")
    assert list(files) == ["warehouse.py", "shop.py"]
    lines = [line for source in files.values() for line in source.splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES


@pytest.mark.rule("SDK-11", "SDK-14")
def test_both_in_one_process_without_a_daemon(place: Path) -> None:
    write(place, files_of("docs/how-to/embed.md"))
    assert ask(place, "alone.py") == "Packed(sku='A1')"
    assert (place / "shop.db").exists()


@pytest.mark.rule("SDK-11", "SDK-15", "SDK-4")
def test_they_do_what_the_readme_says(place: Path) -> None:
    with running(place, "serve") as daemon, running(place, "worker", "run", "warehouse:app") as w:
        assert ask(place) == "Packed(sku='A1')"
        assert ask(place) == "Packed(sku='A1')"
        for process in (w, daemon):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert "warehouse reads warehouse_q" in (place / "worker.log").read_text()


def wait_for_worker(place: Path) -> None:
    """Wait until the worker has declared its service."""
    while "warehouse reads warehouse_q" not in (place / "worker.log").read_text():
        time.sleep(0.05)


def wait_for_socket(path: Path) -> None:
    """Wait until a daemon listens there: no signal of another process tells."""
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.05)
            else:
                return


@pytest.mark.rule("SDK-11", "SEC-60", "SEC-61", "SEC-63", "RTE-2")
def test_the_same_two_files_on_two_machines(tmp_path: Path) -> None:
    """The page's settings as they are, but for addresses of this machine and a free port.

    tests/netns/test_tutorial.py runs the page's commands with its addresses."""
    port = free_port()
    addresses = {"192.0.2.10": "127.0.0.1", "192.0.2.20": "127.0.0.2"}
    files = files_of("docs/tutorial/two-machines.md")
    for name, address in addresses.items():
        places = f'listen = ["{address}"]\nport = {port}'
        files = {
            file: source.replace(f'listen = ["{name}"]', places) for file, source in files.items()
        }
    assert list(files) == ["west.toml", "east.toml"]
    east, west = (
        write(tmp_path / name, files_of("README.md") | files) for name in ("east", "west")
    )
    with (
        running(west, "serve", "-c", "west.toml"),
        running(west, "worker", "run", "warehouse:app", "-c", "west.toml"),
        running(east, "serve", "-c", "east.toml"),
    ):
        wait_for_worker(west)
        shown = pair(west, "--share", "warehouse", "--no-wait")
        joined = pair(east, shown["code"], "--create", "shop")
        assert (joined["problem"], joined["paired"]["principal"]) == ("", "peer:west")
        assert joined["ping"]["is_complete"]
        assert ask(east) == "Packed(sku='A1')"


def pair(place: Path, *words: str) -> Any:
    """Run `brokerd peer pair` in the directory of a machine; return the object that it prints."""
    wait_for_socket(place / "data" / "brokerd.sock")
    where = ["--json", "-c", f"{place.name}.toml"]
    ended = subprocess.run(
        [sys.executable, "-m", "brokerd", "peer", "pair", *words, *where],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return json.loads(ended.stdout)


@pytest.mark.rule("SDK-11")
def test_the_worker_outlives_a_killed_daemon(place: Path) -> None:
    with running(place, "worker", "run", "--wait", "60", "warehouse:app") as worker:
        for _ in range(2):
            with running(place, "serve"):
                assert ask(place) == "Packed(sku='A1')"
        assert worker.poll() is None


GATED = """
import asyncio
import os
from dataclasses import dataclass

from brokerd import App, Contract


@dataclass
class Order:
    sku: str


orders = Contract("orders/v1", initiator=[Order])
app = App("warehouse")


@app.activate(contract=orders)
async def order(order: Order) -> None:
    started, gate = (os.open(name, os.O_RDWR) for name in ("started", "gate"))
    os.write(started, b"x")
    for _ in range(3):  # so that the loop has turned since the signal came
        await asyncio.to_thread(os.read, gate, 1)
"""
SENDS = """
from brokerd import sync
from gated import Order, orders

with sync.connect("unix:data/brokerd.sock", service="shop", wait=30) as bk:
    bk.declare(orders, service="shop")
    for sku in ("first", "second"):
        with bk.transaction() as tx:
            dialog = tx.begin_dialog("shop", "warehouse", "orders/v1")
            tx.send(dialog, b'{"sku":"%s"}' % sku.encode(), "Order")
"""
LOOKS = """
from brokerd import sync

with sync.connect("unix:data/brokerd.sock") as bk:
    print(*(one.body.decode() for one in bk.browse("warehouse_q")))
"""


WORKER = ("worker", "run", "--wait", "60", "gated:app")


@pytest.mark.rule("SDK-11")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_told_to_stop_finishes_what_it_has_and_takes_no_more(
    place: Path, number: signal.Signals
) -> None:
    for name, source in (("gated", GATED), ("sends", SENDS), ("looks", LOOKS)):
        (place / f"{name}.py").write_text(source)
    for name in ("started", "gate"):
        os.mkfifo(place / name)
    started, gate = (os.open(place / name, os.O_RDWR) for name in ("started", "gate"))
    with running(place, "serve"), running(place, *WORKER) as worker:
        ask(place, "sends.py")
        os.read(started, 1)
        worker.send_signal(number)
        os.write(gate, b"xxx")
        assert worker.wait(30) == 0
        assert ask(place, "looks.py") == '{"sku":"second"}'
    for pipe in (started, gate):
        os.close(pipe)


def test_what_is_no_app_is_told(place: Path) -> None:
    for words, told in (("warehouse:orders", "not a brokerd.App"), ("nowhere:app", "nowhere")):
        ended = subprocess.run(
            [sys.executable, "-m", "brokerd", "worker", "run", words],
            cwd=place,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ended.returncode in (64, 78)
        assert told in ended.stderr
