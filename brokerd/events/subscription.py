"""One subscription: whom it tells of what, whether its dialog holds, what it still owes. PURE.

Reads:  its definition, what happened, the time.      Calls: the back-off.
Never:  sends or stores; the desk does what the values here say.
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
    """Something that happened, and what subscribers are told of it."""

    name: str
    broker: str
    """Where it happened."""
    queue: str | None
    """The queue it is about, if it is about one."""
    subject: str
    """What it is about; of some events only the latest about each matters (PBT-15)."""
    body: bytes


class Owed(NamedTuple):
    """An event that a subscriber was not told yet, as it is kept."""

    key: int
    event: str
    subject: str
    body: bytes


class DeskOptions(msgspec.Struct, frozen=True):
    """Figures of every subscription."""

    reopen_first: timedelta = REOPEN_FIRST
    """Wait after a dialog that broke before it had told anybody anything (PBT-15)."""
    reopen_max: timedelta = REOPEN_MAX
    traces: int = 1000
    """Events that occur in any number (EVT-10) are kept up to so many."""


class Subscription(msgspec.Struct, frozen=True):
    """An event notification and how it stands."""

    definition: EventNotification
    handle: Handle | None = None
    """Its dialog; None = it has none, and is to open one when it may."""
    failures: int = 0
    """Dialogs in a row that broke before anything of them was acknowledged."""
    retry_at: float = 0.0
    """When it may go on after a failure (monotonic)."""
    owed: tuple[Owed, ...] = ()
    """Events that are kept for it, in their order."""
    lost: int = 0
    """Events beyond what is kept, since the daemon started."""
    last_error: str = ""
    last_sent_at: Instant | None = None

    def is_due(self, now: float) -> bool:
        """Whether it may send, or open a dialog to send on."""
        return now >= self.retry_at


def wants(definition: EventNotification, event: Event, *, at_home: bool) -> bool:
    """Whether a notification is about this event; `at_home`: it happened in its own broker."""
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
    """Who is told: of those that fan in, one for each target, and one that is not in trouble if
    there is one (EVT-8). `home`: the broker they are in, which is meant where none is named."""
    told: list[NotificationKey] = []
    shared: dict[tuple[str, BrokerId], Subscription] = {}
    for one in wanting:
        definition = one.definition
        if not definition.fan_in:
            told.append(definition.key)
            continue
        target = (definition.service, definition.broker_id or home)
        other = shared.get(target)
        if other is None or _preference(one) < _preference(other):
            shared[target] = one
    return told + [one.definition.key for one in shared.values()]


def _preference(one: Subscription) -> tuple[int, str]:
    return one.failures, one.definition.name


# What becomes of it.


def opened(one: Subscription, handle: Handle) -> Subscription:
    """It has a dialog from now on."""
    return msgspec.structs.replace(one, handle=handle, retry_at=0.0)


def sent(one: Subscription, at: Instant) -> Subscription:
    """What it owed is sent."""
    return msgspec.structs.replace(one, owed=(), last_sent_at=at)


def broken(
    one: Subscription, *, worked: bool, why: str, now: float, options: DeskOptions
) -> Subscription:
    """Its dialog is gone. One that had told something is replaced at once, others later and later
    (PBT-15)."""
    if worked:
        return msgspec.structs.replace(one, handle=None, failures=0, retry_at=now, last_error=why)
    return msgspec.structs.replace(postponed(one, why=why, now=now, options=options), handle=None)


def postponed(one: Subscription, *, why: str, now: float, options: DeskOptions) -> Subscription:
    """It could not send, and tries again later."""
    failures = one.failures + 1
    wait = reopen_delay(failures, first=options.reopen_first, most=options.reopen_max)
    return msgspec.structs.replace(
        one, failures=failures, retry_at=now + wait.total_seconds(), last_error=why
    )


def judge(endpoint: DialogEndpoint | None) -> tuple[bool, str]:
    """Whether a broken dialog had told its target anything, and why it is broken; None = it was
    removed, and nobody knows."""
    if endpoint is None:
        return True, "the dialog was removed"
    if endpoint.error_code is not None:
        return endpoint.first_acked, f"{endpoint.error_code}: {endpoint.error_text}"
    return endpoint.first_acked, "the target has ended the dialog"


class Kept(NamedTuple):
    """What is owed after more was added."""

    owed: tuple[Owed, ...]
    added: tuple[Owed, ...]
    """Of them, those to be stored."""
    gone: tuple[int, ...]
    """Keys of stored ones that are not owed any more."""
    lost: int


_LATEST: Final = frozenset({QUEUE_ACTIVATION})
"""Of these only the latest about each subject is worth telling."""


def keep(owed: Sequence[Owed], more: Iterable[Owed], *, traces: int) -> Kept:
    """Coalesce: the latest activation of each queue, at most so many traces, all else (PBT-15)."""
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
