"""What only a store in PostgreSQL can meet: COMMITs without an answer, connections that end."""

import asyncio
import re
import socket
from threading import Thread

import pytest

from brokerd.errors import IO_FAULT, StoreDamaged, StoreFault
from brokerd.storage.changes import Changes
from brokerd.storage.postgresql import opening
from brokerd.storage.postgresql.connecting import connect
from brokerd.storage.postgresql.executor import OnServer
from brokerd.storage.postgresql.opening import ServerOptions
from brokerd.storage.postgresql.schema import definitions
from brokerd.storage.store import StoreOptions
from tests.contract.look import spoil
from tests.contract.test_full import begun
from tests.contract.test_shelves import put, receive
from tests.postgresql.cut import ServerRelay

TEST_SERVER = ServerOptions(require_durable=False)
BOTH = pytest.mark.parametrize("executor", ["postgresql", "postgresql-inline"], indirect=True)
END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE application_name = 'brokerd' AND pid <> pg_backend_pid()"
)


def one_endpoint(store, rows):
    changes = Changes()
    changes.create(endpoint := rows.endpoint(store))
    return changes, endpoint


@BOTH
@pytest.mark.rule("REL-5", "REL-53")
async def test_a_commit_that_the_server_rolls_back_is_not_confirmed(store, rows, faults, look):
    def job(connection):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO body_pieces VALUES (7, 0, ?, ?)", (b"hash", b"data"))
        with pytest.raises(Exception, match="does not exist"):
            connection.execute("SELECT nothing FROM nowhere")
        connection.execute("COMMIT")

    with pytest.raises(StoreFault, match="COMMIT was answered by ROLLBACK"):
        await store.run(job)
    assert [fault.exit_status for fault in faults] == [IO_FAULT]
    assert look.counts("body_pieces") == [0]


@pytest.mark.rule("REL-5", "REL-1")
@pytest.mark.parametrize("executor", ["postgresql"], indirect=True)
async def test_the_outcome_of_a_commit_whose_answer_is_lost_is_not_known(
    open_store, rows, faults, postgresql_server, postgresql_stores
):
    async with ServerRelay(postgresql_server) as relay:
        executor = OnServer(relay.url("stores"), TEST_SERVER)
        store = await open_store(executor=executor)
        held = relay.hold(re.compile("^WITH fence_"))  # a flush that is one statement
        changes, endpoint = one_endpoint(store, rows)
        committing = asyncio.ensure_future(store.commit(changes))
        assert await held.answered() == "SELECT 1"
        assert not committing.done()
        held.reset()
        with pytest.raises(StoreFault, match="outcome is not known"):
            await committing
        assert [fault.exit_status for fault in faults] == [IO_FAULT]
        with pytest.raises(StoreFault):
            await store.commit(Changes())
        await store.close()
        again = await open_store(executor=executor)
        assert await again.endpoints.by_handle(endpoint.handle) == endpoint


@BOTH
@pytest.mark.rule("REL-5", "REL-54")
@pytest.mark.parametrize("end", ["close", "abandon"])
async def test_a_session_that_the_server_ends_stops_the_store_and_lets_it_go(
    open_store, rows, faults, look, end
):
    store = await open_store()
    look.rows(END_OTHERS)
    changes, endpoint = one_endpoint(store, rows)
    with pytest.raises(StoreFault):
        await store.commit(changes)
    assert [fault.exit_status for fault in faults] == [IO_FAULT]
    with pytest.raises(StoreFault):
        await store.run(lambda _: None)
    await getattr(store, end)()
    again = await open_store()
    assert await again.endpoints.by_handle(endpoint.handle) is None


@pytest.mark.rule("REL-3", "REL-5")
@pytest.mark.parametrize("executor", ["postgresql"], indirect=True)
async def test_a_store_that_is_abandoned_in_a_flush_lets_go_and_confirms_nothing(
    open_store, rows, faults, look
):
    store = await open_store()
    changes, endpoint = one_endpoint(store, rows)
    confirmed = []
    store.join(changes, lambda: confirmed.append(True))
    job = asyncio.ensure_future(store.run(lambda one: one.execute("SELECT pg_sleep(60)")))
    for _ in range(5):
        await asyncio.sleep(0)
    await store.abandon()
    again = await open_store()
    await again.endpoints.by_handle(endpoint.handle)
    job.cancel()
    await asyncio.wait([job])
    assert (confirmed, faults) == ([], [])


def until_commits_wait(server):
    """Return once commits wait for a standby: a server follows its settings a moment later."""
    waits = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    while True:
        commit = Thread(target=server.query, args=("SELECT pg_logical_emit_message(true, '', '')",))
        commit.start()
        while commit.is_alive():
            if server.query(waits):
                commit.join()
                return


