"""Daemons whose stores are in a PostgreSQL database: a place for each, and what they say."""

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import brokerd
from brokerd.storage.copying.places import Place as StorePlace
from tests import warm
from tests.acceptance.serving import READY_WITHIN, Place

PATIENCE = 60.0


class ServerPlace(Place):
    """A directory with the files of one daemon; its stores are in a database."""

    def __init__(self, folder: Path, url: str, *, store: str = "") -> None:
        self.url = url
        self.store = store
        super().__init__(folder)

    def store_section(self, data_dir: Path) -> str:
        del data_dir
        return f'[store]\nurl = "{self.url}"\n{self.store}\n'

    def stores(self) -> list[StorePlace]:
        return []  # the server may be down

    @property
    def log(self) -> Path:
        return self.folder.parent / f"{self.folder.name}.log"

    @contextmanager
    def running(self, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
        """A daemon, whether it answers or waits; whatever happens, it is not left behind."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*self.serve_command(), *words],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=warm.environment(),
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGKILL)
            process.wait(30)

    def copy_key(self, other: "ServerPlace") -> None:
        """Give the daemon the master key of another one, as an operator does."""
        self.data_dir.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(other.data_dir / "master.key", self.data_dir)

    def answers(self) -> None:
        """Return once the daemon lets clients in."""
        with brokerd.sync.connect(self.address, broker="main", wait=READY_WITHIN):
            pass

    def is_ready(self) -> bool:
        """Whether `/readyz` says so; `TimeoutError` if nothing answers."""
        until((self.data_dir / "http.sock").exists, "it answers over HTTP")
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(PATIENCE)
            asking.connect(str(self.data_dir / "http.sock"))
            asking.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return asking.recv(65536).startswith(b"HTTP/1.1 200")

    def lines(self, subclass: str) -> list[dict[str, object]]:
        """Return the lines of the daemon's log of one kind."""
        lines = [json.loads(one) for one in self.log.read_text().splitlines() if one[:1] == "{"]
        return [one for one in lines if one.get("subclass") == subclass]


def until(is_so: Callable[[], object], what: str) -> None:
    """Return as soon as something is so.

    Raises:
        TimeoutError: It never was.
    """
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"it took more than {PATIENCE:.0f} s until {what}")
        time.sleep(0.02)


def send(client: brokerd.sync.Session, numbers: Iterable[int]) -> None:
    """Send numbers in one dialog, each in a commit of its own."""
    handle = client.begin_dialog("shop", "warehouse", "orders")
    for number in numbers:
        client.send(handle, b"%d" % number, "Order")


def receive(client: brokerd.sync.Session) -> int:
    """Receive the next number."""
    (message,) = client.receive("warehouse_q", max_messages=1, wait=20, autocommit=True)
    return int(message.body or b"")
