"""Queue monitor: decides when one more reader of a queue is started (ACT-1 to ACT-17). PURE.

Reads:  one event, and the facts of the queue at that moment.
Never:  starts a reader, waits, or reads a clock; `now` is monotonic seconds.

The length of the queue is not a criterion (ACT-2). A reader is wanted if a message arrives in a
queue without a reader (condition A, ACT-9), or if messages wait and no receive has recently
returned empty (condition B, ACT-10). The transitions are those of the table ACT-Q1 to ACT-Q10; the
state FAILED_BACKOFF is an addition of brokerd (PBT-6).
"""

from enum import StrEnum
from typing import Final

import msgspec

NO_RECEIVE: Final = "it ended without a receive; fix: let it receive from its queue"
_SLACK: Final = 0.1
"""Seconds by which a tick may come before the end of an interval that another tick began."""


class MonitorState(StrEnum):
    """State of a queue monitor (ACT-28)."""

    INACTIVE = "INACTIVE"
    NOTIFIED = "NOTIFIED"
    RECEIVES_OCCURRING = "RECEIVES_OCCURRING"
    FAILED_BACKOFF = "FAILED_BACKOFF"
    DROPPED = "DROPPED"


class Why(StrEnum):
    """Reason for starting a reader."""

    ARRIVAL = "arrival"
    """Condition A (ACT-9)."""
    BACKLOG = "backlog"
    """Condition B (ACT-10)."""
    CONTINUED = "continued"
    """The last running reader has ended, and messages remain (ACT-48)."""
    ENABLED = "enabled"
    """Activation was switched on or altered while messages waited (ACT-Q2)."""
    RETRIED = "retried"
    """A back-off is over (PBT-6)."""
    UNHEARD = "unheard"
    """No receive followed a notification in time, so it is repeated (ACT-36)."""
    FOUND = "found"
    """A check found messages without an arrival event, for instance after a rollback."""


class Limits(msgspec.Struct, frozen=True):
    """Limits on starting readers of one queue. Times are in seconds."""

    max_readers: int = 1
    ramp_interval: float = 5.0
    """Interval of condition B, "a few seconds" (ACT-11, PBT-7)."""
    initial_readers: int = 1
    """Number of readers started together when reading begins; at most one per ready group
    (PBT-7)."""
    receive_within: float = 30.0
    """Time within which a started reader must receive; otherwise it has failed (PBT-6)."""
    errors: int = 5
    """Number of readers in a row that received and raised, after which starts back off (ACT-32)."""
    backoff_first: float = 5.0
    backoff_most: float = 300.0
    external: bool = False
    """Whether external activators start the readers, after a notification (ACT-34). The number of
    these readers is unknown to the monitor, and `max_readers` does not limit it (ACT-36)."""
    renotify: float = 10.0
    """Time after which a notification is repeated if no receive followed it (ACT-37)."""

    def backoff(self, failures: int) -> float:
        """Return the wait in seconds after failures in a row; by default 5, 10, 20, at most 300."""
        return float(min(self.backoff_most, self.backoff_first * 2 ** min(failures - 1, 32)))


class QueueFacts(msgspec.Struct, frozen=True):
    """Facts of a queue at the moment of a step."""

    ready: bool
    """Whether unread messages exist: committed, not parked, received by no open transaction.
    Messages of locked groups count too (ACT-16)."""
    youngest_ready_at: float | None = None
    """Monotonic commit time of the youngest ready message; None = before the daemon started."""
    waiting: int = 0
    """Number of sessions of any origin that wait in an unselective receive (ACT-12, ACT-13)."""
    ready_groups: int = 1
    """Number of groups with ready messages, or a lower bound; used for `initial_readers` only."""


class Enabled(msgspec.Struct, frozen=True):
    """Event: queue, activation and delivery are all on now, so the monitor begins (ACT-5)."""


class Disabled(msgspec.Struct, frozen=True):
    """Event: queue, activation or delivery is off, so the monitor ends (ACT-Q9)."""


class Altered(msgspec.Struct, frozen=True):
    """Event: an option of the queue was set, even to its old value; re-arms (ACT-6e, ACT-7)."""


class Arrived(msgspec.Struct, frozen=True):
    """Event: messages were committed to the queue (ACT-8)."""

    was_empty: bool
    """Whether the queue had no unread message just before this commit."""


