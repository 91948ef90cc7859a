"""Addresses: which are understood, and that the connectors reach what they name (CLP-1)."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from brokerd.client.address import connector_for, default_address
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
