"""Who waits for a message of one queue, and who is woken (RCV-19 to RCV-21).

Reads: nothing.      Calls: those who wait, one after the other.
Never: wakes more of them than can be served: a group is for one, and only its lock says whose.

Whoever is woken tries at once, before the next one is. So it is known then whether the group is
still to be had. Who tried in vain stands in its old place again.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING

from brokerd.broker.blocked import Resume
from brokerd.ids import GroupId

if TYPE_CHECKING:
    from brokerd.broker.groups import Group, Holder


class ReceiveWait:
    """A receive or get_group that waits for a message."""

    __slots__ = ("end", "group_id", "holder", "line", "resume", "ticket")

    def __init__(
        self,
        *,
        holder: Holder,
        group_id: GroupId | None,
        ticket: int,
        resume: Resume,
        end: Resume,
    ) -> None:
        self.holder = holder
        self.group_id = group_id
        """The group it selects; None = whichever comes."""
        self.ticket = ticket
        """Its number in the order of arrival (RCV-21)."""
        self.resume = resume
        """Try again: there may be a message."""
        self.end = end
        """Give up, as if the time were over."""
        self.line: WaitingLine | None = None
        """Where it stands; None = it was woken, or has left."""


_ticket = attrgetter("ticket")


class WaitingLine:
    """Those who wait at one queue, in order of arrival."""

    __slots__ = ("_selective", "_tickets", "unselective", "wake_ups")

    def __init__(self) -> None:
        self.unselective: list[ReceiveWait] = []
        """Those that take whatever group comes."""
        self._selective: dict[GroupId, list[ReceiveWait]] = {}
        self._tickets = 0
        self.wake_ups = 0
        """How often somebody was woken, since the start."""

    def next_ticket(self) -> int:
        """The place of one that begins to wait."""
        self._tickets += 1
        return self._tickets

    def join(self, wait: ReceiveWait) -> None:
        """Stand in line, in the place of the ticket."""
        if wait.group_id is None:
            insort(self.unselective, wait, key=_ticket)
        else:
            insort(self._selective.setdefault(wait.group_id, []), wait, key=_ticket)
        wait.line = self
        wait.holder.receiving = wait

    def leave(self, wait: ReceiveWait) -> None:
        """Wait no longer (RCV-22)."""
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
        """Whether anybody waits."""
        return bool(self.unselective or self._selective)

    def expects(self, group_id: GroupId) -> bool:
        """Whether somebody selects that group."""
        return group_id in self._selective

    def wake_for(self, group: Group, *, is_new: bool) -> None:
        """The group may have something for those that select it; `is_new`: and for one other.

        In order of arrival, and none once the group has gone to somebody else."""
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
        """Something came for a locked group: whoever has the lock may wait for just that."""
        wait = None if group.holder is None else group.holder.receiving
        if wait is not None and wait.line is self and wait.group_id in (None, group.group_id):
            self._wake(wait)

    def wake_selecting(self, group: Group) -> None:
        """Let everybody try that selects the group: what they select may be gone (RCV-19)."""
        for wait in list(self._selective.get(group.group_id, ())):
            self._wake(wait)

    def wake_one(self) -> None:
        """Let the first of those that take any group try."""
        if self.unselective:
            self._wake(self.unselective[0])

    def wake_all(self) -> None:
        """Let everybody try: the queue is not what it was."""
        for wait in self._all():
            self._wake(wait)

    def wake_selective(self) -> None:
        """Let everybody try that selects a group: some are on this queue no longer (OBJ-35)."""
        for wait in self._all():
            if wait.group_id is not None:
                self._wake(wait)

    def end_all(self) -> None:
        """Let everybody give up: the daemon drains."""
        for wait in self._all():
            wait.end()

    def _all(self) -> list[ReceiveWait]:
        selective = [wait for of_group in self._selective.values() for wait in of_group]
        return sorted([*self.unselective, *selective], key=_ticket)

    def _wake(self, wait: ReceiveWait) -> None:
        if wait.line is not self:
            return  # an earlier one has made it leave
        self.leave(wait)
        self.wake_ups += 1
        wait.resume()
