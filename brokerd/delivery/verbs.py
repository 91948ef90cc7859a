"""BEGIN DIALOG, SEND, RECEIVE, END and their kin, each within a transaction (DLG, SND, RCV).

Reads: the broker's memory.      Calls: broker.transactions, broker.queues.
Never: commits, talks to a client, or changes anything before all it needs is at hand: a verb that
has to wait returns `Blocked` and is called again (`broker.blocked`).
Fails: with the errors of appendix A; the transaction is then marked failed by its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from brokerd.broker import retention
from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.broker.groups import Group, deadlock_of
from brokerd.broker.queues import QueuedMessage, QueueState, ReceiveWait
from brokerd.broker.rounds import NewMessage
from brokerd.broker.transactions import Transaction
from brokerd.clock import Instant, show_instant
from brokerd.errors import (
    BrokerError,
    ContractNotFound,
    ConversationNotFound,
    ErrorNeedsCodeAndText,
    GroupNotFound,
    GroupServiceMismatch,
    InvalidArgument,
    InvalidLifetime,
    InvalidName,
    InvalidState,
    MessageTooLarge,
    MessageTypeNotFound,
    NotInContract,
    QueueDisabled,
    QueueNotFound,
    QuotaExceeded,
    ReservedMessageType,
    ServiceNotFound,
    TimerBeyondLifetime,
    WrongDirection,
)
from brokerd.ids import BrokerId, GroupId, Handle, MessageId, show
from brokerd.model import DEFAULT, SYSTEM_TYPES, Contract
from brokerd.protocol import dialog
from brokerd.protocol.transitions import State, Trigger

FOREVER: Final = -1.0
"""`wait` of a receive without a limit (RCV-18)."""
MAX_LIFETIME: Final = 2**31 - 1
MAX_MESSAGES: Final = 2**31 - 1
MAX_NAME: Final = 256
MAX_ERROR_TEXT: Final = 3000


class DialogOptions(msgspec.Struct, frozen=True):
    """The options of `begin_dialog` (DLG-1)."""

    contract: str | None = None
    broker_id: BrokerId | None = None
    """Empty = CURRENT_DATABASE (DLG-5)."""
    related_conversation: Handle | None = None
    related_group: GroupId | None = None
    lifetime: int | None = None
    encryption: bool | None = None
    error_queue: str | None = None
    """For a posted dialog; empty = the queue of the service (PBT-4)."""


class ReceiveRequest:
    """One RECEIVE, from its first try to its answer."""

    __slots__ = (
        "_end_wait",
        "chosen",
        "completed",
        "conversation",
        "expired",
        "fresh",
        "group",
        "max_messages",
        "queue",
        "ticket",
        "timer",
        "wait",
    )

    def __init__(
        self,
        queue: str,
        *,
        max_messages: int | None = None,
        conversation: Handle | None = None,
        group: GroupId | None = None,
        wait: float | None = None,
    ) -> None:
        if conversation is not None and group is not None:
            raise InvalidArgument("receive takes a conversation or a group, not both")
        self.queue = queue
        self.max_messages = max_messages
        self.conversation = conversation
        self.group = group
        self.wait = wait
        """Seconds; None = answer at once, FOREVER = without limit."""
        self.expired = False
        self.timer: asyncio.TimerHandle | None = None
        self.chosen: Group | None = None
        """The group it has locked."""
        self.fresh = False
        """Whether it took that lock, so that it may give it back."""
        self.completed = False
        """Whether what it takes of that group is in memory."""
        self.ticket = 0
        """Its place among those that wait (RCV-21)."""
        self._end_wait: Resume | None = None

    def waits(self, end: Resume | None) -> None:
        """It waits for a message now; `end` makes the wait be over."""
        self._end_wait = end

    def give_up(self) -> None:
        """End the wait as if its time were over, also one that has not begun (CLP-40)."""
        self.expired = True
        if self._end_wait is not None:
            self._end_wait()

    def over(self) -> None:
        """It is answered, or never will be."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    @property
    def selective(self) -> bool:
        """Whether it names a conversation or a group (ACT-12)."""
        return self.conversation is not None or self.group is not None


Received = list[tuple[Live, QueuedMessage]]


