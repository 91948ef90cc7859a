"""Receives that wait for a message of one queue, and the order of waking (RCV-19 to RCV-21).

Reads: nothing.      Calls: the waiters, one after the other.
Never: wakes more waiters than can be served: a group goes to one of them, the one that locks it.

A woken waiter tries immediately, before the next one is woken, so it is known by then whether the
group is still unlocked. A waiter that tried in vain returns to its old place in the line.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from brokerd.broker.state import Group, ReceiveWait
from brokerd.ids import GroupId

_ticket = attrgetter("ticket")


class WaitingLine:
    """The waiters of one queue, in order of arrival."""

    __slots__ = ("_selective", "_tickets", "unselective", "wake_ups")

    def __init__(self) -> None:
        self.unselective: list[ReceiveWait] = []
        """Waiters that take any group."""
        self._selective: dict[GroupId, list[ReceiveWait]] = {}
        self._tickets = 0
        self.wake_ups = 0
        """Number of times a waiter was woken since the start."""

    def next_ticket(self) -> int:
        """Return the ticket for a new waiter."""
        self._tickets += 1
        return self._tickets

    def join(self, wait: ReceiveWait) -> None:
        """Put a waiter into the line, in the place given by its ticket."""
        if wait.group_id is None:
            insort(self.unselective, wait, key=_ticket)
        else:
            insort(self._selective.setdefault(wait.group_id, []), wait, key=_ticket)
        wait.line = self
        wait.holder.receiving = wait

    def leave(self, wait: ReceiveWait) -> None:
        """Remove a waiter from the line (RCV-22)."""
        if wait.line is not self:
            return
        wait.line = wait.holder.receiving = None
        if wait.group_id is None:
            self.unselective.remove(wait)
            return
        of_group = self._selective[wait.group_id]
        of_group.remove(wait)
        if not of_group:
            del self._selective[wait.group_id]

    @property
    def is_expecting(self) -> bool:
        """Whether any receive waits."""
        return bool(self.unselective or self._selective)

    def expects(self, group_id: GroupId) -> bool:
        """Return whether a waiter selects this group."""
        return group_id in self._selective

    def wake_for(self, group: Group, *, is_new: bool) -> None:
        """Wake the waiters that select the group; with `is_new` also the first unselective one.

        They try in order of arrival, until another transaction has locked the group."""
        if not self._selective:
            if is_new:
                self.wake_one()
            return
        waits = list(self._selective.get(group.group_id, ()))
        if is_new and self.unselective:
            insort(waits, self.unselective[0], key=_ticket)
        for wait in waits:
            if group.holder is None or group.holder is wait.holder:
                self._wake(wait)

    def wake_own(self, group: Group) -> None:
        """Wake the holder of a group's lock, if it waits for a message of that group or of any."""
        wait = None if group.holder is None else group.holder.receiving
        if wait is not None and wait.line is self and wait.group_id in (None, group.group_id):
            self._wake(wait)

    def wake_selecting(self, group: Group) -> None:
        """Wake the waiters that select the group, because their messages may be gone (RCV-19)."""
        for wait in list(self._selective.get(group.group_id, ())):
            self._wake(wait)

    def wake_one(self) -> None:
        """Wake the first of the unselective waiters."""
        if self.unselective:
            self._wake(self.unselective[0])

    def wake_all(self) -> None:
        """Wake all waiters: the queue has changed."""
        for wait in self._all():
            self._wake(wait)

    def wake_selective(self) -> None:
        """Wake all selective waiters: some groups have moved to another queue (OBJ-35)."""
        for wait in self._all():
            if wait.group_id is not None:
                self._wake(wait)

    def end_all(self) -> None:
        """Make all waiters give up: the daemon drains."""
        for wait in self._all():
            wait.end()

    def _all(self) -> list[ReceiveWait]:
        selective = [wait for of_group in self._selective.values() for wait in of_group]
        return sorted([*self.unselective, *selective], key=_ticket)

    def _wake(self, wait: ReceiveWait) -> None:
        if wait.line is not self:
            return  # an earlier waiter has made it leave
        self.leave(wait)
        self.wake_ups += 1
        wait.resume()
