"""The real network: Unix sockets and TCP, on both event loops."""

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.transport.door import DISPLACED, PATIENCE, Seat
from brokerd.transport.network import (
    SystemNetwork,
    host_and_port,
    is_loopback,
    tcp_address,
    unix_path,
)

from .conftest import SkippingClock
from .doors import Lines, open_door


class Echo(asyncio.Protocol):
    """Sends back what it gets; remembers what came."""

    seat: Seat | None = None

    def __init__(self) -> None:
        self.came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        if not self.came.done():
            self.came.set_result(data)
            self.transport.write(data)


async def echoed(address: str) -> bytes:
    transport, protocol = await SystemNetwork().connect(Echo, address)
    assert isinstance(protocol, Echo)
    transport.write(b"hello")
    try:
        async with asyncio.timeout(5):
            return await protocol.came
    finally:
        transport.close()


@pytest.mark.rule("END-18")
async def test_one_newcomer_displaces_one_connection() -> None:
    clock = SkippingClock()
    door = open_door(clock, logins=3)
    listening = await SystemNetwork().listen(Echo, "TCP://127.0.0.1:0", door)
    for _ in range(3):
        assert await echoed(listening.address) == b"hello"
    clock.skipped += 2 * PATIENCE  # all three have had their time
    assert await echoed(listening.address) == b"hello"
    assert dict(door.refused) == {DISPLACED: 1}
    listening.close()


@pytest.mark.rule("END-18")
async def test_a_turn_of_the_loop_accepts_sixteen_connections_at_most() -> None:
    door = open_door(logins=64)
    listening = await SystemNetwork().listen(Echo, "TCP://127.0.0.1:0", door)
    accepted: list[int] = []
    with contextlib.ExitStack() as callers:
        for _ in range(20):
            callers.enter_context(socket.create_connection(host_and_port(listening.address)))
        while sum(accepted) < 20:
            before = len(door)
            await asyncio.sleep(0)
            accepted.append(len(door) - before)
    assert [one for one in accepted if one] == [16, 4]
    listening.close()


@pytest.mark.rule("END-18")
async def test_a_connection_that_nothing_can_be_made_for_gives_its_place_back() -> None:
    def broken() -> asyncio.Protocol:
        raise ValueError("a fault")

    door = open_door()
    listening = await SystemNetwork().listen(broken, "TCP://127.0.0.1:0", door)
    host, port = host_and_port(listening.address)
    reader, writer = await asyncio.open_connection(host, port)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    assert len(door) == door.strangers == 0
    assert isinstance(door.log, Lines)
    ((_, line),) = door.log.lines
    assert (line["subclass"], line["reason"]) == ("accept_failed", "ValueError")
    writer.close()
    listening.close()


@pytest.mark.rule("END-2")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "all"])
async def test_any_free_port_is_reported_back(host: str) -> None:
    listening = await SystemNetwork().listen(Echo, f"TCP://{host}:0", open_door())
    named, port = host_and_port(listening.address)
    assert named == host
    assert port > 0
    assert await echoed(f"tcp://127.0.0.1:{port}") == b"hello"
    listening.close()
    with pytest.raises(OSError, match=r"refused|failed"):
        await echoed(f"tcp://127.0.0.1:{port}")


@pytest.mark.rule("CLP-1")
async def test_a_unix_socket_is_its_owners_and_goes_when_closed(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sock"
    listening = await SystemNetwork().listen(Echo, f"unix:{path}", open_door())
    assert listening.address == f"unix:{path}"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert await echoed(listening.address) == b"hello"
    with pytest.raises(OSError, match="in use"):
        await SystemNetwork().listen(Echo, f"unix:{path}", open_door())
    listening.close()
    assert not path.exists()


@pytest.mark.rule("CLP-1")
async def test_what_a_killed_daemon_left_behind_is_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    listening = await SystemNetwork().listen(Echo, f"unix:{path}", open_door())
    assert await echoed(listening.address) == b"hello"
    listening.close()


async def test_a_file_of_that_name_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sock"
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        await SystemNetwork().listen(Echo, f"unix:{path}", open_door())
    assert path.read_text() == "precious"


@pytest.mark.rule("END-13")
@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("TCP://Host:4022", "host", 4022),
        ("tcp://[::1]:1/", "::1", 1),
        ("tcp://10.0.0.1:65535", "10.0.0.1", 65535),
    ],
)
async def test_addresses_are_read(text: str, host: str, port: int) -> None:
    assert host_and_port(text) == (host, port)
    assert host_and_port(tcp_address(host, port)) == (host, port)
    assert unix_path(text) is None


