"""The records of one broker's live state: dialog endpoints, conversation groups, their messages.

Reads: nothing.      Calls: nothing.
Never: waits. A record uses queues, transactions and the transmission queue only through the small
protocols below, which they satisfy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.messages import Counting, QueuedMessage
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.pairs import Pair
from brokerd.broker.room import Room
from brokerd.clock import Instant
from brokerd.errors import LockTimeout
from brokerd.ids import BodyKey, BrokerId, EndpointKey, GroupId, show
from brokerd.model import SYSTEM_TYPES, Contract, Queue
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State
from brokerd.security.kept_keys import DialogKeys
from brokerd.storage.changes import HeldRow, QueueRow
from brokerd.storage.rows.retention import Kept


class HomeQueue(Protocol):
    """The queue of an endpoint and its group, as far as they use it; see `QueueState`."""

    queue: Queue
    """The queue as it is declared."""
    broker_id: BrokerId
    retains: bool
    """Whether received and sent messages are kept until the conversation ends (RCV-31)."""
    is_system: bool
    """Whether it is an internal queue of the broker (EVT-12)."""
    aside: set[Group]
    """Groups in memory that are set aside: they are not received for now (PBT-3)."""
    room: Room | None
    """The limits of the queue, if it has any (REL-42)."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    @property
    def takes_system_messages(self) -> bool:
        """Whether the broker can enqueue messages of its own now (DLG-41)."""
        ...

    @property
    def ready_count(self) -> int:
        """Number of messages that can be received (RCV-34)."""
        ...

    def is_at_limit(self, messages: int = 0, size: int = 0) -> bool:
        """Return whether the queue, with so much more in it, takes no message (REL-42)."""

    def must_page(self, priority: int, size: int) -> bool:
        """Return whether a new message of this level has to go to the backlog."""
        ...

    def joining(self, row: QueueRow) -> None:
        """Note that a message of the backlog has joined the commit pipeline."""
        ...

    def published(self, live: Live, row: QueueRow) -> bool:
        """Add a durable message; return whether its group may have something new for a waiter."""
        ...

    def arrived(self, groups: Collection[Group], *, was_empty: bool) -> None:
        """Note that messages have been committed; offer these groups to waiters."""
        ...

    def unlocked(self, groups: Collection[Group]) -> None:
        """Offer the groups that an ended transaction had locked (RCV-20)."""
        ...

    def count_beyond(self, live: Live) -> Blocked:
        """Return the wait until an endpoint's messages in the backlog are counted."""
        ...

    def drop(self, live: Live) -> list[QueuedMessage]:
        """Drop an endpoint's messages in the window; return them."""
        ...

    def drop_backlog(self, live: Live) -> int | None:
        """Drop an endpoint's messages in the backlog; return their number, None = unknown."""
        ...

    def moved(self, live: Live, left: Group, to: Group) -> None:
        """Update the counts after an endpoint moved between two groups."""
        ...

    def count_parked(self, count: int) -> None:
        """Count messages that are not received for now (PBT-20)."""
        ...

    def held_changed(self, group: Group, count: int) -> None:
        """Count messages that a held group got, or lost (negative `count`)."""
        ...


class Taken(NamedTuple):
    """Messages of one conversation that a receive dequeued, in their order (RCV-7)."""

    live: Live
    messages: list[QueuedMessage]
    size: int
    """Bytes of the bodies."""
    at: Instant
    """Time at which the messages were dequeued."""


