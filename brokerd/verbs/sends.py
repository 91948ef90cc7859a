"""BEGIN DIALOG, SEND and their relatives, each within a transaction (DLG, SND).

Reads: the broker's memory.      Calls: group_locks, broker.transaction, broker.queues.
Never: commits, answers a client, or changes anything before it has all it needs: a verb that has to
wait returns `Blocked` and is called again (`broker.blocked`).
Fails: with the errors of appendix A; the session then marks the transaction as failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from brokerd.broker import ordinary, retention
from brokerd.broker.blocked import Blocked
from brokerd.broker.broker import Broker
from brokerd.broker.checks import check_before_sending
from brokerd.broker.messages import NewMessage
from brokerd.broker.state import Group, Live
from brokerd.broker.transaction import SEND, Transaction
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import (
    AccessDenied,
    ContractNotFound,
    ConversationNotFound,
    GroupServiceMismatch,
    InvalidArgument,
    InvalidLifetime,
    InvalidName,
    InvalidState,
    MessageTooLarge,
    MessageTypeNotFound,
    NotInContract,
    QueueNotFound,
    QuotaExceeded,
    ReservedMessageType,
    ServiceNotFound,
    StoreFull,
    WrongDirection,
)
from brokerd.ids import BrokerId, GroupId, Handle, MessageId, show
from brokerd.model import (
    DEFAULT,
    MAX_LIFETIME,
    SYSTEM_TYPES,
    Contract,
    is_reserved,
    is_system,
)
from brokerd.protocol import dialog
from brokerd.protocol.headers import body_of
from brokerd.protocol.transitions import State, Trigger
from brokerd.security.grants import Rights
from brokerd.verbs import body_checks, large_bodies, queue_room
from brokerd.verbs.group_locks import find, group_of, lock, lock_group_of

MAX_NAME: Final = 256


class DialogOptions(msgspec.Struct, frozen=True):
    """The options of `begin_dialog` (DLG-1)."""

    contract: str | None = None
    broker_id: BrokerId | None = None
    """The target's broker; empty = CURRENT_DATABASE (DLG-5)."""
    related_conversation: Handle | None = None
    related_group: GroupId | None = None
    lifetime: int | None = None
    encryption: bool | None = None
    error_queue: str | None = None
    """The error queue of a posted dialog; empty = the queue of the service (PBT-4)."""
    by_broker: bool = False
    """Whether the broker itself begins the dialog, on one of its own services (EVT-3)."""


def begin_dialog(
    tx: Transaction, handle: Handle, from_service: str, to_service: str, options: DialogOptions
) -> Blocked | None:
    """Begin a dialog under a handle chosen by the caller (DLG-1 to DLG-12)."""
    broker = tx.broker
    refuse_when_full(broker)
    _check_begin(broker, from_service, to_service, options)
    if tx.rights is not None:
        _check_rights(tx, tx.rights, from_service, to_service, options)
    blocked = _check_handle(tx, handle)
    if blocked is not None:
        return blocked
    group = _related(tx, options)
    if isinstance(group, Blocked):
        return group
    if group is not None:
        if group.service != from_service:
            raise GroupServiceMismatch(
                f"conversation group {show(group.group_id)} belongs to service "
                f"{group.service!r}, not to {from_service!r}"
            )
        blocked = lock(tx, group)
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


def _check_rights(
    tx: Transaction, rights: Rights, from_service: str, to_service: str, options: DialogOptions
) -> None:
    """Check that the user may receive for one service and send to the other (SND-25, ERR-8494)."""
    broker = tx.broker
    queues = [broker.services[from_service].queue]
    queues += [options.error_queue] if options.error_queue else []
    for queue in queues:
        if not rights.may_receive(broker.name, queue):
            raise AccessDenied(
                f"{tx.owner} may not begin a dialog from {from_service!r}: it has no receive "
                f"permission on queue {queue!r} of {broker.name!r}"
            )
    if not rights.may_send(broker.name, to_service):
        raise AccessDenied(f"{tx.owner} has no send permission on service {to_service!r}")


def _check_begin(
    broker: Broker, from_service: str, to_service: str, options: DialogOptions
) -> None:
    """Refuse a dialog that the catalog and the options alone show to be invalid."""
    if not options.by_broker:
        _refuse_system(broker, from_service, options.contract)
    catalog = broker.catalog_index
    if from_service not in catalog.services:
        near = did_you_mean(from_service, broker.services)
        raise ServiceNotFound(f"service {from_service!r} is not in broker {broker.name!r}{near}")
    if not to_service or len(to_service) > MAX_NAME:
        raise InvalidName(
            f"to_service {to_service[:64]!r} has {len(to_service)} characters",
            hint=f"give the name of the service to talk to: 1 to {MAX_NAME} characters",
        )
    if (options.contract or DEFAULT) not in catalog.contracts:
        near = did_you_mean(options.contract or DEFAULT, broker.contracts)
        raise ContractNotFound(
            f"contract {options.contract!r} is not in broker {broker.name!r}{near}"
        )
    if options.lifetime is not None and not 1 <= options.lifetime <= MAX_LIFETIME:
        raise InvalidLifetime(f"lifetime is 1 to {MAX_LIFETIME} seconds, not {options.lifetime}")
    if options.related_conversation is not None and options.related_group is not None:
        raise InvalidArgument(
            "a dialog joins a related conversation or a related group, not both",
            hint="give one of related_conversation and related_group",
        )
    if options.error_queue is not None:
        _check_post(broker, options)


