"""What dialogs that end leave in the transmission queue, and retained: no row of it stays, and no
flush deletes very many (REL-36)."""

import pytest
from msgspec.structs import replace

from brokerd.protocol.transitions import State
from brokerd.storage.changes import (
    HIGHEST_SEQUENCE,
    BodyRow,
    Changes,
    OutgoingRemoval,
    Owner,
    PieceRow,
    RetainedRow,
)
from brokerd.storage.rows.ended_dialogs import LeftOutgoing, OutgoingSweep, RetainedSweep
from brokerd.storage.rows.retention import SENT
from brokerd.storage.store import StoreOptions
from tests.contract.test_verifying import a_queue

FOUR = StoreOptions(unread_at_once=4)


@pytest.fixture
async def store(open_store):
    store = await open_store(options=FOUR)
    await a_queue(store)
    return store


@pytest.fixture
def steps(monkeypatch):
    """How many rows each step of a sweep has deleted."""
    deleted = []
    for sweep in (OutgoingSweep, RetainedSweep):
        real = sweep._next

        def counted(self, connection, limit, real=real):
            numbers, at = real(self, connection, limit)
            deleted.append(len(numbers))
            return numbers, at

        monkeypatch.setattr(sweep, "_next", counted)
    return deleted


async def sending(store, rows, messages, *, paged=1, large=0):
    """An endpoint that has sent messages; the last `large` of them have bodies in pieces."""
    endpoint = rows.endpoint(store, send_sequence=messages)
    changes = Changes()
    changes.create(endpoint)
    for number in range(messages):
        row = rows.outgoing(store, endpoint, number, b"%d" % number)._replace(paged=paged)
        if number >= messages - large:
            key = store.next_body_key()
            changes.bodies[key] = BodyRow(key, Owner.OUTGOING, row.transmission_order, 4)
            changes.pieces.append(PieceRow(key, 0, b"four"))
        changes.outgoing.append(row)
    await store.commit(changes)
    return endpoint, [row.transmission_order for row in changes.outgoing]


async def swept(store):
    """Return when no sweep is under way."""
    for _ in range(200):
        await store.run(lambda _: None)
        if not store._pipeline.deletions._sweeper._due and not store._pipeline.bodies._sweeping:
            return


def ended(endpoint, orders, *, beyond, through=HIGHEST_SEQUENCE):
    changes = Changes()
    changes.remove_outgoing(endpoint.key, OutgoingRemoval(orders, through, beyond))
    changes.put(replace(endpoint, state=State.CLOSED))
    return changes


@pytest.mark.rule("REL-36")
@pytest.mark.parametrize("known", ["all", "some", "none"])
async def test_many_outgoing_messages_go_behind_the_flush(store, rows, look, steps, known):
    endpoint, orders = await sending(store, rows, 300, large=2)
    other, _ = await sending(store, rows, 3)
    mine = {"all": orders, "some": orders[:100], "none": []}[known]
    await store.commit(ended(endpoint, mine, beyond=300 - len(mine)))
    listed = await store.listings.outgoing(-1, 1000, {}, None, bodies=False)
    assert {one.endpoint for one in listed.rows} == {other.key}
    await swept(store)
    assert look.counts("transmission_queue") == [3]
    assert look.counts("bodies", "body_pieces") == [0, 0]
    assert sum(steps) == 300
    assert max(steps) == 4
    assert look.findings() == []


@pytest.mark.rule("REL-36")
async def test_few_go_with_the_flush(store, rows, look, steps):
    endpoint, orders = await sending(store, rows, 4)
    await store.commit(ended(endpoint, orders[:1], beyond=3))
    assert look.counts("transmission_queue") == [0]
    assert steps == []


