"""A commit takes long: the look at the server says whether it waits for a standby, or hangs."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from brokerd.storage.server_facts import ServerFacts
from tests.integration.postgresql.conftest import Daemons, is_blocked
from tests.postgresql.servers import Server, Servers

DATABASE = "shop"


@pytest.fixture
def server(postgresql_servers: Servers) -> Server:
    server = postgresql_servers.started("primary")
    server.create_database(DATABASE)
    return server


async def wait_of_shop(server: Server) -> str:
    """Return what the session that writes the store is said to wait for."""
    from brokerd.storage.postgresql.executor import OnServer  # noqa: PLC0415  # it needs the driver

    found = await OnServer(server.url(DATABASE)).server_facts([Path("shop.db")])
    assert isinstance(found, ServerFacts)
    return found.waits["shop"].text


@pytest.mark.rule("REL-89")
async def test_a_commit_that_waits_for_its_standby_is_told_from_one_that_hangs(
    daemons: Daemons, postgresql_servers: Servers, server: Server
) -> None:
    standby = postgresql_servers.standby_of(server)
    daemon = await daemons.open(server.url(DATABASE), "shop")
    number = await daemon.number_of_session()
    standby.pause()
    waiting = asyncio.ensure_future(daemon.begin())
    await is_blocked(server, number)
    assert await wait_of_shop(server) == "the server waits for its synchronous standby"
    standby.resume()
    await waiting

    os.kill(number, signal.SIGSTOP)
    hanging = asyncio.ensure_future(daemon.begin())
    text = await wait_of_shop(server)
    os.kill(number, signal.SIGCONT)
    assert text == f"server process {number} hangs: it does not read what it is sent"
    await hanging
