"""The nouns as frozen structs: what the catalog holds and what travels.

Times are `clock.Instant` (UTC microseconds). Names are compared byte by byte (OBJ-6).
"""

import shlex
from enum import StrEnum
from typing import Final

import msgspec

from brokerd.clock import Instant
from brokerd.ids import BrokerId, NotificationKey, QueueKey, ServiceKey

DEFAULT: Final = "DEFAULT"
"""Name of the built-in message type and contract (OBJ-30)."""
END_DIALOG: Final = "urn:brokerd:EndDialog"
ERROR: Final = "urn:brokerd:Error"
DIALOG_TIMER: Final = "urn:brokerd:DialogTimer"
SYSTEM_TYPES: Final = frozenset({END_DIALOG, ERROR, DIALOG_TIMER})
"""Message types only the broker sends (OBJ-31)."""

SYSTEM_PREFIX: Final = "urn:brokerd:"
"""Names that begin so belong to the broker (OBJ-31)."""
EVENT_NOTIFICATION: Final = "urn:brokerd:EventNotification"
"""Message type of an event that a subscriber is told (EVT-3)."""
POST_EVENT_NOTIFICATION: Final = "urn:brokerd:PostEventNotification"
"""Contract of the dialogs that carry such messages (EVT-3)."""
EVENT_SERVICE: Final = "urn:brokerd:EventNotificationService"
"""The system service that initiates these dialogs (EVT-3); made with the first notification."""
EVENT_QUEUE: Final = "urn:brokerd:EventNotificationQueue"
"""Its queue, where the ends of such dialogs arrive."""
CONFIGURATION_SERVICE: Final = "SQL/ServiceBroker/BrokerConfiguration"
"""Name of the dynamic routing service, which an application provides (BCN-1)."""
CONFIGURATION_NOTICE: Final = "urn:brokerd:BrokerConfigurationNotice"
"""Contract of the dialogs on which it is asked (BCN-1)."""
MISSING_ROUTE: Final = "urn:brokerd:MissingRoute"
"""Message type that asks for a route (BCN-3)."""
FAILED_ROUTE: Final = "urn:brokerd:FailedRoute"
MISSING_BINDING: Final = "urn:brokerd:MissingRemoteServiceBinding"
FAILED_BINDING: Final = "urn:brokerd:FailedRemoteServiceBinding"
ROUTING_SERVICE: Final = "urn:brokerd:DynamicRoutingClient"
"""The system service that asks; made with the first route to the dynamic routing service."""
ROUTING_QUEUE: Final = "urn:brokerd:DynamicRoutingQueue"
"""Its queue, where the ends of such dialogs arrive."""

DEFAULT_PRIORITY: Final = 5
LOWEST_PRIORITY: Final = 1
HIGHEST_PRIORITY: Final = 10
ANY: Final = "ANY"
"""In the declaration of a priority: whatever it is (OBJ-48)."""
OWNER: Final = "owner"
"""The principal that owns the broker; the only one so far (design, first questions 5)."""
MSDB: Final = "msdb"
"""The broker every instance has; its routes are the instance routing table (design D6)."""


class Validation(StrEnum):
    """What a body must be to be accepted at the receiver (OBJ-15)."""

    NONE = "none"
    EMPTY = "empty"
    WELL_FORMED_XML = "well_formed_xml"
    VALID_XML = "valid_xml"
    """Well-formed, and what the XSD schema of the type says."""
    WELL_FORMED_JSON = "well_formed_json"
    VALID_JSON = "valid_json"
    """JSON, and what the JSON Schema (2020-12) of the type says."""

    @property
    def code(self) -> str:
        """One letter for views and received messages: N, E, X or J (OBJ-15, RCV-29)."""
        return self.value.removeprefix("well_formed_").removeprefix("valid_")[0].upper()

    @property
    def has_schema(self) -> bool:
        """Whether a type of this kind comes with a schema."""
        return self in (Validation.VALID_XML, Validation.VALID_JSON)

    @property
    def is_structured(self) -> bool:
        """Whether a body has to be looked into."""
        return self not in (Validation.NONE, Validation.EMPTY)


class SentBy(StrEnum):
    """Which side of a dialog may send a message type (OBJ-23)."""

    INITIATOR = "initiator"
    TARGET = "target"
    ANY = "any"