def begin_dialog(
    tx: Transaction, handle: Handle, from_service: str, to_service: str, options: DialogOptions
) -> Blocked | None:
    """Begin a dialog under a handle made by the caller (DLG-1 to DLG-12)."""
    broker = tx.broker
    _check_begin(broker, from_service, to_service, options)
    blocked = _check_handle(tx, handle)
    if blocked is not None:
        return blocked
    group = _related(tx, options)
    if isinstance(group, Blocked):
        return group
    if group is not None:
        if group.service != from_service:
            raise GroupServiceMismatch(f"that group belongs to service {group.service!r}")
        blocked = _lock(tx, group)
        if blocked is not None:
            return blocked
    encryption, lifetime = options.encryption, options.lifetime
    live = broker.new_initiator(
        handle=handle,
        service=broker.services[from_service],
        contract=broker.contracts[options.contract or DEFAULT],
        far_service=to_service,
        far_broker=broker.broker_id if options.broker_id == b"" else options.broker_id,
        group_id=options.related_group if group is None else group.group_id,
        encryption=broker.store.identity.default_encryption if encryption is None else encryption,
        lifetime=broker.options.default_lifetime if lifetime is None else lifetime,
        now=broker.clock.utc(),
        error_queue=options.error_queue,
    )
    live.group.lock(tx)
    tx.begun(live)
    return None


def _check_begin(
    broker: Broker, from_service: str, to_service: str, options: DialogOptions
) -> None:
    """What can be refused without looking at any dialog."""
    if from_service not in broker.services:
        raise ServiceNotFound(f"service {from_service!r} is not in broker {broker.name!r}")
    if not to_service or len(to_service) > MAX_NAME:
        raise InvalidName(f"a service name has 1 to {MAX_NAME} characters")
    if (options.contract or DEFAULT) not in broker.contracts:
        raise ContractNotFound(f"contract {options.contract!r} is not in broker {broker.name!r}")
    if options.lifetime is not None and not 1 <= options.lifetime <= MAX_LIFETIME:
        raise InvalidLifetime(f"lifetime is 1 to {MAX_LIFETIME} seconds, not {options.lifetime}")
    if options.related_conversation is not None and options.related_group is not None:
        raise InvalidArgument("a dialog joins a related conversation or a related group, not both")
    if options.error_queue is not None:
        _check_post(broker, options)


def _check_post(broker: Broker, options: DialogOptions) -> None:
    """A dialog that the broker ends by itself is nobody's to group with others (PBT-4)."""
    if options.related_conversation is not None or options.related_group is not None:
        raise InvalidArgument("a posted dialog has a group of its own")
    if options.error_queue and options.error_queue not in broker.queues:
        raise QueueNotFound(f"queue {options.error_queue!r} is not in broker {broker.name!r}")


def _check_handle(tx: Transaction, handle: Handle) -> Blocked | None:
    """Whether the handle is free; what has been looked for in vain is not looked for again."""
    endpoints = tx.broker.endpoints
    if endpoints.is_fresh(handle):
        return None
    known = endpoints.find(handle) if handle in tx.absent else endpoints.look_up(handle)
    if isinstance(known, Blocked):
        return known
    if known is not None:
        raise InvalidArgument(f"handle {show(handle)} is in use")
    tx.absent.add(handle)
    return None


def _related(tx: Transaction, options: DialogOptions) -> Group | Blocked | None:
    """The group to join; None = a new one (DLG-7, DLG-9)."""
    broker = tx.broker
    if options.related_conversation is not None:
        related = _find(tx, options.related_conversation)
        if isinstance(related, Blocked):
            return related
        if related.endpoint.state is State.CLOSED:
            raise ConversationNotFound(f"no conversation {show(related.endpoint.handle)} is open")
        return related.group
    group_id = options.related_group
    if group_id is None:
        return None
    if group_id not in tx.absent:
        found = broker.look_up_group(group_id)
        if isinstance(found, Blocked):
            return found
        tx.absent.add(group_id)
    return broker.groups.get(group_id)


def send(
    tx: Transaction, handles: Sequence[Handle], message_type: str, body: bytes | None
) -> Blocked | None:
    """Send one message on one or several dialogs, all or none (SND-1 to SND-11)."""
    broker = tx.broker
    size = len(body) if body else 0
    if size > broker.options.max_message:
        raise MessageTooLarge(
            f"{size} bytes; the limit of this broker is {broker.options.max_message}"
        )
    lives = _find_all(tx, handles)
    if isinstance(lives, Blocked):
        return lives
    for live in lives:
        if live.group.holder is not tx:
            blocked = _lock(tx, live.group)
            if blocked is not None:
                return blocked
    for live in lives:
        _check_send(tx, live, message_type)
    blocked = retention.before_send(tx, lives, size)
    if blocked is not None:
        return blocked
    tx.size += size * len(lives)
    if tx.size > broker.options.max_bytes:
        raise QuotaExceeded(f"a transaction carries at most {broker.options.max_bytes} bytes")
    for live in lives:
        message = NewMessage(message_type, body or None, MessageId(broker.ids.fresh()))
        tx.want(live, _SEND, message)
        retention.reserve(tx, live, 1, size)
    broker.sends += 1
    return None


