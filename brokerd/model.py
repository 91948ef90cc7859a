"""Model: the declared objects of a catalog and their settings, as frozen structs.

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
"""Message types that only the broker sends (OBJ-31)."""

SYSTEM_PREFIX: Final = "urn:brokerd:"
"""Prefix of the names that are reserved for the broker (OBJ-31)."""
EVENT_NOTIFICATION: Final = "urn:brokerd:EventNotification"
"""Message type that carries an event to a subscriber (EVT-3)."""
POST_EVENT_NOTIFICATION: Final = "urn:brokerd:PostEventNotification"
"""Contract of the dialogs that carry event notifications (EVT-3)."""
EVENT_SERVICE: Final = "urn:brokerd:EventNotificationService"
"""System service that sends event notifications (EVT-3); created with the first of them."""
EVENT_QUEUE: Final = "urn:brokerd:EventNotificationQueue"
"""Queue of `EVENT_SERVICE`; receives the ends of the dialogs that the service begins."""
CONFIGURATION_SERVICE: Final = "SQL/ServiceBroker/BrokerConfiguration"
"""Name of the dynamic routing service, which an application provides (BCN-1)."""
CONFIGURATION_NOTICE: Final = "urn:brokerd:BrokerConfigurationNotice"
"""Contract of the dialogs that request routes from the dynamic routing service (BCN-1)."""
MISSING_ROUTE: Final = "urn:brokerd:MissingRoute"
"""Message type that requests a route (BCN-3)."""
FAILED_ROUTE: Final = "urn:brokerd:FailedRoute"
MISSING_BINDING: Final = "urn:brokerd:MissingRemoteServiceBinding"
FAILED_BINDING: Final = "urn:brokerd:FailedRemoteServiceBinding"
ROUTING_SERVICE: Final = "urn:brokerd:DynamicRoutingClient"
"""System service that requests routes; created with the first route to CONFIGURATION_SERVICE.
"""
ROUTING_QUEUE: Final = "urn:brokerd:DynamicRoutingQueue"
"""Queue of `ROUTING_SERVICE`; receives the ends of the dialogs that the service begins."""

MAX_LIFETIME: Final = 2**31 - 1
"""Longest lifetime of a dialog, in seconds (DLG-10)."""
DEFAULT_PRIORITY: Final = 5
LOWEST_PRIORITY: Final = 1
HIGHEST_PRIORITY: Final = 10
ANY: Final = "ANY"
"""Criterion that every value matches, in the declaration of a priority (OBJ-48)."""
OWNER: Final = "owner"
"""Principal that owns the broker; the only one so far (design, first questions 5)."""
MSDB: Final = "msdb"
"""The broker that every instance has; its routes are the instance routing table (design D6)."""


class Validation(StrEnum):
    """Conditions that a receiver can set for the bodies of a message type (OBJ-15)."""

    NONE = "none"
    EMPTY = "empty"
    WELL_FORMED_XML = "well_formed_xml"
    VALID_XML = "valid_xml"
    """Well-formed, and valid under the XSD schema of the type."""
    WELL_FORMED_JSON = "well_formed_json"
    VALID_JSON = "valid_json"
    """JSON, and valid under the JSON Schema (2020-12) of the type."""

    @property
    def code(self) -> str:
        """Letter shown in views and received messages: N, E, X or J (OBJ-15, RCV-29)."""
        return self.value.removeprefix("well_formed_").removeprefix("valid_")[0].upper()

    @property
    def has_schema(self) -> bool:
        """Whether a message type of this kind has a schema."""
        return self in (Validation.VALID_XML, Validation.VALID_JSON)

    @property
    def is_structured(self) -> bool:
        """Whether validation parses the body."""
        return self not in (Validation.NONE, Validation.EMPTY)


class SentBy(StrEnum):
    """The side of a dialog that may send a message type, or either side (OBJ-23)."""

    INITIATOR = "initiator"
    TARGET = "target"
    ANY = "any"


class MessageType(msgspec.Struct, frozen=True):
    """A typed body (OBJ-13)."""

    name: str
    validation: Validation = Validation.NONE
    schema: str | None = None
    """Text of the schema; None unless `validation.has_schema` (OBJ-15)."""
    require_body: bool | None = None
    """Whether an absent body fails; None = the default of the kind (OBJ-19)."""
    validate_on_send: bool = False
    """Whether `send` also validates the body, by the sender's own definition (PBT-14)."""

    @property
    def needs_body(self) -> bool:
        """Whether an absent body fails the check (OBJ-19).

        By default it fails for every structured validation except WELL_FORMED_XML."""
        if self.require_body is not None:
            return self.require_body
        return self.validation.is_structured and self.validation is not Validation.WELL_FORMED_XML


