"""`brokerd top` on a real terminal of 80 columns and 24 lines, with a real daemon."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import brokerd
from brokerd.cli.main import main
from tests.acceptance.one_process import Served

Capture = pytest.CaptureFixture[str]
OBJECTS = {
    "broker": {"name": "main", "default_encryption": "off"},
    "queue": [{"name": "desk"}, {"name": "shop"}, {"name": "closed", "status": "off"}],
    "service": [
        {"name": "desk", "queue": "desk"},
        {"name": "shop", "queue": "shop", "contracts": ["DEFAULT"]},
    ],
}
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|[\r\x0e\x0f]")
_AT_THE_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that its keys can be signals
from brokerd.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    daemon = Served(tmp_path_factory.mktemp("top"), OBJECTS)
    daemon.start()
    with brokerd.sync.connect(daemon.address) as bk:
        for _ in range(3):
            bk.send(bk.begin_dialog("desk", "shop"), b"x")
    yield daemon
    daemon.stop()


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, *words: str, **environment: str) -> None:
        self.own, far = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(far)
        environ = {k: v for k, v in os.environ.items() if k[:8] != "BROKERD_" and k != "NO_COLOR"}
        environ |= {"TERM": "xterm-256color", "PYTHONPATH": str(Path(brokerd.__file__).parents[1])}
        environ.pop("COLUMNS", None)
        environ.pop("LINES", None)
        environ |= environment
        self.process = subprocess.Popen(
            [sys.executable, "-c", _AT_THE_TERMINAL, *words],
            stdin=far,
            stdout=far,
            stderr=far,
            env=environ,
            start_new_session=True,
        )
        self.far = far
        self.all = ""
        self._text = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.own, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.own, keys.encode())

    def shows(self, wanted: Callable[[str], bool]) -> str:
        """Return the first whole frame from now on that is as wanted."""
        while True:
            data = os.read(self.own, 65536).decode("utf-8", "replace")
            self.all += data
            self._text += data
            *frames, self._text = self._text.split("\x1b[H")
            for frame in frames:
                plain = _CONTROL.sub("", frame)
                if wanted(plain):
                    return plain

    def left(self) -> int:
        """The exit status, once it has ended and its output was read."""
        ended = os.pidfd_open(self.process.pid)
        while self.own in select.select([self.own, ended], [], [])[0]:
            self.all += os.read(self.own, 65536).decode("utf-8", "replace")
        os.close(ended)
        self.process.wait()
        return self.process.returncode


@contextmanager
def terminal(*words: str, **environment: str) -> Iterator[Terminal]:
    made = Terminal(*words, **environment)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.wait(30)
        os.close(made.own)
        os.close(made.far)


@pytest.mark.rule("MON-80", "MON-81")
@pytest.mark.parametrize("way_out", ["q", "\x03", "SIGTERM"])
def test_it_is_live_answers_keys_and_leaves_the_terminal_as_it_was(
    served: Served, way_out: str
) -> None:
    with terminal("top", "--every", "0.2", "--address", served.address) as screen:
        frame = screen.shows(lambda text: "closed" in text)
        lines = frame.split("\n")
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        assert "ATTENTION" in lines[1]
        assert lines.index(next(one for one in lines if one.startswith("  closed"))) < lines.index(
            next(one for one in lines if one.startswith("  shop"))
        )
        assert "\x1b[1;31m" in screen.all  # the verdict has a colour
        assert sum(one.startswith(">") for one in lines) == 1
        screen.press("\r")
        assert "queue alter closed status=on" in screen.shows(lambda text: "D06" in text)
        screen.press("x/sho\r")
        found = screen.shows(lambda text: "[sho]" in text and "shop" in text)
        assert not any("closed" in one for one in found.split("\n"))
        screen.press("?")
        assert "conversation groups set aside" in screen.shows(lambda text: "page down" in text)
        screen.press("x")
        with brokerd.sync.connect(served.address) as bk:
            bk.send(bk.begin_dialog("desk", "shop"), b"x")
            ready = bk.view("service_queues", where={"name": "shop"})[0]["ready_count"]
        screen.shows(lambda text: f" {ready} " in text and "shop" in text)
        # A message that waits longer would be a concern of the queue in the next runs (MON-70).
        with brokerd.sync.connect(served.address) as bk, bk.transaction() as tx:
            assert tx.receive("shop", 10, wait=0)
        screen.resize(60, 20)
        screen.process.send_signal(signal.SIGWINCH)
        small = screen.shows(lambda text: len(text.split("\n")) == 20 and "shop" in text)
        assert max(map(len, small.split("\n"))) <= 60
        if way_out == "SIGTERM":
            screen.process.send_signal(signal.SIGTERM)
        else:
            screen.press(way_out)
        assert screen.left() in (0, 130)
        assert "\x1b[?1049l" in screen.all  # the screen that was there before is back
        assert termios.tcgetattr(screen.far) == screen.before


@pytest.mark.rule("MON-110", "MON-111")
def test_failed_dialogs_are_reached_from_their_line_and_from_the_queue(tmp_path: Path) -> None:
    objects = {
        "broker": {"name": "main", "default_encryption": "off"},
        "queue": [{"name": "counter"}, {"name": "store"}],
        "service": [{"name": "till", "queue": "counter"}, {"name": "goods", "queue": "store"}],
    }
    daemon = Served(tmp_path, objects)
    daemon.start()
    with brokerd.sync.connect(daemon.address) as bk:
        bk.send(bk.begin_dialog("till", "goods"), b"x")  # goods accepts no contract
    with terminal("top", "--every", "0.2", "--address", daemon.address) as screen:
        frame = screen.shows(lambda text: "till" in text)
        assert any(line.startswith("> error -84") for line in frame.split("\n"))
        screen.press("\r")
        page = screen.shows(lambda text: "D77" in text)
        assert "\n  brokerd dialog ls" in page
        assert "dialogs of broker main" in page
        screen.press("j")
        page = screen.shows(lambda text: "queue counter of broker main" in text)
        assert "D77" in page
        assert "nothing is wrong" not in page
        screen.press("q")
        assert screen.left() == 0
    daemon.stop()


@pytest.mark.rule("MON-82")
def test_a_calm_instance_ends_with_0(tmp_path: Path, capsys: Capture) -> None:
    daemon = Served(tmp_path, {"broker": {"name": "main", "default_encryption": "off"}})
    daemon.start()
    assert main(["top", "--once", "--every", "0.2", "--address", daemon.address]) == 0
    assert "OK: all is well" in capsys.readouterr().out
    daemon.stop()


@pytest.mark.rule("MON-82", "MON-114")
def test_without_a_terminal_one_frame_is_printed(served: Served, capsys: Capture) -> None:
    assert main(["top", "--every", "0.2", "--address", served.address]) == 2
    text = capsys.readouterr().out
    assert "ATTENTION: 1 to look at" in text or "ATTENTION: 2 to look at" in text
    assert "\x1b" not in text
    commands = [line for line in text.splitlines() if line.startswith("    brokerd ")]
    assert max(len(line) for line in text.splitlines() if line not in commands) <= 80
    on = "    brokerd queue alter closed status=on --broker main"
    assert f"{on} --address {served.address}" in commands
    assert main(["top", "--every", "0.2", "--address", served.address, "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert {one["name"] for one in shown["queues"]} == {"desk", "shop", "closed"}
    assert {one["in_per_second"] for one in shown["queues"]} == {0.0}


@pytest.mark.rule("MON-82")
def test_a_daemon_that_goes_and_comes_back_is_followed(tmp_path: Path) -> None:
    daemon = Served(tmp_path, OBJECTS)
    daemon.start()
    with terminal("top", "--every", "0.2", "--address", daemon.address) as screen:
        screen.shows(lambda text: "closed" in text)
        daemon.stop()
        gone = screen.shows(lambda text: "NO ANSWER" in text)
        assert "closed" in gone
        daemon.start()
        screen.shows(lambda text: "NO ANSWER" not in text and "closed" in text)
        screen.press("q")
        assert screen.left() == 0
    daemon.stop()


@pytest.mark.rule("MON-77", "MON-76")
@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(
    "words", [("status",), ("doctor",), ("queue", "ls"), ("dialog", "ls"), ("group", "ls")]
)
def test_what_is_printed_fits_a_terminal_and_has_colours_if_they_are_wanted(
    served: Served, words: tuple[str, ...], is_plain: bool
) -> None:
    no_colour = {"NO_COLOR": "1"} if is_plain else {}
    with terminal(*words, "--address", served.address, **no_colour) as screen:
        assert screen.left() in (0, 1, 2)
    lines = _CONTROL.sub("", screen.all).split("\n")
    for line in lines:
        assert len(line.rstrip()) <= 80 or "brokerd " in line, line  # a command is never wrapped
    if words[0] in ("status", "doctor"):
        assert ("\x1b[31m" in screen.all) is not is_plain
    with brokerd.sync.connect(served.address) as bk:
        handles = [row["conversation_handle"] for row in bk.view("conversation_endpoints")]
    if words == ("dialog", "ls"):
        shown = " ".join(lines)
        assert all(one[:8] in shown for one in handles)
        assert not any(one in shown for one in handles)