class Live:
    """A dialog endpoint in memory: the truth between two commits (design D1).

    Only the methods below assign its fields, except for these, whose invariants another module
    keeps, and which that module alone assigns:

    - `backlog`: `beyond`, `beyond_unread`, `counting` (the messages of the queue's backlog)
    - `unfinished`: `parts`, `parts_stored`, `parts_size`, `body_key` (the incomplete message)
    - `retention`: `kept`
    - `endpoints`: `touched`
    - `broker`: `outgoing`

    `pin`, `unpin`, `stepped` and `joined` are called for every message. So the modules on its way
    have copies of their one statement instead of calls: a test lists them, and holds both together.
    """

    __slots__ = (
        "beyond",
        "beyond_unread",
        "body_key",
        "coming",
        "contract",
        "counting",
        "dropped_before",
        "endpoint",
        "gone",
        "group",
        "is_local",
        "kept",
        "keys",
        "outgoing",
        "parts",
        "parts_size",
        "parts_stored",
        "peer",
        "pins",
        "queue",
        "ready",
        "release",
        "serial",
        "touched",
        "undelivered",
        "unpublished",
    )

    def __init__(
        self,
        endpoint: DialogEndpoint,
        *,
        group: Group,
        queue: HomeQueue,
        contract: Contract,
        coming: Pair,
        is_local: bool,
        beyond: int | None = 0,
    ) -> None:
        self.endpoint = endpoint
        self.group = group
        self.queue = queue
        self.contract = contract
        self.coming = coming
        """Counters of the messages that arrive for the endpoint."""
        self.is_local = is_local
        """Whether the peer is (or will be) in this same broker."""
        self.parts: list[bytes] = []
        """Stored fragments of the incomplete message, if they are in memory."""
        self.parts_stored = 0
        """Number of fragments of the incomplete message, if they are only in the store (DSP-15)."""
        self.parts_size = 0
        """Bytes of the fragments of the incomplete message, wherever they are."""
        self.body_key: BodyKey | None = None
        """The key of those fragments in the store; None = none are stored, or not read."""
        self.undelivered = 0
        """Number of own messages that were withdrawn before the peer had them."""
        self.ready: deque[QueuedMessage] = deque()
        """The messages in the queue's window, in the order of RECEIVE (RCV-8)."""
        self.unpublished: deque[QueueRow] = deque()
        """Arrived messages whose commit is under way."""
        self.beyond = beyond
        """Number of messages in the queue's backlog; None = not counted yet."""
        self.beyond_unread = 0
        """Number of messages in the queue's backlog that an application sent."""
        self.counting: Counting | None = None
        """Changes to the backlog while it is being counted; None = it is not being counted."""
        self.dropped_before = 0
        """Messages with a lower queuing order were dropped unread (DLG-T10)."""
        self.outgoing: Outgoing | None = None
        """The messages in the transmission queue; None = there were never any."""
        self.peer: Live | None = None
        """The peer, if it is in this broker and in memory."""
        self.kept: Kept | None = None
        """Number and size of the dialog's retained messages, if limited and read (PBT-24)."""
        self.keys: DialogKeys | None = None
        """The keys of a secured dialog, once they have been read (SEC-38)."""
        self.gone = False
        self.pins = 0
        """Number of users that need it in memory: open transactions, reads, `delivery.incoming`."""
        self.release: Callable[[], None] | None = None
        """Asks `delivery.incoming` to unpin the endpoint, now that the dialog is over."""
        self.serial = 0
        """The serial of the flush with the latest change of the endpoint."""
        self.touched = True

    # Changes, each named after what has happened.

    def pin(self) -> None:
        """Keep the endpoint in memory, until `unpin`."""
        self.pins += 1

    def unpin(self) -> None:
        """Note that one user no longer needs the endpoint in memory."""
        self.pins -= 1

    def pin_for_arrivals(self, release: Callable[[], None]) -> None:
        """Pin the endpoint for `delivery.incoming`; `release` asks it to unpin the endpoint."""
        self.pins += 1
        self.release = release

    def unpin_for_arrivals(self) -> None:
        """Undo `pin_for_arrivals`."""
        self.pins -= 1
        self.release = None

    def stepped(self, endpoint: DialogEndpoint) -> None:
        """Set the state that a step has made; all transactions see it from now on (D1)."""
        self.endpoint = endpoint

    def use_keys(self, keys: DialogKeys) -> None:
        """Set the keys of the dialog, which the endpoint has in wrapped form."""
        self.keys = keys

    def joined(self, serial: int) -> None:
        """Note the flush that a change of the endpoint has joined."""
        self.serial = serial

    def removed(self) -> None:
        """Note that the endpoint was removed, or never committed; it is never loaded again."""
        self.gone = True

    def pair_with(self, peer: Live) -> None:
        """Note that the peer is in this broker and in memory."""
        self.peer, peer.peer = peer, self

    def unpair(self) -> None:
        """Note that the endpoint leaves memory, and unlink it from its peer.

        The peer of a removed endpoint keeps its link, to find out about the removal; the peer
        of an evicted endpoint looks it up again."""
        peer = self.peer
        if peer is not None and peer.peer is self:
            if not self.gone:
                peer.peer = None
            self.peer = None

    def set_local(self, is_local: bool) -> None:
        """Note whether the peer is (or will be) in this broker and nothing can repeat messages."""
        self.is_local = is_local

    def withdrew(self, count: int) -> None:
        """Count own messages that were withdrawn before the peer had them."""
        self.undelivered += count

    def dropped_unread(self, before: int) -> None:
        """Note that messages with a lower queuing order were dropped unread (DLG-T10)."""
        self.dropped_before = before

    def change_queue(self, queue: HomeQueue) -> None:
        """Move the endpoint and its group to another queue; the backlog stays behind (OBJ-35)."""
        self.queue = self.group.queue = queue
        self.beyond = self.beyond_unread = 0

    def forget_retained(self) -> None:
        """Forget how much is retained, so that the number is read again."""
        self.kept = None

    @property
    def broker_id(self) -> BrokerId:
        """The identifier of its broker."""
        return self.queue.broker_id

    @property
    def unread(self) -> int:
        """Number of application messages that arrived and were not received."""
        if not self.ready and not self.unpublished:
            return self.beyond_unread
        return self.beyond_unread + sum(
            one.message_type not in SYSTEM_TYPES for many in (self.ready, self.unpublished)
            for one in many
        )  # fmt: skip

    def is_sending(self) -> bool:
        """Return whether messages of the endpoint are in the transmission queue, or join it."""
        out = self.outgoing
        return out is not None and bool(len(out.window) or out.waiting or out.unpublished)

    def delivers_directly(self) -> bool:
        """Return whether a message can go directly onto the peer's queue now (SND-14, SND-15)."""
        if self.outgoing is not None and self.is_sending():
            return False
        return self.peer is None or self.peer.queue.queue.enqueue_enabled