def find_and_lock(tx: Transaction, handles: Sequence[Handle]) -> list[Live] | Blocked:
    """The endpoints as named, their groups locked in the one order (SND-10)."""
    found = _find_all(tx, handles)
    if isinstance(found, Blocked):
        return found
    for live in found:
        blocked = _lock(tx, live.group)
        if blocked is not None:
            return blocked
    by_handle = {live.endpoint.handle: live for live in found}
    return [by_handle[handle] for handle in handles]


def send_as(
    tx: Transaction, live: Live, message_type: str, body: bytes | None, message_id: MessageId
) -> Blocked | None:
    """Send a message on a dialog that is locked, under an id it had before (PBT-12)."""
    _check_send(tx, live, message_type)
    size = len(body or b"")
    blocked = retention.before_send(tx, (live,), size)
    if blocked is None:
        tx.want(live, _SEND, NewMessage(message_type, body, message_id))
        retention.reserve(tx, live, 1, size)
        tx.size += size
    return blocked


def _find_all(tx: Transaction, handles: Sequence[Handle]) -> list[Live] | Blocked:
    """The endpoints in the order in which they are locked, their other sides in memory."""
    lives: list[Live] = []
    for at, handle in enumerate(handles):
        live = _find(tx, handle, at if len(handles) > 1 else None)
        if isinstance(live, Blocked):
            return live
        peer = _load_peer(tx, live)
        if peer is not None:
            return peer
        lives.append(live)
    if len(lives) > 1:
        lives.sort(key=lambda one: one.group.group_id)  # SND-10
    return lives


_SEND: Final = dialog.SendRequested()


def end(
    tx: Transaction, handle: Handle, code: int | None, description: str | None
) -> Blocked | None:
    """End this side of a dialog, with an error if one is given (DLG-18 to DLG-25)."""
    if (code is None) != (description is None) or (code is not None and code <= 0):
        raise ErrorNeedsCodeAndText("an error has a code above 0 and a description")
    if description is not None and len(description) > MAX_ERROR_TEXT:
        raise InvalidArgument(f"a description has at most {MAX_ERROR_TEXT} characters")
    live = _find(tx, handle)
    if isinstance(live, Blocked):
        return live
    blocked = _lock(tx, live.group)
    if blocked is not None:
        return blocked
    endpoint = tx.view(live)
    trigger = Trigger.END if code is None else Trigger.END_ERROR
    if endpoint is None or not dialog.may(endpoint, trigger):
        state = State.NONE if endpoint is None else endpoint.state
        raise InvalidState(f"end is not allowed in state {state}")
    peer = _load_peer(tx, live)
    if peer is not None:
        return peer
    if live.beyond is None:
        return live.queue.count_beyond(live)
    tx.want(live, dialog.EndRequested(code=code, description=description or ""))
    return None


def clean_up(tx: Transaction, handle: Handle) -> Live | Blocked:
    """Remove an endpoint in whatever state it is, without telling the peer (DLG-23, DLG-T27).

    For administrators: a program that does this loses messages (DLG-24)."""
    live = _find(tx, handle)
    if isinstance(live, Blocked):
        return live
    blocked = _lock(tx, live.group) or _load_peer(tx, live)
    if blocked is not None:
        return blocked
    if live.gone:  # while it waited for the lock
        raise ConversationNotFound(f"no conversation {show(handle)} is open here")
    if live.beyond is None:
        return live.queue.count_beyond(live)
    tx.want(live, dialog.CleanupRequested())
    return live


def set_timer(
    tx: Transaction, handle: Handle, milliseconds: int | None, name: str
) -> Blocked | None:
    """Set a conversation timer anew, or cancel it with None (DLG-35 to DLG-40, PBT-23)."""
    live = _find(tx, handle)
    if isinstance(live, Blocked):
        return live
    blocked = _lock(tx, live.group)
    if blocked is not None:
        return blocked
    endpoint = tx.view(live)
    if endpoint is None or not dialog.may_set_timer(endpoint):
        state = State.NONE if endpoint is None else endpoint.state
        raise InvalidState(f"set_timer is not allowed in state {state}", ssb_code=8458)
    due: Instant | None = None
    if milliseconds is not None:
        due = Instant(tx.broker.clock.utc() + milliseconds * 1000)
        if due > endpoint.expires_at:
            raise TimerBeyondLifetime(
                f"it would be due at {show_instant(due)}; the dialog expires at "
                f"{show_instant(endpoint.expires_at)}"
            )
    tx.set_timer(live, name, due)
    return None


