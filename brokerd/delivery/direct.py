"""SENDs of one message, each a transaction of its own, on open dialogs: the common case, straight.

Reads: the broker's memory.      Calls: protocol.dialog, the gathering flush of the store.
Never: decides anything that `verbs.send` and `Transaction.commit` would decide otherwise. Where
there is anything to decide (a lock, a wait, a refusal, a state other than CO) it stops before that
send has changed anything, and the caller takes the long way. A test holds the two ways together.

What a client wrote in one go is sent in one go: the flush, the time and the catalog are looked up
once for all of them, and they share one callback when they are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live
from brokerd.broker.queues import publish
from brokerd.broker.transmission import Outgoing
from brokerd.delivery.straight import Straight
from brokerd.ids import ClientId, Handle, MessageId
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.storage.changes import OutgoingRow, QueueRow
from brokerd.storage.hashes import body_hash

Done = Callable[[Sequence[int]], None]
"""Told the requests that are durable."""


class Send(NamedTuple):
    """One message to send as a transaction of its own."""

    request: int
    token: int
    """Commit token: above all that this client used before (REL-2)."""
    handle: Handle
    message_type: str
    body: bytes | None


def send_each(broker: Broker, sends: Iterable[Send], *, client: ClientId, done: Done) -> int:
    """Send and commit, in order, up to the first that has to take the long way; how many.

    `done` is called with their requests when they are durable. `StoreFault`: nothing was done."""
    if not broker.enabled:
        return 0
    run = _Run(broker)
    add = run.add
    requests: list[int] = []
    tokens: list[int] = []
    for request, token, handle, message_type, body in sends:
        if not add(handle, message_type, body):
            break
        requests.append(request)
        tokens.append(token)
    if requests:
        broker.sends += len(requests)
        durable = partial(_durable, run.arrived, run.leaving, requests, done)
        broker.store.joined_straight(durable, client, tokens)
    return len(requests)


class _Run(Straight):
    """Sends that join one flush together."""

    __slots__ = ("_allowed", "_longest", "leaving")

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._allowed: object = None
        options = broker.options
        self._longest = min(options.max_message, options.large_body - 1)
        self.leaving: list[tuple[Outgoing, OutgoingRow]] = []

    def add(self, handle: Handle, message_type: str, body: bytes | None) -> bool:
        """Send one more; False = nothing was done."""
        broker = self._broker
        live = broker.endpoints.find(handle)
        if live is None or live.group.holder is not None or live.group.line or live.queue.retains:
            return False
        sent = dialog.plain_send(live.endpoint)
        if sent is None or (body and len(body) > self._longest):
            return False
        add = self._to_queue if live.is_local else self._to_transmission
        return add(live, sent, message_type, body or None)

    def _to_queue(
        self, live: Live, sent: DialogEndpoint, message_type: str, body: bytes | None
    ) -> bool:
        """The other side is in this broker: straight onto its queue (SND-14)."""
        peer = live.peer
        if peer is None or peer.gone or not live.delivers_directly() or not live.endpoint.bound:
            return False
        if not self._may(live, message_type, sent) or not self._accepting.accepts(
            peer.contract, message_type, body, from_initiator=sent.is_initiator
        ):
            return False
        message_id = MessageId(self._broker.ids.fresh())
        got = dialog.plain_receive(peer.endpoint, message_id)
        if got is None:
            return False
        self._flush.progress[sent.key] = live.endpoint = sent
        live.serial = self._serial
        peer.coming.sent += 1
        self._enqueue(peer, got, message_type, message_id, body)
        return True

    def _to_transmission(
        self, live: Live, sent: DialogEndpoint, message_type: str, body: bytes | None
    ) -> bool:
        """The other side is elsewhere: into the transmission queue (DLP-20)."""
        out = live.outgoing
        if out is None or out.held:
            return False
        if not self._may(live, message_type, sent):
            return False
        broker, flush = self._broker, self._flush
        sequence = sent.send_sequence - 1
        row = OutgoingRow(
            broker.store.next_transmission_order(),
            sent.key,
            sequence,
            0,
            message_type,
            broker.options.fragment_size,
            1 if out.must_page() else 0,
            self._now,
            MessageId(broker.ids.fresh()),
            body_hash(sent.conversation_id, sent.is_initiator, sequence, body) if body else None,
            body,
        )
        flush.outgoing.append(row)
        flush.bytes += len(body) if body else 0
        flush.progress[sent.key] = live.endpoint = sent
        live.serial = self._serial
        out.joining(row)
        self.leaving.append((out, row))
        return True

    def _may(self, live: Live, message_type: str, sent: DialogEndpoint) -> bool:
        terms = (live.contract, message_type, sent.is_initiator)
        if terms == self._allowed:
            return True
        if not live.contract.allows(message_type, initiator=sent.is_initiator):
            return False
        if message_type in self._broker.checked_on_send:
            return False
        self._allowed = terms
        return True


def _durable(
    arrived: list[tuple[Live, QueueRow]],
    leaving: list[tuple[Outgoing, OutgoingRow]],
    requests: list[int],
    done: Done,
) -> None:
    """They are durable: queues and the transmitter learn it here (REL-4).

    The run itself is not held until then: it knows the flush that calls this, and circles wait
    for the collector."""
    for out, row in leaving:
        out.published(row)
    publish(arrived)
    done(requests)
