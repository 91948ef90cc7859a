"""A changeset: what one transaction wants the store to become, as data (design D2). PURE.

Reads: nothing.      Calls: nothing.      Never: touches the store; `commits.py` writes a whole
flush of them, each changed row once.

Rows are plain tuples in the order of the columns in `tables.py`: they are made once a message.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from brokerd.clock import Instant
from brokerd.ids import (
    BodyKey,
    ClientId,
    ConversationId,
    EndpointKey,
    GroupId,
    Handle,
    MessageId,
    NotificationKey,
    QueueKey,
)
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.storage.shelves import SHELVES

FEW: Final = 256
"""Outgoing messages of one dialog that a flush always deletes itself when their numbers are known:
more than a window has (DLP-31)."""


HIGHEST_SEQUENCE: Final = 2**63 - 1
"""No message has a higher one."""


class QueueRow(NamedTuple):
    """A message waiting for a local service."""

    queuing_order: int
    """Rises within the store, never reused (RCV-37)."""
    queue: QueueKey
    endpoint: EndpointKey
    sequence: int
    """Position in its conversation; -1 Error, -2 DialogTimer (RCV-9)."""
    message_type: str
    priority: int
    paged: int
    """0 = written within its queue's window; else beyond it, and found by index (design D4): the
    number of the shelf that it is on, or 1 = on none (`storage.shelves`)."""
    enqueued_at: Instant
    message_id: MessageId
    body_hash: bytes | None
    body: bytes | None


class Owner(IntEnum):
    """Whose a body in pieces is; the number that goes with it."""

    NOBODY = 0
    """Its own key: it is swept."""
    ARRIVING = 1
    """An endpoint that waits for the rest of a message (status 2, DLP-11)."""
    WAITING = 2
    """The queuing order of a message that waits for a local service."""
    OUTGOING = 3
    """A transmission order."""
    RETAINED = 4
    """The queuing order of a retained message."""
    ASIDE = 5
    """Its own key: it was stored for a transaction that has not committed yet."""


class BodyRow(NamedTuple):
    """Whose a body in pieces is from now on."""

    body_key: BodyKey
    owner: Owner
    number: int
    size: int
    """Bytes; 0 while it is arriving."""


class PieceRow(NamedTuple):
    """A piece of a body: a fragment as it came."""

    body_key: BodyKey
    piece: int
    data: bytes


class OutgoingRow(NamedTuple):
    """A message in the transmission queue, waiting for the peer's ack."""

    transmission_order: int
    """Rises within the store, never reused."""
    endpoint: EndpointKey
    sequence: int
    flags: int
    """`frames.END`, `frames.ERROR`, or 0 for an application message."""
    message_type: str
    fragment_size: int
    """Where the body is cut, fixed by its send (DLP-10)."""
    paged: int
    """1 = found by index: it was written when memory for its destination was full."""
    enqueued_at: Instant
    message_id: MessageId
    body_hash: bytes | None
    body: bytes | None


class OutgoingRemoval(NamedTuple):
    """Rows of one dialog that go from the transmission queue."""

    orders: list[int]
    """Transmission orders of those that memory knew."""
    through: int
    """Highest sequence of all that go."""
    beyond: int
    """How many of them, at most, are in the store alone: these are found by index."""

    @property
    def rows(self) -> int:
        """How many rows go, at most."""
        return len(self.orders) + self.beyond


class DialogLogRow(NamedTuple):
    """What the metrics log is to say about an endpoint that closed (design D16).

    Written in the commit that closes it and removed once the log has it, so a crash loses none.
    The store keeps those of one flush together: a row read from it has the number of the first."""

    endpoint: EndpointKey
    line: bytes
    """The line's own fields as JSON; in the store of several endpoints, one a line."""


class RetainedRow(NamedTuple):
    """A copy of a message that its conversation sent (RCV-35)."""

    queuing_order: int
    queue: QueueKey
    endpoint: EndpointKey
    handle: Handle
    conversation_id: ConversationId
    group_id: GroupId
    service: str
    contract: str
    status: int
    """0 = received, 3 = sent (RCV-27)."""
    sequence: int
    message_type: str
    priority: int
    enqueued_at: Instant
    message_id: MessageId
    body: bytes | None


