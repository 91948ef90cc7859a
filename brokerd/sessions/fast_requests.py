"""The fast path of the most common requests: transactions that only send, dialogs of one message,
and a SEND or END inside an open transaction.

Reads: the first unprocessed requests of a client.      Calls: delivery.fastpath.
Never: answers an error: unusual requests take the general path, which reports their errors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from brokerd.broker.transaction import Transaction, TxState
from brokerd.delivery.fastpath.sends import Message, Sends, send_each
from brokerd.delivery.fastpath.short_dialogs import ShortDialog, Terms, converse_each
from brokerd.errors import StoreFault
from brokerd.ids import ID_SIZE, Handle
from brokerd.model import DEFAULT
from brokerd.protocol.client_frames import ClientFrame, Request
from brokerd.protocol.client_verbs import MAX_TOKEN, MAX_VERBS
from brokerd.protocol.headers import find_problem, join
from brokerd.verbs.ends import end_ordinary
from brokerd.verbs.sends import send_ordinary

if TYPE_CHECKING:
    from brokerd.sessions.ports import Client

_One = TypeVar("_One", Sends, ShortDialog)


def perform_leading(session: Client, unread: deque[ClientFrame], limit: int) -> int:
    """Perform the sends, or the short dialogs, at the head of `unread`: at most `limit` requests.

    The first request is a `transact`. Return the number of performed requests; 0 = take the
    general path."""
    if limit <= 0:
        return 0
    first = unread[0]
    client, broker = session.client_id, session.broker
    highest = broker.store.highest_token(client)
    behind = islice(unread, 1, limit)
    try:
        sends = _as_sends(first, highest)
        if sends is not None:
            leading = _leading(sends, behind, _as_sends)
            return send_each(
                broker,
                leading,
                client=client,
                rights=session.rights,
                done=session.responses.confirmed,
            )
        dialog = _as_short_dialog(first, highest)
        if dialog is not None:
            dialogs = _leading(dialog, behind, _as_short_dialog)
            return converse_each(
                broker,
                dialogs,
                client=client,
                rights=session.rights,
                done=session.responses.confirmed,
            )
    except StoreFault:
        pass  # nothing was done, and the general path fails with the same error
    return 0


def send_held_up(
    session: Client, request: int, token: int, messages: Sequence[Message], tx: Transaction
) -> bool:
    """Perform the sends of a request that waited for its locks or for the checks of its bodies.

    `tx` holds the locks, and has done nothing else. Return False if nothing was done: take the
    general path."""
    sends = (Sends(request, token, messages),)
    try:
        sent = send_each(
            session.broker,
            sends,
            client=session.client_id,
            rights=tx.rights,
            done=session.responses.confirmed,
            holder=tx,
        )
    except StoreFault:
        return False  # the general path fails with the same error
    if sent:
        tx.roll_back()  # it has only locks, which this releases
    return bool(sent)


def _leading(
    first: _One, behind: Iterable[ClientFrame], read: Callable[[ClientFrame, int], _One | None]
) -> Iterator[_One]:
    """Yield `first` and the requests of its kind that follow it, each read only when needed."""
    yield first
    highest = first.token
    for frame in behind:
        one = read(frame, highest)
        if one is None:
            return
        highest = one.token
        yield one


def _as_sends(frame: ClientFrame, highest: int) -> Sends | None:
    """Return the request `transact [token, [["send", [handle, type, body, headers]], …]]` as sends.

    None = the request is not of this form."""
    if type(frame) is not Request or frame.verb != "transact" or frame.tx is not None:
        return None
    args: list[Any] = frame.args
    messages: list[Message] = []
    try:
        token, verbs = args
        for verb, sent in verbs:
            try:
                handle, message_type, body = sent
            except ValueError:  # it has headers, or is none of this form
                handle, message_type, body = _joined(sent)
            if (
                verb != "send"
                or type(handle) is not bytes
                or len(handle) != ID_SIZE
                or not (body is None or isinstance(body, bytes))
                or not (message_type is None or type(message_type) is str)
            ):
                return None
            messages.append((Handle(handle), message_type or DEFAULT, body))
    except (TypeError, ValueError):
        return None
    # A token not above the last one may be a repetition: the general path answers it (CLP-51).
    if type(token) is not int or not highest < token <= MAX_TOKEN:
        return None
    return Sends(frame.request, token, messages) if 0 < len(messages) <= MAX_VERBS else None


def _as_short_dialog(frame: ClientFrame, highest: int) -> ShortDialog | None:
    """Return the request `transact [token, [["begin_dialog", …], ["send", …], ["end", …]]]` about
    one dialog as a short dialog.

    None = the request is not of this form, or has a special option."""
    if type(frame) is not Request or frame.verb != "transact" or frame.tx is not None:
        return None
    args: list[Any] = frame.args
    try:
        token, ((begin, begun), (send, sent), (end, ended)) = args
        handle, from_service, to_service, options = begun
        sent_on, message_type, body = sent if len(sent) == _PLAIN_SEND else _joined(sent)
        ended_one, code, description = ended
    except (TypeError, ValueError):
        return None
    # An error, another option or a value of a wrong type is left to the general path, which reports
    # the problem.
    if (
        (begin, send, end) != _SHORT_DIALOG
        or type(token) is not int
        or not highest < token <= MAX_TOKEN
        or type(handle) is not bytes
        or len(handle) != ID_SIZE
        or sent_on != handle
        or ended_one != handle
        or code is not None
        or description is not None
        or not (body is None or isinstance(body, bytes))
        or type(options) is not dict
        or not options.keys() <= _ORDINARY_OPTIONS
    ):
        return None
    terms = Terms(
        from_service,
        to_service,
        options.get("contract") or DEFAULT,
        message_type or DEFAULT,
        options.get("lifetime"),
    )
    if not _are_of_their_types(terms) or type(options.get("encryption")) not in _FLAG:
        return None
    return ShortDialog(frame.request, token, Handle(handle), terms, body)


def _joined(sent: Sequence[Any]) -> tuple[Any, Any, bytes]:
    """Return handle, type and content of a send with headers; `ValueError`: it is special."""
    handle, message_type, body, headers = sent
    is_plain = type(headers) is dict and headers and (body is None or type(body) is bytes)
    if not is_plain or find_problem(headers):
        raise ValueError("it has no headers, or wrong arguments")
    return handle, message_type, join(headers, body)


_PLAIN_SEND: Final = 3
"""Number of arguments of a send without headers."""
_SHORT_DIALOG: Final = ("begin_dialog", "send", "end")
_ORDINARY_OPTIONS: Final = frozenset({"contract", "lifetime", "encryption"})
_FLAG: Final = (bool, type(None))


def _are_of_their_types(terms: Terms) -> bool:
    """Return whether names and lifetime have the right types; a client may write any values."""
    names = type(terms[0]) is type(terms[1]) is type(terms[2]) is type(terms[3]) is str
    return names and type(terms.lifetime) in _NUMBER


_NUMBER: Final = (int, type(None))


def perform_ordinary(tx: Transaction, verb: str, args: list[Any]) -> bool:
    """Perform a SEND on one open dialog, or an END of dialogs that the other side has ended.

    Return False if nothing was done."""
    perform = _ORDINARY.get(verb)
    if perform is None or tx.state is not TxState.OPEN:
        return False
    if tx.verbs >= tx.broker.options.max_verbs or not perform(tx, args):
        return False
    tx.performed(verb)
    return True


def _send(tx: Transaction, args: list[Any]) -> bool:
    """Perform SEND `[handle, type, body, headers]`; the headers may be left out."""
    try:
        handle, message_type, body = args if len(args) == _PLAIN_SEND else _joined(args)
    except ValueError:
        return False
    return (
        type(handle) is bytes
        and len(handle) == ID_SIZE
        and (message_type is None or type(message_type) is str)
        and (body is None or isinstance(body, bytes))
        and send_ordinary(tx, Handle(handle), message_type or DEFAULT, body)
    )


def _end(tx: Transaction, args: list[Any]) -> bool:
    """Perform END `[handle or handles, nil, nil]`."""
    if len(args) != 3 or args[1] is not None or args[2] is not None:  # noqa: PLR2004  # see above
        return False
    handles = args[0] if type(args[0]) is list else args[:1]
    if not 0 < len(handles) <= MAX_VERBS:
        return False
    named = [Handle(one) for one in handles if type(one) is bytes and len(one) == ID_SIZE]
    return len(named) == len(handles) and end_ordinary(tx, named)


_ORDINARY: Final[Mapping[str, Callable[[Transaction, list[Any]], bool]]] = {
    "send": _send,
    "end": _end,
}
