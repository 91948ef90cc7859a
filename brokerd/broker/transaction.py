"""A transaction: its locks, the effects of its verbs, its commit or rollback (design D2, REL-3).

Reads: the broker's memory.      Calls: changeset, moves, savepoints, queues.
Never: waits, except for its own commit (`committed`). Verbs (`verbs.sends`) fill it; a session or
a reader commits it.

The changes of an endpoint by verbs are kept as events, each with the endpoint that it was stepped
from. A commit applies each event to the current endpoint: if the endpoint has not changed, the
step made by the verb is used; if an arrival has changed it, the event is stepped again (DLG-46).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator
from enum import StrEnum
from typing import Final

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.changeset import Changeset
from brokerd.broker.kept_bodies import KeptBodies
from brokerd.broker.messages import NewMessage, QueuedMessage, size_of
from brokerd.broker.moves import Moves
from brokerd.broker.poison import Undone
from brokerd.broker.queues import QueueState, publish
from brokerd.broker.reservations import Reservations
from brokerd.broker.room import Room
from brokerd.broker.savepoints import Mark, Savepoints
from brokerd.broker.state import Group, Live, ReceiveWait, Taken
from brokerd.clock import Instant
from brokerd.errors import BrokerError, DeadlockVictim
from brokerd.ids import BodyKey, ClientId, EndpointKey, MessageId
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.security.grants import Rights
from brokerd.storage.changes import EventChanges, QueueRow

_ENDS = dialog.EndRequested | dialog.CleanupRequested


class TxState(StrEnum):
    """The state of a transaction."""

    OPEN = "open"
    FAILED = "failed"
    """A verb failed; only a rollback is accepted."""
    FINISHED = "finished"


class _Intent(msgspec.Struct):
    live: Live
    event: dialog.Event
    message: NewMessage | None
    base: DialogEndpoint
    outcome: dialog.Step


SEND: Final = dialog.SendRequested()
END: Final = dialog.EndRequested()


class Transaction:
    """One unit of work on one broker."""

    __slots__ = (
        "_begun",
        "_intents",
        "_pinned",
        "_received",
        "_reserved",
        "_states",
        "_timers",
        "_views",
        "absent",
        "broker",
        "ended",
        "events",
        "failure",
        "idle",
        "inspected",
        "keeps_locks",
        "kept_bodies",
        "locked",
        "locked_at",
        "moves",
        "opened",
        "opened_at",
        "owner",
        "ready",
        "receiving",
        "resume",
        "returned",
        "rights",
        "savepoints",
        "size",
        "state",
        "verb",
        "verbs",
        "waiting",
        "waits_for",
    )

    def __init__(self, broker: Broker, owner: str) -> None:  # noqa: PLR0915  # one an attribute
        self.broker = broker
        self.owner = owner
        self.rights: Rights | None = None
        """The rights of the client's user; None = every right."""
        self.state = TxState.OPEN
        self.opened_at = broker.clock.monotonic()
        broker.transactions += 1
        self.opened = broker.transactions
        """The number in the order of BEGIN TRANSACTION (GRP-12)."""
        self.ready: dict[Group, None] = {}
        """The groups it has locked that may have messages in the window."""
        self.locked: list[Group] = []
        self.locked_at: float | None = None
        """Time at which it took its first lock, from which its age counts (CLP-61)."""
        self.waits_for: Group | None = None
        """The group whose lock one of its verbs waits for."""
        self.receiving: ReceiveWait | None = None
        """The wait for a message, if it waits for one."""
        self.returned: set[Group] = set()
        """Groups that get_group has returned to it (GRP-16)."""
        self.idle = False
        """Whether it is open and no request of its client is being executed."""
        self.verb = "begin"
        """The latest verb, executed or waiting."""
        self.verbs = 0
        self.size = 0
        """Bytes of the bodies sent and received."""
        self.ended: set[Live] = set()
        """Conversations that it has ended, and so receives nothing from (DLG-T10)."""
        self.inspected: list[bytes] = []
        """Bodies that were given to the checking process."""
        self.kept_bodies = KeptBodies()
        """Large bodies, for its sends, that are stored already."""
        self.absent: set[bytes] = set()
        """Handles, groups and peers of dialogs that a verb did not find in the store."""
        self.keeps_locks = False
        """Whether it did more than begin and send, and so keeps its locks until durable (GRP-4)."""
        self.waiting: Callable[[], BrokerError | None] | None = None
        """Cancels the wait of a verb, for a lock or a message."""
        self.resume: Callable[[], None] | None = None
        """Repeats the call of a verb that waits for a lock."""
        self.failure: BrokerError | None = None
        """The error with which a wait for a lock ended without the lock."""
        self.events: EventChanges | None = None
        """The changes to the dialogs of event notifications, for its commit."""
        self._begun: list[Live] = []
        self._intents: list[_Intent] = []
        self._views: dict[EndpointKey, DialogEndpoint | None] = {}
        self._received: list[tuple[QueueState, list[Taken]]] = []
        self._states: dict[Group, bytes | None] = {}
        self.moves = Moves()
        self.savepoints = Savepoints()
        """The savepoints it can be rolled back to."""
        self._pinned: set[Live] = set()
        self._timers: list[tuple[Live, str, Instant | None]] | None = None
        self._reserved: Reservations | None = None

    def describe(self) -> str:
        """Return session, latest verb and age, for the waiters for its locks (GRP-11)."""
        age = self.broker.clock.monotonic() - self.opened_at
        return f"{self.owner}, in a transaction open for {age:.1f} s, its latest verb {self.verb}"

    def summary(self) -> dict[str, int]:
        """Return the number of executed verbs that a rollback would undo, by verb (PBT-18)."""
        ends = sum(isinstance(one.event, dialog.EndRequested) for one in self._intents)
        counts = {
            "begin_dialog": len(self._begun),
            "send": sum(one.message is not None for one in self._intents),
            "receive": len(self._received),
            "get_group": len(self.returned),
            "move": len(self.moves),
            "end": ends,
            "set_timer": len(self._timers or ()),
            "set_state": len(self._states),
        }
        return {verb: count for verb, count in counts.items() if count}

    def view(self, live: Live) -> DialogEndpoint | None:
        """Return the endpoint as this transaction sees it (SND-4); None = removed by it."""
        key = live.endpoint.key
        return self._views.get(key, live.endpoint)

    def begun(self, live: Live) -> None:
        """Note that the transaction began this dialog."""
        self._begun.append(live)
        self.pin(live)

    def reserve(self, live: Live, rows: int, size: int) -> None:
        """Count messages that a verb will retain of a conversation (PBT-24)."""
        if live.queue.retains:
            self._reserved = (self._reserved or Reservations()).retain(live, rows, size)

    def enter(self, room: Room, size: int) -> None:
        """Count a message of `size` bytes that will go onto a queue with limits (REL-42)."""
        self._reserved = (self._reserved or Reservations()).enter(room, size)

    def set_timer(self, live: Live, name: str, due: Instant | None) -> None:
        """Set, replace or cancel a timer of an endpoint at commit (DLG-37)."""
        self._timers = [*(self._timers or ()), (live, name, due)]
        self.pin(live)

    def want(self, live: Live, event: dialog.Event, message: NewMessage | None = None) -> None:
        """Record the event of a verb for an endpoint, and step the transaction's view of it."""
        base = self.view(live)
        assert base is not None, "verbs check the state first"
        outcome = dialog.step(base, event, now=self.broker.clock.utc())
        self._intents.append(_Intent(live, event, message, base, outcome))
        self._views[base.key] = outcome.endpoint
        if isinstance(event, _ENDS):
            self.ended.add(live)
            self.keeps_locks = True
        self.pin(live)

    def want_ordinary_send(
        self, live: Live, base: DialogEndpoint, message_type: str, body: bytes | None
    ) -> bool:
        """Fast path of `want` and `charge`, for a send on a dialog in state CO.

        It needs no general step. Return False in another state: nothing was done."""
        sent = dialog.ordinary_send(base)
        if sent is None:
            return False
        if body:
            self.size += len(body)
        message = NewMessage(message_type, body or None, MessageId(self.broker.ids.fresh()))
        outcome = dialog.Step(sent, (dialog.StoreOutgoing(base.send_sequence, 0),))
        self._intents.append(_Intent(live, SEND, message, base, outcome))
        self._views[base.key] = sent
        self.pin(live)
        return True

    def want_ordinary_ends(self, ends: Iterable[tuple[Live, DialogEndpoint, dialog.Step]]) -> None:
        """Record that a verb ends endpoints; do for each what `want` does.

        `ends`: endpoint in memory, its state as the transaction sees it, and its step."""
        for live, base, outcome in ends:
            self._intents.append(_Intent(live, END, None, base, outcome))
            self._views[base.key] = outcome.endpoint
            self.ended.add(live)
            self.pin(live)
        self.keeps_locks = True

    def received(self, queue: QueueState, taken: list[Taken]) -> None:
        """Note messages that were dequeued, and their bytes; a rollback returns them (RCV-15)."""
        self._received.append((queue, taken))
        self.keeps_locks = True
        for one in taken:
            self.size += one.size
            self.pin(one.live)

    def returns(self, group: Group) -> None:
        """Note that get_group returns this group to the transaction."""
        self.returned.add(group)
        self.keeps_locks = True

    def group_before_move(self, live: Live) -> Group | None:
        """Return the group in which other transactions see a conversation that this one has moved.

        None: this transaction has not moved it."""
        return self.moves.group_before(live)

    def move(self, live: Live, group: Group) -> None:
        """Move an endpoint to another group; this transaction has locked both (GRP-18)."""
        self.moves.make(live, group)
        self.want(live, dialog.MoveRequested(group.group_id))
        self.keeps_locks = True

    def set_state(self, group: Group, state: bytes | None) -> None:
        """Set the application's state of a locked group."""
        self._states[group] = state
        self.keeps_locks = True

    def state_of(self, group: Group) -> tuple[bool, bytes | None]:
        """Return whether this transaction has set the group's state, and the new state."""
        return group in self._states, self._states.get(group)

    # Savepoints.

    def set_savepoint(self, number: int) -> None:
        """Set a savepoint at the present extent of the transaction (GRP-21); `number` must rise."""
        mark = Mark(
            number=number,
            begun=len(self._begun),
            intents=len(self._intents),
            received=len(self._received),
            moved=len(self.moves),
            timers=len(self._timers or ()),
            reserved=len(self._reserved or ()),
            size=self.size,
            states=dict(self._states),
        )
        self.savepoints.add(mark)

    def roll_back_to(self, number: int) -> None:
        """Undo everything since the savepoint; groups locked since stay locked (GRP-21).

        A transaction that has failed only after the savepoint continues from there."""
        mark = self.savepoints.back_to(number)
        self._undo(mark.begun, mark.received, mark.moved, mark.reserved)
        if self._timers is not None:
            del self._timers[mark.timers :]
        del self._intents[mark.intents :]
        self._views = {one.base.key: one.outcome.endpoint for one in self._intents}
        self.ended = {one.live for one in self._intents if isinstance(one.event, _ENDS)}
        self._states = dict(mark.states)
        self.size = mark.size
        self.failure = None
        self.state = TxState.OPEN

    def _undo(self, begun: int, received: int, moved: int, reserved: int) -> None:
        """Undo the effects that memory shows already, except the first entries of each list."""
        self.moves.undo(moved)
        for live in reversed(self._begun[begun:]):
            self.broker.forget(live)
        for queue, taken in reversed(self._received[received:]):
            queue.put_back(taken)
        if self._reserved is not None:
            self._reserved.undo(reserved)
        del self._begun[begun:], self._received[received:]

    def commit(
        self,
        done: Callable[[], None],
        *,
        client: ClientId | None = None,
        token: int = -1,
    ) -> None:
        """Join the commit pipeline; `done` is called when everything is durable and visible."""
        self.state, self.resume = TxState.FINISHED, None
        broker = self.broker
        changeset = Changeset(broker, broker.clock.utc())
        for live in self._begun:
            changeset.create(live)
        # Timers come before the ends of dialogs, which delete them (DLG-41).
        if self._timers is not None:
            for live, name, due in self._timers:
                changeset.set_timer(live, name, due)
        for intent in self._intents:
            self._apply(changeset, intent)
        if self._reserved is not None:
            self._reserved.joined()
        if self._received:
            self._delete_received(changeset)
        for group, state in self._states.items():
            changeset.keep_state(group, state)
        changeset.changes.events = self.events
        self._unpin()
        self._release_bodies(changeset.changes.bodies)
        # A transaction that only began and sent passes its locks on now, so that pipelined sends on
        # one dialog share a flush. Any other has effects that nobody may see before they are
        # durable (GRP-4).
        if self.keeps_locks:
            changeset.join(done, client=client, token=token, ends=self._durable)
        else:
            changeset.join(done, client=client, token=token)
            self._release()

    async def committed(self) -> None:
        """Commit, and return when everything is durable and visible."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.commit(lambda: None if durable.done() else durable.set_result(None))
        await durable

    def roll_back(self, how: Undone | None = None) -> None:
        """Undo everything; other transactions never saw any of it (SND-3).

        `how`: the rollback may count for its queues and groups (PSN-16); None = it does not."""
        if self.state is TxState.FINISHED:
            return
        self.state = TxState.FINISHED
        self.stop_waiting()
        self.resume = None
        self._unpin()
        self._release_bodies(())
        received = list(self._received)
        if received or self._intents or self._begun:
            self.broker.rollbacks += 1  # MON-13
        self._undo(0, 0, 0, 0)
        if received and how is not None:
            self.broker.held.undone(received, how)
        self._release()

    @property
    def has_begun(self) -> bool:
        """Whether it has begun dialogs, which no other transaction sees before it commits."""
        return bool(self._begun)

    @property
    def has_received(self) -> Iterator[QueuedMessage]:
        """The messages it has received."""
        for _, taken in self._received:
            for _, messages, *_ in taken:
                yield from messages

    def taken_of(self, group: Group) -> int:
        """Return the number of messages of a group that a rollback would give back."""
        if self.state is TxState.FINISHED:
            return 0
        all_taken = (one for _, taken in self._received for one in taken)
        return sum(len(one.messages) for one in all_taken if one.live.group is group)

    def keep_only(self, orders: Container[int]) -> int:
        """Give back all received messages except these; return the number of messages kept."""
        count = 0
        for at, (queue, taken) in enumerate(self._received):
            kept: list[Taken] = []
            back: list[Taken] = []
            for live, messages, _, when in taken:
                for into, part in (
                    (kept, [one for one in messages if one.order in orders]),
                    (back, [one for one in messages if one.order not in orders]),
                ):
                    if part:
                        into.append(Taken(live, part, size_of(part), when))
            queue.put_back(back)
            self._received[at] = (queue, kept)
            count += sum(len(one.messages) for one in kept)
        return count

    @property
    def took_messages(self) -> list[QueueState]:
        """The queues it received messages from."""
        return [queue for queue, taken in self._received if taken]

    def _apply(self, changeset: Changeset, intent: _Intent) -> None:
        live, event, message = intent.live, intent.event, intent.message
        # If the endpoint is still the one that the verb saw, its step holds.
        if message is not None and live.endpoint is intent.base and not live.gone:
            sent = intent.outcome.endpoint
            if sent is not None and changeset.hand_over_ordinary(live, sent, message):
                return
        if isinstance(event, _ENDS):
            if live.endpoint is intent.base and changeset.close_ordinary(
                live, intent.outcome, event
            ):
                return
            # Messages that came since the verb are unread too: the step needs their number.
            if unread := live.unread:
                event = msgspec.structs.replace(event, unread=unread)
                changeset.step(live, event, intent.message)
                return
        if live.endpoint is intent.base and not live.gone:
            changeset.apply(live, intent.outcome, intent.message, event)
        elif not live.gone:
            changeset.step(live, event, intent.message)

    def _delete_received(self, changeset: Changeset) -> None:
        """Remove the received messages from their queues for good (RCV-14)."""
        held = self.broker.held
        messages: list[QueuedMessage] = []
        for queue, taken in self._received:  # each of one group
            if queue.retains:
                changeset.retain(queue, taken)
            for one in taken:
                messages += one.messages
            if held.by_id:
                held.handled(changeset.changes, taken)
            if taken and taken[0].live.endpoint.error_queue is not None:
                changeset.errors_received(taken)
        changeset.consume(messages)

    def _durable(self, arrivals: list[tuple[Live, QueueRow]]) -> None:
        now = self.broker.clock.utc()
        together: dict[QueueState, list[Taken]] = {}
        for queue, taken in self._received:
            together.setdefault(queue, []).extend(taken)
        for queue, all_taken in together.items():
            queue.consumed(all_taken, now)
        self._release(arrivals)

    def _release(self, arrivals: Iterable[tuple[Live, QueueRow]] = ()) -> None:
        """Release all locks, and publish the arrivals at the same moment."""
        self.moves.settle()
        locked, self.locked = self.locked, []
        publish(arrivals, locked)
        for group in locked:
            if not group.members:
                self.broker.tidy(group)

    # What its verbs and its client do.

    def restrict(self, rights: Rights | None) -> None:
        """Set the rights of the client's user."""
        self.rights = rights

    def begin_verb(self, name: str) -> None:
        """Note the verb that is executed now, or waits."""
        self.verb = name

    def count_verbs(self, count: int = 1) -> None:
        """Count verbs that were executed."""
        self.verbs += count

    def performed(self, name: str) -> None:
        """Note and count a verb that was executed without a wait."""
        self.verb = name
        self.verbs += 1

    def charge(self, size: int) -> None:
        """Count the bytes of bodies that were sent."""
        self.size += size

    def keep_locks(self) -> None:
        """Note that it does more than begin and send: it keeps its locks until durable (GRP-4)."""
        self.keeps_locks = True

    def attach_events(self, events: EventChanges) -> None:
        """Set the changes to the dialogs of event notifications, for its commit."""
        self.events = events

    def inspecting(self, bodies: Iterable[bytes]) -> None:
        """Note bodies that are given to the checking process."""
        self.inspected += bodies

    def become_idle(self) -> None:
        """Note that no request of its client is being executed."""
        self.idle = True

    def become_busy(self) -> None:
        """Note that a request of its client is being executed."""
        self.idle = False

    def fail(self) -> None:
        """Note that a verb has failed: only a rollback is accepted."""
        self.state = TxState.FAILED

    # The wait of a verb, for a lock or a message.

    def wait(self, cancel: Callable[[], BrokerError | None], resume: Callable[[], None]) -> None:
        """Note that a verb waits; `cancel` ends the wait, and `resume` calls the verb again."""
        self.waiting, self.resume = cancel, resume

    def waits_without(self, group: Group | None) -> None:
        """Note the group without which the waiting receive cannot end; None = no such group."""
        self.waits_for = group

    def stopped_waiting(self) -> None:
        """Note that the wait of a verb is over: it has the lock, or there may be a message."""
        self.waiting = None

    def lock_failed(self, failure: BrokerError | None) -> None:
        """Note that the wait for a lock has ended without the lock."""
        self.waiting, self.failure = None, failure

    # Locks and memory.

    def took(self, group: Group) -> None:
        """Note that the lock of a group is held from now on."""
        if self.locked_at is None:
            self.locked_at = self.broker.clock.monotonic()
        self.locked.append(group)

    def give_back(self, group: Group) -> None:
        """Unlock a group that a receive has just locked and found nothing in (GRP-10)."""
        self.locked.remove(group)
        self.ready.pop(group, None)
        publish((), [group])
        self.broker.tidy(group)

    def abort(self) -> None:
        """Cancel the wait of a verb: this transaction is the victim of a deadlock (GRP-12)."""
        if self.waiting is not None:
            self.failure = DeadlockVictim("it was the youngest in a circle of waits; try it again")
            self.stop_waiting()
            if self.resume is not None:
                self.resume()

    def stop_waiting(self) -> None:
        """Leave every line in which one of its verbs waits."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting()

    def pin(self, live: Live) -> None:
        """Keep an endpoint, and its peer if that is in this broker, in memory until the end."""
        pinned, peer = self._pinned, live.peer
        if live not in pinned:
            pinned.add(live)
            live.pins += 1  # copies of `Live.pin` and `unpin`: without a call for each endpoint
        if peer is not None and peer not in pinned:
            pinned.add(peer)
            peer.pins += 1

    def _unpin(self) -> None:
        for live in self._pinned:
            live.pins -= 1
        self._pinned.clear()
        for body in self.inspected:
            self.broker.inspection.forget(body)

    def _release_bodies(self, used: Container[BodyKey]) -> None:
        unused = self.kept_bodies.unused(used)
        if unused:
            self.broker.store.discard_bodies(unused)
