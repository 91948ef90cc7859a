"""One subscription: its definition, the state of its dialog, the events not sent yet. PURE.

Reads:  its definition, events, the outcome of sending, the time.      Calls: the back-off.
Never:  sends or stores events; the notifier acts on these values.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import msgspec

from brokerd.clock import Instant
from brokerd.ids import BrokerId, Handle, NotificationKey
from brokerd.model import EventNotification, Scope
from brokerd.objects.event_names import QUEUE_ACTIVATION, expand, is_kept
from brokerd.protocol.backoff import REOPEN_FIRST, REOPEN_MAX, reopen_delay
from brokerd.protocol.endpoint import DialogEndpoint


class Event(msgspec.Struct, frozen=True):
    """An event, with its payload for subscribers."""

    name: str
    broker: str
    """Name of the broker in which the event occurred."""
    queue: str | None
    """Name of the queue that the event is about, if any."""
    subject: str
    """Broker and queue of the event; some events are kept only once per subject (PBT-15)."""
    body: bytes


class Owed(NamedTuple):
    """An event not yet sent to a subscriber, in its stored form."""

    key: int
    event: str
    subject: str
    body: bytes


class NotifierOptions(msgspec.Struct, frozen=True):
    """Settings of every subscription."""

    reopen_first: timedelta = REOPEN_FIRST
    """First wait after a dialog broke before any of its messages was acknowledged (PBT-15)."""
    reopen_max: timedelta = REOPEN_MAX
    traces: int = 1000
    """Largest number of kept traces, the events that may occur in any number (EVT-10)."""


class Subscription(msgspec.Struct, frozen=True):
    """An event notification and its state."""

    definition: EventNotification
    handle: Handle | None = None
    """Handle of the subscription's dialog; None = it has to open a dialog when it is due."""
    failures: int = 0
    """Number of dialogs in a row that broke before any message was acknowledged."""
    retry_at: float = 0.0
    """Monotonic time in seconds before which the subscription must not retry after a failure."""
    owed: tuple[Owed, ...] = ()
    """Kept events that are not sent yet, in their order."""
    lost: int = 0
    """Number of events dropped since the daemon started, because too many were kept."""
    last_error: str = ""
    last_sent_at: Instant | None = None

    def is_due(self, now: float) -> bool:
        """Return whether the subscription may send, or open a dialog for sending."""
        return now >= self.retry_at


def wants(definition: EventNotification, event: Event, *, at_home: bool) -> bool:
    """Return whether a notification is for this event.

    `at_home`: whether the event occurred in the notification's own broker."""
    if event.name not in expand(definition.events):
        return False
    match definition.scope:
        case Scope.INSTANCE:
            return True
        case Scope.BROKER:
            return at_home
        case Scope.QUEUE:
            return at_home and event.queue == definition.queue


def fan_in(wanting: Iterable[Subscription], *, home: BrokerId) -> list[NotificationKey]:
    """Return the notifications that get an event.

    Of those that fan in to the same target, only the one with the fewest failures gets it (EVT-8).
    `home`: broker of the subscriptions; it is the target's broker if a definition names none."""
    keys: list[NotificationKey] = []
    shared: dict[tuple[str, BrokerId], Subscription] = {}
    for one in wanting:
        definition = one.definition
        if not definition.fan_in:
            keys.append(definition.key)
            continue
        target = (definition.service, definition.broker_id or home)
        other = shared.get(target)
        if other is None or _preference(one) < _preference(other):
            shared[target] = one
    return keys + [one.definition.key for one in shared.values()]


def _preference(one: Subscription) -> tuple[int, str]:
    return one.failures, one.definition.name


# The state of a subscription after an outcome.


def opened(one: Subscription, handle: Handle) -> Subscription:
    """Return the subscription with a new dialog."""
    return msgspec.structs.replace(one, handle=handle, retry_at=0.0)


def sent(one: Subscription, at: Instant) -> Subscription:
    """Return the subscription after its events were sent."""
    return msgspec.structs.replace(one, owed=(), last_sent_at=at)


def broken(
    one: Subscription, *, worked: bool, why: str, now: float, options: NotifierOptions
) -> Subscription:
    """Return the subscription without its broken dialog (PBT-15).

    `worked`: whether a message of the dialog was acknowledged; such a dialog is replaced at once,
    others after a growing wait. `why`: the reason why it is broken."""
    if worked:
        return msgspec.structs.replace(one, handle=None, failures=0, retry_at=now, last_error=why)
    return msgspec.structs.replace(postponed(one, why=why, now=now, options=options), handle=None)


def postponed(one: Subscription, *, why: str, now: float, options: NotifierOptions) -> Subscription:
    """Return the subscription after a failure to send, with the time of the next attempt."""
    failures = one.failures + 1
    wait = reopen_delay(failures, first=options.reopen_first, most=options.reopen_max)
    return msgspec.structs.replace(
        one, failures=failures, retry_at=now + wait.total_seconds(), last_error=why
    )


def why_broken(endpoint: DialogEndpoint | None) -> tuple[bool, str]:
    """Return whether any message of a broken dialog was acknowledged, and why the dialog is broken.

    `endpoint`: None = the endpoint was removed; the dialog then counts as acknowledged."""
    if endpoint is None:
        return True, "the dialog was removed"
    if endpoint.error_code is not None:
        return endpoint.first_acked, f"{endpoint.error_code}: {endpoint.error_text}"
    return endpoint.first_acked, "the target has ended the dialog"


class Kept(NamedTuple):
    """The events still to be sent, after further events were added."""

    owed: tuple[Owed, ...]
    added: tuple[Owed, ...]
    """Added events, which have to be stored."""
    gone: tuple[int, ...]
    """Keys of stored events that are no longer to be sent."""
    lost: int


_LATEST: Final = frozenset({QUEUE_ACTIVATION})
"""Names of events of which only the latest for each subject is worth sending."""


def keep(owed: Sequence[Owed], more: Iterable[Owed], *, traces: int) -> Kept:
    """Add the events `more` to those not sent yet (PBT-15).

    Of QUEUE_ACTIVATION keep the latest event of each queue; of traces, the first `traces`; of
    the others, all."""
    before = {one.key for one in owed}
    kept = list(owed)
    room = traces - sum(_is_trace(one) for one in kept)
    lost = 0
    for one in more:
        if one.event in _LATEST:
            kept = [other for other in kept if (other.event, other.subject) != one[1:3]]
        elif _is_trace(one):
            if room <= 0:
                lost += 1
                continue
            room -= 1
        kept.append(one)
    after = {one.key for one in kept}
    return Kept(
        owed=tuple(kept),
        added=tuple(one for one in kept if one.key not in before),
        gone=tuple(sorted(before - after)),
        lost=lost,
    )


def _is_trace(one: Owed) -> bool:
    return one.event not in _LATEST and not is_kept(one.event)
