"""Dialogs of one message inside a broker: begun, sent on and ended in one transaction, straight.

Reads: the broker's memory.      Calls: protocol.dialog, the gathering flush of the store.
Never: decides anything that the verbs and `Transaction.commit` would decide otherwise. Where there
is anything to decide (a route, a refusal, a queue that is off) it stops before that dialog has
changed anything, and the caller takes the long way. A test holds the two ways together.

By the long way the initiator's endpoint comes and goes within the transaction (DLG-16), and nobody
ever sees it: here it is not made. What is left of it is its closing line (design D16). So nobody
looks in the store either whether its handle is in use there: no row will ever have it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from brokerd.broker.broker import Broker
from brokerd.broker.closing_lines import one_way_line, one_way_rest
from brokerd.broker.endpoints import Live
from brokerd.broker.queues import publish
from brokerd.clock import SECOND, Instant
from brokerd.delivery.direct import Done
from brokerd.delivery.straight import Straight
from brokerd.delivery.verbs import MAX_LIFETIME, is_reserved
from brokerd.ids import ClientId, ConversationId, Handle, MessageId
from brokerd.model import END_DIALOG, Contract
from brokerd.protocol import dialog
from brokerd.storage.changes import DialogLogRow, QueueRow


class Terms(NamedTuple):
    """What decides whether such a dialog may be: alike for very many of them."""

    from_service: str
    to_service: str
    contract: str
    message_type: str
    lifetime: int | None
    """Seconds."""


class OneWay(NamedTuple):
    """One dialog, as a transaction of its own."""

    request: int
    token: int
    """Commit token: above all that this client used before (REL-2)."""
    handle: Handle
    terms: Terms
    body: bytes | None


def converse_each(
    broker: Broker, dialogs: Iterable[OneWay], *, client: ClientId, done: Done
) -> int:
    """Begin, send, end and commit, in order, up to the first that has to take the long way; how
    many. `done` is called with their requests when they are durable.

    `StoreFault`: nothing was done."""
    if not broker.enabled or broker.is_watched or broker.is_full:
        return 0
    run = _Run(broker)
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
        broker.store.joined_straight(durable, client, tokens)
    return len(requests)


class _Run(Straight):
    """Dialogs that join one flush together."""

    __slots__ = ("_agreed", "_longest", "_rest")

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        options = broker.options
        self._longest = min(options.max_message, options.large_body - 1)
        self._agreed: tuple[Terms, Contract] | None = None
        self._rest = b""

    def add(self, one: OneWay) -> bool:
        """One more; False = nothing was done."""
        broker, terms, body = self._broker, one.terms, one.body or None
        if broker.endpoints.find(one.handle) is not None or (body and len(body) > self._longest):
            return False
        if self._agreed is None or terms != self._agreed[0]:
            contract = self._agree(terms)
            if contract is None:
                return False
            self._agreed = terms, contract
            names = terms.from_service, terms.to_service, terms.contract
            self._rest = one_way_rest(*names, self._now)
        if not self._accepts(self._agreed[1], terms.message_type, body, from_initiator=True):
            return False
        self._take(terms, body)
        return True

    def _agree(self, terms: Terms) -> Contract | None:
        """The contract of such dialogs, if all of them begin, send and arrive without more ado."""
        broker, catalog = self._broker, self._broker.catalog_index
        source = catalog.services.get(terms.from_service)
        target = catalog.services.get(terms.to_service)
        contract = catalog.contracts.get(terms.contract)
        if source is None or target is None or contract is None:
            return None
        plain = (
            not is_reserved(terms.from_service, terms.contract)
            and (terms.lifetime is None or 1 <= terms.lifetime <= MAX_LIFETIME)
            and terms.contract in target.contracts
            and contract.allows(terms.message_type, initiator=True)
            and terms.message_type not in broker.checked_on_send
            and not broker.queues[source.queue].retains
            and broker.queues[target.queue].queue.enqueue_enabled
        )
        return contract if plain and broker.always_here(terms.to_service) else None

    def _take(self, terms: Terms, body: bytes | None) -> None:
        broker, now, flush = self._broker, self._now, self._flush
        store, ids = broker.store, broker.ids
        key = store.next_endpoint_key()
        conversation_id = ConversationId(ids.fresh())
        lifetime = broker.options.default_lifetime if terms.lifetime is None else terms.lifetime
        target = broker.new_target(
            conversation_id=conversation_id,
            service=terms.to_service,
            contract=terms.contract,
            far_service=terms.from_service,
            far_broker=broker.broker_id,
            expires_at=Instant(now + lifetime * SECOND),
            now=now,
        )
        first, last = MessageId(ids.fresh()), MessageId(ids.fresh())
        endpoint = dialog.plain_opening(target.endpoint, first)
        self._enqueue(target, endpoint, terms.message_type, first, body)
        endpoint = dialog.plain_far_end(endpoint, last)
        self._enqueue(target, endpoint, END_DIALOG, last, None)
        flush.created[endpoint.key] = endpoint
        target.coming.sent += 1
        flush.closed.append(DialogLogRow(key, one_way_line(conversation_id, self._rest)))


def _durable(arrived: list[tuple[Live, QueueRow]], requests: Sequence[int], done: Done) -> None:
    """They are durable: the queue learns it here (REL-4)."""
    publish(arrived)
    done(requests)
