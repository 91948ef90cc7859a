"""Error events: the latest errors of dialogs, for operators of an instance (MON-20, VIEW-16).

Reads:  lines of the log, except those of level debug.      Calls: the clock.
Never:  keeps more than `KEPT` lines, or a line that names no dialog.
"""

from collections import deque
from typing import Final

from brokerd.clock import Clock, Instant
from brokerd.ids import parse, show
from brokerd.telemetry import logs

KEPT: Final = 1_000
_CLASSES: Final = frozenset(
    {
        logs.CONVERSATION,
        logs.MESSAGE_CLASSIFY,
        logs.MESSAGE_UNDELIVERABLE,
        logs.TRANSMISSION,
        logs.LOST_MESSAGES,
        logs.HISTORY_LOST,
        logs.AUDIT_CONVERSATION,
    }
)
"""Log classes in which every line above level debug reports a problem."""


class ErrorEvents:
    """The latest error events of all brokers of an instance."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._number = 0
        self._kept: deque[tuple[int, Instant, str, dict[str, object]]] = deque(maxlen=KEPT)

    def record(self, event: str, fields: dict[str, object]) -> None:
        """Keep a line of the log, if it is an error event."""
        if event in _CLASSES and "conversation_id" in fields:
            self._number += 1
            self._kept.append((self._number, self._clock.utc(), event, fields))

    def rows(self) -> list[dict[str, object]]:
        """Return the rows of the view, the oldest first; a field that the line lacked is None."""
        return [
            {
                "number": number,
                "at": at,
                "event": event,
                "subclass": fields.get("subclass"),
                "broker_name": fields.get("broker"),
                "conversation_id": show(parse(str(fields["conversation_id"]))),
                "conversation_handle": fields.get("handle"),
                "conversation_group_id": fields.get("group"),
                "is_initiator": _IS_INITIATOR.get(fields.get("role")),
                "service_name": fields.get("service"),
                "far_service": fields.get("far_service"),
                "service_contract_name": fields.get("contract"),
                "code": fields.get("code"),
                "reason": fields.get("reason") or fields.get("description"),
            }
            for number, at, event, fields in self._kept
        ]


_IS_INITIATOR: Final[dict[object, bool]] = {"initiator": True, "target": False}