class Held:
    """The hold on one group, or its counts of rollbacks, as in its stored row."""

    __slots__ = ("changes", "damaged", "holds", "messages", "row", "stays", "unchecked")

    def __init__(self, row: HeldRow, messages: int = 0) -> None:
        self.row = row
        self.messages = messages
        """Number of its messages that count as parked."""
        self.holds = False
        """Whether the group is held now; if not, only its counts are kept."""
        self.changes = 0
        """Number of times that messages were added or removed while it was held."""
        self.stays = False
        """Whether committed receives leave it held: an operator is to receive all messages."""
        self.damaged: set[int] = set()
        """Queuing orders of its messages in memory whose bodies fail their hash (REL-6).

        No message of the group is received until these messages are gone, or have a body again."""
        self.unchecked: int | None = None
        """Queuing order of the message whose check came to no verdict (OBJ-62).

        None = there is no such message, or only the row names it, as after a start; then the
        reason in the row is `CHECK_OVERRUN`."""


class Holder(Protocol):
    """The holder of group locks: a transaction."""

    locked: list[Group]
    ready: dict[Group, None]
    """The locked groups that may have messages in the window."""
    waits_for: Group | None
    """The group whose lock it waits for; or the group that its receive selects, if the receive may
    wait longer than any wait for a lock."""
    receiving: ReceiveWait | None
    """The wait for a message, if it waits for one."""
    idle: bool
    """Whether it is open and no request of its client is being executed."""
    opened: int
    """The number of the transaction; the youngest has the highest (GRP-12)."""
    ended: set[Live]
    """Conversations that it has ended, so that it receives nothing from them (DLG-T10)."""

    def took(self, group: Group) -> None:
        """Note that the lock of a group is held from now on."""
        ...

    def abort(self) -> None:
        """End its wait, to break a deadlock."""
        ...

    def taken_of(self, group: Group) -> int:
        """Return the number of messages of a group that a rollback would give back."""
        ...

    def group_before_move(self, live: Live) -> Group | None:
        """Return the group in which other transactions see a conversation that this one has moved.

        None: this transaction has not moved it."""
        ...

    def describe(self) -> str:
        """Describe the holder for `LockTimeout` (GRP-11)."""
        ...


class LockWait:
    """A place in the line for a group's lock."""

    __slots__ = ("_granted", "_over", "group", "holder")

    def __init__(self, group: Group, holder: Holder, granted: Callable[[], None]) -> None:
        self.group = group
        self.holder = holder
        self._granted = granted
        self._over = False

    def grant(self) -> None:
        """Resume the waiter, which has the lock now, unless it has given up in the meantime."""
        if not self._over:
            self._over = True
            self._granted()

    def give_up(self) -> LockTimeout | None:
        """Leave the line. Return the error to report; None if the lock was granted already."""
        self._over = True
        if self not in self.group.line:
            return None
        self.group.line.remove(self)
        self.holder.waits_for = None
        by = self.group.holder
        held_by = by.describe() if by else "nobody"
        return LockTimeout(f"conversation group {show(self.group.group_id)} is held by {held_by}")