def _check_post(broker: Broker, options: DialogOptions) -> None:
    """Refuse a related group for a posted dialog, which the broker ends by itself (PBT-4)."""
    if options.related_conversation is not None or options.related_group is not None:
        raise InvalidArgument(
            "a posted dialog has a group of its own",
            hint="leave related_conversation and related_group out",
        )
    if options.error_queue and options.error_queue not in broker.queues:
        raise QueueNotFound(f"queue {options.error_queue!r} is not in broker {broker.name!r}")


def _refuse_system(broker: Broker, from_service: str, contract: str | None) -> None:
    """Refuse a dialog that only the broker may begin (OBJ-27, EVT-3).

    Otherwise subscribers could not trust events."""
    if is_system(from_service):
        raise ServiceNotFound(f"service {from_service!r} is not in broker {broker.name!r}")
    if is_reserved(from_service, contract):
        raise ReservedMessageType(f"contract {contract!r} is for the broker only")


def _check_handle(tx: Transaction, handle: Handle) -> Blocked | None:
    """Check that the handle is free; if it was not found before, do not look it up again."""
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
    """Return the group to join; None = the dialog gets a new group (DLG-7, DLG-9)."""
    broker = tx.broker
    if options.related_conversation is not None:
        related = find(tx, options.related_conversation)
        if isinstance(related, Blocked):
            return related
        if related.endpoint.state is State.CLOSED:
            raise ConversationNotFound(f"no conversation {show(related.endpoint.handle)} is open")
        return group_of(tx, related)
    group_id = options.related_group
    if group_id is None:
        return None
    if group_id not in tx.absent:
        found = broker.group_members.look_up(group_id, tx)
        if isinstance(found, Blocked):
            return found
        tx.absent.add(group_id)
    return broker.groups.get(group_id)


def send(
    tx: Transaction, handles: Sequence[Handle], message_type: str, body: bytes | None
) -> Blocked | None:
    """Send one message on one or several dialogs, all or none (SND-1 to SND-11).

    `body`: the content, a `Content` if the message has headers (SND-28)."""
    broker = tx.broker
    if len(handles) == 1 and send_ordinary(tx, handles[0], message_type, body):  # fast path
        return None
    refuse_when_full(broker)
    size = len(body) if body else 0
    if size > broker.options.max_message:
        raise MessageTooLarge(
            f"a body of {size} bytes; the limit of broker {broker.name!r} is "
            f"{broker.options.max_message}"
        )
    lives = _find_all(tx, handles)
    if isinstance(lives, Blocked):
        return lives
    # Locks, checks and the large body come before the first `want`: until then the verb can wait,
    # and be called again from the beginning, without having changed anything.
    for live in lives:
        if live.group.holder is not tx:
            blocked = lock_group_of(tx, live)
            if blocked is not None:
                return blocked
    blocked = _check_sends(tx, lives, message_type, body)
    if blocked is not None:
        return blocked
    blocked = _make_room(tx, lives, body, size)
    if blocked is not None:
        return blocked
    queue_room.reserve(tx, lives, size)
    tx.charge(size * len(lives))
    for live in lives:
        fresh = MessageId(broker.ids.fresh())
        tx.want(live, SEND, _new_message(tx, live, message_type, body, fresh))
        tx.reserve(live, 1, size)
    broker.sends += 1
    return None


def send_ordinary(tx: Transaction, handle: Handle, message_type: str, body: bytes | None) -> bool:
    """Fast path of `send`: send an ordinary message on an open dialog.

    The dialog is in memory and not locked by others. Return False if nothing was done: then `send`
    sends the message, or refuses it."""
    broker = tx.broker
    live = broker.endpoints.find(handle)
    base = None if live is None else tx.view(live)
    if live is None or base is None:
        return False
    size, side = len(body) if body else 0, base.is_initiator
    group = live.group
    if (
        not ordinary.may_send(broker, group, live.queue, size, tx, tx.rights)
        or not ordinary.may_send_type(broker, live.contract, message_type, from_initiator=side)
        or (live.is_local and live.peer is None)  # it has to be loaded
        or (live.peer is not None and live.peer.queue.room is not None)  # it reserves room (REL-42)
        or tx.size + size > broker.options.max_bytes  # it is refused (SND-24)
        or broker.inspection.concerns(broker.message_types.get(message_type), size)
        or not tx.want_ordinary_send(live, base, message_type, body)
    ):
        return False
    if group.holder is not tx:
        group.lock(tx)
    broker.sends += 1
    return True


