"""Verb dispatch: runs a client's verbs in a transaction, and encodes messages for the client.

Reads: parsed verbs.      Calls: verbs.sends, receives, ends, groups, timers, body_checks.
Never: commits, or answers a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.broker import Broker
from brokerd.broker.changeset import TIMER
from brokerd.broker.poison import Undone
from brokerd.broker.state import Taken
from brokerd.broker.transaction import Transaction
from brokerd.errors import DuplicateHandle, QuotaExceeded
from brokerd.ids import BrokerId, GroupId, Handle, show
from brokerd.model import DEFAULT
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.client_frames import PART_SIZE, Bulky, is_bulk
from brokerd.protocol.headers import Content, body_of
from brokerd.verbs import body_checks, ends, groups, receives, sends
from brokerd.verbs.dialog_limit import before_begin
from brokerd.verbs.timers import set_timer

_BODY: Final = 5
"""Position of the body in a message (CLP-36)."""
_RECEIVED: Final = 0
"""The status of a received message (RCV-27), which comes before its headers (CLP-168)."""


def raise_failure(tx: Transaction) -> None:
    """Raise the error of a failed wait, before the verb can raise another one.

    A deadlock victim has to roll back; another error, for instance because the conversation has
    ended meanwhile, would hide the deadlock (GRP-12)."""
    if tx.failure is not None:
        raise tx.failure


class Beginner(Protocol):
    """The client, as far as the dialogs are limited that its user may have begun (REL-45)."""

    user: str

    @property
    def most_dialogs(self) -> int:
        """Number of open dialogs that its user may have begun; 0 = no limit."""
        ...


def perform(
    tx: Transaction, verb: wire.PlainVerb | wire.Savepoint, client: Beginner
) -> Blocked | None:
    """Run, in a transaction, a verb that returns no value.

    Return the wait of the verb; None = the verb is done."""
    if tx.verbs >= tx.broker.options.max_verbs:
        raise QuotaExceeded(f"a transaction has at most {tx.broker.options.max_verbs} verbs")
    tx.begin_verb(wire.NAMES[type(verb)])
    blocked: Blocked | None = None
    match verb:
        case wire.Send(handles, message_type, body):
            blocked = sends.send(tx, _named(handles), message_type or DEFAULT, body)
        case wire.BeginDialog():
            blocked = _begin_counted(tx, verb, client)
        case wire.End(handles, code, description):
            blocked = ends.end(tx, _named(handles), code, description)
        case wire.SetTimer(handle, after_ms, name):
            blocked = set_timer(tx, Handle(handle), after_ms, name or "")
        case wire.Move(handle, group_id):
            blocked = groups.move(tx, Handle(handle), GroupId(group_id))
        case wire.Savepoint(number):
            tx.set_savepoint(number)
        case wire.SetState(group_id, state):
            groups.set_state(tx, GroupId(group_id), state)
    if blocked is None:  # a verb that waits is performed again, and must count once
        tx.count_verbs()
    return blocked


def prepare(tx: Transaction, verb: object, done: Resume) -> bool:
    """Begin the body check of a verb before its turn; call `done` when the check is finished.

    Return False if the verb needs no check, or its check was begun before."""
    if type(verb) is not wire.Send:
        return False
    handles = (verb.handles,) if isinstance(verb.handles, bytes) else verb.handles
    named = [Handle(one) for one in handles]
    body = body_of(verb.body)
    return body_checks.check_ahead(tx, named, verb.message_type or DEFAULT, body, done)


def _named(handles: bytes | list[bytes]) -> Sequence[Handle]:
    """Return the handles that a verb names; raise if one is named twice (SND-8, DLG-47)."""
    if isinstance(handles, bytes):
        return (Handle(handles),)
    many = [Handle(one) for one in handles]
    if len(set(many)) != len(many):
        twice = next(at for at, one in enumerate(many) if one in many[:at])
        raise DuplicateHandle(f"handle {show(many[twice])} at position {twice} is given twice")
    return many


def _begin_counted(tx: Transaction, verb: wire.BeginDialog, client: Beginner) -> Blocked | None:
    """Begin a dialog, and count it for the user if the number of dialogs is limited."""
    user, broker = client.user, tx.broker
    most = client.most_dialogs if user else 0
    if not most:
        return _begin_dialog(tx, verb)
    blocked = before_begin(broker, user, most) or _begin_dialog(tx, verb)
    live = None if blocked is not None else broker.endpoints.find(Handle(verb.handle))
    if live is not None:
        broker.owners.begun(live, user)
    return blocked


def _begin_dialog(tx: Transaction, verb: wire.BeginDialog) -> Blocked | None:
    given = verb.options
    options = sends.DialogOptions(
        contract=given.contract,
        broker_id=None if given.broker_id is None else BrokerId(given.broker_id),
        related_conversation=None
        if given.related_conversation is None
        else Handle(given.related_conversation),
        related_group=None if given.related_group is None else GroupId(given.related_group),
        lifetime=given.lifetime,
        encryption=given.encryption,
        error_queue=given.error_queue,
    )
    return sends.begin_dialog(tx, Handle(verb.handle), verb.from_service, verb.to_service, options)


def to_undone(options: wire.RollbackOptions) -> Undone:
    """Return what a rollback with these options means for poison (PBT-10)."""
    return Undone(
        error=options.error,
        counts=options.counts,
        retry_after=None if options.retry_ms is None else options.retry_ms / 1000,
        park=options.park,
    )


def to_receive(verb: wire.Receive | wire.GetGroup) -> receives.ReceiveRequest:
    """Return the receive request of the verb; for GET GROUP, one that receives no messages."""
    wait: float | None = None
    if verb.wait_ms is not None:
        wait = receives.FOREVER if verb.wait_ms == wire.FOREVER_MS else verb.wait_ms / 1000
    if isinstance(verb, wire.GetGroup):
        return receives.ReceiveRequest(verb.queue, wait=wait)
    return receives.ReceiveRequest(
        verb.queue,
        max_messages=verb.max_messages,
        conversation=None if verb.conversation is None else Handle(verb.conversation),
        group=None if verb.group is None else GroupId(verb.group),
        wait=wait,
        groups=verb.groups,
    )


def _separate_headers(value: list[object], content: Content) -> None:
    """Put the body of a message with headers into its place, and the headers behind (CLP-168)."""
    value[_BODY] = content.body
    value += (_RECEIVED, content.headers)
    content.release()


def message_values(broker: Broker, taken: list[Taken]) -> list[list[object]]:
    """Return received messages in the form of an answer (CLP-36).

    Validation codes come from the current declarations of the message types (RCV-29)."""
    values: list[list[object]] = []
    codes: dict[str, str] = {}
    for live, messages, *_ in taken:
        endpoint = live.endpoint
        handle, conversation_id, service = (
            endpoint.handle,
            endpoint.conversation_id,
            endpoint.service,
        )
        contract, priority, group_id = endpoint.contract, endpoint.priority, live.group.group_id
        for one in messages:
            kind, body, timer_name = one.message_type, one.body, None
            if one.sequence == TIMER:  # its row has the name as its body (DLG-42)
                timer_name, body = (body or b"").decode() or None, None
            code = codes.get(kind)
            if code is None:
                code = codes[kind] = broker.validation_code(kind)
            values.append(
                [
                    handle,
                    conversation_id,
                    group_id,
                    one.sequence,
                    kind,
                    body,
                    service,
                    contract,
                    one.order,
                    priority,
                    one.enqueued_at,
                    one.deliveries,
                    one.message_id,
                    code,
                    timer_name,
                ]
            )
            if type(body) is Content:
                _separate_headers(values[-1], body)
    if sum(one.size for one in taken) < PART_SIZE:
        return values
    return Bulky(values) if any(is_bulk(one[_BODY]) for one in values) else values
