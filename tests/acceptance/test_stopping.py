"""SIGTERM: nothing that merely waits holds the daemon up, and its status is 0."""

import contextlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import brokerd
from brokerd.errors import DaemonUnreachable
from tests.acceptance.serving import OBJECTS, Place

GRACE = "120s"
"""Far longer than a stop may take here: one that waits it out fails the test."""
STOPPED_WITHIN = 40.0

HANDLER = """
async def pack(session):
    async with session.transaction() as tx:
        messages = await tx.receive("warehouse_q", 1)
    open("received", "w").close()
    async with session.transaction() as tx:
        await tx.receive("shop_q", wait=1000)
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path / "p")
    with made.settings.open("a") as file:
        file.write(f'[daemon]\ndrain = "{GRACE}"\n')
    return made


@pytest.mark.rule("REL-28")
def test_with_an_idle_client_and_one_that_waits_for_messages(place: Place) -> None:
    with place.serving() as process, _client(place) as idle, _client(place) as waiting:
        ended = _in_thread(lambda: _receive(waiting))
        idle.status()
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOPPED_WITHIN) == 0
        waiting.close()
        ended.join(30)
        assert not ended.is_alive()


@pytest.mark.rule("REL-28", "CLP-70")
@pytest.mark.parametrize("commits", [True, False])
def test_an_open_transaction_has_until_its_end_or_a_second_signal(
    commits: bool, place: Place
) -> None:
    with place.serving() as process, _client(place) as client:
        tx = client.transaction()
        tx.__enter__()
        dialog = tx.begin_dialog("shop", "warehouse", "orders")
        tx.receive("shop_q")
        process.send_signal(signal.SIGTERM)
        _until_nobody_is_let_in(place)
        tx.send(dialog, b"x", "Order")
        assert process.poll() is None
        if commits:
            tx.commit()
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(STOPPED_WITHIN) == 0


@pytest.mark.rule("REL-28")
def test_with_an_activated_reader_that_waits(place: Place) -> None:
    (place.folder / "packer.py").write_text(HANDLER)
    activated = 'name = "warehouse_q"\n[queue.activation]\nhandler = "packer:pack"\n'
    place.objects.write_text(OBJECTS.replace('name = "warehouse_q"\n', activated))
    with place.serving() as process:
        with _client(place) as client:
            client.send(client.begin_dialog("shop", "warehouse", "orders"), b"x", "Order")
            while not (place.folder / "received").exists():
                client.status()
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOPPED_WITHIN) == 0


def _client(place: Place) -> brokerd.sync.Session:
    return brokerd.sync.connect(place.address, broker="main", retry=1)


def _until_nobody_is_let_in(place: Place) -> None:
    with contextlib.suppress(DaemonUnreachable):
        while True:
            brokerd.sync.connect(place.address, broker="main").close()


def _receive(client: brokerd.sync.Session) -> None:
    with contextlib.suppress(brokerd.BrokerError):
        client.receive("shop_q", wait=1000, autocommit=True)


def _in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