@pytest.mark.rule("REL-36", "DLG-T11")
@pytest.mark.parametrize("messages", [3, 30])
@pytest.mark.parametrize("together", [True, False])
async def test_an_error_that_takes_their_place_stays(store, rows, look, messages, together):
    endpoint = rows.endpoint(store, send_sequence=messages)
    sent = Changes()
    sent.create(endpoint)
    for number in range(messages):
        sent.outgoing.append(rows.outgoing(store, endpoint, number, b"m")._replace(paged=1))
    failed = Changes()
    failed.remove_outgoing(endpoint.key, OutgoingRemoval([], messages - 1, messages))
    failed.outgoing.append(rows.outgoing(store, endpoint, messages, b"error")._replace(paged=1))
    is_over = {"state": State.DISCONNECTED_OUTBOUND, "error_code": 1, "end_sequence": messages}
    failed.put(replace(endpoint, send_sequence=messages + 1, **is_over))
    if together:
        store.join(sent, lambda: None)
    else:
        await store.commit(sent)
    await store.commit(failed)
    page = await store.listings.outgoing(-1, 100, {}, None, bodies=True)
    assert [(one.sequence, one.body) for one in page.rows] == [(messages, b"error")]
    await swept(store)
    assert look.counts("transmission_queue") == [1]
    assert look.findings() == []


@pytest.mark.rule("DLP-20")
async def test_an_acknowledgement_removes_what_it_covers_and_no_more(store, rows, look):
    endpoint, _ = await sending(store, rows, 10)
    joining, acked = Changes(), Changes()
    joining.outgoing.append(rows.outgoing(store, endpoint, 10, b"10")._replace(paged=1))
    acked.remove_outgoing(endpoint.key, OutgoingRemoval([], 2, 3))
    joining.move(replace(endpoint, send_sequence=11))
    store.join(joining, lambda: None)
    await store.commit(acked)
    page = await store.outgoing.page(endpoint.key, 0, 100, 10_000)
    assert [row.sequence for row in page.rows] == list(range(3, 11))


def retained(store, endpoint, number):
    return RetainedRow(
        store.next_queuing_order(),
        store.catalog.queues["inbox"].key,
        endpoint.key,
        endpoint.handle,
        endpoint.conversation_id,
        endpoint.group_id,
        endpoint.service,
        endpoint.contract,
        SENT,
        number,
        "t",
        5,
        endpoint.began_at,
        endpoint.conversation_id,
        b"%d" % number,
    )


@pytest.mark.rule("REL-36", "RCV-32")
async def test_retained_messages_go_likewise(store, rows, look, steps):
    ending, other = rows.endpoint(store), rows.endpoint(store)
    kept = Changes()
    for one, many in ((ending, 30), (other, 2)):
        kept.create(one)
        kept.rarely().retained += [retained(store, one, number) for number in range(many)]
    await store.commit(kept)
    changes = Changes()
    changes.remove(ending.key)
    changes.rarely().retained_removed_of.append(ending.key)
    await store.commit(changes)
    queue = store.catalog.queues["inbox"].key
    assert len(await store.retained.browse(queue, 100)) == 2
    assert await store.retained.counts() == {queue: 2}
    assert len((await store.listings.retained(-1, 100, {}, None, bodies=False)).rows) == 2
    await swept(store)
    assert look.counts("retained_messages") == [2]
    assert sum(steps) == 26  # four went with the flush
    assert max(steps) == 4
    assert look.findings() == []


@pytest.mark.rule("REL-36")
async def test_what_is_retained_of_conversations_that_have_ended_is_found(open_store, rows, look):
    store = await open_store()
    await a_queue(store)
    made = Changes()
    endpoints = []
    for state in State:
        if state is not State.NONE:
            endpoints.append(rows.endpoint(store, state=state))
            made.create(endpoints[-1])
            made.rarely().retained.append(retained(store, endpoints[-1], 0))
    archived = retained(store, endpoints[0], 1)._replace(endpoint=None)
    nobodys = retained(store, rows.endpoint(store), 0)
    made.rarely().retained += [archived, nobodys]
    await store.commit(made)
    over = {State.DISCONNECTED_OUTBOUND, State.CLOSED}
    wanted = {one.key for one in endpoints if one.state in over} | {nobodys.endpoint}
    assert set(await store.retained.in_ended_conversations()) == wanted
    store.sweep_left(
        [LeftOutgoing(endpoints[0].key, OutgoingRemoval([], HIGHEST_SEQUENCE, 1))], [*wanted]
    )
    await swept(store)
    assert await store.retained.in_ended_conversations() == []
    assert look.counts("retained_messages") == [len(endpoints) + 2 - len(wanted)]
