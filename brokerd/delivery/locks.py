"""What verbs do first: find the conversation they name, and lock its group (GRP-5, GRP-9).

Reads: the broker's memory.      Calls: broker.endpoints, broker.groups.
Never: waits: a verb that cannot have the lock yet returns `Blocked` and is called again.
Fails: with `ConversationNotFound`, `GroupNotFound`, and what a wait ended with (GRP-11, GRP-12).
"""

from __future__ import annotations

import asyncio

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.endpoints import Live
from brokerd.broker.groups import Group, break_deadlock
from brokerd.broker.transactions import Transaction
from brokerd.errors import BrokerError, ConversationNotFound, GroupNotFound
from brokerd.ids import GroupId, Handle, show


def find(tx: Transaction, handle: Handle, at: int | None = None) -> Live | Blocked:
    """The conversation with this handle, pinned for the transaction (SND-2).

    `at`: its position in a list, for the error."""
    live = tx.broker.endpoints.look_up(handle)
    if live is None or (
        tx.rights is not None and isinstance(live, Live) and not may_have(tx, live)
    ):
        where = "" if at is None else f" (position {at})"
        raise ConversationNotFound(
            f"no conversation {show(handle)} is open here{where}",
            ssb_code=None if at is None else 8435,
        )
    if isinstance(live, Live):
        tx.pin(live)
    return live


def may_have(tx: Transaction, what: Live | Group) -> bool:
    """Whether the client may receive from the queue of a conversation or group, and so may name
    it: one that is somebody else's is as if it were not there (SND-25, BI-R2)."""
    rights = tx.rights
    return rights is None or rights.may_receive(tx.broker.name, what.queue.name)


def lock(tx: Transaction, group: Group) -> Blocked | None:
    """Lock a group; None = it is ours. Waits at most `lock_timeout` (GRP-9, GRP-11)."""
    if tx.failure is not None:
        raise tx.failure
    if group.lock(tx):
        return None

    def register(resume: Resume) -> None:
        loop = asyncio.get_running_loop()

        def granted() -> None:
            timer.cancel()
            tx.waiting = None
            resume()

        def expired() -> None:
            tx.waiting = None
            tx.failure = place.give_up()
            resume()

        tx.resume = resume
        place = group.wait(tx, granted)
        timer = loop.call_later(tx.broker.options.lock_timeout, expired)

        def give_up() -> BrokerError | None:
            timer.cancel()
            return place.give_up()

        tx.waiting = give_up
        break_deadlock(tx)

    return Blocked("lock", register)


def group_of(tx: Transaction, live: Live) -> Group:
    """The group of a conversation, which is where it was if another transaction is moving it."""
    group = live.group
    if group.holder is None or group.holder is tx:
        return group
    return group.holder.moves.group_before(live) or group


def lock_group_of(tx: Transaction, live: Live) -> Blocked | None:
    """Lock the group of a conversation, as `lock` does (GRP-5)."""
    return lock(tx, group_of(tx, live))


def pin_one_of(tx: Transaction, group: Group) -> None:
    """Keep a group in memory by one of its conversations; if all are being moved its lock does."""
    for live in group.members.values():
        tx.pin(live)
        break


def locked(tx: Transaction, group_id: GroupId) -> Group:
    """A group that this transaction has locked; `GroupNotFound` for any other (GRP-22)."""
    group = tx.broker.groups.get(group_id)
    if group is None or group.holder is not tx:
        raise GroupNotFound(
            f"conversation group {show(group_id)} is not locked by this transaction",
            hint="receive from it first, or take_lock=True, or use session.group(group_id)",
        )
    return group