class ReceiveIssued(msgspec.Struct, frozen=True):
    """Event: any session begins a receive or get_group, selective or not (ACT-30)."""


class ReceiveEmpty(msgspec.Struct, frozen=True):
    """Event: a receive or get_group returned empty."""

    selective: bool = False


class RolledBack(msgspec.Struct, frozen=True):
    """Event: a transaction that received from the queue was rolled back (ACT-6c)."""


class ReaderExited(msgspec.Struct, frozen=True):
    """Event: a reader of this queue has ended; it no longer counts in `running`."""

    received: bool
    """Whether the reader issued at least one receive (ACT-31)."""
    generation: int
    """Generation of the monitor that started the reader."""
    error: str = ""


class StartFailed(msgspec.Struct, frozen=True):
    """Event: a reader could not be started; it no longer counts in `running`."""

    generation: int
    error: str


class Ticked(msgspec.Struct, frozen=True):
    """Event: the periodic check (PER-3)."""


Event = (
    Enabled
    | Disabled
    | Altered
    | Arrived
    | ReceiveIssued
    | ReceiveEmpty
    | RolledBack
    | ReaderExited
    | StartFailed
    | Ticked
)


class Monitor(msgspec.Struct, frozen=True):
    """The state of one queue monitor. Times are monotonic seconds."""

    generation: int = 0
    """Number of this monitor among all monitors of the same queue, in rising order (ACT-33)."""
    state: MonitorState = MonitorState.INACTIVE
    clock_from: float = 0.0
    """Time at which the clock of condition B was last reset (ACT-14)."""
    last_empty_at: float | None = None
    last_activated_at: float | None = None
    failures: int = 0
    """Number of failed starts and failed readers since any session last received (PBT-6)."""
    errors: int = 0
    """Number of readers in a row that received and then raised."""
    backoff_until: float = 0.0
    last_failure: str = ""
    limit_reached: int = 0
    """Number of times that a start was wanted while `max_readers` readers ran (ACT-17)."""


class StartReader(msgspec.Struct, frozen=True):
    """Order to start one reader now, or to notify the external activators (ACT-34)."""

    why: Why


Step = tuple[Monitor | None, tuple[StartReader, ...]]


def step(
    monitor: Monitor, event: Event, facts: QueueFacts, running: int, *, now: float, limits: Limits
) -> Step:
    """Apply one event; return the new monitor (None = it is removed) and the starts it orders.

    `running`: number of running readers of this queue that activation started, including those of
    its earlier monitors (ACT-33). The caller counts an ordered reader as running from now on."""
    if isinstance(event, Disabled) or monitor.state is MonitorState.DROPPED:
        dropped = msgspec.structs.replace(monitor, state=MonitorState.DROPPED)
        return (dropped if running else None), ()
    seen = _observe(monitor, event, now=now, limits=limits)
    if not facts.ready:
        return _without_messages(seen, now), ()
    match seen.state:
        case MonitorState.INACTIVE:
            return _inactive(seen, event, facts, running, now=now, limits=limits)
        case MonitorState.NOTIFIED:
            return _notified(seen, event, facts, running, now=now, limits=limits)
        case MonitorState.RECEIVES_OCCURRING:
            return _receives_occurring(seen, event, facts, running, now=now, limits=limits)
        case _:
            return _failed_backoff(seen, facts, running, now=now, limits=limits)


def changes_nothing(monitor: Monitor, event: Event, *, now: float, limits: Limits) -> bool:
    """Return whether the caller may skip this step, without reading the facts.

    True for a receive in RECEIVES_OCCURRING before the clock of condition B has run down; the next
    tick decides instead."""
    return (
        isinstance(event, ReceiveIssued)
        and monitor.state is MonitorState.RECEIVES_OCCURRING
        and not _run_down(monitor, now, limits)
    )


