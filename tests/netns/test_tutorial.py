"""The page about two machines, as it stands: each in a network namespace with its address there.

Every command of the page is run by a shell, in the order of the page; the code is copied from the
one machine to the other, as a reader does."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.netns.lab import Namespace, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial/two-machines.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESSES = {"east": "192.0.2.10", "west": "192.0.2.20"}
PATIENCE = 120.0
CODE = re.compile(r"^    ([0-9A-Z-]{40,})$")


def files_of(text: str) -> dict[str, str]:
    found = re.findall(r"```(?:python|toml)\n(# ([\w.]+\.(?:py|toml)).*?\n)```", text, re.DOTALL)
    return {name: source for source, name in found}


def commands() -> list[list[str]]:
    """The lines of each block of commands, without their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [
        [line.partition("  #")[0].strip() for line in block.splitlines() if line.strip()]
        for block in blocks
    ]


class Job:
    """A command that runs in the background; what it prints can be waited for."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._came = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._came:
                self.lines.append(line.rstrip("\n"))
                self._came.notify_all()
        with self._came:
            self.process.wait()
            self._came.notify_all()

    def wait_for(self, pattern: str) -> str:
        """Return the first line that fits."""

        def find() -> "re.Match[str] | None":
            return next((m for line in self.lines if (m := re.search(pattern, line))), None)

        def is_over() -> bool:
            return find() is not None or self.process.returncode is not None

        with self._came:
            assert self._came.wait_for(is_over, PATIENCE), self.lines
            found = find()
        assert found is not None, self.lines
        return found[found.re.groups]

    def end(self) -> int:
        status = self.process.wait(PATIENCE)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


class Machine:
    """A network namespace with an address, and a directory with the files of the page."""

    def __init__(self, switch: Namespace, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        for file, text in (files_of(README) | files_of(PAGE)).items():
            (self.folder / file).write_text(text, encoding="utf-8")
        self._namespace = Namespace(*switch.inside(), "unshare", "-n")
        self._jobs: list[Job] = []
        port = f"port-{name}"
        switch.run(
            f"ip link add {port} type veth peer name eth0 netns {self._namespace.pid} && "
            f"ip link set {port} master wires up"
        )
        self._namespace.run(
            f"ip link set lo up && ip addr add {ADDRESSES[name]}/24 dev eth0 && ip link set eth0 up"
        )

    def start(self, line: str) -> Job:
        """Run a line of the page, which may end in &."""
        own = {name: text for name, text in os.environ.items() if not name.startswith("BROKERD_")}
        own["PATH"] = f"{Path(sys.executable).parent}:{own['PATH']}"
        own["PYTHONPATH"] = str(ROOT)
        job = Job(
            subprocess.Popen(
                [*self._namespace.inside(), "sh", "-c", f"exec {line.removesuffix('&')}"],
                cwd=self.folder,
                env=own | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        self._jobs.append(job)
        return job

    def run(self, line: str) -> list[str]:
        """Run a line of the page to its end, and return what it prints."""
        job = self.start(line)
        status = job.end()
        assert status == 0, job.lines
        return job.lines

    def close(self) -> None:
        for job in reversed(self._jobs):
            if job.process.poll() is None:
                job.process.kill()
            job.end()
        self._namespace.close()


@contextmanager
def machines(folder: Path) -> Iterator[tuple[Machine, Machine]]:
    switch = Namespace("unshare", "-rn")
    made: list[Machine] = []
    try:
        switch.run("ip link add wires type bridge && ip link set wires up")
        made += [Machine(switch, folder, name) for name in ADDRESSES]
        yield made[0], made[1]
    finally:
        for one in made:
            one.close()
        switch.close()


def test_the_page_needs_five_commands_and_no_setting_but_an_address() -> None:
    west, east, shop, *_ = commands()
    assert len(west) + len(east) == 5
    assert shop == ["python shop.py"]
    files = files_of(PAGE)
    assert list(files) == ["west.toml", "east.toml"]
    for text in files.values():
        keys = re.findall(r"^(\w+) =", text, re.MULTILINE)
        assert keys == ["name", "data_dir", "listen"]
    assert "plaintext" not in PAGE


@pytest.mark.rule("SEC-60", "SEC-61", "SEC-63", "SDK-11")
def test_two_machines_do_what_the_page_says(tmp_path: Path) -> None:
    west_lines, east_lines, (order,), look, *_ = commands()
    with machines(tmp_path) as (east, west):
        serve, work, invite = west_lines
        west.start(serve).wait_for("(ready)")
        west.start(work).wait_for("(warehouse reads warehouse_q)")
        invited = west.start(invite)
        code = invited.wait_for(CODE.pattern)

        serve, join = east_lines
        east.start(serve).wait_for("(ready)")
        joined = east.run(join.replace("CODE", code))
        assert joined[-1].startswith("works: 'warehouse' and back to 'shop'")
        assert invited.end() == 0
        assert invited.lines[-1].startswith("works: 'shop' and back to 'warehouse'")

        assert east.run(order) == ["Packed(sku='A1')"]
        for line in look:
            east.run(line)
