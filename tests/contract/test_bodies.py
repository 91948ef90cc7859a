"""Bodies in pieces: stored before their messages, visible with them, swept when nobody has them."""

import asyncio

import pytest

from brokerd.clock import SystemClock
from brokerd.errors import StoreFault
from brokerd.ids import QueueKey
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.storage.changes import (
    HIGHEST_SEQUENCE,
    BodyRow,
    Changes,
    OutgoingRemoval,
    Owner,
    RetainedRow,
)
from brokerd.storage.hashes import large_hash
from brokerd.storage.rows import bodies as stored
from brokerd.storage.rows.bodies import SWEEP
from tests.contract.look import spoil
from tests.contract.test_full import fill

PIECE = 1000
BODY = bytes(range(256)) * 20 + b"the end"


def in_store(look):
    """Bodies and pieces that the store has."""
    return tuple(look.counts("bodies", "body_pieces"))


async def swept(store, steps=20):
    """The sweep goes on by itself, a step after the other."""
    for _ in range(steps):
        await store.run(lambda _connection: None)
        await asyncio.sleep(0)


async def begun(store, rows) -> DialogEndpoint:
    endpoint: DialogEndpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    await store.commit(changes)
    return endpoint


async def message(store, rows, endpoint, sequence, body=BODY):
    """A large message that waits, as a round writes it."""
    key = await store.keep(body, PIECE)
    place = endpoint.conversation_id, not endpoint.is_initiator, sequence
    row = rows.message(
        store, endpoint, sequence, body, body_hash=large_hash(*place, key, len(body))
    )
    changes = Changes()
    changes.bodies[key] = BodyRow(key, Owner.WAITING, row.queuing_order, len(body))
    changes.enqueued.append(row)
    await store.commit(changes)
    return row


async def outgoing(store, rows, endpoint, sequence, body=BODY):
    key = await store.keep(body, PIECE)
    place = endpoint.conversation_id, endpoint.is_initiator, sequence
    row = rows.outgoing(
        store, endpoint, sequence, body, body_hash=large_hash(*place, key, len(body))
    )
    changes = Changes()
    changes.bodies[key] = BodyRow(key, Owner.OUTGOING, row.transmission_order, len(body))
    changes.outgoing.append(row)
    await store.commit(changes)
    return row


async def waiting(store):
    return await store.messages.page(1, 5, -1, 99, 1 << 20)


@pytest.mark.rule("REL-33", "REL-4")
async def test_a_body_is_whole_with_its_message_and_nothing_before(store, rows, look):
    endpoint = await begun(store, rows)
    key = await store.keep(BODY, PIECE)
    assert in_store(look) == (1, 6)
    assert (await waiting(store)).rows == []
    row = await message(store, rows, endpoint, 0)
    out = await outgoing(store, rows, endpoint, 0)
    assert (await waiting(store))[:3] == ([row], [], (row.queuing_order, 0))
    assert (await store.messages.browse(1, 9, 1 << 20)).rows == [row]
    assert (await store.messages.page_for(endpoint.key, 9, 1 << 20)).rows == [row]
    assert (await store.outgoing.page(endpoint.key, 0, 9, 1 << 20)).rows == [out]
    assert (await store.outgoing.listed(9, 1 << 20)).rows == [out]
    store.discard_bodies([key])
    await swept(store)
    assert in_store(look) == (2, 12)


@pytest.mark.rule("REL-33")
async def test_pages_count_the_bytes_of_bodies_in_pieces(store, rows):
    endpoint = await begun(store, rows)
    made = [await message(store, rows, endpoint, n) for n in range(3)]
    page = await store.messages.page(1, 5, -1, 99, len(BODY) + 1)
    assert page.rows == made[:2]


