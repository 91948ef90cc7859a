"""Sweeps over all endpoints of a broker, in batches, for administrative operations.

Reads: the store, by key.      Calls: broker.endpoints, broker.changeset.
Never: holds more than one batch in memory, or removes an endpoint whose group is locked.
"""

from __future__ import annotations

import asyncio

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.changeset import Changeset
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction
from brokerd.ids import EndpointKey
from brokerd.protocol import dialog


async def batch(
    broker: Broker, after: EndpointKey | None, limit: int
) -> tuple[list[Live], EndpointKey | None]:
    """Return up to `limit` endpoints behind a key, pinned in memory, and the last of their keys.

    The last key is None if there are no more endpoints. The caller unpins them (`release`)."""
    lives: list[Live] = []
    with broker.endpoints.reading() as stale:
        while True:
            stored = await broker.store.endpoints.page(limit, after)
            if not stale(endpoint.key for endpoint in stored):
                break
        for endpoint in stored:
            live = broker.endpoints.get(endpoint.key)
            if live is None:
                if broker.endpoints.is_removed(endpoint.key):
                    continue
                live = broker.endpoints.adopt(endpoint)
            live.pin()
            lives.append(live)
    return lives, stored[-1].key if len(stored) == limit else None


def release(lives: list[Live]) -> None:
    """Unpin endpoints, so that they may be evicted again."""
    for live in lives:
        live.unpin()


async def clean(broker: Broker, lives: list[Live], owner: str) -> list[Live]:
    """Remove endpoints with everything they hold, in one commit, without notifying peers (DLG-T27).

    Endpoints whose group is locked are skipped. Return the removed ones."""
    tx = Transaction(broker, owner)
    try:
        mine = [one for one in lives if not one.gone and one.group.lock(tx)]
        for live in mine:
            if live.beyond is None:  # their number is needed to delete messages
                await _count_unread(live)
        changeset = Changeset(broker, broker.clock.utc())
        for live in mine:
            _remove(changeset, live)
        await changeset.commit()
    finally:
        tx.roll_back()
    return mine


def _remove(changeset: Changeset, live: Live) -> None:
    unread = live.unread
    if unread:  # for the closing line
        discarded = live.endpoint.discarded + unread
        live.stepped(msgspec.structs.replace(live.endpoint, discarded=discarded))
    changeset.step(live, dialog.CleanupRequested())


async def _count_unread(live: Live) -> None:
    counted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    live.queue.count_beyond(live).then(lambda: counted.set_result(None))
    await counted
