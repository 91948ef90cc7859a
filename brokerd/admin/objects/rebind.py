"""Rebinding: a service moves to another queue with its messages, in one commit (OBJ-35).

Reads:  the services that a plan moves; groups, endpoints and queues of one broker.
Calls:  broker.transaction for the locks, storage for the commit.
Never:  moves a message that a transaction has received: it waits for every group of the service.
Fails:  with nothing changed: `InUse` while messages of one of the queues wait outside memory;
        `LockTimeout`, which names the holder of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from brokerd.broker.blocked import Blocked, settle
from brokerd.broker.broker import Broker
from brokerd.broker.queues import QueueState
from brokerd.broker.state import Group, Live
from brokerd.broker.transaction import Transaction
from brokerd.errors import InUse
from brokerd.storage.rows.catalog import Catalog, CatalogChanges
from brokerd.verbs.group_locks import lock


async def apply_moving(
    broker: Broker, changes: CatalogChanges, moved: Mapping[str, str]
) -> Catalog:
    """Make the changes, including those of services' queues; return the new catalog."""
    queues = _queues(broker, moved)
    for queue in queues:
        await _bring_in(queue)
    tx = Transaction(broker, "administration")
    try:
        tried = await broker.store.try_catalog(changes)
        # A dialog may begin while a lock is waited for, so the search starts over until all are
        # locked. From the last lock to the commit there is no await, so that no other task can run
        # between.
        while (group := _unlocked(broker, moved, tx)) is not None:
            await settle(partial(lock, tx, group))
        for queue in queues:  # from here to the commit no other task runs
            if not queue.backlog.is_empty:
                raise InUse(
                    f"{queue.ready_count} messages wait on queue {queue.name}, more than memory "
                    "holds of it; nothing was changed",
                    hint="let them be received first",
                )
        broker.use_catalog(tried)
        lives = _lives(broker, moved)
        for live in lives:
            _move(live, broker.queues[moved[live.endpoint.service]])
        for group in {live.group for live in lives}:
            broker.held.rebound(group)
        for name in moved:
            target = broker.queues[moved[name]].queue.key
            keys = {one.endpoint.key for one in lives if one.endpoint.service == name}
            broker.store.redirect(keys, target)
        # The rows that move have the keys of these queues already.
        settled = {name: queue.queue.key for name, queue in broker.queues.items()}
        catalog = await broker.store.apply_catalog(replace(changes, new_keys=settled))
        for queue in queues:
            queue.line.wake_selective()  # waiters for a moved conversation learn that
        return catalog
    finally:
        tx.roll_back()


def _queues(broker: Broker, moved: Mapping[str, str]) -> list[QueueState]:
    """Return the existing queues that messages leave or enter."""
    names = {broker.services[name].queue for name in moved} | set(moved.values())
    return [broker.queues[name] for name in sorted(names) if name in broker.queues]


async def _bring_in(queue: QueueState) -> None:
    """Load the messages that wait outside memory, as far as the window of the queue has room."""
    while queue.beyond and not queue.window.is_crowded:
        before = queue.beyond
        fetched = [False]

        def fetch(queue: QueueState = queue, fetched: list[bool] = fetched) -> Blocked | None:
            if fetched[0]:
                return None
            fetched[0] = True
            return queue.page_in()

        await settle(fetch)
        if queue.beyond >= before:
            return


def _lives(broker: Broker, moved: Mapping[str, str]) -> list[Live]:
    """Return the endpoints that move: all but those of posted dialogs, as these belong to error
    queues (PBT-4)."""
    return [
        one
        for one in broker.endpoints.all()
        if one.endpoint.service in moved and not one.endpoint.error_queue
    ]


def _unlocked(broker: Broker, moved: Mapping[str, str], tx: Transaction) -> Group | None:
    for live in _lives(broker, moved):
        if live.group.holder is not tx:
            return live.group
    return None


def _move(live: Live, target: QueueState) -> None:
    """Move an endpoint's messages from the window of its queue to that of another, in order."""
    messages, left = list(live.ready), live.queue
    for row in live.unpublished:
        size = len(row.body or b"")
        if left.room is not None:
            left.room.arrived(size)
        if target.room is not None:
            target.room.joining(size)
    left.drop(live)
    live.change_queue(target)
    for message in messages:
        target.window.add(live, message)
    if live.group.held is not None:
        target.held_changed(live.group, len(messages))
    target.backlog.came_in(live, [message.order for message in messages])