class MessageType(msgspec.Struct, frozen=True):
    """A typed body (OBJ-13)."""

    name: str
    validation: Validation = Validation.NONE
    schema: str | None = None
    """Text of the schema, exactly where the kind has one (OBJ-15)."""
    require_body: bool | None = None
    """Whether an absent body fails; None = what is usual for the kind (OBJ-19)."""
    validate_on_send: bool = False
    """Whether `send` checks the body too, by the sender's own definition (PBT-14)."""

    @property
    def needs_body(self) -> bool:
        """Whether an absent body fails: usual for all structured kinds but one (OBJ-19)."""
        if self.require_body is not None:
            return self.require_body
        return self.validation.is_structured and self.validation is not Validation.WELL_FORMED_XML


class Contract(msgspec.Struct, frozen=True):
    """Who may say what: message type name to the side that may send it (OBJ-23)."""

    name: str
    types: dict[str, SentBy]

    def allows(self, message_type: str, *, initiator: bool) -> bool:
        """Whether that side may send this type."""
        sent_by = self.types.get(message_type)
        if sent_by is None:
            return False
        return sent_by is SentBy.ANY or (sent_by is SentBy.INITIATOR) == initiator


class Host(StrEnum):
    """Where readers run (design D15)."""

    DAEMON = "daemon"
    """In the daemon's own loop: the quickest, for code that never blocks."""
    PROCESS = "process"
    """Each in a process of its own, which cannot hold up the daemon."""


class Activation(msgspec.Struct, frozen=True):
    """How readers of a queue are started (OBJ-39)."""

    handler: str
    """`module:function`, an async callable that takes its session (ACT-20); "" = a command."""
    max_readers: int = 1
    enabled: bool = True
    run_as: str = OWNER
    """Principal whose rights its readers have (OBJ-60)."""
    host: Host = Host.DAEMON
    command: tuple[str, ...] = ()
    """Program and arguments, run as a child process instead of a handler."""
    memory: int = 1024**3
    """Bytes of data a child process may have; 0 = no limit."""
    deadline: int | None = None
    """Microseconds that a reader may go without a receive; then it is ended."""
    ramp_interval: int | None = None
    """Microseconds between two starts under load; None = the usual 5 s (PBT-7)."""
    initial_readers: int = 1
    """Started at once when reading begins, if as many groups are ready (PBT-7)."""
    drain_wait: int = 500_000
    """Microseconds that a reader of the SDK waits for a further message before it ends (PBT-7)."""
    spare: bool = True
    """Whether a process is kept ready to be the next reader, where readers are processes."""

    @property
    def procedure(self) -> str:
        """What is run, in one text."""
        return self.handler or shlex.join(self.command)


class RetentionPolicy(StrEnum):
    """What happens when a conversation has as much retained as it may (PBT-24)."""

    ERROR = "error"
    """The verb that would retain more fails with `QuotaExceeded`."""
    DROP_OLDEST = "drop_oldest"
    ARCHIVE = "archive"
    """The oldest move to another queue, where they stay."""


class RetentionLimit(msgspec.Struct, frozen=True):
    """How much of one conversation a queue retains at most (PBT-24); 0 = no limit."""

    max_rows: int = 0
    max_bytes: int = 0
    policy: RetentionPolicy = RetentionPolicy.ERROR
    archive: str = ""
    """Queue that the oldest move to under `ARCHIVE`."""


class PoisonMode(StrEnum):
    """What happens when transactions that receive roll back again and again (PSN-15)."""

    DISABLE = "disable_queue"
    """The queue is switched off (PSN-2)."""
    PARK = "park"
    """The conversation group is set aside (PBT-3)."""


class Poison(msgspec.Struct, frozen=True):
    """How a queue deals with poison messages (PSN-14, PBT-3, PBT-10). Microseconds."""

    mode: PoisonMode = PoisonMode.DISABLE
    threshold: int = 0
    """Rollbacks in a row; 0 = 5, or 8 where groups are parked."""
    disconnects: int = 20
    """Connections cut in a row in the middle of a transaction that has received."""
    backoff_first: int = 1_000_000
    """How long a group waits after its first rollback, where groups are parked."""
    backoff_max: int = 300_000_000

    @property
    def limit(self) -> int:
        """Rollbacks in a row after which it acts (PSN-14)."""
        return self.threshold or (8 if self.mode is PoisonMode.PARK else 5)

    def backoff(self, attempts: int) -> int:
        """How long a group waits after so many rollbacks: 1, 2, 4 s and so on, at most 5 min."""
        return int(min(self.backoff_max, self.backoff_first * 2 ** min(attempts - 1, 40)))


