"""Tapped log: the event log as a source of events; services may subscribe to its classes (EVT-10).

Reads:  every logged line.
Calls:  the log itself, then `ErrorEvents` for the latest errors, then `Events.happened`.
Never:  delays a line, or reports to subscribers the lines that are logged once per message.
"""

from collections.abc import Callable
from typing import Final

from brokerd.events.error_events import ErrorEvents
from brokerd.model import EVENT_NOTIFICATION
from brokerd.objects import event_names as names
from brokerd.telemetry import logs
from brokerd.telemetry.log import Log

Happened = Callable[..., None]
"""Type of `Events.happened`, a function of (name, broker, queue=..., facts)."""

_CLASSES: Final[dict[str, str]] = {
    logs.CONVERSATION: names.BROKER_CONVERSATION,
    logs.CONVERSATION_GROUP: names.BROKER_CONVERSATION_GROUP,
    logs.ACTIVATION: names.BROKER_ACTIVATION,
    logs.MESSAGE_UNDELIVERABLE: names.BROKER_MESSAGE_UNDELIVERABLE,
    logs.QUEUE_DISABLED: names.BROKER_QUEUE_DISABLED,
    logs.QUEUE_STATUS: names.QUEUE_STATUS_CHANGED,
}
"""Names of events by class of the event log."""
_SUBCLASSES: Final[dict[tuple[str, object], str]] = {
    (logs.ACTIVATION, "failed_to_start"): names.ACTIVATION_FAILED,
    (logs.PARKING, "parked"): names.GROUP_PARKED,
    (logs.DUPLICATE_BROKER, "seen"): names.DUPLICATE_BROKER_SEEN,
}
"""Names of additional events by class and subclass."""
ONCE_A_MESSAGE: Final = frozenset({"send", "received_sequenced"})
"""Subclasses of the lines that are logged for every message; no subscriber gets them (EVT-10)."""


class TappedLog:
    """The log of an instance, which also reports lines to the subscribers of events."""

    def __init__(self, log: Log, errors: ErrorEvents) -> None:
        self._log = log
        self.errors = errors
        self.happened: Happened | None = None
        """Function that reports events; None until the subscriptions are loaded."""

    def debug(self, event: str, **fields: object) -> None:
        """Write one line of level debug."""
        self._log.debug(event, **fields)
        self._notify(event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Write one line of level info."""
        self._log.info(event, **fields)
        self.errors.record(event, fields)
        self._notify(event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Write one line of level warning, which an operator should see."""
        self._log.warning(event, **fields)
        self.errors.record(event, fields)
        self._notify(event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Write one line of level error, about a failure."""
        self._log.error(event, **fields)
        self.errors.record(event, fields)
        self._notify(event, fields)

    def _notify(self, event: str, fields: dict[str, object]) -> None:
        broker, queue, subclass = fields.get("broker"), fields.get("queue"), fields.get("subclass")
        if self.happened is None or not isinstance(broker, str) or subclass in ONCE_A_MESSAGE:
            return
        if fields.get("message_type") == EVENT_NOTIFICATION:  # would cause another event
            return
        for name in (_CLASSES.get(event), _SUBCLASSES.get((event, subclass))):
            if name is not None:
                facts = {key: value for key, value in fields.items() if key not in _NAMED}
                where = queue if isinstance(queue, str) else None
                self.happened(name, broker, queue=where, **facts)


_NAMED: Final = frozenset({"broker", "queue"})
