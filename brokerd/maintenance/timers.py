"""Timers: fires due conversation timers; each puts a DialogTimer message on its queue (DLG-36).

Reads: the store, by index.      Calls: broker.changeset.
Never: waits for a group lock (GRP-7), notifies the peer, or keeps more than a batch in memory.
Wakes: when the earliest timer is due, and every tick.
"""

from brokerd.broker.broker import Broker
from brokerd.broker.changeset import Changeset
from brokerd.broker.state import Live
from brokerd.ids import EndpointKey
from brokerd.protocol import dialog
from brokerd.storage.rows.timers import Timer

BATCH = 500


async def fire(broker: Broker) -> int:
    """Fire every due timer; return the number of fired timers."""
    timers, count = broker.timers, 0
    if not timers.any or timers.is_reading:
        return 0
    after: Timer | None = None
    while True:
        now = broker.clock.utc()
        changeset = Changeset(broker, now)
        held: list[Timer] = []
        # A timer that a verb changed after its row was read is skipped; the next run reads it.
        with timers.reading() as is_stale:
            found = await broker.store.timers.due(now, BATCH, after)
            lives = await broker.endpoints.hold({one.endpoint for one in found})
            for one in found:
                if not is_stale(one.endpoint, one.name):
                    live = lives.get(one.endpoint)
                    count += _fire(changeset, one, live, held)
            if not changeset.empty:
                await changeset.commit()  # joins before a verb can change one of the timers
        for live in lives.values():
            live.unpin()
        if held:
            timers.any_held = True
            timers.any_crowded |= any(_crowded(lives[one.endpoint]) for one in held)
            await broker.store.timers.hold(held)
        if len(found) < BATCH:
            break
        after = found[-1]
    first = await broker.store.timers.first_due()
    if first is not None:
        timers.deadline.at_latest(first)
    return count


def _fire(changeset: Changeset, one: Timer, live: Live | None, held: list[Timer]) -> int:
    if live is None or live.gone or not dialog.may_set_timer(live.endpoint):
        changeset.forget_timer(EndpointKey(one.endpoint), one.name)
        return 0
    if not live.queue.takes_system_messages:
        held.append(one)
        return 0
    changeset.fire_timer(live, one.name)
    return 1


def none_set(broker: Broker) -> bool:
    """Return whether `tick` would do nothing, because no timer is set."""
    return not broker.timers.any and not broker.timers.any_crowded


async def tick(broker: Broker) -> int:
    """Fire timers that are due or waited for room on their queues; return their number."""
    if broker.timers.any_crowded:
        return await release(broker)
    return await fire(broker)


async def release(broker: Broker) -> int:
    """Retry timers that waited for their queues, which may accept messages now (DLG-41).

    Return the number of fired timers."""
    if not broker.timers.any_held:
        return 0
    broker.timers.any_held = broker.timers.any_crowded = False
    await broker.store.timers.release()
    return await fire(broker)


def _crowded(live: Live) -> bool:
    """Return whether a queue that refuses timers is on, and so only has too much in memory."""
    return live.queue.queue.enqueue_enabled
