"""Changeset: the changes that one transaction makes to the store, as data (design D2). PURE.

Reads: nothing.      Calls: nothing.      Never: touches the store; `commits.py` writes a whole
flush of changesets, each changed row once.

Rows are plain tuples, because one is made for each message. Their values are in the order of the
columns in `tables.py`.
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
"""Number of outgoing messages of one dialog up to which a flush always deletes them itself, if all
are known by number. It is more than a window holds (DLP-31)."""


HIGHEST_SEQUENCE: Final = 2**63 - 1
"""Upper bound of all sequence numbers."""


class QueueRow(NamedTuple):
    """A message waiting for a local service."""

    queuing_order: int
    """Number that rises within the store and is never reused (RCV-37)."""
    queue: QueueKey
    endpoint: EndpointKey
    sequence: int
    """Position in its conversation; -1 Error, -2 DialogTimer (RCV-9)."""
    message_type: str
    priority: int
    paged: int
    """0 = written within its queue's window; otherwise written beyond the window, and found by
    index (design D4): the number of its shelf, or 1 = on no shelf (`storage.shelves`)."""
    enqueued_at: Instant
    message_id: MessageId
    body_hash: bytes | None
    body: bytes | None
    """The content: a `Content` if the message has headers."""
    flags: int = 0
    """`frames.HEADERS` if the message has headers."""


class Owner(IntEnum):
    """The kind of owner of a body in pieces, which defines the meaning of `BodyRow.number`."""

    NOBODY = 0
    """The body's own key; the body has no owner and will be swept."""
    ARRIVING = 1
    """An endpoint that waits for the rest of a message (status 2, DLP-11)."""
    WAITING = 2
    """The queuing order of a message that waits for a local service."""
    OUTGOING = 3
    """The transmission order of an outgoing message."""
    RETAINED = 4
    """The queuing order of a retained message."""
    ASIDE = 5
    """The body's own key; the body was stored for a transaction that has not committed yet."""


class BodyRow(NamedTuple):
    """The new owner of a body in pieces."""

    body_key: BodyKey
    owner: Owner
    number: int
    size: int
    """Bytes; 0 while the body is arriving."""


class PieceRow(NamedTuple):
    """One piece of a body; of an arriving body, one fragment as received."""

    body_key: BodyKey
    piece: int
    data: bytes


class OutgoingRow(NamedTuple):
    """A message in the transmission queue, waiting for the peer's acknowledgement."""

    transmission_order: int
    """Number that rises within the store and is never reused."""
    endpoint: EndpointKey
    sequence: int
    flags: int
    """`frames.END` or `frames.ERROR`; for an application message `frames.HEADERS` or 0."""
    message_type: str
    fragment_size: int
    """Size of the body's fragments, fixed by its send (DLP-10)."""
    paged: int
    """1 = found by index: it was written when memory for its destination was full."""
    enqueued_at: Instant
    message_id: MessageId
    body_hash: bytes | None
    body: bytes | None


class OutgoingRemoval(NamedTuple):
    """Rows of one dialog to be deleted from the transmission queue."""

    orders: list[int]
    """Transmission orders of the rows known in memory."""
    through: int
    """Highest sequence to be deleted."""
    beyond: int
    """Upper bound of the number of rows that are only in the store: these are found by index."""

    @property
    def rows(self) -> int:
        """Upper bound of the number of rows to be deleted."""
        return len(self.orders) + self.beyond


class DialogLogRow(NamedTuple):
    """A line for the metrics log about an endpoint that closed (design D16).

    The line is written in the commit that closes the endpoint and removed once the log has it, so
    a crash loses no line. The store joins the lines of one flush into one row: a row read from the
    store has the key of the first endpoint.
    """

    endpoint: EndpointKey
    line: bytes
    """The line's own fields as JSON; in a row read from the store, one line for each endpoint."""


class RetainedRow(NamedTuple):
    """A retained message: the copy of a message that was received or sent (RCV-31, RCV-35)."""

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
    """The content: a `Content` if the message has headers."""
    flags: int = 0
    """`frames.HEADERS` if the message has headers."""


class Trim(NamedTuple):
    """Limits of the messages that a conversation may retain (PBT-24); 0 = no limit."""

    max_rows: int
    max_bytes: int
    archive: QueueKey | None
    """Queue to which messages above a limit are moved; None = they are deleted."""


class HeldRow(NamedTuple):
    """A conversation group whose latest transactions were all rolled back."""

    group_id: GroupId
    queue: QueueKey
    attempts: int = 0
    """Number of successive rollbacks that count (PSN-16)."""
    disconnects: int = 0
    """Number of connections lost during a transaction, counted separately (PBT-10)."""
    retry_at: Instant | None = None
    """When messages of the group may be received again."""
    parked_at: Instant | None = None
    """When the group was parked; None = it is not parked."""
    reason: str = ""
    error: str = ""
    """The cause given by the latest rollback."""
    conversation_id: bytes = b""
    message_id: bytes = b""