class Trim(NamedTuple):
    """What of a conversation may stay retained (PBT-24); 0 = no limit."""

    max_rows: int
    max_bytes: int
    archive: QueueKey | None
    """Queue that the rest moves to; None = it is deleted."""


class HeldRow(NamedTuple):
    """A conversation group whose transactions were rolled back, and none committed since."""

    group_id: GroupId
    queue: QueueKey
    attempts: int = 0
    """Rollbacks in a row that count (PSN-16)."""
    disconnects: int = 0
    """Connections cut in the middle, tallied apart (PBT-10)."""
    retry_at: Instant | None = None
    """Until when it is not received."""
    parked_at: Instant | None = None
    """Since when it is set aside for good; None = it is not."""
    reason: str = ""
    error: str = ""
    """What the latest rollback gave as its cause."""
    conversation_id: bytes = b""
    message_id: bytes = b""


class Rare:
    """What few transactions change; made when it is first needed.

    Whatever has `removed_of` in its name belongs to endpoints that have ended: nothing of them is
    set or retained any more, so it is written after all else."""

    __slots__ = (
        "groups_left",
        "held",
        "retain",
        "retained",
        "retained_removed_of",
        "timers",
        "timers_removed_of",
        "trim",
    )

    def __init__(self) -> None:
        self.timers: dict[tuple[EndpointKey, str], Instant | None] = {}
        """Endpoint and name to when the timer is due; None = there is none any more."""
        self.timers_removed_of: list[EndpointKey] = []
        self.retain: list[int] = []
        """Queuing orders of messages that were received and stay with status 0 (RCV-31)."""
        self.retained: list[RetainedRow] = []
        self.trim: dict[EndpointKey, Trim] = {}
        self.retained_removed_of: list[EndpointKey] = []
        self.groups_left: list[GroupId] = []
        """Groups that an endpoint was ended in or moved from: the state of those in which no open
        one is left goes (GRP-2)."""
        self.held: dict[GroupId, HeldRow | None] = {}
        """Groups whose transactions roll back (PBT-3); None = all is well with it again."""

    def take(self, later: "Rare") -> None:
        """Merge what a changeset that joined later has."""
        self.timers.update(later.timers)
        self.timers_removed_of += later.timers_removed_of
        self.retain += later.retain
        self.retained += later.retained
        self.trim.update(later.trim)
        self.retained_removed_of += later.retained_removed_of
        self.groups_left += later.groups_left
        self.held.update(later.held)


class EventRow(NamedTuple):
    """An event that its subscriber could not be told, kept until it can (PBT-15)."""

    key: int
    """Rises with the order of the events."""
    notification: NotificationKey
    event: str
    subject: str
    """What it is about; of some events only the latest about each is kept."""
    body: bytes
    """The message."""


class EventChanges:
    """What changes about the dialogs of event notifications; few changesets have any."""

    __slots__ = ("closed", "delivered", "forgotten", "kept", "opened")

    def __init__(self) -> None:
        self.opened: list[tuple[Handle, NotificationKey]] = []
        self.closed: list[Handle] = []
        self.kept: list[EventRow] = []
        self.delivered: list[int] = []
        """Keys of kept events that are kept no longer."""
        self.forgotten: list[NotificationKey] = []
        """Notifications that are gone: none of their events is kept."""


