"""Commit tokens: three answers, over restarts (REL-2)."""

import pytest

from brokerd.clock import Instant
from brokerd.ids import ClientId
from brokerd.storage.changes import Changes
from brokerd.storage.rows.tokens import KEPT

ANN, BOB = ClientId(b"a" * 16), ClientId(b"b" * 16)


def with_token(number, client=ANN):
    changes = Changes()
    changes.tokens[client] = number
    return changes


@pytest.mark.rule("REL-2")
async def test_outcome_is_known_once_durable_and_after_a_restart(open_store):
    store = await open_store()
    assert store.highest_token(ANN) == -1
    assert store.token_outcome(ANN, 1) == "not_committed"
    store.join(with_token(1), lambda: None)
    assert store.token_outcome(ANN, 1) == "unknown"
    await store.settled(ANN)
    assert store.token_outcome(ANN, 1) == "committed"
    await store.commit(with_token(3))
    await store.abandon()
    again = await open_store()
    outcomes = [again.token_outcome(ANN, number) for number in (1, 2, 3, 4)]
    assert outcomes == ["committed", "not_committed", "committed", "not_committed"]
    assert again.highest_token(ANN) == 3
    assert again.token_outcome(BOB, 1) == "not_committed"


@pytest.mark.rule("REL-2", "CLP-52", "CLP-53")
async def test_window_is_1024_numbers(open_store):
    store = await open_store()
    await store.commit(with_token(0))
    await store.commit(with_token(1))
    await store.commit(with_token(1024))
    await store.close()
    again = await open_store()
    outcomes = [again.token_outcome(ANN, number) for number in (0, 1, 2, 1024)]
    assert outcomes == ["unknown", "committed", "not_committed", "committed"]


@pytest.mark.rule("REL-2")
async def test_number_may_arrive_late(store):
    await store.commit(with_token(5))
    await store.commit(with_token(2))
    assert store.token_outcome(ANN, 2) == "committed"
    assert store.token_outcome(ANN, 3) == "not_committed"
    assert store.highest_token(ANN) == 5


@pytest.mark.rule("REL-2", "REL-3")
async def test_token_of_a_changeset_that_was_not_written_is_not_committed(open_store):
    def fault(name):
        if armed and name == "store.before_commit":
            raise OSError("planted")

    armed = []
    store = await open_store(fault=fault)
    await store.commit(with_token(1))
    armed.append(True)
    store.join(with_token(2), lambda: None)
    with pytest.raises(Exception, match="rolled back"):
        await store.settled(ANN)
    assert store.token_outcome(ANN, 2) == "unknown"
    await store.close()
    again = await open_store()
    assert [again.token_outcome(ANN, number) for number in (1, 2)] == ["committed", "not_committed"]


@pytest.mark.rule("REL-2")
async def test_one_row_a_client(store, look):
    for number in range(5):
        await store.commit(with_token(number))
    await store.commit(with_token(0, BOB))
    assert look.counts("clients") == [2]


@pytest.mark.rule("REL-2")
async def test_client_is_forgotten_after_a_day(open_store):
    store = await open_store()
    await store.commit(with_token(1))
    now = store._pipeline.now()
    assert store.prune_clients(Instant(now + KEPT - 10_000_000)) == 0
    assert store.prune_clients(Instant(now + KEPT)) == 1
    await store.commit(with_token(1, BOB))
    await store.close()
    again = await open_store()
    assert (again.highest_token(ANN), again.highest_token(BOB)) == (-1, 1)
