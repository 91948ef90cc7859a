"""END of dialogs (DLG-18 to DLG-25, DLG-47), within a transaction.

Reads: the broker's memory.      Calls: verbs.sends, broker.transaction, protocol.dialog.
Never: commits, or changes anything before it has all it needs. A verb that has to wait returns
`Blocked` and is called again (`broker.blocked`).
Fails: with the errors of appendix A; the session then marks the transaction as failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerd.broker import ordinary
from brokerd.broker.blocked import Blocked
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction
from brokerd.errors import ErrorNeedsCodeAndText, InvalidArgument, InvalidState
from brokerd.ids import Handle, show
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State, Trigger
from brokerd.protocol.wire import MAX_ERROR
from brokerd.verbs.sends import find_and_lock

MAX_ERROR_TEXT: Final = 3000


def end(
    tx: Transaction, handles: Sequence[Handle], code: int | None, description: str | None
) -> Blocked | None:
    """End this side of one or several dialogs, all or none (DLG-18 to DLG-25, DLG-47).

    They end with an error if one is given."""
    if code is None and description is None and end_ordinary(tx, handles):  # fast path
        return None
    if (code is None) != (description is None) or (code is not None and code <= 0):
        raise ErrorNeedsCodeAndText(
            f"conversation {show(handles[0])} cannot end with error {code} and "
            f"{'a' if description is not None else 'no'} description"
        )
    if code is not None and code > MAX_ERROR:
        raise InvalidArgument(
            f"error {code} is too large", hint=f"give a number from 1 to {MAX_ERROR}"
        )
    if description is not None and len(description) > MAX_ERROR_TEXT:
        raise InvalidArgument(
            f"description has {len(description)} characters, of which {MAX_ERROR_TEXT} may be sent",
            hint="send what is longer as a message before the end",
        )
    lives = find_and_lock(tx, handles)
    if isinstance(lives, Blocked):
        return lives
    trigger = Trigger.END if code is None else Trigger.END_ERROR
    # All states are checked and all counts read before the first dialog is ended: a verb that fails
    # or waits has ended none.
    for live in lives:
        _check_state(tx, live, trigger)
    for live in lives:
        if live.beyond is None:
            return live.queue.count_beyond(live)
    event = dialog.EndRequested(code=code, description=description or "")
    for live in lives:
        tx.want(live, event)
    return None


def _check_state(tx: Transaction, live: Live, trigger: Trigger) -> None:
    endpoint = tx.view(live)
    if endpoint is None or not dialog.may(endpoint, trigger):
        name, state = show(live.endpoint.handle), endpoint.state if endpoint else State.NONE
        raise InvalidState(f"conversation {name}: end is not allowed in state {state}")


def end_ordinary(tx: Transaction, handles: Sequence[Handle]) -> bool:
    """Fast path of `end`: end dialogs that their peers have ended.

    The transaction has locked their groups, as it mostly has after a receive. Return False if
    nothing was done."""
    if not ordinary.may_end(tx.broker, tx) or len(handles) != len(set(handles)):
        return False
    find, ends = tx.broker.endpoints.find, list[tuple[Live, DialogEndpoint, dialog.Step]]()
    for handle in handles:
        live = find(handle)
        if live is None or live.group.holder is not tx or live.beyond is None:
            return False
        if not ordinary.may_act(tx.broker, live.queue, tx.rights):
            return False
        endpoint = tx.view(live)
        outcome = None if endpoint is None else dialog.ordinary_end(endpoint)
        if endpoint is None or outcome is None:
            return False
        ends.append((live, endpoint, outcome))
    tx.want_ordinary_ends(ends)
    return True
