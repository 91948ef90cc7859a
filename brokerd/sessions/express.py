"""The commonest request, one send as its own transaction, without building the general forms.

Reads: the arguments of a `transact` request.      Calls: delivery.direct.
Never: answers an error: whatever is unusual is left to the general way, which says what is wrong.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.delivery.direct import send_one
from brokerd.ids import ID_SIZE, Handle
from brokerd.model import DEFAULT
from brokerd.protocol.client_verbs import MAX_TOKEN

if TYPE_CHECKING:
    from brokerd.sessions.session import ClientSession


def send_at_once(session: ClientSession, request: int, args: list[Any]) -> bool:
    """Perform `[token, [["send", [handle, type, body]]]]`; False = not that, or not so simple."""
    try:
        token, ((verb, (handle, message_type, body)),) = args
    except (TypeError, ValueError):
        return False
    if (
        verb != "send"
        or type(token) is not int
        or type(handle) is not bytes
        or len(handle) != ID_SIZE
        or not (body is None or type(body) is bytes)
        or not (message_type is None or type(message_type) is str)
        or token > MAX_TOKEN
        or token <= session.broker.store.highest_token(session.client_id)
    ):
        return False
    return send_one(
        session.broker,
        Handle(handle),
        message_type or DEFAULT,
        body,
        client=session.client_id,
        token=token,
        done=partial(session.done, request),
    )
