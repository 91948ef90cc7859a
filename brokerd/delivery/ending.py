"""END of a dialog that the other side has ended already, in a transaction that has its group.

Reads: the broker's memory.      Calls: broker.transactions.
Never: decides anything that `verbs.end` would decide otherwise. Where there is anything to decide
(a lock, a wait, a refusal, another state) it does nothing, and the caller takes the long way.

Each dialog has such an end, and mostly it follows a receive: the lock is there, and nobody is told.
"""

from __future__ import annotations

from typing import Final

from brokerd.broker.transactions import Transaction, TxState
from brokerd.ids import Handle
from brokerd.protocol import dialog
from brokerd.protocol.transitions import State


def end_plainly(tx: Transaction, handle: Handle) -> bool:
    """End this side of a dialog; False = nothing was done."""
    if tx.state is not TxState.OPEN or tx.failure is not None or tx.rights is not None:
        return False
    live = tx.broker.endpoints.find(handle)
    if live is None or live.group.holder is not tx or live.beyond is None:
        return False
    endpoint = tx.view(live)
    if endpoint is None or endpoint.state is not State.DISCONNECTED_INBOUND:
        return False
    if tx.verbs >= tx.broker.options.max_verbs:
        return False
    tx.verb = "end"
    tx.verbs += 1
    tx.want(live, _END)
    return True


_END: Final = dialog.EndRequested()
