"""Fast path of transactions that only SEND on open dialogs, one message or several.

Reads: the broker's memory.      Calls: protocol.dialog, the gathering flush of the store.
Never: decides anything that `verbs.sends` and `Transaction.commit` would decide otherwise. If there
is anything to decide (a lock, a wait, a refusal, a state other than CO), it stops before the
transaction has changed anything, and the caller takes the general path. A test compares the paths.

Requests that a client wrote together are sent together: the flush, the time and the catalog are
looked up once for all of them, and one callback reports that they are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from brokerd.broker import ordinary
from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.queues import publish
from brokerd.broker.state import HomeQueue, Live
from brokerd.broker.transaction import Transaction
from brokerd.delivery.fastpath.rows import OrdinaryRows
from brokerd.ids import ClientId, Handle, MessageId
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.headers import Content
from brokerd.protocol.items import HEADERS
from brokerd.security.grants import Rights
from brokerd.storage.changes import OutgoingRow, QueueRow
from brokerd.storage.hashes import body_hash

Done = Callable[[Sequence[int]], None]
"""Called with the requests that are durable."""


Message = tuple[Handle, str, bytes | None]
"""The handle of the dialog to send on, the message type, and the body (a `Content` if the message
has headers)."""


class Sends(NamedTuple):
    """Messages to send in one transaction, which does nothing else."""

    request: int
    token: int
    """Commit token: higher than any that this client used before (REL-2)."""
    messages: Sequence[Message]


def send_each(
    broker: Broker,
    sends: Iterable[Sends],
    *,
    client: ClientId,
    rights: Rights | None,
    done: Done,
    holder: Transaction | None = None,
) -> int:
    """Send and commit, in order, up to the first transaction that needs the general path.

    Return the number of transactions sent. `done` is called with their requests once they are
    durable. `rights`: those of the client; None = all. `holder`: the transaction that may have
    locked the groups while bodies were checked.

    Raises:
        StoreFault: nothing was done.
    """
    if not broker.options.fast_paths:
        return 0
    run = _Run(broker, holder, rights)
    add, most = run.add, broker.options.max_verbs
    requests: list[int] = []
    tokens: list[int] = []
    messages = 0
    for request, token, one in sends:
        count = len(one)
        if count > most or not add(one):
            break
        messages += count
        requests.append(request)
        tokens.append(token)
    if requests:
        broker.sends += messages
        durable = partial(_durable, run.arrived, run.leaving, requests, done)
        broker.store.join_written(durable, client, tokens)
    return len(requests)


_Sent = tuple[
    Live, DialogEndpoint, Live | None, DialogEndpoint | None, str, MessageId, bytes | None
]
"""A message whose dialog has been stepped: endpoint and its former state, far endpoint and its
former state if this broker has it, type, id and body of the message.

