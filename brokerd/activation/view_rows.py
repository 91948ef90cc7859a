"""Rows of the views of activation, and the totals of activation (VIEW-6, VIEW-7, MON-15).

Reads:  monitors and facts, as arguments.
Never:  changes anything.
"""

from typing import Final

import msgspec

from brokerd.activation.monitor import Limits, Monitor, MonitorState, QueueFacts, necessity
from brokerd.clock import SECOND, Instant
from brokerd.model import Queue

REMOVED: Final = "the queue was dropped"
"""Value of `absent_reason` for a queue that was dropped while its readers still run."""


class Counts(msgspec.Struct):
    """Totals over all queues since the daemon started (MON-15)."""

    started: int = 0
    invoked: int = 0
    ended: int = 0
    aborted: int = 0
    failed_to_start: int = 0
    limit_reached: int = 0
    notified: int = 0


_SHOWN: Final = {
    "tasks_started": "started",
    "tasks_aborted": "aborted",
    "procedures_invoked": "invoked",
    "task_limit_reached": "limit_reached",
    "notifications": "notified",
}


class Rates:
    """Totals, and their increase per second between the last two ticks (VIEW-12)."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._totals = dict.fromkeys(_SHOWN, 0)
        self._per_second = dict.fromkeys(_SHOWN, 0.0)

    def sample(self, counts: Counts, now: float) -> None:
        """Record the totals at a tick; `now`: monotonic seconds."""
        totals = {name: int(getattr(counts, field)) for name, field in _SHOWN.items()}
        if self._at is not None and now > self._at:
            seconds = now - self._at
            before = self._totals
            self._per_second = {name: (totals[name] - before[name]) / seconds for name in totals}
        self._at, self._totals = now, totals

    def row(self, counts: Counts, running: int) -> dict[str, object]:
        """Return the row of `activation_counters`."""
        row: dict[str, object] = {"tasks_running": running}
        for name, field in _SHOWN.items():
            row[f"{name}_total"] = int(getattr(counts, field))
            row[f"{name}_per_second"] = self._per_second[name]
        return row


class MonitorRow(msgspec.Struct, frozen=True):
    """One row of `queue_monitors` (VIEW-6)."""

    broker: str
    queue: str
    state: str
    last_empty_rowset_time: Instant | None
    last_activated_time: Instant | None
    tasks_waiting: int
    tasks_running: int
    necessary: str
    backoff_until: Instant | None
    consecutive_failures: int
    last_failure: str
    absent_reason: str
    """Reason why the monitor has ended while its readers still run (`DROPPED`); else empty."""


class TaskRow(msgspec.Struct, frozen=True):
    """One row of `activated_tasks` (VIEW-7)."""

    reader: int
    session_id: str
    broker: str
    queue: str
    procedure_name: str
    execute_as: str
    started_at: Instant
    pid: int
    receives: int
    last_receive_at: Instant | None
    monitor_generation: int


def absent_reason(queue: Queue, *, delivery: bool, subscribed: bool = False) -> str:
    """Return why a queue has no monitor; empty if it has one (ACT-3, ACT-5).

    `subscribed`: whether a notification of QUEUE_ACTIVATION exists for the queue."""
    if queue.activation is None and not subscribed:
        return "the queue has no activation"
    if not subscribed and not queue.is_activated:
        return "activation is off"
    if not (queue.receive_enabled and queue.enqueue_enabled):
        return "the queue is off"
    return "" if delivery else "delivery is off in the broker"


def monitor_row(
    broker: str,
    queue: str,
    monitor: Monitor,
    facts: QueueFacts,
    *,
    running: int,
    limits: Limits,
    absent_reason: str,
    now: float,
    utc: Instant,
) -> MonitorRow:
    """Return the row of one queue; `now` (monotonic seconds) and `utc` are the same moment."""

    def at(moment: float | None) -> Instant | None:
        return None if moment is None else Instant(utc - round((now - moment) * SECOND))

    backing_off = monitor.state is MonitorState.FAILED_BACKOFF
    return MonitorRow(
        broker=broker,
        queue=queue,
        state=str(monitor.state),
        last_empty_rowset_time=at(monitor.last_empty_at),
        last_activated_time=at(monitor.last_activated_at),
        tasks_waiting=facts.waiting,
        tasks_running=running,
        necessary=necessity(monitor, facts, running, now=now, limits=limits),
        backoff_until=at(monitor.backoff_until) if backing_off else None,
        consecutive_failures=monitor.failures,
        last_failure=monitor.last_failure,
        absent_reason=absent_reason,
    )
