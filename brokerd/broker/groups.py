"""Conversation groups and their locks (GRP).

Reads: nothing.      Calls: nothing.      Never: waits; a waiter for a lock gets a callback.
A lock is handed directly to the first waiter, so nobody overtakes between release and wake-up.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from brokerd.errors import LockTimeout
from brokerd.ids import EndpointKey, GroupId, show

if TYPE_CHECKING:
    from brokerd.broker.endpoints import Live
    from brokerd.broker.moves import Moves
    from brokerd.broker.parking import Held
    from brokerd.broker.queues import QueueState
    from brokerd.broker.receive_waiters import ReceiveWait


class Holder(Protocol):
    """The holder of group locks: a transaction."""

    locked: list[Group]
    ready: dict[Group, None]
    """The locked groups that may have messages in the window."""
    waits_for: Group | None
    """The group whose lock it waits for, or without which a receive that selects it cannot end."""
    receiving: ReceiveWait | None
    """The wait for a message, if it waits for one."""
    idle: bool
    """Whether it is open and no request of its client is being executed."""
    opened: int
    """The number of the transaction; the youngest has the highest (GRP-12)."""
    moves: Moves
    """The conversations it has moved, which nobody else sees before it commits."""
    ended: set[Live]
    """Conversations that it has ended, and so receives nothing from (DLG-T10)."""

    def took(self, group: Group) -> None:
        """Note that the lock of a group is held from now on."""
        ...

    def abort(self) -> None:
        """End its wait, to break a deadlock."""
        ...

    def taken_of(self, group: Group) -> int:
        """Return the number of messages of a group that a rollback would give back."""
        ...

    def describe(self) -> str:
        """Describe the holder for `LockTimeout` (GRP-11)."""
        ...


class LockWait:
    """A place in the line for a group's lock."""

    __slots__ = ("_granted", "_over", "group", "holder")

    def __init__(self, group: Group, holder: Holder, granted: Callable[[], None]) -> None:
        self.group = group
        self.holder = holder
        self._granted = granted
        self._over = False

    def tell(self) -> None:
        """Go on with the lock held, unless the waiter has given up in the meantime."""
        if not self._over:
            self._over = True
            self._granted()

    def give_up(self) -> LockTimeout | None:
        """Leave the line. Return the error to report; None if the lock was granted already."""
        self._over = True
        if self not in self.group.line:
            return None
        self.group.line.remove(self)
        self.holder.waits_for = None
        by = self.group.holder
        held_by = by.describe() if by else "nobody"
        return LockTimeout(f"conversation group {show(self.group.group_id)} is held by {held_by}")


def deadlock_of(holder: Holder) -> list[Holder]:
    """Return the holders in a circle of waits that `holder` has just closed; empty = there is none.

    Everybody in a line waits for the same lock, so the path always leads to the holder of that
    lock; `holder` has just joined its own line, where only receives that select the group are
    behind it."""
    circle: list[Holder] = []
    seen: set[int] = set()
    one = holder
    while one.waits_for is not None and id(one) not in seen:
        seen.add(id(one))
        circle.append(one)
        group = one.waits_for
        if group.holder is None or group.holder is one:
            return []
        if group.holder is holder or (one is not holder and _is_before(holder, one, group)):
            return circle
        one = group.holder
    return []


def ends_by_itself(holder: Holder) -> bool:
    """Return whether the transaction can end without a client or a new message: its verbs are being
    executed, or it waits for another transaction that can end so."""
    seen: set[int] = set()
    one: Holder | None = holder
    while one is not None and id(one) not in seen:
        if one.idle or one.receiving is not None:
            return False
        seen.add(id(one))
        one = None if one.waits_for is None else one.waits_for.holder
    return True


def _is_before(holder: Holder, one: Holder, group: Group) -> bool:
    """Return whether `holder` is before `one` in the line of the group; receives are behind all."""
    if holder.waits_for is not group:
        return False
    ahead = takewhile(lambda place: place.holder is not one, group.line)
    return any(place.holder is holder for place in ahead)


def break_deadlock(holder: Holder) -> None:
    """Abort the youngest in the circle of waits that `holder` has closed, if any (GRP-12)."""
    circle = deadlock_of(holder)
    if circle:
        max(circle, key=lambda one: one.opened).abort()


class Group:
    """A conversation group with an endpoint in memory."""

    __slots__ = (
        "entry",
        "group_id",
        "held",
        "holder",
        "line",
        "members",
        "queue",
        "ready",
        "service",
        "state",
        "state_known",
        "thinned",
        "whole",
    )

    def __init__(self, group_id: GroupId, service: str, queue: QueueState) -> None:
        self.group_id = group_id
        self.service = service
        self.queue = queue
        self.holder: Holder | None = None
        self.line: list[LockWait] = []  # a deque is 600 bytes, and nearly every line is empty
        self.members: dict[EndpointKey, Live] = {}
        """The endpoints of the group that are in memory."""
        self.whole = False
        """Whether `members` has all endpoints of the group."""
        self.ready: dict[EndpointKey, Live] = {}
        """The members with messages in the window."""
        self.entry: tuple[int, int, Group] | None = None
        """The entry among the ready groups; None while locked or without messages."""
        self.state: bytes | None = None
        """The state that the application keeps for the group, as committed (GRP-22)."""
        self.state_known = False
        """Whether `state` has been read."""
        self.held: Held | None = None
        """Why the group is not received: it waits for its next attempt, or is parked (PBT-3)."""
        self.thinned = False
        """Whether an endpoint has ended or moved away, and selecting waiters are to be woken."""

    def __lt__(self, other: Group) -> bool:
        """Return False: two entries of one rank name the same group, after a message was moved."""
        return False

    def lock(self, holder: Holder) -> bool:
        """Take the lock if it is free. Return whether this transaction holds it (GRP-8)."""
        if self.holder is None:
            self.holder = holder
            holder.took(self)
            self.entry = None
            if self.ready:
                holder.ready[self] = None
            return True
        return self.holder is holder

    def take_in(self, live: Live) -> None:
        """Move an endpoint, with its messages, from its group to this one (GRP-18)."""
        key, left = live.endpoint.key, live.group
        del left.members[key]
        left.ready.pop(key, None)
        left.thinned = True
        live.group = self
        self.members[key] = live
        if left.held is not None or self.held is not None:
            self.queue.moved(live, left, self)
        if live.ready:
            self.has_ready(live)

    def has_ready(self, live: Live) -> None:
        """Note that a conversation of the group has messages in the window."""
        self.ready[live.endpoint.key] = live
        if self.holder is not None:
            self.holder.ready[self] = None

    def wait(self, holder: Holder, granted: Callable[[], None]) -> LockWait:
        """Join the line; `granted` is called later, with the lock held (GRP-9)."""
        place = LockWait(self, holder, granted)
        self.line.append(place)
        holder.waits_for = self
        return place

    def release(self) -> LockWait | None:
        """Hand the lock to the next in line, and return its place for the caller to notify. None:
        the lock is free.

        Notify it in a turn of its own: it may commit and release the lock immediately, and a long
        line would make a deep stack (REL-18)."""
        self.holder = None
        if not self.line:
            return None
        place = self.line.pop(0)
        place.holder.waits_for = None
        self.lock(place.holder)
        return place