@BOTH
@pytest.mark.rule("REL-53", "REL-5")
async def test_a_commit_that_did_not_wait_for_its_standby_is_not_confirmed(
    open_store, rows, faults, *, postgresql_servers, executor, monkeypatch
):
    monkeypatch.setattr(opening, "definitions", definitions)  # another server has no ready tables
    server = postgresql_servers.started("alone")
    server.create_database("stores")
    store = await open_store(executor=type(executor)(server.url("stores"), TEST_SERVER))
    server.configure({"synchronous_standby_names": "nobody"})
    await asyncio.to_thread(until_commits_wait, server)
    # As an operator does who finds that all commits wait for a standby that is gone.
    giving_up = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
        " WHERE wait_event = 'SyncRep' AND application_name = 'brokerd'"
    )

    def give_up():
        while not server.query(giving_up):
            pass

    gives_up = asyncio.ensure_future(asyncio.to_thread(give_up))
    changes, _ = one_endpoint(store, rows)
    with pytest.raises(StoreFault, match=r"NOT_REPLICATED.*not known"):
        await store.commit(changes)
    await gives_up
    assert [fault.exit_status for fault in faults] == [IO_FAULT]
    server.configure({"synchronous_standby_names": ""})


@BOTH
@pytest.mark.rule("REL-53")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (ServerOptions(), "does not write what it confirms: fsync"),
        (ServerOptions(require_durable=False, require_standby=True), "no synchronous standby"),
        (ServerOptions(require_durable=False, synchronous_commit="local"), "synchronous_commit"),
    ],
)
async def test_a_server_that_does_not_promise_enough_is_refused_and_let_go(
    open_store, executor, options, why
):
    with pytest.raises((StoreDamaged, StoreFault), match=why):
        await open_store(executor=type(executor)(executor._url, options))
    await open_store()


@BOTH
@pytest.mark.rule("REL-16")
async def test_a_store_that_failed_to_open_is_let_go(open_store, look):
    await (await open_store()).close()
    look.change("ALTER TABLE store RENAME COLUMN epoch TO other")
    with pytest.raises((StoreDamaged, StoreFault), match="epoch"):
        await open_store()
    look.change("ALTER TABLE store RENAME COLUMN other TO epoch")
    await open_store()


@BOTH
@pytest.mark.rule("REL-18")
async def test_a_read_that_fails_in_a_transaction_leaves_the_next_one_alone(store):
    def fails(connection):
        connection.execute("BEGIN")
        connection.execute("SELECT nothing FROM nowhere")

    with pytest.raises(StoreFault, match="nowhere"):
        await store._reader.job(fails)
    found = await store._reader.job(lambda one: one.execute("SELECT 1").fetchone())
    assert found == (1,)


@pytest.mark.rule("REL-5")
async def test_a_server_that_is_cut_off_is_noticed_after_seconds(
    postgresql_server, postgresql_stores
):
    async with ServerRelay(postgresql_server) as relay:
        made = await connect(relay.url("stores"), "shop", settings={}, patience=5)
        its = made._transport.get_extra_info("socket")
        assert its.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        known = [getattr(socket, name) for name in names]
        assert [its.getsockopt(socket.IPPROTO_TCP, one) for one in known] == [3, 1, 3, 6000]
        made.terminate()


@BOTH
@pytest.mark.rule("REL-18", "FD-10")
async def test_a_shelf_is_emptied_though_somebody_reads_it(open_store, rows, look):
    store = await open_store(options=StoreOptions(shelf_messages=2))
    endpoint = await begun(store, rows)
    await receive(store, await put(store, rows, endpoint, 2))
    again = await put(store, rows, endpoint, 2, first=2)
    with look.reading(f"SELECT count(*) FROM shelf_{again[0].paged}"):
        await receive(store, again)
        assert look.counts(f"shelf_{again[0].paged}") == [0]
    assert store.shelves.taken == []


@BOTH
@pytest.mark.rule("REL-55")
async def test_names_that_the_server_cannot_store_stay_apart(store, rows, look):
    """Two texts that differ stay two, in one statement for many rows as in others."""
    changes = Changes()
    names = ["a\0", "a\ufdd0", "a\ufdd00", "a\ufdd01", "\0\ufdd0\0", "a"]
    for number in range(60):
        name = names[number % len(names)] + str(number) * (number % 7)
        changes.create(rows.endpoint(store, far_service=name, error_text=name))
    made = list(changes.created.values())
    await store.commit(changes)
    for endpoint in made:
        assert await store.endpoints.by_handle(endpoint.handle) == endpoint
    await spoil(store, "UPDATE conversation_endpoints SET service = ?", "s\0")
    assert look.rows("SELECT DISTINCT service FROM conversation_endpoints") == [("s\0",)]
    assert look.rows("SELECT count(*) FROM conversation_endpoints WHERE service = ?", "s\0") == [
        (60,)
    ]
