"""A changeset under construction: endpoints are stepped, effects become rows (design D2).

Reads: the broker's memory.      Calls: protocol.dialog, storage.
Never: waits. The caller has loaded everything into memory first.

Endpoints in memory are the truth (design D1): every transaction sees their changes when the
changeset joins the commit pipeline. Its other effects on memory are visible once the changeset is
durable (`publication.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from brokerd.broker import ordinary, retention
from brokerd.broker.arriving_bodies import ArrivingBodies
from brokerd.broker.broker import Broker
from brokerd.broker.closing_lines import closing_line
from brokerd.broker.dialog_events import began, lost_by, moved
from brokerd.broker.local_delivery import LocalPiece, hand_over
from brokerd.broker.messages import NewMessage, QueuedMessage, error_body
from brokerd.broker.ordinary import TargetChecks
from brokerd.broker.publication import Publication
from brokerd.broker.queues import QueueState, publish
from brokerd.broker.state import Group, Live, Taken
from brokerd.clock import Instant, later
from brokerd.ids import BodyKey, ClientId, EndpointKey, GroupId, MessageId
from brokerd.model import DIALOG_TIMER, END_DIALOG, ERROR
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import END, HEADERS, Fragment
from brokerd.protocol.frames import ERROR as ERROR_FLAG
from brokerd.protocol.headers import Content, body_of, flags_of
from brokerd.protocol.transitions import State
from brokerd.storage.changes import (
    BodyRow,
    Changes,
    DialogLogRow,
    OutgoingRemoval,
    OutgoingRow,
    Owner,
    QueueRow,
)
from brokerd.storage.hashes import body_hash, large_hash

TIMER = -2
"""The sequence of a DialogTimer message (RCV-9)."""


class Changeset:
    """A changeset under construction; `join` hands it to the commit pipeline."""

    __slots__ = (
        "_broker",
        "_closed",
        "_gone",
        "_publication",
        "_target",
        "_touched",
        "changes",
        "now",
    )

    def __init__(self, broker: Broker, now: Instant) -> None:
        self._broker = broker
        self.now = now
        self.changes = Changes()
        self._publication = Publication(broker, self.changes)
        self._touched: list[Live] = []
        self._gone: list[Live] = []
        self._closed: list[Live] = []
        self._target: TargetChecks | None = None

    def create(self, live: Live) -> None:
        """Insert the row of a new endpoint, which is in memory already."""
        if self._broker.is_watched:
            self._publication.report(began(live))
        self.changes.create(live.endpoint)
        self._touched.append(live)
        if live.endpoint.state is State.CLOSED:  # a tombstone from the beginning (DLG-T30)
            self._closed.append(live)

    def step(
        self, live: Live, event: dialog.Event, message: NewMessage | None = None
    ) -> dialog.Step:
        """Step an endpoint and record the effects.

        Return the step: some of its effects (refusals, anomalies) are left to the caller."""
        outcome = dialog.step(live.endpoint, event, now=self.now)
        self.apply(live, outcome, message, event)
        return outcome

    def apply(
        self,
        live: Live,
        outcome: dialog.Step,
        message: NewMessage | None = None,
        event: dialog.Event | None = None,
    ) -> None:
        """Record a step that `event` made on the current state of the endpoint."""
        before, after = live.endpoint, outcome.endpoint
        self._expect_repeats(live, after)
        if event is not None and (after is None or after.state is not before.state):
            self._publication.report(
                moved(live, before, after, event, watched=self._broker.is_watched)
            )
        if after is not None and after is not before:
            if after.state is not before.state:
                after = msgspec.structs.replace(after, state_since=self.now)
            live.stepped(after)
            if after.state is before.state and after.only_moved(before):
                self.changes.move(after)
            else:
                self.changes.put(after)
            self._touched.append(live)
        if self._broker.keeps_states and _leaves_group(before, after):
            self._leave_group(live, before.group_id)
        for effect in outcome.effects:
            self._effect(live, effect, message)
        if after is None:
            self._close(live, before)
        elif after.state is State.CLOSED and before.state is not State.CLOSED:
            if live.is_local:  # nothing can repeat its messages (DLG-33)
                self._close(live, live.endpoint)
            else:
                self._log(live, after)
                self._keep_closed(live, after)

    def _keep_closed(self, live: Live, closed: DialogEndpoint) -> None:
        """Keep a closed endpoint for at least the guard time from now on (DLP-56).

        Its last acknowledgement may get lost, and a peer that retransmits has to get it again."""
        least = later(self.now, self._broker.options.replay_guard)
        if closed.purge_at is not None and closed.purge_at < least:
            live.stepped(msgspec.structs.replace(closed, purge_at=least))
            self.changes.put(live.endpoint)
        self._closed.append(live)

    def close_ordinary(self, live: Live, outcome: dialog.Step, event: dialog.Event) -> bool:
        """Fast path of `apply`: record the end of an endpoint that leaves only its closing line.

        Nearly every dialog inside a broker ends so. Return False if this end is different: nothing
        was done."""
        after = outcome.endpoint
        if live.endpoint.state is not State.DISCONNECTED_INBOUND:
            return False
        if type(event) is not dialog.EndRequested or not ordinary.may_close(self._broker, live):
            return False
        if event.code is not None or self._may_be_repeated(after):
            return False
        if after is not None:
            live.stepped(after)
        self._close(live, live.endpoint)
        return True

    def hand_over_ordinary(self, live: Live, sent: DialogEndpoint, message: NewMessage) -> bool:
        """Fast path of `apply`: record an ordinary send onto the queue of the peer in this broker.

        `sent`: the endpoint after the send. Return False if the send is not ordinary: nothing was
        done."""
        before, peer, broker = live.endpoint, live.peer, self._broker
        if (
            peer is None
            or before.state is not State.CONVERSING
            or not broker.options.fast_paths
            # The verb has asked `may_send`, but the queue may have changed since.
            or live.queue.retains
            or message.body_key is not None  # its pieces get another owner (REL-33)
            or not ordinary.may_hand_over(broker, live)
        ):
            return False
        target = self._target = self._target or TargetChecks(broker, checked=True)
        kind, body = message.message_type, message.body
        got = dialog.ordinary_receive(peer.endpoint, message.message_id)
        if got is None or not target.accept(
            peer.contract, kind, body, from_initiator=before.is_initiator
        ):
            return False
        live.endpoint = sent  # copies of `Live.stepped`: without a call for each message
        peer.endpoint = got
        self.changes.move(sent)
        self.changes.move(got)
        self._touched += (live, peer)
        peer.coming.sent += 1
        self._enqueue(peer, message.message_id, got.receive_sequence - 1, kind, body)
        return True

    def _expect_repeats(self, live: Live, after: DialogEndpoint | None) -> None:
        # What the peer has in the transmission queue may arrive again after this side has closed:
        # then the endpoint is kept, like one with a peer elsewhere (DLG-33).
        if live.is_local and self._may_be_repeated(after):
            live.set_local(False)

    def _may_be_repeated(self, after: DialogEndpoint | None) -> bool:
        """Return whether the peer's messages may arrive again after the endpoint closes (DLG-33).

        They may if the peer, in this broker, still has messages in the transmission queue. Then the
        endpoint has to be kept."""
        if after is None or after.state is not State.CLOSED:
            return False
        peer = self._broker.endpoints.find_conversation(
            after.conversation_id, not after.is_initiator
        )
        return peer is not None and not peer.gone and peer.is_sending()

    def _leave_group(self, live: Live, group_id: GroupId) -> None:
        """Note that an endpoint leaves its group; delete the state of an ended group (GRP-2)."""
        self.changes.rarely().groups_left.append(group_id)
        group = self._broker.groups.get(group_id)
        if group is not None and group.is_over(without=live):
            group.forget_state()

    def _effect(self, live: Live, effect: dialog.Effect, message: NewMessage | None) -> None:
        match effect:
            case dialog.StoreOutgoing():
                self._send(live, effect, message)
            case dialog.Deliver(last):
                self._deliver(live, last)
            case dialog.KeepPart(fragment):
                self._bodies.store(live, fragment)
            case dialog.DeliverError(code, description):
                self._deliver_error(live, code, description)
            case dialog.FreezeOutgoing():
                self._freeze(live)
            case dialog.WithdrawOutgoing(is_settled):
                self._withdraw(live, is_settled=is_settled)
            case dialog.DropUnread():
                self._drop_unread(live)
            case dialog.Lose(code, description):
                self._lose(live, code, description)
            case dialog.Refuse() | dialog.Anomaly():
                pass  # left to the caller

    # Sending.

    def _send(self, live: Live, effect: dialog.StoreOutgoing, message: NewMessage | None) -> None:
        if live.queue.retains and message is not None and not effect.flags:
            self._retain_sent(live, effect.sequence, message)
        direct = not effect.frozen and self._broker.delivers_directly(live, effect.sequence)
        if direct and self._is_checked(message):
            hand_over(self, self._broker, live, effect, message)
            return
        broker, endpoint = self._broker, live.endpoint
        out = broker.outgoing(live)
        body = message.body if message else None
        key = message.body_key if message else None
        if effect.flags & ERROR_FLAG:
            body = error_body(
                endpoint, endpoint.error_code or 0, endpoint.error_text or "", self.now
            )
        row = OutgoingRow(
            broker.store.next_transmission_order(),
            endpoint.key,
            effect.sequence,
            effect.flags | flags_of(body),
            message.message_type if message and not effect.flags else "",
            broker.options.fragment_size,
            1 if out.must_page() else 0,
            self.now,
            message.message_id if message else MessageId(broker.ids.fresh()),
            None
            if body is None
            else self._hash(endpoint, endpoint.is_initiator, effect.sequence, body, key),
            body,
        )
        if key is not None:
            self._own(key, Owner.OUTGOING, row.transmission_order, body)
        self.changes.outgoing.append(row)
        out.joining(row)
        self._publication.outgoing.append((out, row))

    def _is_checked(self, message: NewMessage | None) -> bool:
        """Return whether the target has a verdict on the body.

        It has none if the type was altered since the send, or the send did not expect a local
        delivery. Then the message takes the transmission queue, and is checked on the way."""
        if message is None or not message.body:
            return True
        kind = self._broker.message_types.get(message.message_type)
        return not self._broker.inspection.overrun(kind, body_of(message.body))

    def _retain_sent(self, live: Live, sequence: int, message: NewMessage) -> None:
        rare = self.changes.rarely()
        copy = retention.sent_copy(self._broker, live, sequence, message, self.now)
        if message.retained_key is not None:
            self._own(message.retained_key, Owner.RETAINED, copy.queuing_order, copy.body)
            copy = copy._replace(body=None)
        rare.retained.append(copy)
        trim = retention.trim_of(self._broker, live.queue)
        if trim is not None:
            rare.trim[live.endpoint.key] = trim

    def _freeze(self, live: Live) -> None:
        if live.endpoint.error_queue is not None:
            self._end_posted(live)

    def _withdraw(self, live: Live, *, is_settled: bool) -> None:
        """Delete the endpoint's outgoing rows: in memory, in the store, or being committed."""
        if live.outgoing is not None:
            if not is_settled:
                live.withdrew(live.outgoing.undelivered)
            removal = live.outgoing.withdraw(self._broker.store.next_transmission_order())
            self.remove_outgoing(live, removal)

    # Arriving.

    def _deliver(self, live: Live, last: Fragment) -> None:
        if last.flags & END and live.endpoint.error_queue is not None:
            return  # the broker itself ends this side (PBT-4)
        if last.flags & END:
            self._enqueue(live, last.message_id, last.sequence, END_DIALOG, None)
            return
        # A damaged message must not reach `_enqueue` below, which would store a sound hash of it.
        body: bytes = last.body
        key = last.body_key if isinstance(last, LocalPiece) else None
        if live.endpoint.key in self._broker.damaged_parts:
            self._deliver_damaged(live, last)
            return
        if last.fragments > 1:
            body, key = self._bodies.join(live, last)
        if last.flags & HEADERS:
            body = Content(body)
        kind = last.message_type
        self._enqueue(live, last.message_id, last.sequence, kind, body or None, key=key)

    def _deliver_damaged(self, live: Live, last: Fragment) -> None:
        """Enqueue a message of which a stored fragment differs from the one that arrived.

        Its row has a hash but no body, which marks it as damaged, and its group is parked before
        any receive can take it (REL-6)."""
        self._bodies.delete(live)
        endpoint = live.endpoint
        place = endpoint.conversation_id, not endpoint.is_initiator, last.sequence
        lost = body_hash(*place, last.body)
        self._enqueue(live, last.message_id, last.sequence, last.message_type, None, lost=lost)
        self._publication.park_damaged()

    @property
    def _bodies(self) -> ArrivingBodies:
        """The bodies that arrive in fragments; most changesets have none."""
        publication = self._publication
        if publication.bodies is None:
            publication.bodies = ArrivingBodies(self._broker, self.changes)
        return publication.bodies

    def park_unchecked(self, live: Live, sequence: int, why: str) -> None:
        """Park the group of a message delivered without a verdict of its check (OBJ-62).

        `sequence`: that of the message, which was just delivered. The group is parked in this
        changeset, and in memory before the message can be received."""
        for at, row in reversed(self._publication.arrivals):
            if at is live and row.sequence == sequence:
                report = self._broker.held.unchecked(self.changes, live, row, why)
                self.when_published(report)
                return

    def _own(self, key: BodyKey, owner: Owner, number: int, body: bytes | None) -> None:
        """Assign a body that is stored in pieces to a message."""
        self.changes.bodies[key] = BodyRow(key, owner, number, len(body or b""))

    @staticmethod
    def _hash(
        endpoint: DialogEndpoint,
        from_initiator: bool,
        sequence: int,
        body: bytes,
        key: BodyKey | None,
    ) -> bytes:
        place = endpoint.conversation_id, from_initiator, sequence
        return body_hash(*place, body) if key is None else large_hash(*place, key, len(body))

    def _deliver_error(self, live: Live, code: int, description: str) -> None:
        body = error_body(live.endpoint, code, description, self.now)
        self._enqueue(live, MessageId(self._broker.ids.fresh()), -1, ERROR, body)

    def _enqueue(
        self, live: Live, message_id: MessageId, sequence: int, message_type: str,
        body: bytes | None, *, key: BodyKey | None = None, lost: bytes | None = None,
    ) -> None:  # fmt: skip
        endpoint, queue = live.endpoint, live.queue
        order = self._broker.store.next_queuing_order()
        place = 0
        if sequence >= 0 and queue.must_page(endpoint.priority, len(body or b"")):
            place = self._broker.store.shelves.place(queue.queue.key)
        row = QueueRow(
            order,
            queue.queue.key,
            endpoint.key,
            sequence,
            message_type,
            endpoint.priority,
            place,
            self.now,
            message_id,
            lost
            if body is None
            else self._hash(endpoint, not endpoint.is_initiator, sequence, body, key),
            body,
            HEADERS if type(body) is Content else 0,  # `flags_of` without a call
        )
        if key is not None:
            self._own(key, Owner.WAITING, order, body)
        self.changes.enqueued.append(row)
        live.unpublished.append(row)
        if place:
            queue.joining(row)
        if queue.room is not None:
            queue.room.joining(len(body or b""))
        self._publication.arrivals.append((live, row))

    def _drop_unread(self, live: Live) -> None:
        dropped = live.queue.drop(live)
        self.consume(dropped)
        for row in live.unpublished:
            self.changes.dequeue(row.paged, [row.queuing_order])
        beyond = live.queue.drop_backlog(live)
        if beyond != 0:
            # None: the messages beyond the window were not counted.
            count = None if beyond is None else beyond + len(dropped)
            self.changes.dequeued_of[live.endpoint.key] = count
        live.dropped_unread(self._broker.store.next_queuing_order())
        if self._broker.retains:
            self.changes.rarely().retained_removed_of.append(live.endpoint.key)
        if self._broker.timers.any:
            self.changes.rarely().timers_removed_of.append(live.endpoint.key)
        is_stored = live.endpoint.key in self._broker.incomplete  # they may not be loaded
        if live.parts or live.parts_stored or is_stored:
            self._bodies.delete(live)

    # Timers (DLG-35 to DLG-42).

    def set_timer(self, live: Live, name: str, due: Instant | None) -> None:
        """Set or replace a timer, or cancel it; do nothing if the dialog has ended meanwhile."""
        if not live.gone and dialog.may_set_timer(live.endpoint):
            self._broker.timers.any = True
            self.changes.rarely().timers[live.endpoint.key, name] = due

    def fire_timer(self, live: Live, name: str) -> None:
        """Enqueue the message of a due timer on the side that set it, and delete the timer.

        A DialogTimer message has no body (DLG-42); the body of its row carries the name of the
        timer."""
        self.forget_timer(live.endpoint.key, name)
        fresh = MessageId(self._broker.ids.fresh())
        self._enqueue(live, fresh, TIMER, DIALOG_TIMER, name.encode() or None)

    def forget_timer(self, key: EndpointKey, name: str) -> None:
        """Delete a pending timer."""
        self.changes.rarely().timers[key, name] = None

    # Ending.

    def _end_posted(self, live: Live) -> None:
        """End this side of a posted dialog, because the peer has ended (PBT-4).

        A side in state ER is ended when its Error has been received (`error_received`)."""
        if live.endpoint.state is State.DISCONNECTED_INBOUND:
            self.step(live, dialog.EndRequested(unread=live.unread))

    def errors_received(self, received: Sequence[Taken]) -> None:
        """End posted dialogs whose Error was received: nothing of them remains (PBT-4).

        Each is alone in its group."""
        for live, messages, *_ in received:
            if any(message.message_type == ERROR for message in messages):
                self.error_received(live)

    def error_received(self, live: Live) -> None:
        """End a posted dialog whose Error has been received."""
        if not live.gone and live.endpoint.state is State.ERROR:
            self.step(live, dialog.EndRequested(unread=live.unread))

    def _lose(self, live: Live, code: int, text: str) -> None:
        """Note an Error that no application will see, and messages that the peer lacks (PBT-4)."""
        self._publication.report_lost(lost_by(live, code, text))

    def _close(self, live: Live, last: DialogEndpoint) -> None:
        if last.state is not State.CLOSED or live.is_local:
            self._log(live, last)
        live.removed()
        self.changes.remove(last.key)
        self._gone.append(live)
        self._touched.append(live)

    def _log(self, live: Live, last: DialogEndpoint) -> None:
        # A dialog that was begun and abandoned has no line: its peer never heard of it (DLG-T3).
        if self._broker.writes_closing_lines and (last.send_sequence or last.receive_sequence):
            self.changes.closed.append(DialogLogRow(last.key, closing_line(live, last, self.now)))

    # Committing.

    @property
    def touches_endpoints(self) -> bool:
        """Whether the changeset does more than delete rows that are no longer needed."""
        return bool(self._touched)

    @property
    def empty(self) -> bool:
        """Whether the changeset has nothing to write."""
        changes = self.changes
        return not (
            self._touched
            or changes.dequeued
            or changes.dequeued_from
            or changes.acknowledged
            or changes.outgoing_removed
            or changes.group_states
            or changes.tokens
            or changes.rare is not None
        )

    def consume(self, messages: Sequence[QueuedMessage]) -> None:
        """Delete the rows of messages that were received, or are dropped unread (RCV-14)."""
        places = {message.place for message in messages}
        for place in places:
            mine = messages if len(places) == 1 else [one for one in messages if one.place == place]
            self.changes.dequeue(place, [message.order for message in mine])

    def retain(self, queue: QueueState, taken: list[Taken]) -> None:
        """Retain messages received from a queue until their conversations end (RCV-31)."""
        rare = self.changes.rarely()
        rare.retain += [message.order for _, messages, *_ in taken for message in messages]
        trim = retention.trim_of(self._broker, queue)
        if trim is not None:
            rare.trim.update({live.endpoint.key: trim for live, *_ in taken})
        self._touched += [live for live, *_ in taken]

    def remove_outgoing(self, live: Live, removal: OutgoingRemoval) -> None:
        """Delete transmission rows that the peer has acknowledged (DLP-20), or no longer needs."""
        self.changes.remove_outgoing(live.endpoint.key, removal)

    def keep_state(self, group: Group, state: bytes | None) -> None:
        """Set the state that the application keeps for a group (GRP-22)."""
        self._broker.keeps_states = True
        self.changes.group_states[group.group_id] = state
        if group.is_over():  # ended by this transaction, or by an administrator
            self.changes.rarely().groups_left.append(group.group_id)
            group.forget_state()
        else:
            self._publication.states.append((group, state))

    def join(
        self,
        done: Callable[[], None],
        *,
        client: ClientId | None = None,
        token: int = -1,
        urgent: bool = True,
        ends: Callable[[list[tuple[Live, QueueRow]]], None] = publish,
    ) -> None:
        """Hand the changeset to the commit pipeline; call `done` once it is durable and published.

        `ends` publishes the messages, and everything else that becomes visible at the same
        moment."""
        if client is not None and token >= 0:
            self.changes.tokens[client] = token
        publication, store = self._publication, self._broker.store
        publication.done, publication.publish_arrivals = done, ends
        serial = store.gathering
        # First of all: endpoints that are removed below must carry the serial of the flush that
        # deletes their rows, so that no read before it brings them back.
        for live in self._touched:
            live.serial = serial  # a copy of `Live.joined`: without a call for each endpoint
        for live in self._gone:
            self._broker.forget(live)
        for live in self._closed:
            self._broker.closed(live)
        if self.changes.rare is not None:
            self._broker.timers.joined(self.changes.rare.timers, serial)
        store.join(self.changes, publication.publish, urgent=urgent)

    def when_published(self, call: Callable[[], object]) -> None:
        """Call this function once the changeset is durable and published in memory."""
        self._publication.call(call)

    async def commit(self) -> None:
        """Join the commit pipeline, and return when the changeset is durable."""
        durable = asyncio.get_running_loop().create_future()
        self.join(lambda: None if durable.done() else durable.set_result(None))
        await durable


def _leaves_group(before: DialogEndpoint, after: DialogEndpoint | None) -> bool:
    """Return whether the endpoint leaves its group: it ended, or moved to another group (GRP-2)."""
    if after is None or after.group_id != before.group_id:
        return True
    return after.state is State.CLOSED and before.state is not State.CLOSED