def necessity(
    monitor: Monitor, facts: QueueFacts, running: int, *, now: float, limits: Limits
) -> str:
    """Return the condition that holds, as text for operators: A, B, or none and why (VIEW-6)."""
    if facts.ready and running == 0 and monitor.state is MonitorState.INACTIVE:
        return "A"
    last = "nobody received since the last notification"
    clauses = {
        "no messages ready": not facts.ready,
        last if limits.external else "the reader started last has not received yet": (
            monitor.state is MonitorState.NOTIFIED
        ),
        "backing off after a failure": monitor.state is MonitorState.FAILED_BACKOFF,
        "a session is waiting in a receive": facts.waiting > 0,
        "the clock of condition B has not run down": not _run_down(monitor, now, limits),
    }
    failing = next((clause for clause, holds in clauses.items() if holds), None)
    return "B" if failing is None else f"none: {failing}"


def _observe(monitor: Monitor, event: Event, *, now: float, limits: Limits) -> Monitor:
    """Record the effects of the event that do not depend on the messages in the queue."""
    replace = msgspec.structs.replace
    match event:
        case ReceiveIssued():
            return _received(monitor, now)
        case ReceiveEmpty(selective=False):
            return replace(monitor, last_empty_at=now, clock_from=now)
        case Altered():
            rearmed = monitor.state is MonitorState.FAILED_BACKOFF
            state = MonitorState.INACTIVE if rearmed else monitor.state
            return replace(monitor, state=state, failures=0, errors=0)
        case ReaderExited(generation=monitor.generation):
            return _exited(monitor, event, now, limits)
        case StartFailed(generation=monitor.generation, error=error):
            return _failed(monitor, error, now, limits)
        case _:
            return monitor


def _received(monitor: Monitor, now: float) -> Monitor:
    """Enter RECEIVES_OCCURRING (ACT-Q4), and re-arm after failures (PBT-6)."""
    if monitor.state in (MonitorState.NOTIFIED, MonitorState.FAILED_BACKOFF):
        return msgspec.structs.replace(
            monitor, state=MonitorState.RECEIVES_OCCURRING, clock_from=now, failures=0
        )
    return msgspec.structs.replace(monitor, failures=0) if monitor.failures else monitor


def _exited(monitor: Monitor, event: ReaderExited, now: float, limits: Limits) -> Monitor:
    """Count a reader that failed, and back off after several in a row.

    A message that makes every reader raise must not keep the instance busy (ACT-32)."""
    error = event.error
    if not event.received:
        return _failed(monitor, error or NO_RECEIVE, now, limits)
    errors = monitor.errors + 1 if error else 0
    counted = msgspec.structs.replace(monitor, errors=errors)
    if errors < limits.errors:
        return counted
    # The reader's receive has reset `failures`: `errors` decides the length of the back-off.
    return _failed(
        msgspec.structs.replace(counted, failures=errors - limits.errors), error, now, limits
    )


def _failed(monitor: Monitor, error: str, now: float, limits: Limits) -> Monitor:
    """Back off after a failure.

    A failure during a back-off belongs to the same step, and changes nothing (PBT-6)."""
    if monitor.state is MonitorState.FAILED_BACKOFF and now < monitor.backoff_until:
        return monitor
    failures = monitor.failures + 1
    return msgspec.structs.replace(
        monitor,
        state=MonitorState.FAILED_BACKOFF,
        failures=failures,
        backoff_until=now + limits.backoff(failures),
        last_failure=error,
    )


def _without_messages(monitor: Monitor, now: float) -> Monitor:
    """Become INACTIVE (ACT-Q8), unless a back-off runs.

    The back-off must continue; otherwise every arrival would start a reader that fails."""
    if monitor.state is MonitorState.FAILED_BACKOFF and now < monitor.backoff_until:
        return monitor
    return msgspec.structs.replace(monitor, state=MonitorState.INACTIVE)


def _inactive(
    monitor: Monitor, event: Event, facts: QueueFacts, running: int, *, now: float, limits: Limits
) -> Step:
    if running == 0 or isinstance(event, Enabled):
        return _begin(monitor, event, facts, running, now=now, limits=limits)
    clock_from = now
    if monitor.last_empty_at is not None:  # a later start has restarted the clock (ACT-14)
        clock_from = max(monitor.last_empty_at, monitor.last_activated_at or 0.0)
    return _occurring(monitor, clock_from), ()  # ACT-Q10


