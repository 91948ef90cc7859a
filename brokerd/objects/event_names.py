"""Names of events and event groups, and those that a notification may subscribe to. PURE.

Reads:  words.      Calls: nothing.
Never:  knows the subscribers.  Names are those of Service Broker if it has the event.
"""

from collections.abc import Iterable
from typing import Final

from brokerd.model import Scope

QUEUE_ACTIVATION: Final = "QUEUE_ACTIVATION"
BROKER_QUEUE_DISABLED: Final = "BROKER_QUEUE_DISABLED"
QUEUE_STATUS_CHANGED: Final = "QUEUE_STATUS_CHANGED"
GROUP_PARKED: Final = "GROUP_PARKED"
ACTIVATION_FAILED: Final = "ACTIVATION_FAILED"
DUPLICATE_BROKER_SEEN: Final = "DUPLICATE_BROKER_SEEN"

OF_A_QUEUE: Final = frozenset(
    {
        QUEUE_ACTIVATION,
        BROKER_QUEUE_DISABLED,
        QUEUE_STATUS_CHANGED,
        GROUP_PARKED,
        ACTIVATION_FAILED,
    }
)
"""Events to which a notification for one queue may subscribe (EVT-2)."""

BROKER_CONVERSATION: Final = "BROKER_CONVERSATION"
BROKER_CONVERSATION_GROUP: Final = "BROKER_CONVERSATION_GROUP"
BROKER_ACTIVATION: Final = "BROKER_ACTIVATION"
BROKER_MESSAGE_UNDELIVERABLE: Final = "BROKER_MESSAGE_UNDELIVERABLE"

TRACES: Final = frozenset(
    {
        BROKER_CONVERSATION,
        BROKER_CONVERSATION_GROUP,
        BROKER_ACTIVATION,
        BROKER_MESSAGE_UNDELIVERABLE,
    }
)
"""Classes of the event log to which a notification may subscribe (EVT-10)."""

OBJECTS: Final = {
    "message_type": "MESSAGE_TYPE",
    "contract": "CONTRACT",
    "queue": "QUEUE",
    "service": "SERVICE",
    "route": "ROUTE",
    "instance_route": "ROUTE",
    "priority": "BROKER_PRIORITY",
    "remote_service_binding": "REMOTE_SERVICE_BINDING",
    "event_notification": "EVENT_NOTIFICATION",
}
"""Word in the names of the events of each kind of object (EVT-11)."""
_VERBS: Final = ("CREATE", "ALTER", "DROP")
DDL: Final = frozenset(f"{verb}_{word}" for verb in _VERBS for word in OBJECTS.values())
"""Events of creating, altering and dropping objects (EVT-11)."""

MEANINGS: Final = {
    QUEUE_ACTIVATION: "another reader of the queue would be useful (ACT-34)",
    BROKER_QUEUE_DISABLED: "consecutive rollbacks have switched a queue off (EVT-9)",
    QUEUE_STATUS_CHANGED: "somebody has switched a queue on or off (EVT-9)",
    GROUP_PARKED: "a conversation group was parked (PBT-3)",
    ACTIVATION_FAILED: "readers of a queue fail, and are started less often (PBT-6)",
    DUPLICATE_BROKER_SEEN: "two instances deliver for one broker (PBT-13)",
    BROKER_CONVERSATION: "a dialog began, ended or failed: log `broker.conversation` (EVT-10)",
    BROKER_CONVERSATION_GROUP: "a group came or went: log `broker.conversation_group` (EVT-10)",
    BROKER_ACTIVATION: "readers started or ended: log `broker.activation` (EVT-10)",
    BROKER_MESSAGE_UNDELIVERABLE: (
        "an arrived message was not put on a queue: log `broker.message_undeliverable` (EVT-10)"
    ),
    **{
        f"{verb}_{word}": f"{kind.replace('_', ' ')}: {done} (EVT-11)"
        for kind, word in OBJECTS.items()
        if kind != "instance_route"
        for verb, done in zip(_VERBS, ("created", "altered", "dropped"), strict=True)
    },
}
"""Every event that can be subscribed to, and when it happens."""
ALL: Final = frozenset(MEANINGS)

GROUPS: Final[dict[str, frozenset[str]]] = {
    **{
        f"DDL_{word}_EVENTS": frozenset(f"{verb}_{word}" for verb in _VERBS)
        for word in OBJECTS.values()
    },
    "DDL_SSB_EVENTS": frozenset(one for one in DDL if not one.endswith("_EVENT_NOTIFICATION")),
    "TRC_BROKER": TRACES | {BROKER_QUEUE_DISABLED},
}
"""Events of each group, by group name (EVT-1)."""


def expand(words: Iterable[str]) -> frozenset[str]:
    """Return the events that names of events and groups mean; ignore unknown words."""
    found: set[str] = set()
    for word in words:
        found |= GROUPS.get(word, {word} & ALL)
    return frozenset(found)


def refusal(word: str, scope: Scope) -> str:
    """Return why a notification of this scope cannot have an event; empty if it can (EVT-2)."""
    if word not in ALL and word not in GROUPS:
        return f"there is no event or group of events {word!r}"
    asked = expand((word,))
    if scope is Scope.QUEUE and not asked <= OF_A_QUEUE:
        return f"{word} is not about one queue; those are {', '.join(sorted(OF_A_QUEUE))} (EVT-2)"
    if scope is not Scope.QUEUE and QUEUE_ACTIVATION in asked:
        return f"{word} is subscribed to for one queue at a time: name the queue (ACT-34)"
    return ""


def is_kept(event: str) -> bool:
    """Return whether an event is kept while its subscriber cannot be notified (PBT-15)."""
    return event not in TRACES and event != QUEUE_ACTIVATION
