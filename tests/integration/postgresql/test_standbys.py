"""A standby takes over: what was confirmed is there, or the loss is noticed."""

import asyncio

import pytest

from brokerd.errors import StoreFault
from tests.integration.postgresql.conftest import is_blocked, is_waiting, until
from tests.postgresql.servers import url_of_all

DATABASE = "shop"


@pytest.fixture
def primary(postgresql_servers):
    server = postgresql_servers.started("primary")
    server.create_database(DATABASE)
    return server


@pytest.mark.rule("REL-1", "REL-2", "REL-53", "REL-54")
async def test_a_synchronous_standby_has_all_that_was_confirmed(
    daemons, postgresql_servers, primary
):
    with pytest.raises(StoreFault, match="no synchronous standby"):
        await daemons.open(primary.url(DATABASE), "shop", require_standby=True)
    standby = postgresql_servers.standby_of(primary)
    both = url_of_all([primary, standby], DATABASE)
    daemon = await daemons.open(both, "shop", require_standby=True)
    first = await daemon.begin(token=0)
    standby.pause()
    changes, second = daemon.changes(token=1)
    waiting = asyncio.ensure_future(daemon.store.commit(changes))
    assert await is_waiting(waiting)
    standby.resume()
    await waiting

    # The next one is durable at the primary alone, which dies.
    number = await daemon.number_of_session()
    standby.pause()
    changes, third = daemon.changes(token=2)
    waiting = asyncio.ensure_future(daemon.store.commit(changes))
    await is_blocked(primary, number)
    primary.kill()
    with pytest.raises(StoreFault, match="not known"):
        await waiting
    standby.resume()
    with pytest.raises(StoreFault, match="is a standby") as refusal:
        await daemons.open(both, "shop")
    assert "all servers" in refusal.value.hint
    standby.promote()
    again = await daemons.open(both, "shop")
    assert [again.outcome(0), again.outcome(1)] == ["committed", "committed"]
    assert await again.has(first)
    assert await again.has(second)
    # It may have arrived before the standby stood still.
    assert again.outcome(2) in ("committed", "not_committed")
    assert await again.has(third) is (again.outcome(2) == "committed")
    assert again.store.identity.epoch == 2
    fourth = await again.begin(token=3)
    assert await again.has(fourth)


@pytest.mark.rule("REL-53")
@pytest.mark.parametrize("how", ["cancelled", "stopped"])
@pytest.mark.parametrize("job", [False, True], ids=["flush", "job"])
async def test_a_commit_that_did_not_wait_for_its_standby_is_not_confirmed(
    daemons, postgresql_servers, primary, how, job
):
    # The message that tells it is below what this role wants to hear.
    primary.query("ALTER ROLE brokerd SET client_min_messages = error")
    standby = postgresql_servers.standby_of(primary)
    daemon = await daemons.open(primary.url(DATABASE), "shop")
    number = await daemon.number_of_session()
    standby.pause()
    write = daemon.store.change_identity(honor_priority=True) if job else daemon.begin(token=0)
    waiting = asyncio.ensure_future(write)
    await is_blocked(primary, number)
    function = "pg_cancel_backend" if how == "cancelled" else "pg_terminate_backend"
    assert primary.query(f"SELECT {function}({number})") == [("t",)]
    wanted = "did not wait for its standby" if how == "cancelled" else "CONNECTION_LOST"
    with pytest.raises(StoreFault, match=wanted) as fault:
        await waiting
    assert "not known" in str(fault.value)
    assert len(daemon.faults) == 1
    standby.resume()
    await daemon.store.close()
    again = await daemons.open(primary.url(DATABASE), "shop")
    if not job:
        assert again.outcome(0) == "committed"  # and now the standby has it


@pytest.mark.rule("REL-15", "REL-64")
@pytest.mark.parametrize("is_behind", [True, False])
async def test_a_store_on_a_promoted_standby_has_a_new_incarnation(
    daemons, postgresql_servers, primary, is_behind
):
    """What an asynchronous standby lacks, no row shows: peers and clients find it out."""
    daemon = await daemons.open(primary.url(DATABASE), "shop")
    first = await daemon.begin(token=0)
    incarnation = daemon.store.identity.incarnation
    await daemon.store.close()
    daemon = await daemons.open(primary.url(DATABASE), "shop")
    assert daemon.store.identity.incarnation == incarnation
    standby = postgresql_servers.standby_of(primary, synchronous=False)
    if is_behind:  # nothing more arrives there
        standby.configure({"primary_conninfo": ""})
        await until(lambda: not primary.query("SELECT FROM pg_stat_replication"))
    second = await daemon.begin(token=1)
    if is_behind:
        primary.kill()
    else:
        await daemon.store.close()
        primary.stop()  # which waits until the standby has everything
    standby.promote()
    both = url_of_all([primary, standby], DATABASE)
    again = await daemons.open(both, "shop")
    if is_behind:
        primary.start()  # the next reads connect when there are two servers that take changes
    assert await again.has(first)
    assert again.outcome(1) == ("not_committed" if is_behind else "committed")
    assert await again.has(second) is not is_behind
    assert again.store.identity.incarnation != incarnation
    assert again.store.has_new_history
    incarnation = again.store.identity.incarnation
    await again.store.close()
    again = await daemons.open(standby.url(DATABASE), "shop")
    assert again.store.identity.incarnation == incarnation
    assert not again.store.has_new_history


@pytest.mark.rule("REL-15", "REL-64")
async def test_rows_that_were_restored_on_the_same_server_have_a_new_incarnation(
    daemons, postgresql_servers, primary, tmp_path
):
    daemon = await daemons.open(primary.url(DATABASE), "shop")
    incarnation = daemon.store.identity.incarnation
    first = await daemon.begin(token=0)
    place = [f"--host={primary.folder}", f"--port={primary.port}", f"--dbname={DATABASE}"]
    role = "--username=postgres"
    dump = postgresql_servers.run("pg_dump", *place, role, "--schema=shop")
    await daemon.begin(token=1)
    await daemon.store.close()
    primary.query("DROP SCHEMA shop CASCADE", database=DATABASE)
    postgresql_servers.run("psql", *place, role, "--quiet", given=dump)

    again = await daemons.open(primary.url(DATABASE), "shop")
    assert [again.outcome(0), again.outcome(1)] == ["committed", "not_committed"]
    assert await again.has(first)
    assert again.store.has_new_history
    assert again.store.identity.incarnation != incarnation


@pytest.mark.rule("REL-64")
async def test_a_store_of_an_earlier_version_keeps_its_incarnation(daemons, primary):
    daemon = await daemons.open(primary.url(DATABASE), "shop")
    incarnation = daemon.store.identity.incarnation
    await daemon.store.close()
    earlier = "UPDATE shop.server_history SET timeline = substr(timeline, 1, 8) RETURNING timeline"
    assert primary.query(earlier, database=DATABASE) == [("00000001",)]
    again = await daemons.open(primary.url(DATABASE), "shop")
    assert again.store.identity.incarnation == incarnation
    assert not again.store.has_new_history
    ((timeline,),) = primary.query("SELECT timeline FROM shop.server_history", database=DATABASE)
    assert len(timeline) > 8, "it has the number of the table now"
