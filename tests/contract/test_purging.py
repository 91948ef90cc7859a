"""Which closed endpoints may go: a dialog that is still open never does, however old its guard."""

import pytest

from brokerd.clock import Instant
from brokerd.protocol.transitions import State
from brokerd.storage.changes import Changes


@pytest.mark.rule("DLG-31", "DLP-55", "DLG-T26")
async def test_only_closed_endpoints_are_purged(store, rows):
    changes = Changes()
    made = {}
    for state in set(State) - {State.NONE}:
        made[state] = rows.endpoint(store, state=state, first_acked=True, purge_at=Instant(50))
        changes.create(made[state])
    await store.commit(changes)
    assert await store.endpoints.purgeable(Instant(49), 9) == []
    assert await store.endpoints.purgeable(Instant(50), 9) == [made[State.CLOSED].key]