class Changes:
    """Collects what one transaction (or one round of the dispatcher) changes."""

    __slots__ = (
        "acknowledged",
        "bodies",
        "bodies_removed_of",
        "changed",
        "closed",
        "created",
        "dequeued",
        "dequeued_from",
        "dequeued_of",
        "enqueued",
        "events",
        "group_states",
        "logged",
        "moved",
        "outgoing",
        "outgoing_removed",
        "pieces",
        "rare",
        "removed",
        "tokens",
    )

    def __init__(self) -> None:
        self.created: dict[EndpointKey, DialogEndpoint] = {}
        self.changed: dict[EndpointKey, DialogEndpoint] = {}
        self.moved: dict[EndpointKey, DialogEndpoint] = {}
        """Endpoints of which only the progress is new; each is in one of the three at most."""
        self.removed: list[EndpointKey] = []
        self.enqueued: list[QueueRow] = []
        self.dequeued: list[int] = []
        """Queuing orders of messages received or deleted, save those on shelves."""
        self.dequeued_from: dict[int, list[int]] = {}
        """Those on shelves, by the number of the shelf."""
        self.dequeued_of: dict[EndpointKey, int | None] = {}
        """Endpoints all of whose waiting messages go, save those written by this changeset, and how
        many these are at most; None = nobody knows. Stored ones are found by index: those with
        `paged = 0` are to be named in `dequeued` as well. Of one with many none may be written by
        this changeset, nor later (`drops.py`)."""
        self.bodies: dict[BodyKey, BodyRow] = {}
        """Bodies in pieces that are new, or belong to somebody else from now on. The row of their
        message has the whole body, for memory; it is not written there."""
        self.pieces: list[PieceRow] = []
        self.bodies_removed_of: list[EndpointKey] = []
        """Endpoints whose arriving body goes, stored by a changeset before."""
        self.outgoing: list[OutgoingRow] = []
        self.acknowledged: list[int] = []
        """Transmission orders of messages that the peer has."""
        self.outgoing_removed: dict[EndpointKey, OutgoingRemoval] = {}
        """Outgoing messages that go and are not all known by number, or are many: with the flush
        while they are few, else behind it (`leftovers.py`). A changeset that joins later writes
        none of these sequences."""
        self.group_states: dict[GroupId, bytes | None] = {}
        """State kept by the application for a group; None removes it (GRP-22)."""
        self.tokens: dict[ClientId, int] = {}
        """Commit token: the number this client gave the transaction (REL-2)."""
        self.closed: list[DialogLogRow] = []
        self.logged: list[EndpointKey] = []
        """Rows of closing lines that are in the metrics log."""
        self.rare: Rare | None = None
        self.events: EventChanges | None = None

    def dequeue(self, place: int, orders: list[int]) -> None:
        """Messages of a place go."""
        if place in SHELVES:
            self.dequeued_from.setdefault(place, []).extend(orders)
        else:
            self.dequeued += orders

    def remove_outgoing(self, key: EndpointKey, removal: OutgoingRemoval) -> None:
        """Outgoing messages of an endpoint go."""
        if not removal.beyond and len(removal.orders) <= FEW:
            self.acknowledged += removal.orders
            return
        known = self.outgoing_removed.get(key)
        if known is not None:
            removal = OutgoingRemoval(
                known.orders + removal.orders,
                max(known.through, removal.through),
                known.beyond + removal.beyond,
            )
        self.outgoing_removed[key] = removal

    def rarely(self) -> Rare:
        """What few changesets have, to be filled in."""
        if self.rare is None:
            self.rare = Rare()
        return self.rare

    def put(self, endpoint: DialogEndpoint) -> None:
        """Record the endpoint as it now stands."""
        key = endpoint.key
        if key in self.created:
            self.created[key] = endpoint
        else:
            self.moved.pop(key, None)
            self.changed[key] = endpoint

    def move(self, endpoint: DialogEndpoint) -> None:
        """Record the endpoint as it now stands, when only its progress is new."""
        key = endpoint.key
        if key in self.created:
            self.created[key] = endpoint
        elif key in self.changed:
            self.changed[key] = endpoint
        else:
            self.moved[key] = endpoint

    def create(self, endpoint: DialogEndpoint) -> None:
        """Record a new endpoint."""
        self.created[endpoint.key] = endpoint

    def remove(self, key: EndpointKey) -> None:
        """Record that the endpoint is gone."""
        self.changed.pop(key, None)
        self.moved.pop(key, None)
        if self.created.pop(key, None) is None:
            self.removed.append(key)