@pytest.mark.rule("VIEW-3", "REL-33")
async def test_views_tell_the_size_and_the_body_wherever_it_is(store, rows):
    endpoint = await begun(store, rows)
    await outgoing(store, rows, endpoint, 0)
    changes = Changes()
    changes.outgoing.append(rows.outgoing(store, endpoint, 1, b"small"))
    changes.outgoing.append(
        rows.outgoing(store, endpoint, 2, b"")._replace(body=None, body_hash=None)
    )
    await store.commit(changes)
    for bodies, told in ((True, [BODY, b"small", None]), (False, [None] * 3)):
        listed = await store.listings.outgoing(-1, 9, {}, None, bodies=bodies)
        assert [row.size for row in listed.rows] == [len(BODY), 5, 0]
        assert [row.body for row in listed.rows] == told


@pytest.mark.rule("REL-33", "RCV-14", "DLP-20")
@pytest.mark.parametrize("how", ["by number", "by endpoint", "in the flush that writes them"])
async def test_a_body_goes_with_its_message(store, rows, look, how):
    endpoint = await begun(store, rows)
    gone = Changes()
    if how == "in the flush that writes them":
        bodies = Changes()
        key = await store.keep(BODY, PIECE)
        row = rows.message(store, endpoint, 0, BODY)
        bodies.bodies[key] = BodyRow(key, Owner.WAITING, row.queuing_order, len(BODY))
        bodies.enqueued.append(row)
        gone.dequeued_of[endpoint.key] = 1000
        await asyncio.gather(store.commit(bodies), store.commit(gone))
    else:
        row = await message(store, rows, endpoint, 0)
        out = await outgoing(store, rows, endpoint, 0)
        if how == "by number":
            gone.dequeued.append(row.queuing_order)
            gone.acknowledged.append(out.transmission_order)
        else:
            gone.dequeued_of[endpoint.key] = 1000
            gone.remove_outgoing(endpoint.key, OutgoingRemoval([], HIGHEST_SEQUENCE, 1))
        await store.commit(gone)
    await swept(store)
    assert in_store(look) == (0, 0)
    assert (await waiting(store)).rows == []


@pytest.mark.rule("REL-33")
async def test_many_pieces_go_some_at_a_time(store, rows, look):
    endpoint = await begun(store, rows)
    rows_ = [await message(store, rows, endpoint, n, bytes(30 * PIECE)) for n in range(5)]
    gone = Changes()
    gone.dequeued += [row.queuing_order for row in rows_]
    left = []
    await store.commit(gone)
    left.append(in_store(look)[1])
    await swept(store)
    assert left[0] >= 150 - 2 * SWEEP, "a flush deletes a few, not all"
    assert in_store(look) == (0, 0)


@pytest.mark.rule("REL-33")
@pytest.mark.parametrize("most", [3 * PIECE, 1], ids=["some", "one at least"])
async def test_long_pieces_go_fewer_at_a_time(store, rows, look, monkeypatch, most):
    monkeypatch.setattr(stored, "SWEEP_BYTES", most)
    endpoint = await begun(store, rows)
    row = await message(store, rows, endpoint, 0, bytes(20 * PIECE))
    gone = Changes()
    gone.dequeued.append(row.queuing_order)
    await store.commit(gone)
    assert in_store(look)[1] >= 20 - 2 * 3, "a flush deletes as many bytes as it may"
    await swept(store, 40)
    assert in_store(look) == (0, 0)


@pytest.mark.rule("REL-33", "REL-3")
async def test_what_a_crash_has_cut_off_is_never_seen_and_swept(open_store, rows, look):
    store = await open_store()
    endpoint = await begun(store, rows)
    kept = await message(store, rows, endpoint, 0)
    await store.keep(BODY, PIECE)
    under_way = asyncio.ensure_future(store.keep(bytes(5000 * PIECE), PIECE))
    await asyncio.wait({under_way}, timeout=0.05)
    assert not under_way.done()
    await store.abandon()
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    found = in_store(look)
    assert found[0] == 3
    assert 12 < found[1] < 5012
    store = await open_store()
    await swept(store, 200)
    assert in_store(look) == (1, 6)
    assert (await waiting(store)).rows == [kept._replace(paged=1)]
    assert store.next_body_key() > 1


