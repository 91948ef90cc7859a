"""Runs `brokerd serve` and the other commands as a user does, in a directory of their own."""

import hashlib
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import brokerd
from brokerd.storage.copying.places import Place as StorePlace
from tests import stores, warm

OBJECTS = """
[broker]
name = "main"
default_encryption = "off"
[[message_type]]
name = "Order"
[[contract]]
name = "orders"
types = { "Order" = "initiator" }
[[queue]]
name = "shop_q"
[[queue]]
name = "warehouse_q"
[[service]]
name = "shop"
queue = "shop_q"
[[service]]
name = "warehouse"
queue = "warehouse_q"
contracts = ["orders"]
"""
READY_WITHIN = 60.0

Done = subprocess.CompletedProcess[str]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Place:
    """A directory with the files of one instance; periodic work is far away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.data_dir = folder / "d"
        self.objects = folder / "o.toml"
        self.objects.write_text(OBJECTS)
        self.settings = folder / "b.toml"
        self.write()

    def write(self, **values: object) -> None:
        """Write the settings; `port`, `data_dir` and `listen` replace the usual ones."""
        port = values.get("port", self.port)
        data_dir = values.get("data_dir", self.data_dir)
        listen = values.get("listen", "")
        self.settings.write_text(
            f'[instance]\nname = "here"\ndata_dir = "{data_dir}"\n'
            f'[clients]\nlisten = "{listen}"\n'
            f'[endpoint]\nlisten = ["127.0.0.1"]\nport = {port}\n'
            'encryption = "disabled"\nauthentication = "none"\n'
            f'[clock]\ntick = "1h"\n{self.store_section(Path(str(data_dir)))}'
        )

    def store_section(self, data_dir: Path) -> str:
        """Return the section [store] of the settings."""
        return stores.section(data_dir)

    @property
    def address(self) -> str:
        return f"unix:{self.data_dir}/brokerd.sock"

    def serve_command(self) -> list[str]:
        words = ["serve", "-c", str(self.settings), "--objects", str(self.objects)]
        return [*warm.COMMAND, *words]

    def serve(self) -> Done:
        """A start that is expected to be refused."""
        return self._run(self.serve_command())

    def start(self, to: "int | IO[bytes]") -> "subprocess.Popen[bytes]":
        """A start whose output goes there."""
        return warm.Process(
            self.serve_command(), stdout=to, stderr=to, cwd=self.folder, env=self.environment()
        )

    def environment(self) -> dict[str, str]:
        """What its processes are given: nothing that sets brokerd up from outside."""
        return warm.environment()

    def check(self) -> Done:
        """What `config check` says of the same files."""
        return self.run("config", "check", str(self.settings), "--objects", str(self.objects))

    def run(self, *words: str) -> Done:
        return self._run([*warm.COMMAND, *words])

    def _run(self, command: list[str]) -> Done:
        return warm.run(command, cwd=self.folder, env=self.environment())

    @contextmanager
    def serving(self, *, is_damaged: bool = False) -> Iterator["subprocess.Popen[bytes]"]:
        """A daemon that answers; whatever happens, it is not left behind.

        `is_damaged`: the test damages the stores, so that they are not verified afterwards."""
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            process = self.start(log)
        try:
            with brokerd.sync.connect(self.address, broker="main", wait=READY_WITHIN):
                pass
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(30)
        for place in (
            () if is_damaged else self.stores()
        ):  # killed or stopped, each is whole (HK-10)
            assert stores.problems(place, may_be_over=True) == []

    def stores(self) -> list[StorePlace]:
        """Return the stores of its daemon, except those that go on elsewhere."""
        return stores.stores_of(self.data_dir)


def tree(folder: Path) -> dict[str, str]:
    """Every entry below a directory: what it is, its mode, and a hash of what is in it."""
    return {
        str(path.relative_to(folder)): _entry(path)
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts  # Python's own, where it may keep what it compiled
    }


def _entry(path: Path) -> str:
    mode = oct(path.lstat().st_mode)
    content = path.read_bytes() if path.is_file() else b""
    return f"{mode} {hashlib.sha256(content).hexdigest()}"
