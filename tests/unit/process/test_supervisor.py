"""A supervisor is told that the daemon is ready, that its loop turns, and that it ends (FP-8)."""

import asyncio
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.process.supervisor import Supervisor
from brokerd.process.watchdog import PERIOD, Watchdog

USEC = 1_000_000
pytestmark = pytest.mark.rule("FP-8")


class Socket:
    """The end of the supervisor."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.setblocking(False)

    def told(self) -> list[str]:
        """What was said since the last look."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(100).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.mark.rule("REL-38")
def test_a_reload_begins_and_ends(end: "Socket") -> None:
    supervisor = Supervisor.from_environment({"NOTIFY_SOCKET": end.path}, turn=0.1)
    supervisor.reloading()
    supervisor.ready()
    begun, done = end.told()
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", begun)
    assert done == "READY=1"


@pytest.fixture
def end(tmp_path: Path) -> Iterator[Socket]:
    found = Socket(tmp_path / "n")
    yield found
    found.close()


def test_it_is_told_by_the_protocol_of_service_managers(end: Socket) -> None:
    given = {"NOTIFY_SOCKET": end.path, "WATCHDOG_USEC": str(30 * USEC)}
    supervisor = Supervisor.from_environment(given | {"WATCHDOG_PID": str(os.getpid())}, turn=0.25)
    supervisor.ready()
    for _ in range(2 * 30):  # 7.5 s each
        supervisor.turned()
    supervisor.stopping()
    assert end.told() == ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]


@pytest.mark.parametrize(
    "more", [{}, {"WATCHDOG_USEC": "30s"}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}]
)
def test_no_sign_of_life_where_none_is_wanted(end: Socket, more: dict[str, str]) -> None:
    supervisor = Supervisor.from_environment({"NOTIFY_SOCKET": end.path, **more}, turn=0.25)
    for _ in range(1000):
        supervisor.turned()
    supervisor.ready()
    assert end.told() == ["READY=1"]


def test_without_a_supervisor_or_with_one_that_is_gone_nothing_happens(tmp_path: Path) -> None:
    for given in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1"}):
        supervisor = Supervisor.from_environment(given, turn=0.25)
        supervisor.ready()
        supervisor.turned()


async def test_a_loop_that_is_held_up_gives_no_sign_until_it_turns_again(end: Socket) -> None:
    given = {"NOTIFY_SOCKET": end.path, "WATCHDOG_USEC": str(USEC)}
    supervisor = Supervisor.from_environment(given, turn=PERIOD)
    noticed, over = list[float](), list[float]()

    def tell(seconds: float, _task: str, _stack: list[str]) -> None:
        noticed.append(seconds)

    with Watchdog(
        after=PERIOD, report_blocked=tell, report_free=over.append, turned=supervisor.turned
    ):
        while not end.told():  # noqa: ASYNC110  # it turns
            await asyncio.sleep(0)
        before = len(noticed)
        while len(noticed) < before + 2:  # what never awaits
            pass
        assert end.told() == []
        while not end.told():  # noqa: ASYNC110  # and turns again
            await asyncio.sleep(0)
    assert over