class Contract(msgspec.Struct, frozen=True):
    """A contract: which side of a dialog may send which message types (OBJ-23)."""

    name: str
    types: dict[str, SentBy]
    """Names of message types, each with the side that may send the type."""

    def allows(self, message_type: str, *, initiator: bool) -> bool:
        """Return whether the initiator, or else the target, may send this message type."""
        sent_by = self.types.get(message_type)
        if sent_by is None:
            return False
        return sent_by is SentBy.ANY or (sent_by is SentBy.INITIATOR) == initiator


class Host(StrEnum):
    """Place where readers run (design D15)."""

    DAEMON = "daemon"
    """In the daemon's event loop: the fastest way, for code that never blocks."""
    PROCESS = "process"
    """Each in a process of its own, which cannot block the daemon."""


class Activation(msgspec.Struct, frozen=True):
    """Settings by which the readers of a queue are started (OBJ-39)."""

    handler: str
    """`module:function`, an async callable that takes its session (ACT-20); "" = a command."""
    max_readers: int = 1
    enabled: bool = True
    run_as: str = OWNER
    """Principal whose rights the readers have (OBJ-60)."""
    host: Host = Host.DAEMON
    command: tuple[str, ...] = ()
    """Program and arguments, run as a child process in place of a handler."""
    memory: int = 1024**3
    """Bytes of data that a child process may have; 0 = no limit."""
    deadline: int | None = None
    """Microseconds that a reader may go without a receive before it is ended; None = no limit."""
    ramp_interval: int | None = None
    """Microseconds between two starts under load; None = 5 s (PBT-7)."""
    initial_readers: int = 1
    """Readers started together when reading begins, if as many groups are ready (PBT-7)."""
    drain_wait: int = 500_000
    """Microseconds that an SDK reader waits for another message before it ends (PBT-7)."""
    spare: bool = True
    """Whether a process is kept ready for the next reader, if readers are processes."""

    @property
    def procedure(self) -> str:
        """The handler, or the command line, as one text."""
        return self.handler or shlex.join(self.command)


class RetentionPolicy(StrEnum):
    """Action when a conversation reaches its retention limit (PBT-24)."""

    ERROR = "error"
    """Fail, with `QuotaExceeded`, the verb that would retain more."""
    DROP_OLDEST = "drop_oldest"
    ARCHIVE = "archive"
    """Move the oldest messages to another queue, where they stay."""


class RetentionLimit(msgspec.Struct, frozen=True):
    """Limit of what a queue retains of one conversation (PBT-24); 0 = no limit."""

    max_rows: int = 0
    max_bytes: int = 0
    policy: RetentionPolicy = RetentionPolicy.ERROR
    archive: str = ""
    """Queue that receives the oldest messages under `ARCHIVE`."""


class PoisonMode(StrEnum):
    """Action when transactions that receive roll back repeatedly (PSN-15)."""

    DISABLE = "disable_queue"
    """Disable the queue (PSN-2)."""
    PARK = "park"
    """Park the conversation group (PBT-3)."""


class Poison(msgspec.Struct, frozen=True):
    """Settings for poison messages (PSN-14, PBT-3, PBT-10). Durations are microseconds."""

    mode: PoisonMode = PoisonMode.DISABLE
    threshold: int = 0
    """Number of rollbacks in a row; 0 = the default, which is 5, or 8 in the mode `PARK`."""
    disconnects: int = 20
    """Number of connections lost in a row inside a transaction that has received messages."""
    backoff_first: int = 1_000_000
    """Wait of a group after its first rollback, in the mode `PARK`."""
    backoff_max: int = 300_000_000

    @property
    def limit(self) -> int:
        """Rollbacks in a row after which the mode takes effect (PSN-14)."""
        return self.threshold or (8 if self.mode is PoisonMode.PARK else 5)

    def backoff(self, attempts: int) -> int:
        """Return the wait after `attempts` rollbacks: by default 1, 2, 4 s ... 5 min."""
        return int(min(self.backoff_max, self.backoff_first * 2 ** min(attempts - 1, 40)))


class QueueStatus(msgspec.Struct, frozen=True):
    """The reason why a queue is on or off, with the time and the author of the change (PBT-1)."""

    reason: str
    """`manual`, `poison`, `disconnects`, `created_off`."""
    changed_at: Instant
    changed_by: str
    conversation_id: bytes = b""
    """For the reason `poison`: the dialog whose message (`message_id`) was received last."""
    message_id: bytes = b""
    error: str = ""
    """Cause given by the last rollback."""
    rollbacks: int = 0