A plain tuple, because there is one per message and a named one takes four times as long to make."""


NOTHING: Final[Sequence[_Sent]] = ()
"""No messages."""


class _Run(OrdinaryRows):
    """Transactions of sends that join one flush together."""

    __slots__ = ("_ahead", "_holder", "_most", "_rights", "_terms", "leaving")

    def __init__(self, broker: Broker, holder: Transaction | None, rights: Rights | None) -> None:
        super().__init__(broker, checked=holder is not None)
        self._holder = holder
        self._rights = rights
        self._most = broker.options.max_bytes
        self._terms: object = None  # of the latest message; nearly all of a run have the same
        self._ahead = NOTHING  # messages of the same transaction that are not written yet
        self.leaving: list[tuple[Outgoing, OutgoingRow]] = []

    def add(self, messages: Sequence[Message]) -> bool:
        """Send messages in one more transaction; False = nothing was done.

        All dialogs are stepped before any row is written. If a message cannot be sent on the fast
        path, the steps before it are undone; no other code runs in between."""
        if len(messages) == 1:  # nearly always: nothing to gather or to undo
            ((handle, message_type, body),) = messages
            one = self._step(handle, message_type, body or None)
            if one is not None:
                self._write(one)
            return one is not None
        sent: list[_Sent] = []
        size = 0
        self._ahead = sent
        for handle, message_type, body in messages:
            one = self._step(handle, message_type, body or None)
            if body:
                size += len(body)
            if one is None or size > self._most:
                _undo(sent)
                self._ahead = NOTHING
                return False
            sent.append(one)
        self._ahead = NOTHING
        for one in sent:
            self._write(one)
        return True

    def _step(  # noqa: PLR0911  # one for each question
        self, handle: Handle, message_type: str, body: bytes | None
    ) -> _Sent | None:
        """Step a dialog, and its far endpoint if this broker has it; None = nothing was done."""
        broker = self._broker
        live = broker.endpoints.find(handle)
        if live is None:
            return None
        before = live.endpoint
        sent = dialog.ordinary_send(before)
        size, side = len(body) if body else 0, before.is_initiator
        if sent is None or not ordinary.may_send(
            broker, live.group, live.queue, size, self._holder, self._rights
        ):
            return None
        terms = (live.contract, message_type, side)
        if terms != self._terms:
            if not ordinary.may_send_type(broker, live.contract, message_type, from_initiator=side):
                return None
            self._terms = terms
        if not live.is_local:
            return self._step_alone(live, sent, message_type, body)
        peer = live.peer
        if (
            peer is None
            or not ordinary.may_hand_over(broker, live)
            or (peer.queue.room is not None and not self._may_fill(peer.queue))
        ):
            return None
        if not self._target.accept(peer.contract, message_type, body, from_initiator=side):
            return None
        message_id = MessageId(broker.ids.fresh())
        peer_before = peer.endpoint
        got = dialog.ordinary_receive(peer_before, message_id)
        if got is None:
            return None
        # Copies of `Live.stepped` here and of `Live.joined` below: without a call for each message.
        live.endpoint = sent
        peer.endpoint = got
        return live, before, peer, peer_before, message_type, message_id, body

    def _may_fill(self, queue: HomeQueue) -> bool:
        """Return whether a queue with limits takes a message; all those ahead count against it."""
        return ordinary.may_fill(
            queue, len(self._ahead), sum([len(one[-1] or b"") for one in self._ahead])
        )

    def _step_alone(
        self, live: Live, sent: DialogEndpoint, message_type: str, body: bytes | None
    ) -> _Sent | None:
        if not ordinary.may_leave(self._broker, live):
            return None
        before = live.endpoint
        live.endpoint = sent
        message_id = MessageId(self._broker.ids.fresh())
        return live, before, None, None, message_type, message_id, body

    def _write(self, one: _Sent) -> None:
        """Write the rows of a message, onto the peer's queue if this broker has it (SND-14)."""
        live, _, peer, peer_before, message_type, message_id, body = one
        if peer is None or peer_before is None:
            self._to_transmission(one)
            return
        progress, sent, got = self._flush.progress, live.endpoint, peer.endpoint
        progress[sent.key], progress[got.key] = sent, got
        live.serial = peer.serial = self._serial
        peer.coming.sent += 1
        self._append(peer, got, peer_before.receive_sequence, message_type, message_id, body)

    def _to_transmission(self, one: _Sent) -> None:
        """Write a message to a far endpoint elsewhere into the transmission queue (DLP-20)."""
        live, before, _, _, message_type, message_id, body = one
        broker, flush, out = self._broker, self._flush, live.outgoing
        assert out is not None, "looked at before it was stepped"
        sent, sequence = live.endpoint, before.send_sequence
        row = OutgoingRow(
            broker.store.next_transmission_order(),
            sent.key,
            sequence,
            HEADERS if type(body) is Content else 0,  # `flags_of` without a call
            message_type,
            broker.options.fragment_size,
            1 if out.must_page() else 0,
            self._now,
            message_id,
            body_hash(sent.conversation_id, sent.is_initiator, sequence, body) if body else None,
            body,
        )
        flush.outgoing.append(row)
        flush.bytes += len(body) if body else 0
        flush.progress[sent.key] = sent
        live.serial = self._serial
        out.joining(row)
        self.leaving.append((out, row))


def _undo(sent: list[_Sent]) -> None:
    """Restore the endpoints to their state before the steps."""
    for live, before, peer, peer_before, *_ in reversed(sent):
        live.stepped(before)
        if peer is not None and peer_before is not None:
            peer.stepped(peer_before)


def _durable(
    arrived: list[tuple[Live, QueueRow]],
    leaving: list[tuple[Outgoing, OutgoingRow]],
    requests: list[int],
    done: Done,
) -> None:
    """Publish durable messages to queues and the transmitter (REL-4).

    A function and not a method, so that the flush does not refer to the run, which refers to the
    flush: a reference cycle would wait for the garbage collector."""
    for out, row in leaving:
        out.published(row)
    publish(arrived)
    done(requests)
