"""Addresses: which are understood, and that the connectors reach what they name (CLP-1)."""

import asyncio
import tempfile
from pathlib import Path
from typing import cast

import pytest

from brokerd.client.address import (
    Alternatives,
    Connector,
    Factory,
    addresses_of,
    connector_for,
    default_address,
)
from brokerd.errors import InvalidArgument

pytestmark = pytest.mark.rule("CLP-1")


@pytest.mark.parametrize(
    "address",
    ["", "unix:", "tcp://", "tcp://host", "tcp://host:0", "tcp://h:99999", "http://h:1", "h:1"],
)
def test_anything_else_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument):
        connector_for(address)


def test_the_environment_names_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BROKERD_ADDRESS", raising=False)
    assert default_address().startswith("unix:/")
    monkeypatch.setenv("BROKERD_ADDRESS", "tcp://127.0.0.1:9")
    assert default_address() == "tcp://127.0.0.1:9"


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_listener_is_reached(kind: str) -> None:
    loop = asyncio.get_running_loop()
    reached = asyncio.Event()

    class Far(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            reached.set()
            transport.close()

    with tempfile.TemporaryDirectory() as folder:
        if kind == "unix":
            address = f"unix:{Path(folder) / 's'}"
            server = await loop.create_unix_server(Far, address[5:])
        else:
            server = await loop.create_server(Far, "127.0.0.1", 0)
            address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        transport, _ = await connector_for(address)(asyncio.Protocol)
        await reached.wait()
        transport.close()
        server.close()
        await server.wait_closed()


@pytest.mark.rule("REL-58")
async def test_of_several_daemons_each_is_tried_and_the_last_one_reached_comes_last() -> None:
    asked: list[str] = []

    def connector(name: str, *, is_up: bool) -> Connector:
        async def connect(factory: Factory) -> tuple[asyncio.Transport, asyncio.Protocol]:
            asked.append(name)
            if not is_up:
                raise ConnectionRefusedError(name)
            return cast("asyncio.Transport", None), factory()

        return connect

    several = Alternatives(
        [connector("a", is_up=False), connector("b", is_up=True), connector("c", is_up=True)]
    )
    for _ in range(3):
        await several(asyncio.Protocol)
    assert asked == ["a", "b", "c", "a", "b"]
    assert several.others == 2
    with pytest.raises(ConnectionRefusedError, match="d"):
        await Alternatives([connector("d", is_up=False)] * 2)(asyncio.Protocol)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("unix:/a", ["unix:/a"]),
        ("unix:/a,b", ["unix:/a,b"]),
        ("unix:/a,TCP://h:1, tcp://i:2", ["unix:/a", "TCP://h:1", "tcp://i:2"]),
    ],
)
@pytest.mark.rule("REL-58")
def test_addresses_are_separated_by_commas(text: str, found: list[str]) -> None:
    assert addresses_of(text) == found