def receive(tx: Transaction, request: ReceiveRequest) -> Received | Blocked:
    """Take the messages of one group (RCV-1 to RCV-25); an empty list when the wait is over."""
    queue = _open_queue(tx, request.queue)
    limit = MAX_MESSAGES if request.max_messages is None else request.max_messages
    if limit == 0:  # counts as a receive and takes nothing (RCV-12)
        return []
    size = _room(tx)
    group = request.chosen
    if group is None:
        found = _selected(tx, queue, request) if request.selective else _best(tx, queue)
        if found is None or isinstance(found, Blocked):
            return found if found is not None else _wait_or_empty(tx, queue, request)
        request.fresh = found.holder is None
        found.lock(tx)
        request.chosen = group = found
    only = tx.broker.endpoints.find(request.conversation) if request.conversation else None
    if not request.completed and queue.is_short(group, limit, only):
        request.completed = True
        return queue.complete(group, limit, size, only)
    if not queue.retains:
        taken: Received | Blocked = queue.take(group, limit, size, only=only)
    else:
        taken = _take_retained(tx, queue, group, (limit, size), only)
    if isinstance(taken, Blocked):
        return taken
    request.chosen, request.completed = None, False
    if not taken:  # nothing fits the selector: as if the group had never been locked (GRP-10)
        if request.fresh:
            tx.give_back(group)
        return _wait_or_empty(tx, queue, request)
    request.over()
    tx.size += sum(len(message.body or b"") for _, message in taken)
    tx.received(queue, taken)
    tx.broker.receives += 1
    queue.look_ahead(limit)
    return taken


def _open_queue(tx: Transaction, name: str) -> QueueState:
    """The queue, if messages can be received from it (RCV-17)."""
    queue = tx.broker.queues.get(name)
    if queue is None:
        raise QueueNotFound(f"queue {name!r} is not in broker {tx.broker.name!r}")
    if not queue.queue.receive_enabled:
        raise QueueDisabled(f"queue {name!r} is off")
    return queue


def _room(tx: Transaction) -> int:
    """Bytes that the transaction may still receive."""
    size = tx.broker.options.max_bytes - tx.size
    if size <= 0:
        raise QuotaExceeded(f"a transaction carries at most {tx.broker.options.max_bytes} bytes")
    return size


def _take_retained(
    tx: Transaction, queue: QueueState, group: Group, limits: tuple[int, int], only: Live | None
) -> Received | Blocked:
    """Take messages if there is room to retain them (PBT-24)."""
    blocked = retention.before_receive(tx, group.ready.values())
    if blocked is not None:
        return blocked
    taken = queue.take(group, *limits, only=only)
    try:
        retention.check_received(taken)
    except QuotaExceeded:
        queue.put_back(taken)
        raise
    for live, message in taken:
        retention.reserve(tx, live, 1, len(message.body or b""))
    return taken


def get_state(tx: Transaction, group_id: GroupId) -> bytes | Blocked | None:
    """State kept for a group locked by this transaction (GRP-22)."""
    group = _locked(tx, group_id)
    tx.keeps_locks = True
    mine, state = tx.state_of(group)
    if mine:
        return state
    if group.state_known:
        return group.state

    def register(resume: Resume) -> None:
        tx.broker.read_state(group, resume)

    return Blocked("state", register)


def set_state(tx: Transaction, group_id: GroupId, state: bytes | None) -> None:
    """Keep state for a group locked by this transaction, in the same commit (GRP-22)."""
    group = _locked(tx, group_id)
    live = tx.broker.member(group)
    tx.set_state(group, live, state)


def _find(tx: Transaction, handle: Handle, at: int | None = None) -> Live | Blocked:
    """The endpoint; `at`: its position in a list, for the error."""
    live = tx.broker.endpoints.look_up(handle)
    if live is None:
        where = "" if at is None else f" (position {at})"
        raise ConversationNotFound(
            f"no conversation {show(handle)} is open here{where}",
            ssb_code=None if at is None else 8435,
        )
    if isinstance(live, Live):
        tx.pin(live)
    return live