@pytest.mark.rule("REL-33", "REL-3", "REL-5")
async def test_a_message_that_was_not_committed_leaves_no_body(open_store, rows, look):
    broken: list[int] = []

    def fault(name):
        if broken and name == "store.before_commit":
            raise OSError("the disk is gone")

    store = await open_store(fault=fault)
    endpoint = await begun(store, rows)
    key = await store.keep(BODY, PIECE)
    row = rows.message(store, endpoint, 0, BODY)
    changes = Changes()
    changes.bodies[key] = BodyRow(key, Owner.WAITING, row.queuing_order, len(BODY))
    changes.enqueued.append(row)
    broken.append(1)
    with pytest.raises(StoreFault):
        await store.commit(changes)
    await store.abandon()
    broken.clear()
    store = await open_store()
    await swept(store)
    assert in_store(look) == (0, 0)
    assert (await waiting(store)).rows == []


@pytest.mark.rule("REL-6", "REL-33")
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE body_pieces SET data = CAST(x'ff' || substr(data, 2) AS BLOB) WHERE piece = 3",
        "UPDATE body_pieces SET hash = x'00' WHERE piece = 0",
        "UPDATE body_pieces SET piece = 77 WHERE piece = 2",
        "DELETE FROM body_pieces WHERE piece = 5",
        "DELETE FROM bodies",
        "UPDATE bodies SET size = size + 1",
        "UPDATE queue_messages SET sequence = 99 WHERE sequence = 1",
    ],
)
async def test_damage_of_a_piece_is_noticed_and_hides_no_other(store, rows, damage):
    endpoint = await begun(store, rows)
    small = Changes()
    small.enqueued.append(rows.message(store, endpoint, 0, b"small"))
    await store.commit(small)
    bad = await message(store, rows, endpoint, 1)
    await spoil(store, damage)
    page = await waiting(store)
    assert [row.queuing_order for row in page.damaged] == [bad.queuing_order]
    assert page.rows == small.enqueued
    await store.replace_body(bad.queuing_order, None, None)
    assert [row.body for row in (await waiting(store)).rows] == [b"small", None]


@pytest.mark.rule("REL-33", "TRN-40")
async def test_small_messages_do_not_wait_for_a_large_one(store, rows):
    endpoint = await begun(store, rows)
    order: list[object] = []
    keeping = asyncio.ensure_future(store.keep(bytes(40 * PIECE), PIECE))
    keeping.add_done_callback(lambda _: order.append("large"))
    flushes = store.metrics.flushes
    for number in range(5):
        small = Changes()
        small.enqueued.append(rows.message(store, endpoint, number, b"small"))
        await store.commit(small)
        order.append(number)
    assert store.metrics.flushes - flushes <= 12, "what is small shares flushes with pieces"
    await keeping
    assert order == [0, 1, 2, 3, 4, "large"]


@pytest.mark.rule("REL-33")
async def test_one_body_after_the_other(store, look):
    first = asyncio.ensure_future(store.keep(bytes(10 * PIECE), PIECE))
    second = asyncio.ensure_future(store.keep(bytes(10 * PIECE), PIECE))
    await first
    assert in_store(look)[1] <= 11
    assert store.backlog_bytes <= PIECE
    await second
    assert in_store(look) == (2, 20)


@pytest.mark.rule("REL-33", "REL-5")
async def test_a_body_that_is_given_up_half_way_leaves_no_piece(open_store, rows, look, faults):
    """Given up in each turn of the loop, while a piece gathers behind a flush that is written."""
    store, is_over = await open_store(), False

    async def others():
        while not is_over:
            changes = Changes()
            changes.create(rows.endpoint(store))
            await store.commit(changes)

    committing = [asyncio.ensure_future(others()) for _ in range(2)]
    for turns in range(80):
        keeping = asyncio.ensure_future(store.keep(BODY, PIECE))
        for _ in range(turns):
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait([keeping])
        if not keeping.cancelled():
            store.discard_bodies([keeping.result()])
    is_over = True
    await asyncio.gather(*committing)
    await swept(store, 100)
    assert in_store(look) == (0, 0)
    await store.close()
    store = await open_store()
    await store.keep(BODY, PIECE)
    assert faults == []


