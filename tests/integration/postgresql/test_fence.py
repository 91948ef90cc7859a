"""A daemon that has lost its store to another one writes nothing more, whatever it tries."""

import asyncio

import pytest

from brokerd.errors import StoreFault, StoreLocked
from brokerd.storage.changes import Changes
from brokerd.storage.rows.catalog import CatalogChanges
from tests.integration.postgresql.conftest import is_blocked
from tests.postgresql.fixtures import SHARED

pytestmark = pytest.mark.rule("REL-16", "REL-54")


def flush(daemon):
    return daemon.begin()


def large_flush(daemon):
    changes, endpoint = daemon.changes()
    changes.enqueued += [
        daemon.rows.message(daemon.store, endpoint, sequence, b"x") for sequence in range(1, 300)
    ]
    return daemon.store.commit(changes)


def change_objects(daemon):
    return daemon.store.apply_catalog(CatalogChanges(options={"honor_priority": True}))


def change_identity(daemon):
    return daemon.store.change_identity(honor_priority=True)


def note_owners(daemon):
    return daemon.store.note_owners([(daemon.rows.endpoint(daemon.store).key, "alice")])


WRITES = [flush, large_flush, change_objects, change_identity, note_owners]
EVERYTHING = (
    "SELECT s.*::text, (SELECT count(*) FROM {0}.conversation_endpoints),"
    " (SELECT count(*) FROM {0}.queue_messages), (SELECT count(*) FROM {0}.dialog_owners)"
    " FROM {0}.store AS s"
)


def content(server, schema):
    return server.query(EVERYTHING.format(schema.name), database=SHARED)


def terminate(server, number):
    assert server.query(f"SELECT pg_terminate_backend({number}, 20000)") == [("t",)]


async def test_a_second_daemon_is_refused_while_the_session_of_the_first_lives(
    daemons, postgresql_schema
):
    first = await daemons.open(*postgresql_schema)
    number = await first.number_of_session()
    with pytest.raises(StoreLocked, match=rf"is open in brokerd on .* \(server process {number}\)"):
        await daemons.open(*postgresql_schema, lock_wait=0.05)
    await first.begin()
    assert await first.store.epoch_on_disk() == first.store.identity.epoch == 1


@pytest.mark.parametrize("write", WRITES)
async def test_whose_session_was_ended_changes_nothing_once_another_has_the_store(
    daemons, postgresql_server, postgresql_schema, write
):
    first = await daemons.open(*postgresql_schema)
    await first.begin()
    terminate(postgresql_server, await first.number_of_session())
    second = await daemons.open(*postgresql_schema)
    before = content(postgresql_server, postgresql_schema)
    with pytest.raises(StoreFault, match="CONNECTION_LOST"):
        await write(first)
    assert len(first.faults) == 1
    assert content(postgresql_server, postgresql_schema) == before
    await second.begin()
    assert second.store.identity.epoch == 2


async def test_a_sweep_changes_nothing_once_another_has_the_store(
    daemons, postgresql_server, postgresql_schema
):
    first = await daemons.open(*postgresql_schema)
    changes, _ = first.changes()
    await first.store.commit(changes)
    received = Changes()
    received.dequeued.append(changes.enqueued[0].queuing_order)
    await first.store.commit(received)
    terminate(postgresql_server, await first.number_of_session())
    second = await daemons.open(*postgresql_schema)
    await second.begin()
    before = content(postgresql_server, postgresql_schema)
    assert first.store.sweep() == 1
    await first.fault()
    assert content(postgresql_server, postgresql_schema) == before


@pytest.mark.parametrize("write", WRITES)
async def test_whose_session_is_ended_while_it_waits_has_changed_nothing(
    daemons, postgresql_server, postgresql_schema, write
):
    first = await daemons.open(*postgresql_schema)
    number = await first.number_of_session()
    tables = ("store", "dialog_owners")
    with postgresql_server.session(SHARED) as other:
        other.query(
            "BEGIN; LOCK " + ", ".join(f"{postgresql_schema.name}.{table}" for table in tables)
        )
        writing = asyncio.ensure_future(write(first))
        await is_blocked(postgresql_server, number)
        terminate(postgresql_server, number)
        other.query("COMMIT")
    second = await daemons.open(*postgresql_schema)
    with pytest.raises(StoreFault, match="CONNECTION_LOST"):
        await writing
    assert len(first.faults) == 1
    assert await second.store.endpoints.count_by_state() == {}
    assert second.store.identity.honor_priority is False


@pytest.mark.parametrize("write", [flush, large_flush])
@pytest.mark.parametrize("waits", [False, True], ids=["raised before", "raised while it waits"])
async def test_a_flush_ends_at_an_epoch_that_is_not_its_own(
    daemons, postgresql_server, postgresql_schema, write, waits
):
    """The lock lets nobody raise it; if it ever failed, this is what keeps two writers apart."""
    first = await daemons.open(*postgresql_schema)
    number = await first.number_of_session()
    with postgresql_server.session(SHARED) as other:
        other.query(f"BEGIN; UPDATE {postgresql_schema.name}.store SET epoch = epoch + 1")
        if not waits:
            other.query("COMMIT")
        writing = asyncio.ensure_future(write(first))
        if waits:
            await is_blocked(postgresql_server, number)
            other.query("COMMIT")
    with pytest.raises(StoreFault, match="opened by another process"):
        await writing
    assert len(first.faults) == 1
    assert await first.store.endpoints.count_by_state() == {}


async def test_the_epoch_tells_a_daemon_that_another_one_has_the_store(
    daemons, postgresql_server, postgresql_schema
):
    first = await daemons.open(*postgresql_schema)
    postgresql_server.query(
        f"UPDATE {postgresql_schema.name}.store SET epoch = epoch + 1", database=SHARED
    )
    assert await first.store.epoch_on_disk() == first.store.identity.epoch + 1
