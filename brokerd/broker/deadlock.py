"""Deadlocks among transactions that wait for the locks of groups (GRP-12). PURE.

Reads: the lines for the locks.      Calls: the youngest transaction of a circle, which aborts.
Never: waits, or locks a group.
"""

from __future__ import annotations

from itertools import takewhile

from brokerd.broker.state import Group, Holder


def deadlock_of(holder: Holder) -> list[Holder]:
    """Return the holders in a circle of waits that `holder` has just closed; empty = no circle.

    The path leads from each waiter to the holder of the lock, because the waiters before it in the
    line wait for the same lock. `holder` has just joined a line, so only receives that select the
    group are behind it."""
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
    """Return whether the transaction can end without a client or a new message.

    It can if its verbs are being executed, or if it waits for another transaction that can."""
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
    """Abort the youngest transaction of the circle that `holder` has closed, if any (GRP-12)."""
    circle = deadlock_of(holder)
    if circle:
        max(circle, key=lambda one: one.opened).abort()