@pytest.mark.rule("END-13")
@pytest.mark.parametrize("text", ["host:1", "tcp://host", "tcp://:1", "tcp://h:x", "tcp://h:65536"])
async def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(OSError, match=r"address|form|port"):
        host_and_port(text)


@pytest.mark.rule("SEC-10")
@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
    ],
)
async def test_what_counts_as_this_machine(host: str, local: bool) -> None:
    assert is_loopback(host) is local


# Names with several addresses.


@pytest.fixture
def silent() -> Iterator[int]:
    """A port of this machine that answers nobody: its queue of callers is full."""
    with contextlib.ExitStack() as kept:
        mute = kept.enter_context(socket.socket())
        mute.bind(("127.0.0.2", 0))
        mute.listen(0)
        port = int(mute.getsockname()[1])
        for _ in range(4):
            caller = kept.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.2", port))
        yield port


def resolving_to(monkeypatch: pytest.MonkeyPatch, port: int, *addresses: str) -> None:
    """The name of every peer leads to these, in this order."""

    async def getaddrinfo(host, _port, **_how):
        if host != "several.example":
            return await genuine(host, _port, **_how)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (one, port))
            for one in addresses
        ]

    genuine = asyncio.get_running_loop().getaddrinfo
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


@pytest.mark.rule("END-16", "NBT-22", "TRN-9", "FN-8")
@pytest.mark.parametrize("dead", [["127.0.0.3"], ["127.0.0.2"], ["127.0.0.2", "127.0.0.3"]])
async def test_a_live_address_behind_dead_ones_is_found_within_the_limit(
    monkeypatch: pytest.MonkeyPatch, silent: int, dead: list[str]
) -> None:
    listening = await SystemNetwork().listen(Echo, f"TCP://127.0.0.1:{silent}", open_door())
    resolving_to(monkeypatch, silent, *dead, "127.0.0.1")
    async with asyncio.timeout(1):
        transport, _ = await SystemNetwork(connect_timeout=0.9).connect(
            Echo, f"TCP://several.example:{silent}"
        )
    assert transport.get_extra_info("peername") == ("127.0.0.1", silent)
    transport.close()
    listening.close()


@pytest.mark.rule("END-16", "XMT-19")
async def test_each_dead_address_says_why(monkeypatch: pytest.MonkeyPatch, silent: int) -> None:
    resolving_to(monkeypatch, silent, "127.0.0.2", "127.0.0.3")
    with pytest.raises(OSError, match="no answer") as failed:
        await SystemNetwork(connect_timeout=2.0).connect(Echo, f"TCP://several.example:{silent}")
    told = str(failed.value)
    assert f"TCP://127.0.0.2:{silent}: no answer" in told
    assert f"TCP://127.0.0.3:{silent}: " in told
    assert f"Errno {errno.ECONNREFUSED}" in told


@pytest.mark.rule("END-16", "TRN-19")
async def test_a_name_stands_for_all_its_addresses_and_a_literal_for_itself() -> None:
    network = SystemNetwork()
    assert "tcp://127.0.0.1:4022" in await network.places("TCP://localhost:4022")
    assert await network.places("TCP://127.0.0.1:4022") == {"tcp://127.0.0.1:4022"}
    assert await network.places("TCP://[::1]:4022") == {"tcp://[::1]:4022"}
    with pytest.raises(OSError, match="form"):
        await network.places("TCP://nowhere")