def _notified(
    monitor: Monitor, event: Event, facts: QueueFacts, running: int, *, now: float, limits: Limits
) -> Step:
    """Order no start until any session receives, or a time-out passes (ACT-29, ACT-36, ACT-Q5)."""
    if isinstance(event, Altered) and running == 0:
        return _begin(monitor, event, facts, running, now=now, limits=limits)
    since = now if monitor.last_activated_at is None else monitor.last_activated_at
    if limits.external:
        unheard = now - since >= limits.renotify - _SLACK and not facts.waiting
        return _notify(monitor, Why.UNHEARD, 1, now) if unheard else (monitor, ())  # ACT-36
    if now - since >= limits.receive_within - _SLACK:
        seconds = f"{limits.receive_within:g}"
        return _failed(monitor, f"no receive within {seconds} s of its start", now, limits), ()
    return monitor, ()


def _receives_occurring(
    monitor: Monitor, event: Event, facts: QueueFacts, running: int, *, now: float, limits: Limits
) -> Step:
    # The order matters: with no reader running, a start must not wait for condition B (ACT-48).
    if running == 0 and _starts_anew(monitor, event, facts):
        return _begin(monitor, event, facts, running, now=now, limits=limits)
    if facts.waiting or not _run_down(monitor, now, limits):
        return monitor, ()
    if limits.external:  # repeated only after a receive or the time-out (ACT-36)
        return _notify(monitor, Why.BACKLOG, 1, now)
    restarted = msgspec.structs.replace(monitor, clock_from=now)
    if running >= limits.max_readers:
        return _limited(restarted), ()
    activated = msgspec.structs.replace(restarted, last_activated_at=now)
    return activated, (StartReader(Why.BACKLOG),)  # ACT-Q6


def _starts_anew(monitor: Monitor, event: Event, facts: QueueFacts) -> bool:
    """Return whether to start a reader, if none runs, without waiting for condition B."""
    match event:
        case Arrived(was_empty=was_empty):
            return was_empty  # condition A, before a check saw the queue empty
        case ReaderExited():
            return not _looked_since(monitor, facts)  # ACT-48
        case Altered():
            return True
        case _:
            return False


def _looked_since(monitor: Monitor, facts: QueueFacts) -> bool:
    """Return whether a receive returned empty after the youngest ready message was committed."""
    if monitor.last_empty_at is None:
        return False
    youngest = facts.youngest_ready_at
    return youngest is None or monitor.last_empty_at > youngest


def _failed_backoff(
    monitor: Monitor, facts: QueueFacts, running: int, *, now: float, limits: Limits
) -> Step:
    if now < monitor.backoff_until - _SLACK:
        return monitor, ()
    if running >= limits.max_readers:
        again = now + limits.backoff(monitor.failures)
        return msgspec.structs.replace(_limited(monitor), backoff_until=again), ()
    return _notify(monitor, Why.RETRIED, 1, now)


def _begin(
    monitor: Monitor, event: Event, facts: QueueFacts, running: int, *, now: float, limits: Limits
) -> Step:
    """Begin reading: order the first readers (ACT-Q2, ACT-Q3, ACT-Q7)."""
    if limits.external:
        return _notify(monitor, _why(event), 1, now)
    room = limits.max_readers - running
    if room <= 0:
        return _occurring(_limited(monitor), now), ()
    wanted = max(1, min(limits.initial_readers, facts.ready_groups))
    return _notify(monitor, _why(event), min(room, wanted), now)


def _notify(monitor: Monitor, why: Why, count: int, now: float) -> Step:
    state = MonitorState.NOTIFIED
    notified = msgspec.structs.replace(monitor, state=state, last_activated_at=now)
    return notified, (StartReader(why),) * count


def _occurring(monitor: Monitor, clock_from: float) -> Monitor:
    state = MonitorState.RECEIVES_OCCURRING
    return msgspec.structs.replace(monitor, state=state, clock_from=clock_from)


def _limited(monitor: Monitor) -> Monitor:
    return msgspec.structs.replace(monitor, limit_reached=monitor.limit_reached + 1)


def _run_down(monitor: Monitor, now: float, limits: Limits) -> bool:
    return now - monitor.clock_from >= limits.ramp_interval - _SLACK


def _why(event: Event) -> Why:
    match event:
        case Arrived():
            return Why.ARRIVAL
        case Enabled() | Altered():
            return Why.ENABLED
        case ReaderExited():
            return Why.CONTINUED
        case _:
            return Why.FOUND
