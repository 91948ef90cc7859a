"""Fast path of an ordinary SEND inside an open transaction.

Reads: the broker's memory.      Calls: broker.transaction.
Never: waits or reports an error: anything unusual is left to `verbs.sends`, which does both.
"""

from __future__ import annotations

from brokerd.broker.messages import NewMessage
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction
from brokerd.ids import Handle, MessageId


def send_plainly(tx: Transaction, handle: Handle, message_type: str, body: bytes | None) -> bool:
    """Send on an open dialog whose group is free or locked by this transaction.

    False: nothing was done, and `verbs.sends` has to be called."""
    broker = tx.broker
    live = broker.endpoints.find(handle)
    if live is None or not _is_at_hand(tx, live) or not _is_plain(tx, live, message_type, body):
        return False
    base = tx.view(live)
    if base is None or not live.contract.allows(message_type, initiator=base.is_initiator):
        return False
    message = NewMessage(message_type, body or None, MessageId(broker.ids.fresh()))
    if not tx.sends_plainly(live, base, message):
        return False
    if live.group.holder is not tx:
        live.group.lock(tx)
    tx.charge(len(body) if body else 0)
    broker.sends += 1
    return True


def _is_at_hand(tx: Transaction, live: Live) -> bool:
    """Return whether the send has to wait neither for a lock nor for the far endpoint."""
    group = live.group
    if group.holder is not tx and (group.holder is not None or group.line):
        return False
    return tx.failure is None and (live.peer is not None or not live.is_local)


def _is_plain(tx: Transaction, live: Live, message_type: str, body: bytes | None) -> bool:
    """Return whether no permission, limit, retained copy or check of the body applies."""
    broker, options = tx.broker, tx.broker.options
    if not options.fast_paths or tx.rights is not None or live.queue.retains or broker.is_full:
        return False
    size = len(body) if body else 0
    if size >= options.large_body or size > options.max_message:
        return False
    if tx.size + size > options.max_bytes or message_type in broker.checked_on_send:
        return False
    return not broker.inspection.concerns(broker.message_types.get(message_type), size)