class Group:
    """A conversation group with an endpoint in memory.

    Only the methods below assign its fields, except for `entry`, which `ready_groups` assigns. A
    group has an entry only while it is unlocked, not held, and has messages in the window; `lock`
    and `hold` take the entry away. `ready` has exactly the members with messages in the window.
    """

    __slots__ = (
        "entry",
        "group_id",
        "held",
        "holder",
        "line",
        "members",
        "queue",
        "ready",
        "service",
        "state",
        "state_known",
        "thinned",
        "whole",
    )

    def __init__(self, group_id: GroupId, service: str, queue: HomeQueue) -> None:
        self.group_id = group_id
        self.service = service
        self.queue = queue
        self.holder: Holder | None = None
        self.line: list[LockWait] = []  # a deque is 600 bytes, and nearly every line is empty
        self.members: dict[EndpointKey, Live] = {}
        """The endpoints of the group that are in memory."""
        self.whole = False
        """Whether `members` has all endpoints of the group."""
        self.ready: dict[EndpointKey, Live] = {}
        """The members with messages in the window."""
        self.entry: tuple[int, int, Group] | None = None
        """The entry among the ready groups; None while locked or without messages."""
        self.state: bytes | None = None
        """The state that the application keeps for the group, as committed (GRP-22)."""
        self.state_known = False
        """Whether `state` has been read."""
        self.held: Held | None = None
        """The hold until the next attempt, or while the group is parked (PBT-3); None = no hold."""
        self.thinned = False
        """Whether an endpoint has ended or moved away, and selecting waiters are to be woken."""

    def __lt__(self, other: Group) -> bool:
        """Return False. Entries of two groups have equal ranks only if a message was moved."""
        return False

    def lock(self, holder: Holder) -> bool:
        """Take the lock if it is free. Return whether this transaction holds it (GRP-8)."""
        if self.holder is None:
            self.holder = holder
            holder.took(self)
            self.entry = None
            if self.ready:
                holder.ready[self] = None
            return True
        return self.holder is holder

    def take_in(self, live: Live) -> None:
        """Move an endpoint, with its messages, from its group to this one (GRP-18)."""
        key, left = live.endpoint.key, live.group
        del left.members[key]
        left.ready.pop(key, None)
        left.thinned = True
        live.group = self
        self.members[key] = live
        if left.held is not None or self.held is not None:
            self.queue.moved(live, left, self)
        if live.ready:
            self.has_ready(live)

    # Changes, each named after what has happened.

    def mark_whole(self, is_whole: bool = True) -> None:
        """Note whether all endpoints of the group are in memory."""
        self.whole = is_whole

    def lost_member(self) -> None:
        """Note that an endpoint has ended: waiters that select the group are to be woken."""
        self.thinned = True

    def noticed_loss(self) -> None:
        """Note that the waiters that select the group have been woken."""
        self.thinned = False

    def keep_state(self, state: bytes | None) -> None:
        """Note the state that the application keeps for the group, as committed (GRP-22)."""
        self.state, self.state_known = state, True

    def forget_state(self) -> None:
        """Forget the state, because no endpoint in memory is open.

        If the group may have other endpoints, only in the store, its state has to be read again."""
        self.state, self.state_known = None, self.whole

    def hold(self, held: Held) -> None:
        """Set the group aside: it is not received for now (PBT-3)."""
        self.held, self.entry = held, None
        self.queue.aside.add(self)

    def free(self) -> None:
        """Let the group be received again; the caller offers it."""
        self.held = None
        self.queue.aside.discard(self)

    def has_ready(self, live: Live) -> None:
        """Note that a conversation of the group has messages in the window."""
        self.ready[live.endpoint.key] = live
        if self.holder is not None:
            self.holder.ready[self] = None

    def with_messages(self, but: Collection[Live], only: Live | None = None) -> list[Live]:
        """Return its conversations with messages in the window, except `but`; or just `only`."""
        if only is not None:
            return [only] if only.ready else []
        ready = self.ready.values()
        return [live for live in ready if live not in but] if but else list(ready)

    def is_over(self, without: Live | None = None) -> bool:
        """Return whether none of its endpoints in memory is open, apart from `without`."""
        return all(
            one is without or one.gone or one.endpoint.state is State.CLOSED
            for one in self.members.values()
        )

    def wait(self, holder: Holder, granted: Callable[[], None]) -> LockWait:
        """Join the line; `granted` is called later, with the lock held (GRP-9)."""
        place = LockWait(self, holder, granted)
        self.line.append(place)
        holder.waits_for = self
        return place

    def release(self) -> LockWait | None:
        """Hand the lock to the next waiter, and return its place in the line.

        None: the lock is free.

        The caller notifies the waiter in a turn of its own: it may commit and release the lock
        immediately, and a long line would make a deep stack (REL-18)."""
        self.holder = None
        if not self.line:
            return None
        place = self.line.pop(0)
        place.holder.waits_for = None
        self.lock(place.holder)
        return place


class ReceiveWait:
    """A receive or get_group that waits for a message."""

    __slots__ = ("end", "group_id", "holder", "line", "resume", "ticket")

    def __init__(
        self,
        *,
        holder: Holder,
        group_id: GroupId | None,
        ticket: int,
        resume: Resume,
        end: Resume,
    ) -> None:
        self.holder = holder
        self.group_id = group_id
        """The group it selects; None = any group."""
        self.ticket = ticket
        """The number in the order of arrival (RCV-21)."""
        self.resume = resume
        """Tries the receive again: there may be a message."""
        self.end = end
        """Ends the wait, as if the timeout had expired."""
        self.line: object | None = None
        """The line it waits in; None = it was woken, or has left."""
