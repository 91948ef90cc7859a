"""The first steps of verbs: find the named conversation, and lock its group (GRP-5, GRP-9).

Reads: the broker's memory.      Calls: broker.endpoints, broker.groups.
Never: waits. A verb that cannot have the lock yet returns `Blocked` and is called again.
Fails: with `ConversationNotFound`, `GroupNotFound`, and the error of a wait (GRP-11, GRP-12).
"""

from __future__ import annotations

import asyncio

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.deadlock import break_deadlock, ends_by_itself
from brokerd.broker.state import Group, Live
from brokerd.broker.transaction import Transaction
from brokerd.errors import ConversationNotFound, GroupNotFound, LockTimeout
from brokerd.ids import GroupId, Handle, show


def find(tx: Transaction, handle: Handle, at: int | None = None) -> Live | Blocked:
    """Return the conversation with this handle, pinned for the transaction (SND-2).

    `at`: position of the handle in a list, for the error message."""
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
    """Return whether the client may receive from the queue of a conversation or group.

    If not, the conversation or group is treated as if it did not exist (SND-25, BI-R2)."""
    rights = tx.rights
    return rights is None or rights.may_receive(tx.broker.name, what.queue.name)


def lock(tx: Transaction, group: Group) -> Blocked | None:
    """Lock a group; return None if the transaction has the lock, else the wait (GRP-9, GRP-11).

    The wait takes at most `lock_timeout`, not counting the time that the daemon needs to commit the
    holder or to store the holder's body."""
    if tx.failure is not None:
        raise tx.failure
    if group.lock(tx):
        return None

    def register(resume: Resume) -> None:
        _Wait(tx, group, resume)

    return Blocked("lock", register)


class _Wait:
    """The wait of a verb for a lock.

    When the wait is over, it no longer refers to the transaction. Otherwise a reference cycle would
    keep bodies in memory until the next garbage collection."""

    __slots__ = ("_place", "_resume", "_timer", "_tx")

    def __init__(self, tx: Transaction, group: Group, resume: Resume) -> None:
        self._tx, self._resume = tx, resume
        self._place = group.wait(tx, self._granted)
        self._begin()
        tx.wait(self._give_up, resume)
        break_deadlock(tx)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._tx.broker.options.lock_timeout, self._expired)

    def _granted(self) -> None:
        self._tx.stopped_waiting()
        self._end()
        self._resume()

    def _expired(self) -> None:
        # The waiter does not time out while the holder needs only the daemon to end.
        holder = self._place.group.holder
        if holder is not None and ends_by_itself(holder):
            self._begin()
            return
        self._tx.lock_failed(self._give_up())
        self._resume()

    def _give_up(self) -> LockTimeout | None:
        place = self._place
        self._end()
        return place.give_up()

    def _end(self) -> None:
        self._timer.cancel()
        del self._place


def group_of(tx: Transaction, live: Live) -> Group:
    """Return the group of a conversation: its old group while another transaction is moving it."""
    group = live.group
    if group.holder is None or group.holder is tx:
        return group
    return group.holder.group_before_move(live) or group


def lock_group_of(tx: Transaction, live: Live) -> Blocked | None:
    """Lock the group of a conversation, as `lock` does (GRP-5)."""
    return lock(tx, group_of(tx, live))


def pin_one_of(tx: Transaction, group: Group) -> None:
    """Pin one conversation of a group, to keep the group in memory.

    If all its conversations are being moved to other groups, the lock keeps it in memory."""
    for live in group.members.values():
        tx.pin(live)
        break


def locked(tx: Transaction, group_id: GroupId) -> Group:
    """Return a group that this transaction has locked; raise `GroupNotFound` otherwise (GRP-22)."""
    group = tx.broker.groups.get(group_id)
    if group is None or group.holder is not tx:
        raise GroupNotFound(
            f"conversation group {show(group_id)} is not locked by this transaction",
            hint="receive from it first, or take_lock=True, or use session.group(group_id)",
        )
    return group