class Rare:
    """Changes that few transactions make; created when first needed.

    Attributes with `removed_of` in their names list endpoints that have ended: no timer is set and
    no message retained for these endpoints afterwards, so these changes are written last.
    """

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
        """When each timer is due, by endpoint and name; None = it was cancelled."""
        self.timers_removed_of: list[EndpointKey] = []
        self.retain: list[int] = []
        """Queuing orders of received messages to be retained, with status 0 (RCV-31)."""
        self.retained: list[RetainedRow] = []
        self.trim: dict[EndpointKey, Trim] = {}
        self.retained_removed_of: list[EndpointKey] = []
        self.groups_left: list[GroupId] = []
        """Groups in which an endpoint has ended, or that an endpoint has left: the state of such a
        group is deleted if it has no open endpoint (GRP-2)."""
        self.held: dict[GroupId, HeldRow | None] = {}
        """Groups whose transactions were rolled back (PBT-3); None = the group has recovered."""

    def merge(self, later: "Rare") -> None:
        """Merge the rare changes of a changeset that joined later."""
        self.timers.update(later.timers)
        self.timers_removed_of += later.timers_removed_of
        self.retain += later.retain
        self.retained += later.retained
        self.trim.update(later.trim)
        self.retained_removed_of += later.retained_removed_of
        self.groups_left += later.groups_left
        self.held.update(later.held)


class EventRow(NamedTuple):
    """An event that could not be delivered to its subscriber yet (PBT-15)."""

    key: int
    """Number that rises with the order of the events."""
    notification: NotificationKey
    event: str
    subject: str
    """The object concerned; for some events only the latest event of each subject is kept."""
    body: bytes
    """The message for the subscriber."""


class EventChanges:
    """Changes to the dialogs of event notifications; few changesets have any."""

    __slots__ = ("closed", "delivered", "forgotten", "kept", "opened")

    def __init__(self) -> None:
        self.opened: list[tuple[Handle, NotificationKey]] = []
        self.closed: list[Handle] = []
        self.kept: list[EventRow] = []
        self.delivered: list[int] = []
        """Keys of kept events to delete."""
        self.forgotten: list[NotificationKey] = []
        """Dropped notifications: all their kept events are deleted."""


class Changes:
    """The changes of one transaction, or of arrivals that the dispatcher stores together."""

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
        """Endpoints of which only the progress has changed; a key is in at most one of `created`,
        `changed` and `moved`."""
        self.removed: list[EndpointKey] = []
        self.enqueued: list[QueueRow] = []
        self.dequeued: list[int] = []
        """Queuing orders of messages received or deleted, except those on shelves."""
        self.dequeued_from: dict[int, list[int]] = {}
        """Queuing orders of messages received or deleted on shelves, by the number of the shelf."""
        self.dequeued_of: dict[EndpointKey, int | None] = {}
        """Endpoints all of whose waiting messages are deleted, except those written by this
        changeset; the value is an upper bound of their number, None = unknown. The stored
        messages are found by index: those with `paged = 0` have to be in `dequeued` as well. For
        an endpoint with many messages, neither this changeset nor a later one may write a message
        (`deferred_drops.py`)."""
        self.bodies: dict[BodyKey, BodyRow] = {}
        """Bodies in pieces that are new or change their owner. The row of the message has the
        whole body, for use in memory; the body is not written from that row."""
        self.pieces: list[PieceRow] = []
        self.bodies_removed_of: list[EndpointKey] = []
        """Endpoints whose arriving body, stored by an earlier changeset, is deleted."""
        self.outgoing: list[OutgoingRow] = []
        self.acknowledged: list[int] = []
        """Transmission orders of messages that the peer has acknowledged."""
        self.outgoing_removed: dict[EndpointKey, OutgoingRemoval] = {}
        """Outgoing messages to delete, if more than `FEW` or not all known by number. The flush
        deletes them, or leaves them to be deleted after it if they are too many
        (`ended_dialogs.py`). No changeset that joins later may write any of these sequences."""
        self.group_states: dict[GroupId, bytes | None] = {}
        """State that the application keeps for a group; None deletes it (GRP-22)."""
        self.tokens: dict[ClientId, int] = {}
        """Commit tokens: the number that each client gave its transaction (REL-2)."""
        self.closed: list[DialogLogRow] = []
        self.logged: list[EndpointKey] = []
        """Keys of the rows of closing lines that the metrics log has written."""
        self.rare: Rare | None = None
        self.events: EventChanges | None = None

    def dequeue(self, place: int, orders: list[int]) -> None:
        """Delete the messages at a place with these queuing orders."""
        if place in SHELVES:
            self.dequeued_from.setdefault(place, []).extend(orders)
        else:
            self.dequeued += orders

    def remove_outgoing(self, key: EndpointKey, removal: OutgoingRemoval) -> None:
        """Delete outgoing messages of an endpoint."""
        # Few rows known by number are deleted like acknowledged ones, in the flush itself.
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
        """Return the changes that few changesets have, to be filled in."""
        if self.rare is None:
            self.rare = Rare()
        return self.rare

    def put(self, endpoint: DialogEndpoint) -> None:
        """Record the endpoint's new state."""
        key = endpoint.key
        if key in self.created:
            self.created[key] = endpoint
        else:
            self.moved.pop(key, None)
            self.changed[key] = endpoint

    def move(self, endpoint: DialogEndpoint) -> None:
        """Record the endpoint's new state when only its progress has changed."""
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
        """Record the removal of the endpoint."""
        self.changed.pop(key, None)
        self.moved.pop(key, None)
        if self.created.pop(key, None) is None:
            self.removed.append(key)
