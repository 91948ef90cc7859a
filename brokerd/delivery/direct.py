"""SEND of one message as a transaction of its own, on an open dialog: the common case, straight.

Reads: the broker's memory.      Calls: protocol.dialog, the gathering flush of the store.
Never: decides anything that `verbs.send` and `Transaction.commit` would decide otherwise. Where
there is anything to decide (a lock, a wait, a refusal, a state other than CO) it declines before
it has changed anything, and the caller takes the long way. A test holds the two ways together.
"""

from collections.abc import Callable
from functools import partial

from brokerd.broker.broker import Broker
from brokerd.broker.checks import refuse_message
from brokerd.broker.endpoints import Live
from brokerd.broker.transmission import Outgoing
from brokerd.ids import ClientId, Handle, MessageId
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.storage.changes import OutgoingRow, QueueRow
from brokerd.storage.hashes import body_hash

Done = Callable[[], None]


def send_one(
    broker: Broker,
    handle: Handle,
    message_type: str,
    body: bytes | None,
    *,
    client: ClientId,
    token: int,
    done: Done,
) -> bool:
    """Send and commit; False = nothing was done, take the long way. `done` when it is durable."""
    live = broker.endpoints.find(handle)
    if live is None or live.group.holder is not None or live.group.line:
        return False
    sent = dialog.plain_send(live.endpoint)
    if sent is None or (body and len(body) > broker.options.max_message):
        return False
    if not live.contract.allows(message_type, initiator=sent.is_initiator):
        return False
    if live.is_local:
        return _to_queue(
            broker,
            live,
            sent,
            message_type=message_type,
            body=body,
            client=client,
            token=token,
            done=done,
        )
    return _to_transmission(
        broker,
        live,
        sent,
        message_type=message_type,
        body=body,
        client=client,
        token=token,
        done=done,
    )


def _to_queue(
    broker: Broker,
    live: Live,
    sent: DialogEndpoint,
    *,
    message_type: str,
    body: bytes | None,
    client: ClientId,
    token: int,
    done: Done,
) -> bool:
    """The other side is in this broker: straight onto its queue (SND-14)."""
    peer = live.peer
    if peer is None or peer.gone or not live.delivers_directly() or not live.endpoint.bound:
        return False
    got = dialog.plain_receive(peer.endpoint)
    if got is None or refuse_message(
        peer.contract,
        message_type,
        body,
        known=broker.message_types,
        from_initiator=sent.is_initiator,
    ):
        return False
    store, queue, priority = broker.store, peer.queue, got.priority
    size = len(body) if body else 0
    sequence = sent.send_sequence - 1
    paged = queue.must_page(priority, size)
    flush = store.gather()
    row = QueueRow(
        store.next_queuing_order(),
        queue.queue.key,
        got.key,
        sequence,
        message_type,
        priority,
        1 if paged else 0,
        broker.clock.utc(),
        MessageId(broker.ids.fresh()),
        body_hash(sent.conversation_id, sent.is_initiator, sequence, body) if body else None,
        body or None,
    )
    flush.enqueued.append(row)
    flush.bytes += size
    flush.progress[sent.key] = live.endpoint = sent
    flush.progress[got.key] = peer.endpoint = got
    live.serial = peer.serial = store.gathering
    peer.unpublished.append(row)
    if paged:
        queue.past.joining(row)
    broker.sends += 1
    store.joined_one(partial(_arrived, peer, row, done), client, token)
    return True


def _arrived(live: Live, row: QueueRow, done: Done) -> None:
    """It is durable: the queue learns it here (REL-4)."""
    live.unpublished.popleft()
    queue = live.queue
    was_empty = not queue.ready_count
    queue.published(live, row)
    queue.arrived((live.group,), was_empty=was_empty)
    done()


def _to_transmission(
    broker: Broker,
    live: Live,
    sent: DialogEndpoint,
    *,
    message_type: str,
    body: bytes | None,
    client: ClientId,
    token: int,
    done: Done,
) -> bool:
    """The other side is elsewhere: into the transmission queue (DLP-20)."""
    out = live.outgoing
    if out is None or out.held:
        return False
    store = broker.store
    sequence = sent.send_sequence - 1
    flush = store.gather()
    row = OutgoingRow(
        store.next_transmission_order(),
        sent.key,
        sequence,
        0,
        message_type,
        broker.options.fragment_size,
        1 if out.must_page() else 0,
        broker.clock.utc(),
        MessageId(broker.ids.fresh()),
        body_hash(sent.conversation_id, sent.is_initiator, sequence, body) if body else None,
        body or None,
    )
    flush.outgoing.append(row)
    flush.bytes += len(body) if body else 0
    flush.progress[sent.key] = live.endpoint = sent
    live.serial = store.gathering
    out.joining(row)
    broker.sends += 1
    store.joined_one(partial(_sent, out, row, done), client, token)
    return True


def _sent(out: Outgoing, row: OutgoingRow, done: Done) -> None:
    """It is durable: the transmitter learns it here (REL-4)."""
    out.published(row)
    done()
