"""Administration of poison: groups that are held, queues that are off (PBT-3, PSN-11).

Reads:  one broker.      Calls: verbs.receives, verbs.ends, in transactions of its own; the store.
Never:  touches a group that is not held, or a message while a transaction has its group.
Fails:  `GroupNotFound`: the group is not held; `LockTimeout` names the holder of its lock.
Every verb is written to the log with its actor and reason.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from brokerd.broker import checks
from brokerd.broker.blocked import settle
from brokerd.broker.broker import Broker
from brokerd.broker.messages import QueuedMessage
from brokerd.broker.parking import CHECK_OVERRUN
from brokerd.broker.state import (
    Held,
    HomeQueue,
    Live,
    Taken,
)
from brokerd.broker.transaction import Transaction
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import (
    Busy,
    GroupNotFound,
    InvalidArgument,
    InvalidState,
    QueueNotFound,
    ValidationFailed,
)
from brokerd.ids import ConversationId, GroupId, parse, show
from brokerd.model import SYSTEM_TYPES, QueueStatus
from brokerd.objects.validation import is_json
from brokerd.protocol import admin_verbs as admin
from brokerd.protocol import dialog
from brokerd.protocol.headers import body_of, with_body
from brokerd.protocol.transitions import Trigger
from brokerd.routing.reasons import Reason
from brokerd.storage.hashes import body_hash
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION, PARKING, QUEUE_DISABLED
from brokerd.verbs import ends, receives

Row = dict[str, object]
Switch = Callable[[Broker, str, QueueStatus | None, str], Awaitable[bool]]
"""Function that switches a queue; arguments: broker, queue, status (None = on), actor."""
BY = "administration"
_FOR_ONE_MESSAGE = frozenset({Reason.DAMAGED.value, CHECK_OVERRUN})
"""Reasons that concern one specific message of the group, at any position."""


class Parked:
    """Performer of the verbs for held groups."""

    def __init__(self, *, log: Log, switch: Switch) -> None:
        self._log = log
        self._switch = switch

    async def disable(self, broker: Broker, queue: str, status: QueueStatus) -> None:
        """Switch a queue off because of rollbacks, in a transaction of the broker (PSN-7)."""
        try:
            switched = await self._switch(broker, queue, status, status.changed_by)
        except Busy:  # the broker is being administered: the next rollback tries again (MAN-1)
            return
        if switched:
            self._log.warning(
                QUEUE_DISABLED,
                broker=broker.name,
                queue=queue,
                reason=status.reason,
                rollbacks=status.rollbacks,
                conversation_id=show(status.conversation_id),
                message_id=show(status.message_id),
                error=status.error,
            )

    def parking(self, broker: Broker, what: str, fields: dict[str, object]) -> None:
        """Log a change of a held group; parking is also an event for subscribers (EVT-2)."""
        write = self._log.warning if what == "parked" else self._log.info
        write(PARKING, subclass=what, broker=broker.name, **fields)

    async def run(self, broker: Broker, verb: admin.PoisonVerb, actor: str) -> Row:
        """Perform one of the verbs; return its answer."""
        match verb:
            case admin.ReleaseGroup(_, group, reason):
                _held(broker, GroupId(group))
                _refuse_damaged(broker, GroupId(group))
                self._log_event("released", broker, group, actor, reason)
                broker.held.release(GroupId(group))
                return {"messages": 0}
            case admin.DiscardGroup(_, group, everything, reason, message):
                count = await _discard(broker, GroupId(group), message, everything=everything)
                self._log_event("discarded", broker, group, actor, reason, messages=count)
                return {"messages": count}
            case admin.EndGroup(_, group, code, text):
                _held(broker, GroupId(group))
                count = await _end_all(broker, GroupId(group), code, text)
                broker.held.release(GroupId(group))
                self._log_event("ended", broker, group, actor, text, dialogs=count, code=code)
                return {"dialogs": count}
            case admin.EditGroup(_, group, body, reason, as_it_is, message):
                edited = await _edit(broker, GroupId(group), body, message, as_it_is=as_it_is)
                message_id = show(edited.message_id)
                self._log_event("edited", broker, group, actor, reason, message_id=message_id)
                _release(broker, GroupId(group))
                kind = broker.message_types[edited.message_type]
                return {
                    "message_id": message_id,
                    "message_type": kind.name,
                    "validation": kind.validation.value,
                }
            case admin.CureQueue(_, name, code, text):
                return await self._cure(broker, name, code, text, actor)

    async def _cure(self, broker: Broker, name: str, code: int, text: str, actor: str) -> Row:
        """End the dialog that switched a queue off, and switch the queue on again (PSN-11)."""
        state = broker.queues.get(name)
        if state is None:
            near = did_you_mean(name, broker.queues)
            raise QueueNotFound(f"queue {name!r} is not in broker {broker.name!r}{near}")
        status = state.queue.status
        if status is None or not status.conversation_id:
            raise InvalidState(
                f"queue {name} is not off for a poison message",
                hint="brokerd queue show tells why a queue is on or off",
            )
        ended = 0
        for initiator in (False, True):
            live = await find_side(broker, status.conversation_id, initiator)
            if live is not None and live.queue is state:
                ended += await end_dialog(broker, live, code, text)
        await self._switch(broker, name, None, actor)
        self._log.info(
            ADMINISTRATION,
            subclass="cure_queue",
            broker=broker.name,
            queue=name,
            conversation_id=show(status.conversation_id),
            ended=ended,
            who=actor,
        )
        return {"conversation_id": show(status.conversation_id), "ended": ended}

    def _log_event(
        self, what: str, broker: Broker, group: bytes, actor: str, reason: str, **rest: object
    ) -> None:
        self._log.info(
            PARKING,
            subclass=what,
            broker=broker.name,
            group_id=show(group),
            who=actor,
            reason=reason,
            **rest,
        )


def row_of(broker: Broker, group: str) -> Row | None:
    """Return the row of `parked_groups` of a group (VIEW-14); None = it is not held any more."""
    try:
        held = broker.held.by_id.get(GroupId(parse(group)))
    except ValueError:  # whatever somebody asks for
        return None
    if held is None or show(held.row.group_id) != group:
        return None
    row, queue = held.row, broker.held.queue_of(held.row)
    return {
        "conversation_group_id": group,
        "queue": None if queue is None else queue.name,
        "state": "parked" if row.parked_at else "waiting" if held.holds else "counted",
        "rollback_streak": row.attempts,
        "disconnects": row.disconnects,
        "retry_at": row.retry_at,
        "parked_at": row.parked_at,
        "park_reason": row.reason or None,
        "last_error": row.error or None,
        "messages": held.messages if held.holds else None,
        "culprit_conversation_id": show(row.conversation_id),
        "culprit_message_id": show(row.message_id),
    }


def _held(broker: Broker, group_id: GroupId) -> Held:
    held = broker.held.by_id.get(group_id)
    if held is None or not held.holds:
        raise GroupNotFound(
            f"no group {show(group_id)} is parked or waits for its next attempt",
            hint="brokerd group ls --parked shows those that are",
        )
    return held


def _queue(broker: Broker, held: Held) -> HomeQueue:
    queue = broker.held.queue_of(held.row)
    if queue is None:
        raise InvalidArgument("the queue of this group was dropped")
    return queue


def _refuse_damaged(broker: Broker, group_id: GroupId) -> None:
    """Refuse a group with a damaged message: no program may receive it (REL-6)."""
    if broker.held.is_damaged(group_id):
        raise InvalidArgument(
            f"a message of group {show(group_id)} is damaged: its body is not the one written",
            hint="discard the message, give it another body (edit), or end the group's dialogs",
        )


def _release(broker: Broker, group_id: GroupId) -> None:
    """Release the group, unless another of its messages is damaged."""
    if not broker.held.is_damaged(group_id):
        broker.held.release(group_id)


async def _receive(
    broker: Broker, queue: str, group_id: GroupId, most: int | None, message: bytes | None
) -> tuple[Transaction, list[Taken]]:
    """Receive from a held group; return the messages, and their transaction still open.

    Raises `InvalidState` if the group is not held for `message`, unless that is None."""
    tx = Transaction(broker, BY)
    request = receives.ReceiveRequest(queue, max_messages=most, group=group_id)
    request.even_held = True
    try:
        taken = await settle(lambda: receives.receive(tx, request))
        # Whoever had the group before may have discarded the message that the caller has seen.
        _refuse_another_message(broker, group_id, message)
    except BaseException:
        tx.roll_back()
        raise
    return tx, taken


def _refuse_another_message(broker: Broker, group_id: GroupId, message: bytes | None) -> None:
    """Refuse a group that is held for another message than the one that the caller has seen."""
    if message is None:
        return
    held = _held(broker, group_id)
    if held.row.message_id != message:
        raise InvalidState(
            f"nothing was changed: this is about message {show(message)}, and the group is held "
            f"for message {show(held.row.message_id)} by now",
            hint="look at the group again, and decide anew",
        )


async def _discard(
    broker: Broker, group_id: GroupId, message: bytes | None, *, everything: bool
) -> int:
    """Delete the next message, or all messages, of a held group, and release the group.

    If the group is parked for one of its messages, damaged or unchecked, that message is deleted,
    and those before it are kept. `message`: the one for which the group must be held; None = any.
    Returns the number of deleted messages.
    """
    held, count = _held(broker, group_id), 0
    queue, is_for_one = _queue(broker, held), held.row.reason in _FOR_ONE_MESSAGE
    most = None if everything or is_for_one else 1
    held.stays = everything  # else a waiter would receive the rest after the first commit
    try:
        while True:
            tx, taken = await _receive(broker, queue.name, group_id, most, message)
            done = sum(len(one.messages) for one in taken)
            if is_for_one and not everything:
                done = tx.keep_only(_culprits(held, tx.has_received))
            if not done:
                tx.roll_back()
                if taken:
                    raise _out_of_reach(held)
                break
            count, message = count + done, None
            group = taken[0].live.group
            await tx.committed()
            if everything and held.holds:
                queue.held_changed(group, -done)
            if not (everything and group_id in broker.groups):
                break
    finally:
        held.stays = False
    _release(broker, group_id)
    return count


def _culprits(held: Held, messages: Iterable[QueuedMessage]) -> set[int]:
    """Return the queuing orders of the damaged or unchecked messages that got a group parked."""
    if held.row.reason == Reason.DAMAGED:
        return held.damaged
    return {one.order for one in messages if one.message_id == held.row.message_id}


def _out_of_reach(held: Held) -> InvalidArgument:
    is_damaged, group = held.row.reason == Reason.DAMAGED, show(held.row.group_id)
    return InvalidArgument(
        f"the {'damaged' if is_damaged else 'unchecked'} message of group {group} is not among "
        "what can be read at once",
        hint="release the group: it is parked again where that message is met"
        if is_damaged
        else f"brokerd group end {group} ends its dialogs, and the message goes with them",
    )


async def _edit(
    broker: Broker,
    group_id: GroupId,
    body: bytes | None,
    expected: bytes | None,
    *,
    as_it_is: bool,
) -> QueuedMessage:
    """Replace the body of the next message, or of the one for which the group is parked.

    `expected`: the message for which the group must be held; None = any. Returns the message. Its
    headers, its identity and the order of the group do not change; a damaged message has lost its
    headers.
    """
    held = _held(broker, group_id)
    is_for_one = held.row.reason in _FOR_ONE_MESSAGE
    most = None if is_for_one else 1
    # The receive claims the message, so that no program has it while its body changes. The rollback
    # gives it back; the new body is already in the store by then, outside the transaction.
    tx, taken = await _receive(broker, _queue(broker, held).name, group_id, most, expected)
    try:
        if not taken:
            raise InvalidArgument("no message of this group is left")
        live, message = taken[0].live, taken[0].messages[0]
        if is_for_one:
            culprits = _culprits(held, tx.has_received)
            bad = ((one.live, m) for one in taken for m in one.messages if m.order in culprits)
            found = next(bad, None)
            if found is None:
                raise _out_of_reach(held)
            live, message = found
        endpoint = live.endpoint
        await _refuse_edit(broker, live, message, body)
        if not (is_for_one or as_it_is):
            _refuse_no_json(message, body)
        stored, content = None, with_body(message.body, body)
        if content is not None:
            stored = body_hash(
                endpoint.conversation_id, not endpoint.is_initiator, message.sequence, content
            )
        await broker.store.replace_body(message.order, content, stored)
        message.body = content
        held.damaged.discard(message.order)
        if held.unchecked == message.order:
            held.unchecked = None
        return message
    finally:
        tx.roll_back()


async def _refuse_edit(
    broker: Broker, live: Live, message: QueuedMessage, body: bytes | None
) -> None:
    """Refuse a new body that fails checks that the old one passed (OBJ-18)."""
    if message.message_type in SYSTEM_TYPES:
        raise InvalidArgument(f"the first message is {message.message_type}: not yours to edit")
    why = await _why_unfit(broker, live, message, body)
    if why:
        raise ValidationFailed(
            f"the new body is refused, nothing was changed: {why}",
            hint="give one that its message type accepts",
        )


async def _why_unfit(broker: Broker, live: Live, message: QueuedMessage, body: bytes | None) -> str:
    """Return why a message cannot have another body; empty if it can."""
    kind, inspection = broker.message_types.get(message.message_type), broker.inspection
    if kind is not None and body is not None and inspection.concerns(kind, len(body)):
        checked = asyncio.get_running_loop().create_future()
        inspection.check(kind, body, partial(checked.set_result, None))
        await checked
    try:
        refusal = checks.refuse_message(
            live.contract,
            message.message_type,
            body,
            known=broker.message_types,
            from_initiator=not live.endpoint.is_initiator,
            judge=inspection.evaluate,
        )
        return inspection.overrun(kind, body) if refusal is None else refusal[1]
    finally:
        if body is not None:
            inspection.forget(body)


def _refuse_no_json(message: QueuedMessage, body: bytes | None) -> None:
    """Refuse to replace a JSON body by one that is not JSON.

    A handler that expects JSON would end the dialog, which cannot be undone.
    """
    if is_json(body_of(message.body)) and not is_json(body):
        raise ValidationFailed(
            "the body that it has is JSON, and the new one is not; nothing was changed",
            hint="mend the new body; or say --as-it-is, if its readers take such a one",
        )


async def _end_all(broker: Broker, group_id: GroupId, code: int, text: str) -> int:
    """End every dialog of a group with an error, and delete its messages (PSN-11)."""
    count = 0
    for stored in await broker.store.endpoints.in_group(group_id):
        live = await find_side(broker, stored.conversation_id, stored.is_initiator)
        if live is not None and live.group.group_id == group_id:
            count += await end_dialog(broker, live, code, text)
    return count


async def end_dialog(broker: Broker, live: Live, code: int, text: str) -> int:
    """End one side with an error, or without if it has ended with one; return whether, as 0 or 1.

    The messages that wait for it are deleted, and the other side gets the error.
    """
    trigger = Trigger.END_ERROR
    if not dialog.may(live.endpoint, trigger):
        if not dialog.may(live.endpoint, Trigger.END):
            return 0
        trigger = Trigger.END
    plain = trigger is Trigger.END
    tx = Transaction(broker, BY)
    handle = live.endpoint.handle
    try:
        await settle(
            lambda: ends.end(tx, (handle,), None if plain else code, None if plain else text)
        )
    except BaseException:
        tx.roll_back()
        raise
    await tx.committed()
    return 1


async def find_side(broker: Broker, conversation_id: bytes, initiator: bool) -> Live | None:
    """Return one side of a dialog; None = it is not here, or not any more."""
    return await settle(
        lambda: broker.endpoints.look_up_conversation(ConversationId(conversation_id), initiator)
    )