@pytest.mark.rule("REL-33")
async def test_flushes_look_for_bodies_only_while_there_are_any(store, rows, look):
    endpoint = await begun(store, rows)
    row = await message(store, rows, endpoint, 0)
    assert store._pipeline.bodies.some
    changes = Changes()
    changes.dequeued.append(row.queuing_order)
    await store.commit(changes)
    store.sweep()
    await swept(store)
    assert in_store(look) == (0, 0)
    assert not store._pipeline.bodies.some


@pytest.mark.rule("REL-33", "REL-7")
async def test_pieces_without_a_body_are_swept_and_their_keys_not_given_out_again(open_store, look):
    store = await open_store()
    await store.close()
    look.change("INSERT INTO body_pieces VALUES (3, 1, x'00', x'00')")
    store = await open_store()
    key = await store.keep(BODY, PIECE)
    assert key > 3
    await swept(store)
    assert in_store(look) == (1, 6)


@pytest.mark.rule("REL-26", "REL-33", "FD-5")
async def test_a_full_disk_in_the_middle_of_a_body_is_waited_for(open_store, rows, look):
    store = await open_store(on_full=lambda: False)
    endpoint = await begun(store, rows)
    await fill(store, 20)
    keeping = asyncio.ensure_future(store.keep(bytes(400_000), 50_000))
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert not keeping.done()
    assert in_store(look)[1] < 8
    await fill(store, 1000)
    await keeping
    assert in_store(look) == (1, 8)
    assert (await store.endpoints.by_handle(endpoint.handle)) is not None


@pytest.mark.rule("RCV-31", "PBT-24", "REL-33")
async def test_a_retained_message_takes_its_body_along(store, rows, look):
    endpoint = await begun(store, rows)
    row = await message(store, rows, endpoint, 0)
    key = await store.keep(BODY, PIECE)
    told = (endpoint.handle, endpoint.conversation_id, endpoint.group_id, "a", "c", 3, 1, "t", 5)
    order = store.next_queuing_order()
    last = (row.enqueued_at, row.message_id, None)
    sent = RetainedRow(order, QueueKey(1), endpoint.key, *told, *last)
    changes = Changes()
    changes.dequeued.append(row.queuing_order)
    changes.rarely().retain.append(row.queuing_order)
    changes.rarely().retained.append(sent)
    changes.bodies[key] = BodyRow(key, Owner.RETAINED, sent.queuing_order, len(BODY))
    await store.commit(changes)
    await swept(store)
    assert in_store(look) == (2, 12)
    assert await store.retained.size(endpoint.key) == (2, 2 * len(BODY))
    assert [one.body for one in await store.retained.browse(1, 9)] == [BODY, BODY]
    ended = Changes()
    ended.rarely().retained_removed_of.append(endpoint.key)
    await store.commit(ended)
    await swept(store)
    assert in_store(look) == (0, 0)


@pytest.mark.rule("REL-7", "REL-33")
async def test_a_start_knows_how_many_bytes_wait_to_be_sent(open_store, rows):
    store = await open_store()
    endpoint = await begun(store, rows)
    await outgoing(store, rows, endpoint, 0)
    await store.close()
    store = await open_store()
    assert store.recovered.outgoing == [(endpoint.key, 1, 0, len(BODY))]


@pytest.mark.rule("REL-33", "FD-7")
async def test_where_a_flush_is_slow_it_has_more_pieces(open_store, look):
    slow: list[int] = []
    clock = SlowClock(slow)
    store = await open_store(clock=clock)
    flushes = store.metrics.flushes
    await store.keep(bytes(32 * PIECE), PIECE)
    assert store.metrics.flushes - flushes == 32
    slow.append(1)
    flushes = store.metrics.flushes
    await store.keep(bytes(32 * PIECE), PIECE)
    assert store.metrics.flushes - flushes == 6  # 1, 2, 4, 8, 16 and the last one
    assert in_store(look) == (2, 64)


class SlowClock(SystemClock):
    """Every look at it is a second after the one before."""

    def __init__(self, slow):
        self._slow = slow
        self._looks = 0

    def monotonic(self):
        self._looks += bool(self._slow)
        return self._looks
