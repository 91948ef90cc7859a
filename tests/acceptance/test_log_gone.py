"""A daemon whose log goes nowhere any more: it counts the lines it loses, and works on (FR-7)."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

import brokerd
from tests.acceptance.serving import Place

ROUNDS = 40
pytestmark = pytest.mark.rule("FR-7")


def work(place: Place, rounds: int = 1) -> None:
    """Send and receive; each round is logged where the level is debug, and each refusal always."""
    for _ in range(rounds):
        with brokerd.sync.connect(place.address, broker="main", wait=60.0) as broker:
            handle = broker.begin_dialog("shop", "warehouse", contract="orders")
            broker.send(handle, b"one", "Order")
            (message,) = broker.receive("warehouse_q", wait=30, autocommit=True)
            assert message.body == b"one"


def stop(place: Place, process: "subprocess.Popen[bytes]") -> None:
    try:
        assert process.poll() is None, "the daemon ended"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(30)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "p")


def test_a_pipe_that_nobody_reads_any_more(place: Place) -> None:
    reads, writes = os.pipe()
    process = place.start(writes)
    os.close(writes)
    try:
        work(place)
        os.close(reads)
        process.send_signal(signal.SIGHUP)  # which is logged
        work(place, 3)
    finally:
        stop(place, process)


def test_a_full_disk(place: Place) -> None:
    with Path("/dev/full").open("ab", buffering=0) as full:
        process = place.start(full)
        try:
            work(place, 3)
        finally:
            stop(place, process)


def test_a_pipe_that_is_full(place: Place) -> None:
    """Whoever reads it has stopped, as a frozen log collector does."""
    reads, writes = os.pipe()
    process = place.start(writes)
    os.set_blocking(writes, True)
    try:
        work(place)
        before = os.get_blocking(writes)
        os.set_blocking(writes, False)
        try:
            while True:
                os.write(writes, b"x" * 4096)
        except BlockingIOError:
            pass
        os.set_blocking(writes, before)
        process.send_signal(signal.SIGHUP)  # which is logged
        work(place, 3)
    finally:
        os.close(reads)
        os.close(writes)
        stop(place, process)
