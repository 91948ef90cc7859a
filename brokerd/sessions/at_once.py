"""The fast path of an ordinary SEND or END inside an open transaction.

Reads: arguments as a client writes them, which may be anything.
Calls: delivery.fastpath.plain_sends, verbs.ends.
Never: waits or raises: the general path takes whatever is unusual, and reports the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from brokerd.broker.transaction import Transaction, TxState
from brokerd.delivery.fastpath.plain_sends import send_plainly
from brokerd.ids import ID_SIZE, Handle
from brokerd.model import DEFAULT
from brokerd.protocol.client_verbs import MAX_VERBS
from brokerd.verbs.ends import end_plainly


def perform_at_once(tx: Transaction, verb: str, args: list[Any]) -> bool:
    """Perform a SEND on one open dialog, or an END of dialogs that the other side has ended.

    False = nothing was done."""
    plainly = _PLAINLY.get(verb)
    if plainly is None or tx.state is not TxState.OPEN:
        return False
    if tx.verbs >= tx.broker.options.max_verbs or not plainly(tx, args):
        return False
    tx.verb = verb
    tx.verbs += 1
    return True


def _send(tx: Transaction, args: list[Any]) -> bool:
    """Perform SEND `[handle, type, body]`."""
    if len(args) != 3:  # noqa: PLR2004  # see above
        return False
    handle, message_type, body = args
    return (
        type(handle) is bytes
        and len(handle) == ID_SIZE
        and (message_type is None or type(message_type) is str)
        and (body is None or type(body) is bytes)
        and send_plainly(tx, Handle(handle), message_type or DEFAULT, body)
    )


def _end(tx: Transaction, args: list[Any]) -> bool:
    """Perform END `[handle or handles, nil, nil]`."""
    if len(args) != 3 or args[1] is not None or args[2] is not None:  # noqa: PLR2004  # see above
        return False
    handles = args[0] if type(args[0]) is list else args[:1]
    if not 0 < len(handles) <= MAX_VERBS:
        return False
    plain = [Handle(one) for one in handles if type(one) is bytes and len(one) == ID_SIZE]
    return len(plain) == len(handles) and end_plainly(tx, plain)


_PLAINLY: Final[Mapping[str, Callable[[Transaction, list[Any]], bool]]] = {
    "send": _send,
    "end": _end,
}
