"""One declared event notification: from its table in a file or a request to a value (EVT-1). PURE.

Reads:  one table of TOML values, and the queues and services of the same declaration.
Calls:  event_names.
Never:  looks anything up in a store, or stops at the first problem.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

from brokerd import ids
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import ActivationConflict, BrokerError, ObjectNotFound
from brokerd.ids import BrokerId
from brokerd.model import POST_EVENT_NOTIFICATION, EventNotification, Queue, Scope, Service
from brokerd.objects.event_names import ALL, GROUPS, QUEUE_ACTIVATION, expand, refusal
from brokerd.objects.keys import MAX_REMOTE_NAME, read_duration
from brokerd.units import show_duration

KEYS: Final = (
    "name",
    "scope",
    "queue",
    "events",
    "service",
    "broker",
    "fan_in",
    "activation_timeout",
)
"""Keys that a table of an event notification may have."""
CURRENT: Final = "current_database"
_MICROSECOND: Final = timedelta(microseconds=1)
ACTIVATION_TIMEOUT: Final = timedelta(seconds=10)
"""Default time until QUEUE_ACTIVATION is sent again (ACT-37)."""


class Add(Protocol):
    """A function that adds a problem with the value of a key."""

    def __call__(
        self, key: str, problem: str, error: Callable[..., BrokerError] | None = None
    ) -> None:
        """Add the problem; `error`: the error to raise if no other problem is added."""
        ...


def notification(
    name: str,
    table: Mapping[str, object],
    queues: Mapping[str, object],
    services: Mapping[str, object],
    *,
    fan_in: bool,
    add: Add,
) -> EventNotification:
    """Return the notification that a table declares; meaningless if a problem was added."""
    queue = _queue(table.get("queue"), queues, add)
    scope = _scope(table, queue, add)
    events = _events(table.get("events"), scope, add)
    broker_id = _broker(table.get("broker"), add)
    service = table.get("service")
    if not isinstance(service, str) or not 1 <= len(service) <= MAX_REMOTE_NAME:
        add("service", "name the service that is told (EVT-1)")
        service = ""
    elif broker_id is None:
        _check_target(service, services, add)
    timeout = _timeout(table.get("activation_timeout"), events, add)
    if queue is not None and QUEUE_ACTIVATION in expand(events):
        _check_activation(queues.get(queue), add)
    return EventNotification(
        name=name,
        events=events,
        service=service,
        broker_id=broker_id,
        scope=scope,
        queue=queue,
        fan_in=fan_in,
        activation_timeout=timeout,
    )


def activation_timeouts(notifications: Iterable[EventNotification]) -> dict[str, float]:
    """Return the time-out of each queue with subscriptions to QUEUE_ACTIVATION (ACT-37).

    It is the shortest time-out of all these subscriptions, in seconds, because each event notifies
    all subscribers (ACT-34)."""
    found: dict[str, float] = {}
    usual = ACTIVATION_TIMEOUT // _MICROSECOND
    for one in notifications:
        if one.queue is not None and QUEUE_ACTIVATION in expand(one.events):
            given = usual if one.activation_timeout is None else one.activation_timeout
            seconds = timedelta(microseconds=given).total_seconds()
            found[one.queue] = min(seconds, found.get(one.queue, seconds))
    return found


def activated_twice(
    queues: Iterable[Queue], notifications: Iterable[EventNotification]
) -> list[tuple[str, str]]:
    """Return the activated queues that also have a QUEUE_ACTIVATION notification (ACT-35).

    Each comes with the name of the notification."""
    active = {queue.name for queue in queues if queue.is_activated}
    return [
        (one.queue, one.name)
        for one in notifications
        if one.queue in active and QUEUE_ACTIVATION in expand(one.events)
    ]


def describe(value: EventNotification) -> dict[str, object]:
    """Return the table that declares a notification, without its name; None = omit the key."""
    return {
        "scope": value.scope.value,
        "queue": value.queue,
        "events": sorted(value.events),
        "service": value.service,
        "broker": None if value.broker_id is None else ids.show(value.broker_id),
        "fan_in": "on" if value.fan_in else None,
        "activation_timeout": None
        if value.activation_timeout is None
        else show_duration(timedelta(microseconds=value.activation_timeout)),
    }


def _queue(name: object, queues: Mapping[str, object], add: Add) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or name not in queues:
        near = did_you_mean(name, queues) if isinstance(name, str) else ""
        add("queue", f'no queue "{name}" is declared{near}', ObjectNotFound)
    return str(name)


def _scope(table: Mapping[str, object], queue: str | None, add: Add) -> Scope:
    word = table.get("scope", Scope.BROKER.value if queue is None else Scope.QUEUE.value)
    words = [scope.value for scope in Scope]
    if not isinstance(word, str) or word not in words:
        near = did_you_mean(word, words) if isinstance(word, str) else ""
        add("scope", f"{word!r} is none of {', '.join(words)}{near}")
        return Scope.BROKER
    scope = Scope(word)
    if (scope is Scope.QUEUE) != (queue is not None):
        add("scope", "a queue is named exactly where the scope is a queue (EVT-1)")
    return scope


def _events(words: object, scope: Scope, add: Add) -> frozenset[str]:
    if not isinstance(words, list) or not words or not all(isinstance(one, str) for one in words):
        add("events", 'a list of names, such as ["BROKER_QUEUE_DISABLED"] (EVT-1)')
        return frozenset()
    for word in words:
        if why := refusal(word, scope):
            known = ALL | GROUPS.keys()
            add("events", why if word in known else why + did_you_mean(word, known))
    return frozenset(words)


def _timeout(word: object, events: frozenset[str], add: Add) -> int | None:
    if word is not None and QUEUE_ACTIVATION not in expand(events):
        add("activation_timeout", f"goes with {QUEUE_ACTIVATION} only (ACT-37)")
    report = partial(add, "activation_timeout")
    return read_duration(word, report, least=timedelta(seconds=1), rule="ACT-37")


def _broker(word: object, add: Add) -> BrokerId | None:
    if word is None or (isinstance(word, str) and word.lower() == CURRENT):
        return None
    try:
        return BrokerId(ids.parse(word if isinstance(word, str) else ""))
    except ValueError:
        add("broker", "the id of a broker (a GUID), or CURRENT_DATABASE, or left out")
        return None


def _check_target(service: str, services: Mapping[str, object], add: Add) -> None:
    target = services.get(service)
    if not isinstance(target, Service):
        near = did_you_mean(service, services)
        add("service", f'no service "{service}" is declared{near}', ObjectNotFound)
    elif POST_EVENT_NOTIFICATION not in target.contracts:
        add("service", f'"{service}" does not accept {POST_EVENT_NOTIFICATION} (EVT-3)')


def _check_activation(queue: object, add: Add) -> None:
    if isinstance(queue, Queue) and queue.is_activated:
        add(
            "events",
            f'queue "{queue.name}" has activation of its own, which excludes this event (ACT-35)',
            partial(ActivationConflict, ssb_code=9718),
        )
