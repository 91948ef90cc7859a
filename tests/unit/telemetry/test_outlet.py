"""Standard error whose reader has stopped: lines are lost whole, and nothing waits."""

import io
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from brokerd.telemetry.outlet import Outlet

pytestmark = pytest.mark.rule("FR-7")
Pair = tuple[TextIO, Callable[[], bytes]]


def read_all(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    found = b""
    try:
        while more := os.read(descriptor, 1 << 16):
            found += more
    except BlockingIOError:
        pass
    return found


@pytest.fixture(params=["pipe", "socket"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """What a daemon has as standard error, and a function that reads what came."""
    if request.param == "pipe":
        reads, writes = os.pipe()
    else:
        here, there = socket.socketpair()
        reads, writes = here.detach(), there.detach()
    with os.fdopen(writes, "w") as stream:
        yield stream, lambda: read_all(reads)
        os.close(reads)


def test_lines_arrive_whole_or_not_at_all(pair: Pair) -> None:
    stream, read = pair
    outlet = Outlet.behind(stream)
    assert outlet is not None
    line = b"x" * 6999 + b"\n"  # longer than a pipe writes at once
    written = 0
    while outlet.write(line):
        written += 1
    assert written > 3
    short = 0
    while outlet.write(b"short\n"):  # where a pipe has room for less
        short += 1
    came = read()
    assert outlet.write(b"next\n")
    came += read()
    lines = came.splitlines(keepends=True)
    assert lines == [line] * written + [b"short\n"] * short + [b"next\n"]
    assert os.get_blocking(stream.fileno())  # others share the descriptor
    outlet.close()
    stream.write("still open\n")
    stream.flush()
    assert read() == b"still open\n"


def test_an_end_that_is_gone_is_an_error() -> None:
    here, there = socket.socketpair()
    with os.fdopen(there.detach(), "w") as stream:
        outlet = Outlet.behind(stream)
        assert outlet is not None
        here.close()
        with pytest.raises(BrokenPipeError):
            outlet.write(b"x\n")
        outlet.close()


def test_a_file_a_terminal_and_what_is_no_descriptor_are_written_as_ever(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        assert Outlet.behind(file) is None
    assert Outlet.behind(io.StringIO()) is None
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as terminal:
        assert Outlet.behind(terminal) is None
    os.close(leader)