def _load_peer(tx: Transaction, live: Live) -> Blocked | None:
    """Bring in the other side of a dialog inside this broker; None = it is here, or gone."""
    endpoint = live.endpoint
    if not live.is_local or live.peer is not None:
        return None
    if endpoint.is_initiator and not endpoint.send_sequence:
        return None
    found = tx.broker.endpoints.look_up_conversation(
        endpoint.conversation_id, not endpoint.is_initiator
    )
    if isinstance(found, Blocked):
        return found
    if found is not None:
        live.peer, found.peer = found, live
        tx.pin(live)
    return None


def _check_send(tx: Transaction, live: Live, message_type: str) -> None:
    endpoint = tx.view(live)
    if endpoint is None or not dialog.may(endpoint, Trigger.SEND):
        state = State.NONE if endpoint is None else endpoint.state
        raise InvalidState(f"send is not allowed in state {state}", ssb_code=8429)
    contract: Contract = live.contract
    if not contract.allows(message_type, initiator=endpoint.is_initiator):
        if message_type in SYSTEM_TYPES:
            raise ReservedMessageType(f"{message_type} is sent by the broker only")
        if message_type not in tx.broker.message_types:
            raise MessageTypeNotFound(f"message type {message_type!r} is not in this broker")
        if message_type not in contract.types:
            raise NotInContract(f"contract {contract.name!r} has no type {message_type!r}")
        raise WrongDirection(f"the other side alone sends {message_type!r}")


def _lock(tx: Transaction, group: Group) -> Blocked | None:
    """Lock a group; None = it is ours. Waits at most `lock_timeout` (GRP-9, GRP-11)."""
    if tx.failure is not None:
        raise tx.failure
    if group.lock(tx):
        return None

    def register(resume: Resume) -> None:
        loop = asyncio.get_running_loop()

        def granted() -> None:
            timer.cancel()
            tx.waiting = None
            resume()

        def expired() -> None:
            tx.waiting = None
            tx.failure = place.give_up()
            resume()

        tx.resume = resume
        place = group.wait(tx, granted)
        timer = loop.call_later(tx.broker.options.lock_timeout, expired)

        def give_up() -> BrokerError | None:
            timer.cancel()
            return place.give_up()

        tx.waiting = give_up
        circle = deadlock_of(tx)
        if circle:
            max(circle, key=lambda one: one.opened).abort()

    return Blocked("lock", register)


def _locked(tx: Transaction, group_id: GroupId) -> Group:
    group = tx.broker.groups.get(group_id)
    if group is None or group.holder is not tx:
        raise GroupNotFound("the group is not locked by this transaction")
    return group


def _best(tx: Transaction, queue: QueueState) -> Group | Blocked | None:
    group = queue.best(tx)
    if queue.must_look_further(group):
        return queue.page_in()
    return group


def _selected(
    tx: Transaction, queue: QueueState, request: ReceiveRequest
) -> Group | Blocked | None:
    """The group a selector names; None while another has it or it has no message (GRP-10)."""
    live: Live | None = None
    if request.conversation is not None:
        named = _find(tx, request.conversation)
        if isinstance(named, Blocked):
            return named
        live = named
        if live.queue is not queue or live.endpoint.state is State.CLOSED:
            raise ConversationNotFound("that conversation is not on this queue")
        group = live.group
    else:
        assert request.group is not None, "one of the two makes it selective"
        found = tx.broker.look_up_group(request.group)
        if isinstance(found, Blocked):
            return found
        if found is None or found.queue is not queue:
            raise GroupNotFound("there is no such conversation group on this queue")
        group = found
    if group.holder not in (None, tx) or not queue.may_have(group, live):
        return None
    return group


def _wait_or_empty(
    tx: Transaction, queue: QueueState, request: ReceiveRequest
) -> Received | Blocked:
    if request.wait is None or request.wait == 0 or request.expired:
        request.over()
        if not request.selective:
            queue.on_empty(queue)
        return []

    def register(resume: Resume) -> None:
        def go_on() -> None:
            tx.waiting = None
            request.waits(None)
            resume()

        def leave() -> BrokerError | None:
            queue.leave(waiting)
            request.over()
            return None

        def expired() -> None:
            request.expired = True
            queue.leave(waiting)
            go_on()

        request.ticket = request.ticket or queue.next_ticket()
        waiting = ReceiveWait(
            resume=go_on, end=expired, selective=request.selective, ticket=request.ticket
        )
        queue.join(waiting)
        tx.waiting = leave
        if request.wait != FOREVER and request.timer is None:
            assert request.wait is not None
            request.timer = asyncio.get_running_loop().call_later(request.wait, expired)
        request.waits(expired)

    return Blocked("message", register)
