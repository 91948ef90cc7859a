"""Moves: conversations that a transaction has moved to other groups, not yet committed (GRP-18).

Reads: nothing.      Calls: the groups, which take the conversations in.
Never: commits; others see a conversation in its old group until the transaction is over.
"""

from __future__ import annotations

from brokerd.broker.state import Group, Live


class Moves:
    """The moves of one transaction, in order."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: list[tuple[Live, Group]] = []  # with the group it was in before

    def __len__(self) -> int:
        return len(self._made)

    def make(self, live: Live, group: Group) -> None:
        """Move a conversation, with its messages, to another group."""
        self._made.append((live, live.group))
        group.take_in(live)

    def undo(self, first: int) -> None:
        """Undo all moves but the first `first`."""
        for live, before in reversed(self._made[first:]):
            if not live.gone:
                before.take_in(live)
        del self._made[first:]

    def settle(self) -> None:
        """Forget the moves, which are committed and visible to all transactions."""
        self._made.clear()

    def group_before(self, live: Live) -> Group | None:
        """Return the group of a moved conversation as others see it; None = it was not moved."""
        return next((before for moved, before in self._made if moved is live), None)
