"""MOVE CONVERSATION, and the state that an application keeps for a group (GRP-18 to GRP-22).

Reads: the broker's memory.      Calls: group_locks, broker.transaction.
Never: commits, or changes anything before it has every lock it needs.
Fails: with the errors of appendix A; the session then marks the transaction as failed.
"""

from __future__ import annotations

from typing import Final

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.state import Group
from brokerd.broker.transaction import Transaction
from brokerd.errors import GroupNotFound, GroupServiceMismatch, InvalidState
from brokerd.ids import GroupId, Handle, show
from brokerd.protocol import dialog
from brokerd.protocol.transitions import State
from brokerd.verbs.group_locks import find, group_of, lock, locked, may_have, pin_one_of

NOT_MOVABLE: Final = 8438
"""Service Broker's number for a move in the wrong state (ERR-8427)."""


def move(tx: Transaction, handle: Handle, group_id: GroupId) -> Blocked | None:
    """Move a conversation, with its messages, to another group of its service (GRP-18)."""
    live = find(tx, handle)
    if isinstance(live, Blocked):
        return live
    group = _named(tx, group_id)
    if isinstance(group, Blocked):
        return group
    for each in sorted((group_of(tx, live), group), key=lambda one: one.group_id):  # as in SND-10
        blocked = lock(tx, each)
        if blocked is not None:
            return blocked
    endpoint = tx.view(live)
    if endpoint is None or not dialog.may_move(endpoint):
        state = State.NONE if endpoint is None else endpoint.state
        error = InvalidState(f"conversation {show(handle)}: move is not allowed in state {state}")
        error.ssb_code = NOT_MOVABLE  # type: ignore[misc]  # one name, several numbers
        raise error
    if group.service != endpoint.service:
        raise GroupServiceMismatch(
            f"conversation group {show(group_id)} belongs to service {group.service!r}, and the "
            f"conversation to {endpoint.service!r}",
            hint="move it into a group of its own service",
        )
    if tx.broker.held.is_unchecked(live):
        raise InvalidState(
            f"conversation {show(handle)} has a message whose check came to no verdict, so it "
            "stays in its group, which is parked for that",
            hint="brokerd group discard, edit, release or end deals with the message",
        )
    if group is not live.group:
        is_held = group.held is not None or live.group.held is not None
        if is_held and live.beyond is None:  # the number of parked messages changes (RCV-34)
            return live.queue.count_beyond(live)
        tx.move(live, group)
    return None


def get_state(tx: Transaction, group_id: GroupId, *, take_lock: bool) -> bytes | Blocked | None:
    """Return the state of a group that this transaction has locked (GRP-22).

    `take_lock`: lock the group first."""
    if take_lock:
        group = _named(tx, group_id)
        if isinstance(group, Blocked):
            return group
        blocked = lock(tx, group)
        if blocked is not None:
            return blocked
    group = locked(tx, group_id)
    tx.keep_locks()
    mine, state = tx.state_of(group)
    if mine:
        return state
    if group.state_known:
        return group.state

    def register(resume: Resume) -> None:
        tx.broker.group_members.read_state(group, resume)

    return Blocked("state", register)


def set_state(tx: Transaction, group_id: GroupId, state: bytes | None) -> None:
    """Set the state of a group locked by this transaction, in the same commit (GRP-22)."""
    tx.set_state(locked(tx, group_id), state)


def _named(tx: Transaction, group_id: GroupId) -> Group | Blocked:
    """Return the group with this id; the transaction pins one of its endpoints in memory."""
    found = tx.broker.group_members.look_up(group_id, tx)
    if found is None or (isinstance(found, Group) and not may_have(tx, found)):
        raise GroupNotFound(f"there is no conversation group {show(group_id)} (any more)")
    if isinstance(found, Group):
        pin_one_of(tx, found)
    return found
