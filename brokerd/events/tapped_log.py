"""The event log as a source of event notifications: its classes may be subscribed to (EVT-10).

Reads:  every line that is logged.
Calls:  first the log itself, then `ErrorEvents`, which keeps the latest errors, `Events.happened`.
Never:  delays a line, or reports lines that come once per message, which subscribers do not get.
"""

from collections.abc import Callable
from typing import Final

from brokerd.events.error_events import ErrorEvents
from brokerd.model import EVENT_NOTIFICATION
from brokerd.objects import event_names as names
from brokerd.telemetry import logs
from brokerd.telemetry.log import Log

Happened = Callable[..., None]
"""Type of `Events.happened`: (name, broker, queue=..., and facts)."""

_CLASSES: Final[dict[str, str]] = {
    logs.CONVERSATION: names.BROKER_CONVERSATION,
    logs.CONVERSATION_GROUP: names.BROKER_CONVERSATION_GROUP,
    logs.ACTIVATION: names.BROKER_ACTIVATION,
    logs.MESSAGE_UNDELIVERABLE: names.BROKER_MESSAGE_UNDELIVERABLE,
    logs.QUEUE_DISABLED: names.BROKER_QUEUE_DISABLED,
    logs.QUEUE_STATUS: names.QUEUE_STATUS_CHANGED,
}
"""Class of the event log to the name of the event."""
_SUBCLASSES: Final[dict[tuple[str, object], str]] = {
    (logs.ACTIVATION, "failed_to_start"): names.ACTIVATION_FAILED,
    (logs.PARKING, "parked"): names.GROUP_PARKED,
    (logs.DUPLICATE_BROKER, "seen"): names.DUPLICATE_BROKER_SEEN,
}
"""Subclasses that are a further event of their own."""
ONCE_A_MESSAGE: Final = frozenset({"send", "received_sequenced"})
"""Subclasses of conversations that no subscriber gets, being one line per message (EVT-10)."""


class TappedLog:
    """The log of an instance, which also reports lines that are events to subscribers."""

    def __init__(self, log: Log, errors: ErrorEvents) -> None:
        self._log = log
        self.errors = errors
        self.happened: Happened | None = None
        """Set once subscriptions are loaded; None = there are no subscribers to notify."""

    def debug(self, event: str, **fields: object) -> None:
        """Write one line of detail."""
        self._log.debug(event, **fields)
        self._notify(event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Write one line."""
        self._log.info(event, **fields)
        self.errors.record(event, fields)
        self._notify(event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Write one line that an operator should see."""
        self._log.warning(event, **fields)
        self.errors.record(event, fields)
        self._notify(event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Write one line about something that failed."""
        self._log.error(event, **fields)
        self.errors.record(event, fields)
        self._notify(event, fields)

    def _notify(self, event: str, fields: dict[str, object]) -> None:
        broker, queue, subclass = fields.get("broker"), fields.get("queue"), fields.get("subclass")
        if self.happened is None or not isinstance(broker, str) or subclass in ONCE_A_MESSAGE:
            return
        if fields.get("message_type") == EVENT_NOTIFICATION:  # it would cause another
            return
        for name in (_CLASSES.get(event), _SUBCLASSES.get((event, subclass))):
            if name is not None:
                facts = {key: value for key, value in fields.items() if key not in _NAMED}
                where = queue if isinstance(queue, str) else None
                self.happened(name, broker, queue=where, **facts)


_NAMED: Final = frozenset({"broker", "queue"})
