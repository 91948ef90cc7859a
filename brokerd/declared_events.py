"""One declared event notification: from its table in a file or a request to a value (EVT-1). PURE.

Reads:  one table of TOML values, the queues and services declared beside it.
Never:  looks at a store, or stops at the first problem.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from brokerd import ids
from brokerd.errors import ActivationConflict, BrokerError
from brokerd.event_names import ALL, GROUPS, QUEUE_ACTIVATION, expand, refusal
from brokerd.ids import BrokerId
from brokerd.model import POST_EVENT_NOTIFICATION, EventNotification, Queue, Scope, Service
from brokerd.tomlfile import did_you_mean

KEYS: Final = ("name", "scope", "queue", "events", "service", "broker", "fan_in")
"""What a table of an event notification may say."""
CURRENT: Final = "current_database"
MAX_REMOTE_NAME: Final = 256


class Add(Protocol):
    """Notes a problem with the value of a key."""

    def __call__(
        self, key: str, problem: str, error: Callable[..., BrokerError] | None = None
    ) -> None:
        """`error`: what it is called if it is the only one."""
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
    """The notification that a table declares; of no use if a problem was added."""
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
    )


def activated_twice(
    queues: Iterable[Queue], notifications: Iterable[EventNotification]
) -> list[tuple[str, str]]:
    """Queues with activation on of which a notification is told as well, and its name (ACT-35)."""
    active = {queue.name for queue in queues if queue.is_activated}
    return [
        (one.queue, one.name)
        for one in notifications
        if one.queue in active and QUEUE_ACTIVATION in expand(one.events)
    ]


def describe(value: EventNotification) -> dict[str, object]:
    """What a table says that declares it, beside its name; None = it says nothing of that."""
    return {
        "scope": value.scope.value,
        "queue": value.queue,
        "events": sorted(value.events),
        "service": value.service,
        "broker": None if value.broker_id is None else ids.show(value.broker_id),
        "fan_in": "on" if value.fan_in else None,
    }


def _queue(name: object, queues: Mapping[str, object], add: Add) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or name not in queues:
        near = did_you_mean(name, queues) if isinstance(name, str) else ""
        add("queue", f'no queue "{name}" is declared{near}')
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
            add("events", why + did_you_mean(word, ALL | GROUPS.keys() - {word}))
    return frozenset(words)


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
        add("service", f'no service "{service}" is declared{did_you_mean(service, services)}')
    elif POST_EVENT_NOTIFICATION not in target.contracts:
        add("service", f'"{service}" does not accept {POST_EVENT_NOTIFICATION} (EVT-3)')


def _check_activation(queue: object, add: Add) -> None:
    if isinstance(queue, Queue) and queue.is_activated:
        add(
            "events",
            f'queue "{queue.name}" has activation of its own, which excludes this event (ACT-35)',
            partial(ActivationConflict, ssb_code=9718),
        )