class Queue(msgspec.Struct, frozen=True):
    """Messages waiting for the services bound to it."""

    key: QueueKey
    name: str
    enqueue_enabled: bool = True
    receive_enabled: bool = True
    activation: Activation | None = None
    receive_ageing: int | None = None
    """Microseconds of waiting that raise a message by one priority level (PBT-16); None = never."""
    retention: bool = False
    """Whether messages received and sent are kept until their conversation ends (RCV-31)."""
    retention_limit: RetentionLimit = RetentionLimit()
    max_messages: int | None = None
    """Number of messages at which it takes no more (REL-42); None = no limit."""
    max_bytes: int | None = None
    """Bytes of its messages' bodies at which it takes no more (REL-42); None = no limit."""
    poison_handling: bool = True
    """Whether repeated rollbacks have any consequence (PSN-8)."""
    poison: Poison = Poison()
    """The consequence of repeated rollbacks, and their number."""
    status: QueueStatus | None = None
    """Reason why the queue is on or off; None = as created. Not part of a declaration."""

    @property
    def is_on(self) -> bool:
        """Whether the status is ON: messages can be added and received (OBJ-40)."""
        return self.enqueue_enabled and self.receive_enabled

    @property
    def is_activated(self) -> bool:
        """Whether internal activation is configured and enabled (ACT-5)."""
        return self.activation is not None and self.activation.enabled


class Service(msgspec.Struct, frozen=True):
    """A named party, with one queue and the contracts that it accepts as target (OBJ-32)."""

    key: ServiceKey
    name: str
    queue: str
    contracts: frozenset[str] = frozenset()


class Priority(msgspec.Struct, frozen=True):
    """A broker priority: the level of the dialog endpoints that match its criteria (OBJ-48).

    A criterion of None means ANY."""

    name: str
    contract: str | None = None
    local_service: str | None = None
    """The service on the dialog endpoint's own side (OBJ-52)."""
    remote_service: str | None = None
    level: int = DEFAULT_PRIORITY
    """1 (lowest) to 10."""

    @property
    def criteria(self) -> tuple[str | None, str | None, str | None]:
        """The criteria, which must differ between any two priorities (OBJ-51)."""
        return self.contract, self.local_service, self.remote_service


class Route(msgspec.Struct, frozen=True):
    """One row of a routing table (RTE-60). `address` is LOCAL, TRANSPORT or TCP://host:port."""

    name: str
    address: str
    service_name: str | None = None
    broker_id: BrokerId | None = None
    expires_at: Instant | None = None
    mirror: str = ""
    """Second address at which the broker may be; empty for a route without a mirror (RTE-50)."""


class Scope(StrEnum):
    """Scope of an event notification (EVT-1)."""

    INSTANCE = "instance"
    """Every broker of the instance (SSB: server)."""
    BROKER = "broker"
    """The broker that has the notification (SSB: database)."""
    QUEUE = "queue"
    """One queue of that broker."""


class EventNotification(msgspec.Struct, frozen=True):
    """A subscription to events, which are sent to a service as messages (EVT-1)."""

    name: str
    events: frozenset[str]
    """Names of events and of groups of events."""
    service: str
    """The subscriber; it must accept the contract PostEventNotification (EVT-3)."""
    broker_id: BrokerId | None = None
    """Broker of `service`; None = the broker that has the notification (CURRENT_DATABASE)."""
    scope: Scope = Scope.BROKER
    queue: str | None = None
    """Name of the queue; None unless the scope is `QUEUE`."""
    fan_in: bool = False
    """Whether notifications with the same target share one message (EVT-8)."""
    activation_timeout: int | None = None
    """Microseconds until QUEUE_ACTIVATION is sent again if no reader receives; None = 10 s."""
    key: NotificationKey = NotificationKey(0)
    """Row number in the store, new after each creation; 0 = not stored yet."""


AUTO_CREATED_LOCAL: Final = Route(name="AutoCreatedLocal", address="LOCAL")
"""The route that every new routing table contains (RTE-68)."""


def is_system(name: str) -> bool:
    """Return whether an object of this name belongs to the broker and is hidden (EVT-12)."""
    return name.startswith(SYSTEM_PREFIX)


def is_reserved(from_service: str, contract: str | None) -> bool:
    """Return whether only the broker begins dialogs of this service or contract (OBJ-27, EVT-3)."""
    return is_system(from_service) or contract in _RESERVED


_RESERVED: Final = (POST_EVENT_NOTIFICATION, CONFIGURATION_NOTICE)
