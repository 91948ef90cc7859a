"""`brokerd peer pair` between two daemons on addresses of this machine, as its users run it."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from brokerd.security.pairing import read_code
from tests import warm
from tests.acceptance.serving import Done, Place

PATIENCE = 60.0
ADDRESSES = {"east": "127.0.0.1", "west": "127.0.0.2"}
OBJECTS = """
[broker]
name = "main"
[[queue]]
name = "box"
[[service]]
name = "urn:{name}"
queue = "box"
[[service]]
name = "urn:shared"
queue = "box"
"""


class Machine(Place):
    """One daemon, with an encrypted endpoint."""

    def write(self, **_values: object) -> None:
        name = self.folder.name
        self.objects.write_text(OBJECTS.format(name=name))
        self.settings.write_text(
            f'[instance]\nname = "{name}"\ndata_dir = "{self.data_dir}"\n'
            f'[endpoint]\nlisten = ["{ADDRESSES[name]}"]\nport = {self.port}\n'
        )

    def words(self, *words: str) -> list[str]:
        return ["peer", "pair", *words, "-c", str(self.settings)]

    def pair(self, *words: str) -> Done:
        """Run the command to its end."""
        return self.run(*self.words(*words))

    @contextmanager
    def pairing(self, *words: str) -> Iterator["subprocess.Popen[str]"]:
        """Run the command in the background."""
        command = [sys.executable, "-u", "-m", "brokerd", *self.words(*words)]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, cwd=self.folder, env=warm.environment()
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Machine]]:
    folder = tmp_path_factory.mktemp("p")
    east, west = (Machine(folder / name) for name in ADDRESSES)
    with east.serving(), west.serving():
        yield east, west


def line_of(command: "subprocess.Popen[str]") -> Any:
    assert command.stdout is not None
    return json.loads(command.stdout.readline())


@pytest.mark.rule("SEC-60", "SEC-61", "SEC-63")
def test_the_command_says_what_it_has_done(machines: tuple[Machine, Machine]) -> None:
    east, west = machines
    with east.pairing("--share", "urn:east") as invited:
        assert invited.stdout is not None
        printed = [invited.stdout.readline().rstrip("\n") for _ in range(6)]
        assert printed[0].startswith(f"code of this machine (tcp://127.0.0.1:{east.port})")
        code = printed[2].strip()
        assert read_code(code).port == east.port
        assert printed[5] == "waiting for it; Ctrl-C cancels the code"
        joined = west.pair(code)
        assert joined.returncode == 0, joined.stderr
        out, err = invited.communicate(timeout=PATIENCE)
    assert invited.returncode == 0, err
    lines = joined.stdout.splitlines()
    assert lines[0] == f"paired with peer:east at tcp://127.0.0.1:{east.port}"
    assert "  granted: connect on endpoint to peer:east" in lines
    assert "brokerd grant 'send on SERVICE to peer:east'" in joined.stdout
    assert lines[-1].startswith("works: 'urn:east' and back to ")
    assert "left out: urn:shared: this broker has a service of that name" in joined.stderr
    assert "  granted: send on urn:east to peer:west" in out.splitlines()
    assert out.splitlines()[-1].startswith("works: 'urn:west' and back to 'urn:east'")


@pytest.mark.rule("SEC-86")
def test_connections_show_who_is_there_and_by_which_certificate(
    machines: tuple[Machine, Machine],
) -> None:
    east, west = machines  # paired above, or again here
    with east.pairing("--json") as invited:
        assert west.pair(line_of(invited)["code"], "--json").returncode == 0
        assert invited.wait(PATIENCE) == 0
    shown = ("--owner", "peer:west", "--json")
    rows = json.loads(east.run("certificate", "ls", *shown, "-c", str(east.settings)).stdout)[
        "rows"
    ]
    (of_west,) = [one["certificate_id"] for one in rows if one["purpose"] == "transport"]
    listed = east.run("connection", "ls", "-c", str(east.settings)).stdout
    assert any("peer:west" in line and of_west[:16] in line for line in listed.splitlines())


@pytest.mark.rule("SEC-60", "CLP-151")
def test_programs_get_one_object_a_line(machines: tuple[Machine, Machine]) -> None:
    east, west = machines
    with east.pairing("--json") as invited:
        shown = line_of(invited)
        assert shown["seconds_left"] == pytest.approx(600.0, abs=1.0)
        joined = json.loads(west.pair(shown["code"], "--json").stdout)
        ended = line_of(invited)
        assert invited.wait(PATIENCE) == 0
    for one, other in ((joined, "east"), (ended, "west")):
        assert one["problem"] == ""
        assert one["paired"]["principal"] == f"peer:{other}"
        assert one["ping"]["is_complete"]


@pytest.mark.rule("SEC-60", "CLP-152")
def test_an_interrupted_command_cancels_its_code(machines: tuple[Machine, Machine]) -> None:
    east, west = machines
    with east.pairing("--json") as invited:
        code = line_of(invited)["code"]
        invited.send_signal(signal.SIGINT)
        assert invited.wait(PATIENCE) == 130
    refused = west.pair(code)
    assert refused.returncode == 1
    assert "the code was " in refused.stderr
    assert "brokerd peer pair" in refused.stderr


@pytest.mark.rule("SEC-60", "SEC-62")
def test_wrong_codes_are_told_to_whoever_waits(machines: tuple[Machine, Machine]) -> None:
    east, west = machines
    with east.pairing() as invited:
        assert invited.stdout is not None
        assert invited.stderr is not None
        code = [invited.stdout.readline() for _ in range(3)][2].strip()
        known = read_code(code)
        wrong = type(known)(known.host, known.port, known.fingerprint, bytes(16)).text
        for attempt in range(1, 6):
            assert west.pair(wrong).returncode == 1
            if attempt < 5:
                assert f"{attempt} of 5 attempts" in invited.stderr.readline()
        assert invited.wait(PATIENCE) == 1
        assert "void after five wrong ones" in invited.stderr.read()


@pytest.mark.rule("SEC-60")
@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("ABCDE", "--no-wait"), 64, "--no-wait"),
        (("ABCDE",), 64, "mistyped"),
        (("--share", "urn:aest", "--no-wait"), 67, 'did you mean "urn:east"'),
        (("--own-address", "here", "--no-wait"), 64, "'here' is no network address"),
        (("--no-wait", "--name", "../x"), 64, "no name"),
    ],
)
def test_what_cannot_be_is_refused(
    machines: tuple[Machine, Machine], words: tuple[str, ...], status: int, says: str
) -> None:
    east, _ = machines
    done = east.pair(*words)
    assert done.returncode == status, done.stderr
    assert says in done.stderr


@pytest.mark.rule("SEC-60", "SEC-61")
def test_on_a_terminal_it_asks_what_to_share(machines: tuple[Machine, Machine]) -> None:
    east, west = machines
    terminal, inside = pty.openpty()
    command = [sys.executable, "-u", "-m", "brokerd", *east.words()]
    with subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, cwd=east.folder, env=warm.environment()
    ) as invited:
        os.close(inside)
        shown = read_until(terminal, "nothing for none)")
        assert "services of this broker: " in shown
        os.write(terminal, b"urn:east, urn:shared\n")
        shown = read_until(terminal, "Ctrl-C cancels the code")
        (code,) = re.findall(r"^    (\S{40,})\s*$", shown, re.MULTILINE)
        assert west.pair(code).returncode == 0
        shown = read_until(terminal, "works: ")
        assert "granted: send on urn:east to peer:west" in shown
        assert "granted: send on urn:shared to peer:west" in shown
        assert invited.wait(PATIENCE) == 0
    os.close(terminal)


def read_until(terminal: int, words: str) -> str:
    """Return what a program prints on its terminal, until it has printed these words."""
    seen = ""
    while words not in seen:
        assert select.select([terminal], [], [], PATIENCE)[0], seen
        seen += os.read(terminal, 4096).decode()
    return seen
