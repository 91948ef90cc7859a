"""Conversation timers, and the clean-up of a dialog (DLG).

Reads: the broker's memory.      Calls: group_locks, broker.transaction.
Never: commits or waits. A verb that has to wait returns `Blocked` and is called again.
Fails: with the errors of appendix A.
"""

from brokerd.broker.blocked import Blocked
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction
from brokerd.clock import Instant, show_instant
from brokerd.errors import ConversationNotFound, InvalidState, TimerBeyondLifetime
from brokerd.ids import Handle, show
from brokerd.protocol import dialog
from brokerd.protocol.transitions import State
from brokerd.verbs.group_locks import find, lock_group_of
from brokerd.verbs.sends import load_peer


def set_timer(
    tx: Transaction, handle: Handle, milliseconds: int | None, name: str
) -> Blocked | None:
    """Set or replace a conversation timer; None cancels it (DLG-35 to DLG-40, PBT-23)."""
    live = find(tx, handle)
    if isinstance(live, Blocked):
        return live
    blocked = lock_group_of(tx, live)
    if blocked is not None:
        return blocked
    endpoint = tx.view(live)
    if endpoint is None or not dialog.may_set_timer(endpoint):
        state = State.NONE if endpoint is None else endpoint.state
        raise InvalidState(
            f"conversation {show(handle)}: set_timer is not allowed in state {state}", ssb_code=8458
        )
    due: Instant | None = None
    if milliseconds is not None:
        due = Instant(tx.broker.clock.utc() + milliseconds * 1000)
        if due > endpoint.expires_at:
            raise TimerBeyondLifetime(
                f"the timer of conversation {show(handle)} would be due at {show_instant(due)}; "
                f"the dialog expires at {show_instant(endpoint.expires_at)}"
            )
    tx.set_timer(live, name, due)
    return None


def clean_up(tx: Transaction, handle: Handle) -> Live | Blocked:
    """Remove an endpoint in any state, without notifying the peer (DLG-23, DLG-T27).

    For administrators: a program that calls this loses messages (DLG-24)."""
    live = find(tx, handle)
    if isinstance(live, Blocked):
        return live
    blocked = lock_group_of(tx, live) or load_peer(tx, live)
    if blocked is not None:
        return blocked
    if live.gone:  # during the wait for the lock
        raise ConversationNotFound(f"no conversation {show(handle)} is open here")
    if live.beyond is None:
        return live.queue.count_beyond(live)
    tx.want(live, dialog.CleanupRequested())
    return live
