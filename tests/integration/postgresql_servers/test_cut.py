"""The relay in front of a server breaks the way exactly where a test says."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.postgresql.cut import ServerRelay, Way
from tests.postgresql.servers import Server, Servers

asyncpg = pytest.importorskip("asyncpg")
COUNT = "SELECT count(*) FROM orders"
INSERT = "INSERT INTO orders VALUES (1)"


@pytest.fixture
async def relay(postgresql_server: Server) -> AsyncIterator[ServerRelay]:
    async with ServerRelay(postgresql_server) as relay:
        yield relay


@pytest.fixture
async def database(postgresql_server: Server, postgresql_url: str) -> str:
    name = postgresql_url.partition("@/")[2].partition("?")[0]
    postgresql_server.query("CREATE TABLE orders (id int)", database=name, user="brokerd")
    return name


@pytest.fixture
async def client(relay: ServerRelay, database: str):
    connection = await asyncpg.connect(relay.url(database))
    yield connection
    connection.terminate()


def rows(server: Server, database: str) -> str | None:
    return server.query(COUNT, database=database)[0][0]


async def is_waiting(task: asyncio.Future[Any]) -> bool:
    """Whether it is not done although all that is on its way has arrived."""
    done, _ = await asyncio.wait([task], timeout=0.02)
    return not done


async def by_transaction(client) -> None:
    async with client.transaction():
        await client.execute(INSERT)


async def by_prepared_statement(client) -> None:
    await client.execute("BEGIN")
    await client.execute(INSERT)
    await (await client.prepare("commit")).fetch()


async def by_one_request(client) -> None:
    await client.execute(f"BEGIN; {INSERT}; COMMIT")


WAYS = [by_transaction, by_prepared_statement, by_one_request]
Commit = Callable[[object], Awaitable[None]]


@pytest.mark.parametrize("commit", WAYS)
async def test_the_answer_to_a_commit_is_held(
    relay: ServerRelay, client, postgresql_server: Server, database: str, commit: Commit
) -> None:
    held = relay.hold()
    answer = asyncio.ensure_future(commit(client))
    await held.reached()
    assert await held.answered() == "COMMIT"
    assert rows(postgresql_server, database) == "1"
    assert await is_waiting(answer)
    held.release()
    await answer
    assert await client.fetchval(COUNT) == 1  # the connection goes on as if nothing had been


@pytest.mark.parametrize("commit", WAYS)
async def test_the_answer_to_a_commit_is_lost(
    relay: ServerRelay, client, postgresql_server: Server, database: str, commit: Commit
) -> None:
    held = relay.hold()
    answer = asyncio.ensure_future(commit(client))
    await held.answered()
    held.reset()
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, OSError)):
        await answer
    assert rows(postgresql_server, database) == "1"


async def test_a_commit_is_kept_from_the_server(
    relay: ServerRelay, client, postgresql_server: Server, database: str
) -> None:
    held = relay.hold(before=True)
    answer = asyncio.ensure_future(by_transaction(client))
    await held.reached()
    assert await is_waiting(answer)
    assert rows(postgresql_server, database) == "0"
    held.release()
    await answer
    assert await held.answered() == "COMMIT"


async def test_a_commit_never_reaches_the_server(
    relay: ServerRelay, client, postgresql_server: Server, database: str
) -> None:
    held = relay.hold(before=True)
    answer = asyncio.ensure_future(by_transaction(client))
    await held.reached()
    held.reset()
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, OSError)):
        await answer
    assert rows(postgresql_server, database) == "0"


async def test_the_second_commit_is_held(relay: ServerRelay, client) -> None:
    other = relay.hold(re.compile("no such statement"))
    first, second = relay.hold(), relay.hold()
    for held in (first, second):
        answer = asyncio.ensure_future(by_transaction(client))
        await held.answered()
        assert await is_waiting(answer)
        held.release()
        await answer
    assert await is_waiting(asyncio.ensure_future(other.reached()))


async def test_any_statement_is_held(relay: ServerRelay, client) -> None:
    held = relay.hold(re.compile("INSERT"))
    answer = asyncio.ensure_future(client.execute("INSERT INTO orders VALUES ('many')"))
    assert await held.answered() == "22P02"
    held.release()
    with pytest.raises(asyncpg.InvalidTextRepresentationError):
        await answer


async def test_a_server_that_is_killed_with_the_answer_held(postgresql_servers: Servers) -> None:
    server = postgresql_servers.started()
    server.create_database("orders")
    server.query("CREATE TABLE orders (id int)", database="orders", user="brokerd")
    async with ServerRelay(server) as relay:
        client = await asyncpg.connect(relay.url("orders"))
        held = relay.hold()
        answer = asyncio.ensure_future(by_transaction(client))
        await held.answered()
        server.kill()
        assert await is_waiting(answer)  # the client does not even learn of the end
        held.reset()
        with pytest.raises((asyncpg.ConnectionDoesNotExistError, OSError)):
            await answer
        server.start()
        client = await asyncpg.connect(relay.url("orders"))
        assert await client.fetchval(COUNT) == 1
        await client.close()


async def test_a_server_that_ends_without_an_answer(postgresql_servers: Servers) -> None:
    server = postgresql_servers.started()
    async with ServerRelay(server) as relay:
        client = await asyncpg.connect(relay.url("postgres"))
        held = relay.hold(re.compile("pg_sleep"))
        answer = asyncio.ensure_future(client.execute("SELECT pg_sleep(600)"))
        await held.reached()
        server.kill()
        with pytest.raises(ConnectionResetError):
            await held.answered()
        held.release()
        with pytest.raises((asyncpg.ConnectionDoesNotExistError, OSError)):
            await answer


@pytest.mark.parametrize("way", ["requests", "answers"])
async def test_one_direction_stalls(
    relay: ServerRelay, client, postgresql_server: Server, database: str, way: Way
) -> None:
    stalled = relay.stall(way)
    answer = asyncio.ensure_future(client.execute(INSERT))
    await stalled.wait()
    assert await is_waiting(answer)
    assert rows(postgresql_server, database) == ("0" if way == "requests" else "1")
    relay.heal()
    await answer


async def test_connections_are_refused(relay: ServerRelay, client, database: str) -> None:
    relay.refuse()
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, OSError)):
        await client.execute(INSERT)
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, OSError)):
        await asyncpg.connect(relay.url(database))
    relay.heal()
    again = await asyncpg.connect(relay.url(database))
    await again.execute(INSERT)
    await again.close()


async def test_a_long_answer_passes_whole(relay: ServerRelay, client) -> None:
    assert await client.fetchval("SELECT repeat('x', 10000000)") == "x" * 10_000_000
