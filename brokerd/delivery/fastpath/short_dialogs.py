"""Fast path of one-message dialogs inside a broker: begun, sent on and ended in one transaction.

Reads: the broker's memory.      Calls: protocol.dialog, the gathering flush of the store.
Never: decides anything that the verbs and `Transaction.commit` would decide otherwise. If there is
anything to decide (a route, a refusal, a queue that is off), it stops before the dialog has changed
anything, and the caller takes the general path. A test compares the paths.

On the general path the initiator's endpoint is created and deleted within the transaction (DLG-16)
and never visible. Here it is not created at all; only its closing line is written (design D16). Its
handle is not looked up in the store, because this endpoint never gets a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from brokerd.broker import ordinary
from brokerd.broker.broker import Broker
from brokerd.broker.closing_lines import short_dialog_line, short_dialog_rest
from brokerd.broker.queues import QueueState, publish
from brokerd.broker.state import Group, Live
from brokerd.clock import SECOND, Instant
from brokerd.delivery.fastpath.rows import OrdinaryRows
from brokerd.delivery.fastpath.sends import Done
from brokerd.ids import ClientId, ConversationId, EndpointKey, GroupId, Handle, MessageId
from brokerd.model import END_DIALOG, Contract
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State
from brokerd.security.grants import Rights
from brokerd.storage.changes import DialogLogRow, QueueRow


class Terms(NamedTuple):
    """The terms of a short dialog, which decide whether it is ordinary; many dialogs share them."""

    from_service: str
    to_service: str
    contract: str
    message_type: str
    lifetime: int | None
    """Lifetime in seconds; None = the default of the broker."""


class ShortDialog(NamedTuple):
    """A dialog that is begun, sent on and ended in one transaction."""

    request: int
    token: int
    """Commit token: higher than any that this client used before (REL-2)."""
    handle: Handle
    terms: Terms
    body: bytes | None


def converse_each(
    broker: Broker,
    dialogs: Iterable[ShortDialog],
    *,
    client: ClientId,
    rights: Rights | None,
    done: Done,
) -> int:
    """Begin, send, end and commit, in order, up to the first dialog that needs the general path.

    Return the number of dialogs finished so. `done` is called with their requests once they are
    durable. `rights`: those of the client; None = all.

    Raises:
        StoreFault: nothing was done.
    """
    if not broker.options.fast_paths:
        return 0
    run = _Run(broker, rights)
    requests: list[int] = []
    tokens: list[int] = []
    for one in dialogs:
        if not run.add(one):
            break
        requests.append(one.request)
        tokens.append(one.token)
    if requests:
        broker.sends += len(requests)
        durable = partial(_durable, run.arrived, requests, done)
        broker.store.join_written(durable, client, tokens)
    return len(requests)


class _Run(OrdinaryRows):
    """Dialogs that join one flush together."""

    __slots__ = ("_contract", "_queue", "_rest", "_rights", "_targets", "_terms")

    def __init__(self, broker: Broker, rights: Rights | None) -> None:
        super().__init__(broker)
        self._rights = rights
        self._terms: Terms | None = None
        self._contract: Contract
        self._queue: QueueState
        self._rest = b""
        self._targets: _TargetTemplate

    def add(self, one: ShortDialog) -> bool:
        """Add one dialog; False = nothing was done."""
        broker, terms, body = self._broker, one.terms, one.body or None
        if broker.endpoints.find(one.handle) is not None:
            return False
        if terms != self._terms and not self._prepare(terms):
            return False
        size, message_type = len(body) if body else 0, terms.message_type
        if (
            not ordinary.may_send(broker, ordinary.NEW_GROUP, self._queue, size, None, self._rights)
            or (self._targets.queue.room is not None and not ordinary.may_fill(self._targets.queue))
            or not self._target.accept(self._contract, message_type, body, from_initiator=True)
        ):
            return False
        self._write(self._targets, message_type, body)
        return True

    def _prepare(self, terms: Terms) -> bool:
        """Prepare for dialogs with these terms; False = they are not ordinary."""
        broker, names = self._broker, (terms.from_service, terms.to_service, terms.contract)
        if not ordinary.may_converse(broker, *names, terms.lifetime):
            return False
        if not ordinary.may_begin(broker, terms.to_service, self._rights):
            return False
        contract = broker.contracts[terms.contract]
        if not ordinary.may_send_type(broker, contract, terms.message_type, from_initiator=True):
            return False
        self._terms, self._contract = terms, contract
        self._queue = broker.queues[broker.services[terms.from_service].queue]
        self._rest = short_dialog_rest(*names, self._now)
        self._targets = _TargetTemplate(broker, self._target_of(terms))
        return True

    def _target_of(self, terms: Terms) -> DialogEndpoint:
        """Return a target endpoint with these terms, without key, handle and ids."""
        broker, now = self._broker, self._now
        lifetime = broker.options.default_lifetime if terms.lifetime is None else terms.lifetime
        return dialog.ordinary_target(
            DialogEndpoint(
                key=EndpointKey(0),
                handle=Handle(b""),
                conversation_id=ConversationId(b""),
                is_initiator=False,
                service=terms.to_service,
                contract=terms.contract,
                far_service=terms.from_service,
                encryption=False,
                began_at=now,
                expires_at=Instant(now + lifetime * SECOND),
                priority=broker.priorities.level(
                    terms.contract, terms.to_service, terms.from_service
                ),
                group_id=GroupId(b""),
                state=State.STARTED_INBOUND,
                far_broker=broker.broker_id,
                bound=True,
                state_since=now,
            )
        )

    def _write(self, targets: _TargetTemplate, message_type: str, body: bytes | None) -> None:
        flush, ids = self._flush, self._broker.ids
        key = self._broker.store.next_endpoint_key()
        conversation_id = ConversationId(ids.fresh())
        first, last = MessageId(ids.fresh()), MessageId(ids.fresh())
        target = targets.make(conversation_id, last)
        endpoint = target.endpoint
        flush.created[endpoint.key] = flush.progress[endpoint.key] = endpoint
        target.serial = self._serial  # a copy of `Live.joined`: without a call for each dialog
        self._append(target, endpoint, 0, message_type, first, body)
        self._append(target, endpoint, 1, END_DIALOG, last, None)
        targets.coming.sent += 1
        if self._broker.writes_closing_lines:
            flush.closed.append(DialogLogRow(key, short_dialog_line(conversation_id, self._rest)))


class _TargetTemplate:
    """A maker of target endpoints in memory that differ only in their ids.

    The values that `Broker.new_target` looks up for each endpoint are looked up once: dialogs of
    one message come by the hundred, in one moment, from one service to another."""

    __slots__ = ("_broker", "_contract", "_template", "coming", "queue")

    def __init__(self, broker: Broker, template: DialogEndpoint) -> None:
        """Create the maker; `template`: a target with the shared terms, without key and ids."""
        self._broker = broker
        self._template = template
        self.queue = broker.queues[broker.services[template.service].queue]
        """The queue of their service."""
        self._contract = broker.contracts[template.contract]
        self.coming = broker.pairs.between(
            template.far_service, template.service, template.contract
        )
        """Counters of the messages that arrive for these targets."""
        broker.lifetimes.at_latest(template.expires_at)

    def make(self, conversation_id: ConversationId, last_message: MessageId) -> Live:
        """Create the target of a new conversation and group; the changeset inserts its row."""
        broker, template, queue = self._broker, self._template, self.queue
        key, group_id = broker.store.next_endpoint_key(), GroupId(broker.ids.fresh())
        endpoint = _replace(
            template,
            key=key,
            handle=Handle(broker.ids.fresh()),
            conversation_id=conversation_id,
            group_id=group_id,
            last_message=last_message,
        )
        group = broker.groups[group_id] = Group(group_id, template.service, queue)
        group.mark_whole()
        live = group.members[key] = Live(
            endpoint,
            group=group,
            queue=queue,
            contract=self._contract,
            coming=self.coming,
            is_local=True,
        )
        broker.endpoints.add(live)
        return live


_replace = msgspec.structs.replace


def _durable(arrived: list[tuple[Live, QueueRow]], requests: Sequence[int], done: Done) -> None:
    """Publish durable messages to their queue (REL-4)."""
    publish(arrived)
    done(requests)
