"""Strangers who connect and say nothing, against a daemon that may open few files."""

import asyncio
import json
import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import brokerd
from brokerd.ids import BootId, InstanceId
from brokerd.protocol.frames import FrameReader
from brokerd.protocol.neighbour import Hello, Reject, decode, encode
from tests.acceptance.serving import Place

FILES = 256
"""Descriptors that the daemon may have."""
STRANGERS = 300
TOGETHER = 150
"""More than may be about to log in."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "p")


@contextmanager
def serving(place: Place, files: int = FILES) -> Iterator["subprocess.Popen[bytes]"]:
    with place.serving() as process:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
        yield process
        assert process.poll() is None, "the daemon did not survive"


def set_up(place: Place, section: str, **values: object) -> None:
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    settings = place.settings.read_text()
    head = f"[{section}]\n"
    place.settings.write_text(
        settings.replace(head, head + text) if head in settings else settings + head + text
    )


def dial(address: str, held: ExitStack) -> socket.socket:
    if address.startswith("unix:"):
        one = held.enter_context(socket.socket(socket.AF_UNIX))
        one.connect(address.removeprefix("unix:"))
    else:
        one = held.enter_context(socket.create_connection(("127.0.0.1", int(address))))
    one.settimeout(30)
    return one


def is_refused(one: socket.socket) -> bool:
    """The daemon has closed it, whatever it said before."""
    try:
        while one.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def can_be_used(place: Place) -> None:
    """A program sends and the command line looks, over the Unix socket."""
    with brokerd.sync.connect(place.address, broker="main", wait=60.0) as broker:
        broker.send(broker.begin_dialog("shop", "warehouse", contract="orders"), b"one", "Order")
        (message,) = broker.receive("warehouse_q", wait=30, autocommit=True)
        assert message.body == b"one"
    done = place.run("status", "--address", place.address, "--json")
    assert done.returncode in (0, 1, 2), done.stderr


def logged(place: Place) -> list[dict[str, object]]:
    text = (place.folder.parent / f"{place.folder.name}.log").read_text()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.rule("REL-27", "END-18", "SX-12", "FR-2")
def test_silent_peers_keep_nobody_out(place: Place) -> None:
    with serving(place), ExitStack() as held:
        for _ in range(STRANGERS):
            dial(str(place.port), held)
        can_be_used(place)
        peer = dial(str(place.port), held)
        peer.sendall(encode(Hello(InstanceId(b"h" * 16), BootId(bytes(16)))))
        answers = [decode(*frame) for frame in FrameReader().feed(peer.recv(4096))]
        assert isinstance(answers[0], Hello)
    refused = [line for line in logged(place) if line.get("subclass") == "refused"]
    assert len(refused) == len({line["reason"] for line in refused}), "a line for each stranger"


@pytest.mark.rule("REL-27", "END-18", "SX-12")
def test_silent_clients_keep_nobody_out(place: Place) -> None:
    with serving(place), ExitStack() as held:
        for _ in range(STRANGERS):
            dial(place.address, held)
        can_be_used(place)


@pytest.mark.rule("CLP-10", "TRN-9")
@pytest.mark.parametrize("kind", ["peers", "clients"])
def test_a_connection_that_says_nothing_is_closed(place: Place, kind: str) -> None:
    set_up(place, "clients", login_timeout="200ms")
    set_up(place, "transport", login_timeout="200ms", connect_timeout="200ms")
    with serving(place), ExitStack() as held:
        one = dial(place.address if kind == "clients" else str(place.port), held)
        assert is_refused(one)


@pytest.mark.rule("END-18", "NBT-20")
def test_a_peer_too_many_is_told_why_and_the_next_one_is_let_in(place: Place) -> None:
    set_up(place, "transport", max_peers=1)
    with serving(place), ExitStack() as held:
        first = dial(str(place.port), held)
        first.sendall(encode(Hello(InstanceId(b"h" * 16), BootId(bytes(16)))))
        assert first.recv(4096)
        second = dial(str(place.port), held)
        (told,) = [decode(*frame) for frame in FrameReader().feed(second.recv(4096))]
        assert isinstance(told, Reject)
        assert told.reason == "too_many_connections"
        assert is_refused(second)
        first.close()
        while True:  # its place is free as soon as the daemon has read the end
            third = dial(str(place.port), held)
            third.sendall(encode(Hello(InstanceId(b"i" * 16), BootId(bytes(16)))))
            (answer, *_) = [decode(*frame) for frame in FrameReader().feed(third.recv(4096))]
            if isinstance(answer, Hello):
                break


@pytest.mark.rule("END-18", "CLP-12")
def test_programs_that_start_together_are_all_let_in(place: Place) -> None:
    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(TOGETHER):
                group.create_task(one_of_them())

    gate = asyncio.Event()
    connected = 0

    async def one_of_them() -> None:
        nonlocal connected
        async with brokerd.connect(place.address, broker="main"):
            connected += 1
            if connected == TOGETHER:
                gate.set()
            await gate.wait()

    with serving(place, 1024):
        asyncio.run(all_of_them())


@pytest.mark.rule("REL-27", "FR-2")
def test_accepting_goes_on_by_itself_where_descriptors_had_run_out(place: Place) -> None:
    with serving(place) as process, ExitStack() as held:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, FILES))
        waiting = dial(place.address, held)
        while not any(line.get("subclass") == "accept_failed" for line in logged(place)):
            assert process.poll() is None
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        can_be_used(place)
        waiting.close()
    failed = [line for line in logged(place) if line.get("subclass") == "accept_failed"]
    assert len(failed) == 1
