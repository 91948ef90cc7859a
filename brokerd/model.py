"""The nouns as frozen structs: what the catalog holds and what travels.

Times are `clock.Instant` (UTC microseconds). Names are compared byte by byte (OBJ-6).
"""

from enum import StrEnum
from typing import Final

import msgspec

from brokerd.clock import Instant
from brokerd.ids import BrokerId, QueueKey, ServiceKey

DEFAULT: Final = "DEFAULT"
"""Name of the built-in message type and contract (OBJ-30)."""
END_DIALOG: Final = "urn:brokerd:EndDialog"
ERROR: Final = "urn:brokerd:Error"
DIALOG_TIMER: Final = "urn:brokerd:DialogTimer"
SYSTEM_TYPES: Final = frozenset({END_DIALOG, ERROR, DIALOG_TIMER})
"""Message types only the broker sends (OBJ-31)."""

DEFAULT_PRIORITY: Final = 5
MSDB: Final = "msdb"
"""The broker every instance has; its routes are the instance routing table (design D6)."""


class Validation(StrEnum):
    """What a body must be to be accepted at the receiver (OBJ-15)."""

    NONE = "none"
    EMPTY = "empty"


class SentBy(StrEnum):
    """Which side of a dialog may send a message type (OBJ-23)."""

    INITIATOR = "initiator"
    TARGET = "target"
    ANY = "any"


class MessageType(msgspec.Struct, frozen=True):
    """A typed body (OBJ-13)."""

    name: str
    validation: Validation = Validation.NONE


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


class Activation(msgspec.Struct, frozen=True):
    """How readers of a queue are started (OBJ-39)."""

    handler: str
    """`module:function`, an async callable that takes its session (ACT-20)."""
    max_readers: int = 1
    enabled: bool = True


class Queue(msgspec.Struct, frozen=True):
    """Messages waiting for the services bound to it."""

    key: QueueKey
    name: str
    enqueue_enabled: bool = True
    receive_enabled: bool = True
    activation: Activation | None = None
    receive_ageing: int | None = None
    """Microseconds after which what waits is chosen as if it were one level higher (PBT-16)."""


class Service(msgspec.Struct, frozen=True):
    """A named party: one queue, and the contracts it may be a target for (OBJ-32)."""

    key: ServiceKey
    name: str
    queue: str
    contracts: frozenset[str] = frozenset()


class Route(msgspec.Struct, frozen=True):
    """One row of a routing table (RTE-60). `address` is LOCAL, TRANSPORT or TCP://host:port."""

    name: str
    address: str
    service_name: str | None = None
    broker_id: BrokerId | None = None
    expires_at: Instant | None = None


AUTO_CREATED_LOCAL: Final = Route(name="AutoCreatedLocal", address="LOCAL")
"""The route every routing table is born with (RTE-68)."""
