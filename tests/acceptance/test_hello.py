"""The README's two files, run as it says: a service that answers, a program that asks."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 25


def python_files() -> dict[str, str]:
    """The Python blocks of the README that are files, by the name in their first line."""
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"```python\n(# (\w+\.py).*?\n)```", text, re.DOTALL)
    return {name: source for source, name in found}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, source in python_files().items():
        (tmp_path / name).write_text(source)
    return tmp_path


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
    files = python_files()
    assert list(files) == ["warehouse.py", "shop.py", "alone.py"]
    two = (files["warehouse.py"], files["shop.py"])
    lines = [line for source in two for line in source.splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES


@pytest.mark.rule("SDK-11", "SDK-14")
def test_both_in_one_process_without_a_daemon(place: Path) -> None:
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
