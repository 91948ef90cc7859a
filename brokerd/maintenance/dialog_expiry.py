"""Dialog expiry: expires dialogs past their lifetime, and removes closed endpoints (PER-23, PER-24,
DLG-31).

Reads: the store, by index.      Calls: broker.changeset.
Never: removes a row before its guard time is over, or holds up other commits: it works in batches.
"""

from brokerd.broker import sweeps
from brokerd.broker.broker import Broker
from brokerd.broker.changeset import Changeset
from brokerd.broker.state import Live
from brokerd.ids import EndpointKey
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.storage.changes import Changes

BATCH = 1000


def nothing_expired(broker: Broker) -> bool:
    """Return whether `expire` would do nothing: no lifetime has ended since its last run."""
    return broker.store.endpoints.nothing_expired(broker.clock.utc())


async def expire(broker: Broker) -> int:
    """Raise the time-out error on every dialog whose lifetime is over (DLG-T14).

    Return the number of these dialogs."""
    count = 0
    first = await broker.store.endpoints.first_expiry()
    while first is not None and first <= (now := broker.clock.utc()):
        with broker.endpoints.reading() as stale:
            over = await broker.store.endpoints.expired(now, BATCH)
            # An endpoint that left memory during the read may have changed: its row is read again.
            while stale(endpoint.key for endpoint in over):
                over = await broker.store.endpoints.expired(now, BATCH)
            known = [one for one in over if not broker.endpoints.is_removed(one.key)]
            lives = [_adopt(broker, endpoint) for endpoint in known]
        changeset = Changeset(broker, now)
        for live in lives:
            # The endpoint may have changed since its row was written: its state in memory counts.
            if live.endpoint.expires_at <= now:
                changeset.step(live, dialog.LifetimeReached())
                count += 1
        try:
            if not changeset.empty:
                await changeset.commit()
        finally:
            sweeps.release(lives)
        first = await broker.store.endpoints.first_expiry()
        if len(over) < BATCH:
            break
    if first is not None:
        broker.lifetimes.at_latest(first)
    return count


def _adopt(broker: Broker, endpoint: DialogEndpoint) -> Live:
    """Load the endpoint into memory and pin it, so that loading the next one does not evict it."""
    live = broker.endpoints.adopt(endpoint)
    live.pin()
    return live


def nothing_purgeable(broker: Broker) -> bool:
    """Return whether `purge` would do nothing: no guard time of a closed endpoint is over."""
    return broker.store.endpoints.nothing_purgeable(broker.clock.utc())


async def purge(broker: Broker) -> int:
    """Remove closed target endpoints whose guard time is over (DLG-T26); return their number."""
    count, now = 0, broker.clock.utc()
    first = await broker.store.endpoints.first_purge()
    if first is None or first > now:
        return 0
    owing: set[EndpointKey] = set()
    while True:
        # Rows that still owe something do not use up the batch.
        found = await broker.store.endpoints.purgeable(now, BATCH + len(owing))
        keys = [key for key in found if key not in owing]
        changes = Changes()
        for key in keys:
            live = broker.endpoints.get(key)
            if live is not None and _owes(live):
                owing.add(key)
                continue
            serial = broker.store.gathering  # no read loads it again before this commit
            if live is not None:
                live.joined(serial)
                broker.forget(live)
            else:
                broker.endpoints.removing(key, serial)
            changes.remove(key)
        if changes.removed:
            await broker.store.commit(changes)
            count += len(changes.removed)
        if len(keys) < BATCH:
            return count


def _owes(live: Live) -> bool:
    """Return whether the peer is still owed an acknowledgement or an error (DLG-34)."""
    out = live.outgoing
    return out is not None and out.acks.is_owing
