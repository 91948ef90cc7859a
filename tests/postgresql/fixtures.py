"""Fixtures: a server for all tests of a process, an empty database for each, servers of their own.

Each process of a run starts its server when the first test asks for it, which takes 0.7 s. One
server for all processes would save that once per process, and need a process that knows when the
last one is through. `tests/conftest.py` makes these fixtures known to all folders.
"""

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import pytest

from tests.postgresql.installed import NoServer
from tests.postgresql.servers import Server, Servers

SHARED = "shared"
"""The database in which tests have a schema each."""
_NUMBERS = count(1)


class Schema(NamedTuple):
    """A place in a database that other tests use as well."""

    url: str
    name: str
    """Of a schema that does not exist yet, and is dropped after the test."""


@pytest.fixture(scope="session")
def all_postgresql_servers() -> Iterator[Servers]:
    """The folder with all servers of this process."""
    try:
        servers = Servers()
    except NoServer as error:
        pytest.skip(str(error))
    with servers:
        yield servers


@pytest.fixture(scope="session")
def shared_postgresql_server(all_postgresql_servers: Servers) -> Server:
    """The server behind `postgresql_server`, whether it runs or not."""
    return all_postgresql_servers.new("shared")


@pytest.fixture(scope="session")
def engine_server(shared_postgresql_server: Server) -> Server:
    """The server of the stores with `--engine=postgresql`."""
    return shared_postgresql_server


@pytest.fixture
def postgresql_server(shared_postgresql_server: Server) -> Server:
    """A server that runs, and that other tests use too: for databases, not to be broken."""
    if not shared_postgresql_server.is_running:
        shared_postgresql_server.start()
    return shared_postgresql_server


@pytest.fixture
def postgresql_url(postgresql_server: Server) -> Iterator[str]:
    """The URL of an empty database, which is dropped after the test: 12 ms for both."""
    name = f"test{next(_NUMBERS)}"
    postgresql_server.create_database(name)
    yield postgresql_server.url(name)
    postgresql_server.drop_database(name)


@pytest.fixture
def postgresql_schema(postgresql_server: Server) -> Iterator[Schema]:
    """A name for a schema, which takes no time, in a database with many of them."""
    if not postgresql_server.has_database(SHARED):
        postgresql_server.create_database(SHARED)
    name = f"test{next(_NUMBERS)}"
    yield Schema(postgresql_server.url(SHARED), name)
    postgresql_server.query(f'DROP SCHEMA IF EXISTS "{name}" CASCADE', database=SHARED)


@pytest.fixture
def postgresql_servers(
    all_postgresql_servers: Servers, shared_postgresql_server: Server
) -> Iterator[Servers]:
    """Starts servers that belong to the test, which may do anything to them: 0.15 s for each."""
    shared = [shared_postgresql_server, *all_postgresql_servers.made]
    yield all_postgresql_servers
    for server in list(all_postgresql_servers.made):
        if server not in shared:
            all_postgresql_servers.remove(server)
