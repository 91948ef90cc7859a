"""The way to the server breaks between a COMMIT and its answer."""

import asyncio

import pytest

from brokerd.errors import StoreFault
from brokerd.storage.changes import Changes
from tests.integration.postgresql.conftest import FLUSH, is_blocked
from tests.postgresql.cut import COMMIT


def written_by(daemon, token, statement):
    """Return a changeset that is written by such a statement: one of many rows is a transaction."""
    if statement is FLUSH:
        return daemon.changes(token)
    changes, endpoint = daemon.changes(token)
    changes.enqueued += [
        daemon.rows.message(daemon.store, endpoint, sequence, b"x") for sequence in range(1, 300)
    ]
    return changes, endpoint


@pytest.mark.rule("REL-2", "REL-5", "REL-54")
@pytest.mark.parametrize("statement", [FLUSH, COMMIT], ids=["statement", "transaction"])
@pytest.mark.parametrize("before", [False, True], ids=["committed", "never sent"])
async def test_the_answer_to_a_commit_does_not_arrive(daemons, relay, relayed, statement, before):
    daemon = await daemons.open(*relayed)
    first = await daemon.begin(token=0)
    changes, endpoint = written_by(daemon, 1, statement)
    confirmed = []
    held = relay.hold(statement, before=before)
    daemon.store.join(changes, lambda: confirmed.append(1))
    if before:
        await held.reached()
    else:
        assert await held.answered() in ("COMMIT", "SELECT 1")
    assert daemon.outcome(1) == "unknown"  # it is being written
    held.reset()
    assert "its outcome is not known" in await daemon.fault()
    with pytest.raises(StoreFault):
        await daemon.store.commit(Changes())
    await daemon.store.close()
    assert confirmed == []
    assert len(daemon.faults) == 1

    again = await daemons.open(*relayed)
    assert again.outcome(0) == "committed"
    assert again.outcome(1) == ("not_committed" if before else "committed")
    assert await again.has(first)
    assert await again.has(endpoint) is not before


@pytest.mark.rule("REL-2", "REL-54")
async def test_a_commit_that_the_server_still_carries_out_is_over_before_the_store_opens(
    daemons, relay, relayed, postgresql_server
):
    """The lock ends with the session, and the session with its COMMIT."""
    daemon = await daemons.open(*relayed)
    await daemon.begin(token=0)
    changes, endpoint = daemon.changes(1)
    number = await daemon.number_of_session()
    with postgresql_server.session("shared") as other:
        # The flush waits for this row, and goes on waiting when its client has gone.
        other.query(f"BEGIN; SELECT * FROM {relayed.name}.store FOR UPDATE")
        waiting = asyncio.ensure_future(daemon.store.commit(changes))
        await is_blocked(postgresql_server, number)
        relay.reset()
        with pytest.raises(StoreFault, match="not known"):
            await waiting
        await daemon.store.close()
        opening = asyncio.ensure_future(daemons.open(*relayed, lock_wait=30.0))
        assert not opening.done()
        other.query("COMMIT")
    again = await opening
    assert again.outcome(1) in ("committed", "not_committed")
    assert await again.has(endpoint) is (again.outcome(1) == "committed")