class QueueStatus(msgspec.Struct, frozen=True):
    """Why a queue is on or off, since when, and by whom (PBT-1)."""

    reason: str
    """`manual`, `poison`, `disconnects`, `created_off`."""
    changed_at: Instant
    changed_by: str
    conversation_id: bytes = b""
    """Of poison: the dialog whose message was received last, and that message."""
    message_id: bytes = b""
    error: str = ""
    """What the last rollback gave as its cause."""
    rollbacks: int = 0


class Queue(msgspec.Struct, frozen=True):
    """Messages waiting for the services bound to it."""

    key: QueueKey
    name: str
    enqueue_enabled: bool = True
    receive_enabled: bool = True
    activation: Activation | None = None
    receive_ageing: int | None = None
    """Microseconds after which what waits is chosen as if it were one level higher (PBT-16)."""
    retention: bool = False
    """Whether what its conversations receive and send is kept until they end (RCV-31)."""
    retention_limit: RetentionLimit = RetentionLimit()
    poison_handling: bool = True
    """Whether repeated rollbacks have a consequence at all (PSN-8)."""
    poison: Poison = Poison()
    """Which, and after how many."""
    status: QueueStatus | None = None
    """Why it is on or off; None = as it was made. No part of a declaration."""

    @property
    def is_on(self) -> bool:
        """Whether its status is ON: messages enter and are taken (OBJ-40)."""
        return self.enqueue_enabled and self.receive_enabled

    @property
    def is_activated(self) -> bool:
        """Whether it starts readers of its own (ACT-5)."""
        return self.activation is not None and self.activation.enabled


class Service(msgspec.Struct, frozen=True):
    """A named party: one queue, and the contracts it may be a target for (OBJ-32)."""

    key: ServiceKey
    name: str
    queue: str
    contracts: frozenset[str] = frozenset()


class Priority(msgspec.Struct, frozen=True):
    """A broker priority: the level of the endpoints that it fits (OBJ-48).

    A criterion that is None is ANY."""

    name: str
    contract: str | None = None
    local_service: str | None = None
    """As the endpoint sees it: its own service (OBJ-52)."""
    remote_service: str | None = None
    level: int = DEFAULT_PRIORITY
    """1 (lowest) to 10."""

    @property
    def criteria(self) -> tuple[str | None, str | None, str | None]:
        """What two priorities must not have in common (OBJ-51)."""
        return self.contract, self.local_service, self.remote_service


class Route(msgspec.Struct, frozen=True):
    """One row of a routing table (RTE-60). `address` is LOCAL, TRANSPORT or TCP://host:port."""

    name: str
    address: str
    service_name: str | None = None
    broker_id: BrokerId | None = None
    expires_at: Instant | None = None
    mirror: str = ""
    """The other address at which the broker may be; empty where there is one only (RTE-50)."""


class Scope(StrEnum):
    """Whose events a notification is about (EVT-1)."""

    INSTANCE = "instance"
    """Every broker of the instance (SSB: server)."""
    BROKER = "broker"
    """The broker that has the notification (SSB: database)."""
    QUEUE = "queue"
    """One queue of it."""


class EventNotification(msgspec.Struct, frozen=True):
    """A subscription to events, told to a service in messages (EVT-1)."""

    name: str
    events: frozenset[str]
    """Names of events and of groups of events."""
    service: str
    """Whom to tell; it accepts the contract PostEventNotification (EVT-3)."""
    broker_id: BrokerId | None = None
    """The broker of that service; None = the one that has the notification (CURRENT_DATABASE)."""
    scope: Scope = Scope.BROKER
    queue: str | None = None
    """Exactly where the scope is a queue."""
    fan_in: bool = False
    """Whether it shares one message with others to the same target (EVT-8)."""
    activation_timeout: int | None = None
    """Microseconds until QUEUE_ACTIVATION is told again if nobody receives; None = the usual."""
    key: NotificationKey = NotificationKey(0)
    """Of the store: one that is dropped and created again is another one; 0 = none yet."""


AUTO_CREATED_LOCAL: Final = Route(name="AutoCreatedLocal", address="LOCAL")
"""The route every routing table is born with (RTE-68)."""


def is_system(name: str) -> bool:
    """Whether an object of this name belongs to the broker and is shown to nobody (EVT-12)."""
    return name.startswith(SYSTEM_PREFIX)
