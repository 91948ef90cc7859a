"""Counting: the event log of a simulated node, as counts and lines of the trace.

Reads:  events.      Never:  keeps an event, except errors, which fail the run, and warnings of lost
messages, which must be true.
"""

from collections import Counter
from typing import Final

from brokerd.telemetry.logs import DYNAMIC_ROUTING, LOST_MESSAGES, MIRRORED_ROUTE, STORE
from brokerd.testing.trace import Trace

_COUNTED: Final = frozenset({DYNAMIC_ROUTING, MIRRORED_ROUTE, STORE})


class CountingLog:
    """An event log that keeps counts, errors and warnings of lost messages."""

    def __init__(self, node: str, trace: Trace, counts: Counter[str]) -> None:
        self._node = node
        self._trace = trace
        self._counts = counts
        self.errors: list[str] = []
        self.lost: list[tuple[str, str]] = []
        """Conversation id and role of dialogs reported to have lost messages (PBT-4)."""

    def debug(self, event: str, **fields: object) -> None:
        """Ignore the event."""

    def info(self, event: str, **fields: object) -> None:
        """Add the event to the trace; count events of routing and of stores."""
        self._note("info", event, fields)
        if event in _COUNTED:
            where = f" at {self._node}" if event == STORE else ""
            self._counts[f"{event}/{fields.get('subclass')}{where}"] += 1

    def warning(self, event: str, **fields: object) -> None:
        """Add the event to the trace and count it."""
        self._note("warning", event, fields)
        if event == LOST_MESSAGES and fields["count"]:
            self.lost.append((str(fields["conversation_id"]), str(fields["role"])))
        self._counts[f"warning {event}/{fields.get('subclass')}/{fields.get('reason', '')}"] += 1

    def error(self, event: str, **fields: object) -> None:
        """Add the event to the trace and to the errors, each of which fails the run."""
        self._note("error", event, fields)
        told = fields.get("error") or fields.get("exc_info") or ""
        self.errors.append(f"{self._node}: {event} {fields.get('subclass')} {told!r}")

    def _note(self, level: str, event: str, fields: dict[str, object]) -> None:
        subclass, reason = fields.get("subclass", ""), fields.get("reason", "")
        self._trace.note(self._node, f"{level} {event} {subclass} {reason}".rstrip())
