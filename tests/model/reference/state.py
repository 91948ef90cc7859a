"""The nouns of the reference model: dialogs, endpoints, groups, messages, transactions.

PURE.  Identifiers that the broker draws are None until somebody has seen them; they are compared
from then on.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field

from tests.model.reference.catalog import INITIATOR, TARGET

Headers = Mapping[str, str | bytes]
NO_HEADERS: Headers = {}

END = "urn:brokerd:EndDialog"
ERROR = "urn:brokerd:Error"
TIMER = "urn:brokerd:DialogTimer"
TIMER_SEQUENCE, ERROR_SEQUENCE = -2, -1  # RCV-9
READY, RECEIVED, SENT = 1, 0, 3  # RCV-27


class Refused(Exception):
    """A verb fails. `codes`: any of these says why; the specification leaves open which."""

    def __init__(self, *codes: str) -> None:
        super().__init__(", ".join(codes))
        self.codes = codes


class MustWait(Exception):
    """A verb needs a group that another transaction has locked (GRP-9)."""

    def __init__(self, group: "Group") -> None:
        super().__init__()
        self.group = group


@dataclass(eq=False)
class Group:
    """A conversation group. It is there while it has an endpoint (GRP-2)."""

    service: str
    id: bytes | None = None
    state: bytes | None = None
    holder: "Transaction | None" = None


@dataclass(eq=False)
class Dialog:
    """What both sides share."""

    contract: str
    expires_at: float
    id: bytes | None = None
    initiator: "Endpoint | None" = None
    target: "Endpoint | None" = None
    accepted: bool = False
    """Whether there has been a target: it does not come into being again."""


@dataclass(eq=False)
class Message:
    """A message on a queue."""

    endpoint: "Endpoint"
    """Whose it is: the receiving side, or for a retained copy of a sent one the sending side."""
    sequence: int
    message_type: str
    body: bytes | None
    headers: Headers
    validation: str
    rank: int
    """Place in the order of the queue. Where the specification leaves open which of two comes
    first, both have the same."""
    first_rank: int
    """The first of the places at which it may stand, its rank being the last."""
    earliest: float
    """Virtual time at which it can have been enqueued."""
    codes: tuple[int, ...] = ()
    """Of an Error: any of these; empty stands for every negative one."""
    status: int = READY
    rollbacks: int = 0
    """Deliveries rolled back since the daemon started (RCV-30)."""
    doubtful: int = 0
    """How many more may have been counted: the specification does not say."""
    timer_name: str | None = None
    taker: "Transaction | None" = None
    durable: bool = True
    """What is not durable yet nobody receives."""
    queuing_order: int | None = None
    id: bytes | None = None


@dataclass(eq=False)
class Endpoint:
    """One side of a dialog."""

    dialog: Dialog
    is_initiator: bool
    service: str
    far_service: str
    queue: str
    group: Group
    level: int
    state: str
    handle: bytes | None = None
    next_sequence: int = 0
    timers: dict[str | None, float] = field(default_factory=dict)
    overdue: dict[str | None, int] = field(default_factory=dict)
    """Of those that were due before they were committed, the rank at that time (PER-23)."""
    messages: list[Message] = field(default_factory=list)
    retained: list[Message] = field(default_factory=list)
    frozen: list[int] = field(default_factory=list)
    """Sequences of sends that are held back (DLG-26)."""
    waiting: list[tuple[int, str, bytes | None, Headers]] = field(default_factory=list)
    """Sequence, type, body and headers of sends that wait for a queue that is off (SND-18)."""

    @property
    def side(self) -> str:
        """Which side of the contract it is."""
        return INITIATOR if self.is_initiator else TARGET

    @property
    def peer(self) -> "Endpoint | None":
        """The other side, if it is there."""
        return self.dialog.target if self.is_initiator else self.dialog.initiator


@dataclass(frozen=True)
class Begin:
    """`begin_dialog` has been called."""

    endpoint: Endpoint


@dataclass(frozen=True)
class Send:
    """`send` has been called."""

    endpoint: Endpoint
    message_type: str
    body: bytes | None
    headers: Headers


@dataclass(frozen=True)
class End:
    """`end` has been called."""

    endpoint: Endpoint
    error: int | None


@dataclass(frozen=True)
class Move:
    """`move` has been called."""

    endpoint: Endpoint
    group: Group


@dataclass(frozen=True)
class SetTimer:
    """`set_timer` has been called."""

    endpoint: Endpoint
    name: str | None
    due_at: float | None


@dataclass(frozen=True)
class Received:
    """A message has been received."""

    message: Message


@dataclass(frozen=True)
class SetState:
    """`set_state` has been called."""

    group: Group
    state: bytes | None


Done = Begin | Send | End | Move | SetTimer | Received | SetState


@dataclass(eq=False)
class Transaction:
    """What one client did and has not committed, and how it sees the world meanwhile (SND-4)."""

    client: str
    number: int
    opened: int
    """Rises from transaction to transaction, in the order of their beginnings."""
    done: list[Done] = field(default_factory=list)
    locked: list[Group] = field(default_factory=list)
    age: int | None = None
    """Rises from transaction to transaction, in the order of their first locks."""
    states: dict[Endpoint, str] = field(default_factory=dict)
    groups: dict[Endpoint, Group] = field(default_factory=dict)
    kept: dict[Group, bytes | None] = field(default_factory=dict)
    """Per-group state as this transaction has set it."""
    begun: list[Endpoint] = field(default_factory=list)
    taken: list[Message] = field(default_factory=list)
    returned: list[Group] = field(default_factory=list)
    """Groups that `get_group` returned (GRP-16)."""
    keeps_locks: bool = False
    """It has done what keeps them until it is durable (GRP-4), if only to undo it."""
    failed: bool = False
    """A request of it has failed (CLP-37)."""
    given_up: bool = False
    """The broker has rolled it back by itself."""
    over: bool = False
    savepoints: dict[int, "Transaction"] = field(default_factory=dict)

    def group_of(self, endpoint: Endpoint) -> Group:
        """The group of an endpoint as this transaction sees it."""
        return self.groups.get(endpoint, endpoint.group)

    def state_of(self, endpoint: Endpoint) -> str:
        """The state of an endpoint as this transaction sees it (DLG-46)."""
        return self.states.get(endpoint, endpoint.state)

    def snapshot(self) -> "Transaction":
        """What `back_to` needs."""
        kept = copy(self)
        for name in ("done", "states", "groups", "kept", "begun", "taken"):
            setattr(kept, name, copy(getattr(self, name)))
        return kept

    def back_to(self, kept: "Transaction") -> None:
        """Undo what was done since; the locks stay (GRP-21)."""
        for message in self.taken:
            if message not in kept.taken:
                message.taker = None
                message.doubtful += 1
        for name in ("done", "states", "groups", "kept", "begun", "taken"):
            setattr(self, name, copy(getattr(kept, name)))
        self.failed = False
