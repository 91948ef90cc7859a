"""What can be seen of activation: rows of its views, its totals (VIEW-6, VIEW-7, MON-15).

Reads:  monitors and facts, as arguments.
Never:  changes anything.
"""

from typing import Final

import msgspec

from brokerd.activation.monitor import Limits, Monitor, MonitorState, QueueFacts, necessity
from brokerd.clock import SECOND, Instant
from brokerd.model import Queue

REMOVED: Final = "the queue was dropped"
"""Absent reason of a queue that is gone while readers of it still run."""


class Counts(msgspec.Struct):
    """Totals since the start, of all queues (MON-15)."""

    started: int = 0
    invoked: int = 0
    ended: int = 0
    aborted: int = 0
    failed_to_start: int = 0
    limit_reached: int = 0


class MonitorRow(msgspec.Struct, frozen=True):
    """One row of `queue_monitors` (VIEW-6); a queue without monitor shows why (ACT-5)."""

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


def absent_reason(queue: Queue, *, delivery: bool) -> str:
    """Why a queue has no monitor; empty if it has one (ACT-3, ACT-5)."""
    if queue.activation is None:
        return "the queue has no activation"
    if not queue.activation.enabled:
        return "activation is off"
    if not (queue.receive_enabled and queue.enqueue_enabled):
        return "the queue is off"
    return "" if delivery else "delivery is off in the broker"


def monitor_row(
    broker: str,
    queue: str,
    monitor: Monitor | None,
    facts: QueueFacts,
    *,
    running: int,
    limits: Limits,
    absent_reason: str,
    now: float,
    utc: Instant,
) -> MonitorRow:
    """One queue as a row; `now` (monotonic) and `utc` are the same moment."""

    def at(moment: float | None) -> Instant | None:
        return None if moment is None else Instant(utc - round((now - moment) * SECOND))

    shown = monitor or Monitor()
    backing_off = shown.state is MonitorState.FAILED_BACKOFF
    needed = necessity(shown, facts, running, now=now, limits=limits) if monitor else ""
    return MonitorRow(
        broker=broker,
        queue=queue,
        state=str(shown.state) if monitor else "",
        last_empty_rowset_time=at(shown.last_empty_at),
        last_activated_time=at(shown.last_activated_at),
        tasks_waiting=facts.waiting,
        tasks_running=running,
        necessary=needed,
        backoff_until=at(shown.backoff_until) if backing_off else None,
        consecutive_failures=shown.failures,
        last_failure=shown.last_failure,
        absent_reason=absent_reason,
    )