def _make_room(
    tx: Transaction, lives: Sequence[Live], body: bytes | None, size: int
) -> Blocked | None:
    """Check that a message of `size` may be sent and retained; store a large body first."""
    blocked = retention.before_send(tx.broker, lives, size)
    if blocked is not None:
        return blocked
    most = tx.broker.options.max_bytes
    if tx.size + size * len(lives) > most:
        raise QuotaExceeded(f"a transaction carries at most {most} bytes")
    return large_bodies.before_send(tx, lives, body)


def _new_message(
    tx: Transaction, live: Live, message_type: str, body: bytes | None, message_id: MessageId
) -> NewMessage:
    if body is None or len(body) < tx.broker.options.large_body:
        return NewMessage(message_type, body or None, message_id)
    key, retained = tx.kept_bodies.claim(body), None
    if live.queue.retains:
        retained = tx.kept_bodies.claim(body)
    return NewMessage(message_type, body, message_id, key, retained)


def refuse_when_full(broker: Broker) -> None:
    """Raise `StoreFull` while the disk has too little room for new messages (REL-26)."""
    if broker.is_full:
        raise StoreFull


def find_and_lock(tx: Transaction, handles: Sequence[Handle]) -> list[Live] | Blocked:
    """Return the endpoints in the order of `handles`, their groups locked in order (SND-10)."""
    found = _find_all(tx, handles)
    if isinstance(found, Blocked):
        return found
    for live in found:
        blocked = lock_group_of(tx, live)
        if blocked is not None:
            return blocked
    by_handle = {live.endpoint.handle: live for live in found}
    return [by_handle[handle] for handle in handles]


def send_as(
    tx: Transaction, live: Live, message_type: str, body: bytes | None, message_id: MessageId
) -> Blocked | None:
    """Send a message on a locked dialog, under the id that it had before (PBT-12)."""
    _check_send(tx, live, message_type)
    size = len(body or b"")
    blocked = retention.before_send(tx.broker, (live,), size)
    if blocked is None:
        queue_room.reserve(tx, (live,), size)
        tx.want(live, SEND, _new_message(tx, live, message_type, body, message_id))
        tx.reserve(live, 1, size)
        tx.charge(size)
    return blocked


def _find_all(tx: Transaction, handles: Sequence[Handle]) -> list[Live] | Blocked:
    """Return the endpoints in the order of locking, after loading their local peers."""
    lives: list[Live] = []
    for at, handle in enumerate(handles):
        live = find(tx, handle, at if len(handles) > 1 else None)
        if isinstance(live, Blocked):
            return live
        peer = load_peer(tx, live)
        if peer is not None:
            return peer
        lives.append(live)
    if len(lives) > 1:
        lives.sort(key=lambda one: group_of(tx, one).group_id)  # SND-10
    return lives


def load_peer(tx: Transaction, live: Live) -> Blocked | None:
    """Load the local peer of a dialog. Return None if it is in memory, or does not exist."""
    endpoint = live.endpoint
    if not live.is_local or live.peer is not None:
        return None
    if endpoint.is_initiator and not endpoint.send_sequence:
        return None
    if endpoint.conversation_id in tx.absent:
        return None
    found = tx.broker.endpoints.look_up_conversation(
        endpoint.conversation_id, not endpoint.is_initiator
    )
    if isinstance(found, Blocked):
        return found
    if found is None:
        # A blocked verb starts over: with two absent peers looked up each time it would never end.
        tx.absent.add(endpoint.conversation_id)
    else:
        live.pair_with(found)
        tx.pin(live)
    return None


def _check_sends(
    tx: Transaction, lives: Sequence[Live], message_type: str, body: bytes | None
) -> Blocked | None:
    for live in lives:
        _check_send(tx, live, message_type)
    broker = tx.broker
    alone = body_of(body)
    blocked = body_checks.before_send(tx, lives, message_type, alone)
    if blocked is None and message_type in broker.checked_on_send:
        check_before_sending(broker.message_types[message_type], alone, broker.inspection.evaluate)
    return blocked


def _check_send(tx: Transaction, live: Live, message_type: str) -> None:
    endpoint = tx.view(live)
    if endpoint is None or not dialog.may(endpoint, Trigger.SEND):
        state = State.NONE if endpoint is None else endpoint.state
        raise InvalidState(
            f"conversation {show(live.endpoint.handle)}: send is not allowed in state {state}",
            ssb_code=8429,
        )
    contract: Contract = live.contract
    if not contract.allows(message_type, initiator=endpoint.is_initiator):
        if message_type in SYSTEM_TYPES:
            raise ReservedMessageType(f"{message_type} is sent by the broker only")
        if message_type not in tx.broker.message_types:
            near = did_you_mean(message_type, contract.types)
            raise MessageTypeNotFound(f"message type {message_type!r} is not in this broker{near}")
        if message_type not in contract.types:
            near = did_you_mean(message_type, contract.types)
            raise NotInContract(f"contract {contract.name!r} has no type {message_type!r}{near}")
        side = "target" if endpoint.is_initiator else "initiator"
        raise WrongDirection(
            f"under contract {contract.name!r} the {side} alone sends {message_type!r}",
            ssb_code=None if endpoint.is_initiator else 8434,
        )
