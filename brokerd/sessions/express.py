"""The commonest requests, sends that are transactions of their own, without the general forms.

Reads: the requests at the head of what a client wrote.      Calls: delivery.direct.
Never: answers an error: whatever is unusual is left to the general way, which says what is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from brokerd.delivery.direct import Send, send_each
from brokerd.errors import StoreFault
from brokerd.ids import ID_SIZE, Handle
from brokerd.model import DEFAULT
from brokerd.protocol.client_frames import ClientFrame, Request
from brokerd.protocol.client_verbs import MAX_TOKEN

if TYPE_CHECKING:
    from brokerd.sessions.session import ClientSession


def send_at_once(session: ClientSession, unread: deque[ClientFrame], limit: int) -> int:
    """Perform the sends that come first, at most `limit`; how many. 0 = the general way."""
    client = session.client_id
    highest = session.broker.store.highest_token(client)
    if limit <= 0 or _as_send(unread[0], highest) is None:
        return 0
    sends = _sends(islice(unread, limit), highest)
    try:
        return send_each(session.broker, sends, client=client, done=session.confirmed)
    except StoreFault:
        return 0  # nothing was done, and the general way fails alike


def _sends(frames: Iterable[ClientFrame], highest: int) -> Iterator[Send]:
    """The sends that come first, read as they are wanted: whoever stops at one reads no more."""
    for frame in frames:
        send = _as_send(frame, highest)
        if send is None:
            return
        highest = send.token
        yield send


def _as_send(frame: ClientFrame, highest: int) -> Send | None:
    """The request `transact [token, [["send", [handle, type, body]]]]`, if it is one."""
    if type(frame) is not Request or frame.verb != "transact" or frame.tx is not None:
        return None
    args: list[Any] = frame.args
    try:
        token, ((verb, (handle, message_type, body)),) = args
    except (TypeError, ValueError):
        return None
    if (
        verb != "send"
        or type(token) is not int
        or not highest < token <= MAX_TOKEN
        or type(handle) is not bytes
        or len(handle) != ID_SIZE
        or not (body is None or type(body) is bytes)
        or not (message_type is None or type(message_type) is str)
    ):
        return None
    return Send(frame.request, token, Handle(handle), message_type or DEFAULT, body)
