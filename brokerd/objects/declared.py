"""The declared objects of one broker, and the changes that make a broker match (design D9).

PURE.  `declarations.py` makes a `Declared` from a file, the catalog one from a store; `diff`
compares both.  Keys of queues and services belong to a store and are not compared.
Never:  decides whether a drop is allowed: only the store knows the live dialogs (MAN-14).
"""

import enum
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

import msgspec

from brokerd.clock import SECOND, Instant
from brokerd.ids import QueueKey, ServiceKey, show
from brokerd.model import (
    ANY,
    AUTO_CREATED_LOCAL,
    CONFIGURATION_SERVICE,
    DEFAULT,
    SYSTEM_PREFIX,
    SYSTEM_TYPES,
    Contract,
    EventNotification,
    MessageType,
    Priority,
    Queue,
    Route,
    Service,
)
from brokerd.objects.activation import activation_words
from brokerd.objects.poison import poison_words
from brokerd.security.bindings import Binding
from brokerd.units import show_duration

NO_QUEUE_KEY: Final = QueueKey(0)
"""Key of a queue that is not in a store yet."""
NO_SERVICE_KEY: Final = ServiceKey(0)

Value = MessageType | Contract | Queue | Service | Priority | Route | EventNotification | Binding
_V = TypeVar(
    "_V", MessageType, Contract, Queue, Service, Priority, Route, EventNotification, Binding
)


class Kind(enum.StrEnum):
    """Kind of an object, named as in the file."""

    BROKER = "broker"
    MESSAGE_TYPE = "message_type"
    CONTRACT = "contract"
    QUEUE = "queue"
    SERVICE = "service"
    PRIORITY = "priority"
    ROUTE = "route"
    INSTANCE_ROUTE = "instance_route"
    REMOTE_SERVICE_BINDING = "remote_service_binding"
    EVENT_NOTIFICATION = "event_notification"


TABLES: Final = {
    Kind.MESSAGE_TYPE: "message_types",
    Kind.CONTRACT: "contracts",
    Kind.QUEUE: "queues",
    Kind.SERVICE: "services",
    Kind.PRIORITY: "priorities",
    Kind.ROUTE: "routes",
    Kind.INSTANCE_ROUTE: "instance_routes",
    Kind.REMOTE_SERVICE_BINDING: "remote_service_bindings",
    Kind.EVENT_NOTIFICATION: "event_notifications",
}
"""Name of the attribute, of declarations and catalogs, with the objects of each kind."""
BROKER_OPTIONS: Final = ("default_encryption", "honor_priority")
"""Options of the broker itself."""


class Action(enum.StrEnum):
    """Action on an object."""

    CREATE = "create"
    ALTER = "alter"
    REPLACE = "replace"
    """Drop the object and create it again under its name. For a contract, refused while a dialog
    uses it (OBJ-25); a notification gets new dialogs (EVT-4)."""
    DROP = "drop"


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The declared objects of one broker, by name, without the built-in ones."""

    broker: str = "main"
    default_encryption: bool = True
    honor_priority: bool = False
    """Whether messages are sent by priority level (OBJ-55)."""
    message_types: dict[str, MessageType] = {}
    contracts: dict[str, Contract] = {}
    queues: dict[str, Queue] = {}
    services: dict[str, Service] = {}
    priorities: dict[str, Priority] = {}
    routes: dict[str, Route] = {}
    instance_routes: dict[str, Route] | None = None
    """Routes of msdb; None = leave them unchanged."""
    remote_service_bindings: dict[str, Binding] = {}
    event_notifications: dict[str, EventNotification] = {}
    lifetimes: dict[str, int] = {}
    """Declared lifetimes in seconds, by `route NAME` and `instance_route NAME` (RTE-64)."""
    without_local: frozenset[Kind] = frozenset()
    """Kinds of routes whose `AutoCreatedLocal` is to be dropped. A declaration that does not name
    this route leaves it unchanged, since it was never declared (RTE-68)."""
    begins_anew: frozenset[str] = frozenset()
    """Keys of the `lifetimes` that start again although time is left, as by an ALTER (RTE-66)."""
    warnings: tuple[str, ...] = ()
    others: "tuple[Declared, ...]" = ()
    """Declarations of the other brokers in the file; their `others` are empty."""

    @property
    def brokers(self) -> "tuple[Declared, ...]":
        """All brokers of the file, in its order."""
        return (self, *self.others)

    def objects(self, kind: Kind) -> "dict[str, Any]":
        """Return the objects of one kind by name."""
        found: dict[str, Any] | None = getattr(self, TABLES[kind])
        return found or {}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One step towards the wanted objects."""

    action: Action
    kind: Kind
    name: str
    sentence: str
    """Description of the change for operators: the old and the new value."""
    value: Value | None = None
    """The wanted object; None for a drop and for the broker's own options."""
    option: tuple[str, bool] | None = None
    """Option of the broker and its new value; None unless the kind is `broker`."""
    lifetime: int | None = None
    """Lifetime of a route in seconds, from when the change is applied; None = unchanged."""

    def route_at(self, now: Instant) -> Route:
        """Return the route to store if the change is applied at `now`, with its expiry."""
        route = self.value
        assert isinstance(route, Route), "only routes have a lifetime"
        if self.lifetime is None:
            return route
        return msgspec.structs.replace(route, expires_at=Instant(now + self.lifetime * SECOND))


def diff(current: Declared, wanted: Declared, *, now: Instant | None = None) -> list[Change]:
    """Return the changes, in order, that turn the current objects into the wanted ones.

    Creations and alterations come first, each kind before the kinds that refer to it; drops come
    last, in the opposite order. After the changes are applied, another comparison yields none. An
    expired route with a declared lifetime is revived if `now` is given (RTE-65).
    """
    changes = list(_broker_changes(current, wanted))
    changes += _named(Kind.MESSAGE_TYPE, current.message_types, wanted.message_types, _type_change)
    changes += _named(Kind.CONTRACT, current.contracts, wanted.contracts, _contract_change)
    changes += _named(Kind.QUEUE, current.queues, wanted.queues, _queue_change)
    changes += _named(Kind.SERVICE, current.services, wanted.services, _service_change)
    changes += _named(Kind.PRIORITY, current.priorities, wanted.priorities, _priority_change)
    changes += _routes(Kind.ROUTE, current.routes, wanted.routes, wanted, now)
    if wanted.instance_routes is not None:
        have = current.instance_routes or {}
        changes += _routes(Kind.INSTANCE_ROUTE, have, wanted.instance_routes, wanted, now)
    changes += _named(
        Kind.REMOTE_SERVICE_BINDING,
        current.remote_service_bindings,
        wanted.remote_service_bindings,
        _binding_change,
    )
    changes += _named(
        Kind.EVENT_NOTIFICATION,
        current.event_notifications,
        wanted.event_notifications,
        _notification_change,
    )
    changes = [_with_warning(change, wanted) for change in changes]
    drops = [change for change in changes if change.action is Action.DROP]
    return [change for change in changes if change.action is not Action.DROP] + drops[::-1]


def _with_warning(change: Change, wanted: Declared) -> Change:
    """Return the change, with a warning for a route to the dynamic routing service (BCN-12).

    Such a route hides the services of this broker that have no route of their own."""
    route = change.value
    if not isinstance(route, Route) or route.service_name != CONFIGURATION_SERVICE:
        return change
    routed = {one.service_name for one in wanted.routes.values()}
    hidden = sorted(wanted.services.keys() - routed - {CONFIGURATION_SERVICE})
    if change.kind is not Kind.ROUTE or not hidden:
        return change
    warning = (
        f"; from now on routes are asked for, also to services of this broker without one of their "
        f"own, unless bcn.exempt_local is set: {', '.join(hidden)}"
    )
    return msgspec.structs.replace(change, sentence=change.sentence + warning)


def is_built_in(kind: Kind, name: str) -> bool:
    """Return whether the object is built into every broker, unchangeable (OBJ-30, OBJ-31)."""
    match kind:
        case Kind.MESSAGE_TYPE | Kind.CONTRACT:
            return name == DEFAULT or name in SYSTEM_TYPES or name.startswith(SYSTEM_PREFIX)
        case Kind.QUEUE | Kind.SERVICE | Kind.PRIORITY | Kind.EVENT_NOTIFICATION:
            return name.startswith(SYSTEM_PREFIX)
        case Kind.ROUTE | Kind.INSTANCE_ROUTE | Kind.REMOTE_SERVICE_BINDING:
            return False
        case Kind.BROKER:
            return True


# One kind after the other. A comparer returns the difference in words; empty = equal.

_Comparer = Callable[[_V, _V], str]


def _named(
    kind: Kind,
    have: Mapping[str, _V],
    want: Mapping[str, _V],
    differs: _Comparer[_V],
    kept: Container[str] = (),
) -> Iterator[Change]:
    for name, value in want.items():
        if name not in have:
            sentence = f"{_words(kind)} {name} is created{_summary(value)}"
            yield Change(action=Action.CREATE, kind=kind, name=name, sentence=sentence, value=value)
        elif how := differs(have[name], value):
            replaced = kind in (Kind.CONTRACT, Kind.EVENT_NOTIFICATION)
            yield Change(
                action=Action.REPLACE if replaced else Action.ALTER,
                kind=kind,
                name=name,
                sentence=f"{_words(kind)} {name}: {how}",
                value=value,
            )
    for name in have:
        if name not in want and name not in kept and not is_built_in(kind, name):
            sentence = f"{_words(kind)} {name} is dropped"
            yield Change(action=Action.DROP, kind=kind, name=name, sentence=sentence)


def _routes(
    kind: Kind,
    have: Mapping[str, Route],
    want: Mapping[str, Route],
    wanted: Declared,
    now: Instant | None,
) -> Iterator[Change]:
    lifetimes = wanted.lifetimes

    def differs(old: Route, new: Route) -> str:
        place = f"{kind} {new.name}"
        if place in wanted.begins_anew:
            old = msgspec.structs.replace(old, expires_at=None)
        return _route_change(old, new, lifetimes.get(place), now)

    kept = {AUTO_CREATED_LOCAL.name}
    if kind in wanted.without_local:
        want = {name: one for name, one in want.items() if name not in kept}
        kept = set()
    for change in _named(kind, have, want, differs, kept):
        lifetime = lifetimes.get(f"{kind} {change.name}")
        keep = change.action is Action.DROP or lifetime is None
        yield change if keep else msgspec.structs.replace(change, lifetime=lifetime)


def _broker_changes(current: Declared, wanted: Declared) -> Iterator[Change]:
    for option in BROKER_OPTIONS:
        old, new = getattr(current, option), getattr(wanted, option)
        if old != new:
            how = _changed(option, _on_off(old), _on_off(new))
            yield Change(
                action=Action.ALTER,
                kind=Kind.BROKER,
                name=wanted.broker,
                sentence=f"broker {wanted.broker}: {how}",
                option=(option, new),
            )


def _type_change(old: MessageType, new: MessageType) -> str:
    return _join(
        _changed("validation", old.validation, new.validation),
        "its schema changes" if old.schema != new.schema else "",
        _changed("require_body", _on_off(old.needs_body), _on_off(new.needs_body)),
        _changed("validate_on_send", _on_off(old.validate_on_send), _on_off(new.validate_on_send)),
    )


def _contract_change(old: Contract, new: Contract) -> str:
    if old.types == new.types:
        return ""
    return (
        f"its types change from {_pairs(old)} to {_pairs(new)}; a contract cannot be altered, so "
        "it is dropped and created again (OBJ-25)"
    )


def _queue_change(old: Queue, new: Queue) -> str:
    return _join(
        _changed("status", _status(old), _status(new)),
        _changed("receive_ageing", _ageing(old), _ageing(new)),
        _changed("activation", activation_words(old.activation), activation_words(new.activation)),
        _changed("retention", _retention(old), _retention(new)),
        _changed("max_messages", _most(old.max_messages), _most(new.max_messages)),
        _changed("max_bytes", _most(old.max_bytes), _most(new.max_bytes)),
        _changed("poison_handling", poison_words(old), poison_words(new)),
    )


def _service_change(old: Service, new: Service) -> str:
    added, removed = new.contracts - old.contracts, old.contracts - new.contracts
    return _join(
        _changed("queue", old.queue, new.queue),
        f"it becomes a target for {', '.join(sorted(added))}" if added else "",
        f"it is no longer a target for {', '.join(sorted(removed))}" if removed else "",
    )


def _priority_change(old: Priority, new: Priority) -> str:
    return _join(
        _changed("contract", old.contract or ANY, new.contract or ANY),
        _changed("local_service", old.local_service or ANY, new.local_service or ANY),
        _changed("remote_service", old.remote_service or ANY, new.remote_service or ANY),
        _changed("level", str(old.level), str(new.level)),
    )


def _notification_change(old: EventNotification, new: EventNotification) -> str:
    how = _join(
        _changed("scope", _scope(old), _scope(new)),
        _changed("events", _list(old.events), _list(new.events)),
        _changed("service", old.service, new.service),
        _changed("broker", _own_or_id(old.broker_id), _own_or_id(new.broker_id)),
        _changed("fan_in", _on_off(old.fan_in), _on_off(new.fan_in)),
        _changed(
            "activation_timeout", _usual(old.activation_timeout), _usual(new.activation_timeout)
        ),
    )
    return f"{how}; it is dropped and created again" if how else ""


def _usual(microseconds: int | None) -> str:
    if microseconds is None:
        return "the usual"
    return show_duration(timedelta(microseconds=microseconds))


def _route_change(old: Route, new: Route, lifetime: int | None, now: Instant | None) -> str:
    return _join(
        _changed("service", old.service_name or "any", new.service_name or "any"),
        _changed("broker", _id(old.broker_id), _id(new.broker_id)),
        _changed("address", old.address, new.address),
        _changed("mirror", old.mirror or "none", new.mirror or "none"),
        _expiry_change(old.expires_at, new.expires_at, lifetime, now),
    )


def _binding_change(old: Binding, new: Binding) -> str:
    return _join(
        _changed("service", old.service_name, new.service_name),
        _changed("principal", old.principal, new.principal),
        _changed("anonymous", _on_off(old.is_anonymous), _on_off(new.is_anonymous)),
    )


def _expiry_change(
    expires_at: Instant | None, new: Instant | None, lifetime: int | None, now: Instant | None
) -> str:
    if lifetime is None:
        return "it no longer expires" if expires_at is not None and new is None else ""
    if expires_at is None:
        return f"it expires in {lifetime} s"
    expired = now is not None and expires_at <= now
    return f"it has expired and is revived for {lifetime} s" if expired else ""


# Words.


def _changed(what: str, old: str, new: str) -> str:
    return "" if old == new else f"{what} changes from {old} to {new}"


def _join(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _words(kind: Kind) -> str:
    return kind.value.replace("_", " ")


def _summary(value: Value) -> str:
    match value:
        case MessageType():
            return f", validation {value.validation}"
        case Contract():
            return f" with {_pairs(value)}"
        case Queue():
            return f", status {_status(value)}, activation {activation_words(value.activation)}"
        case Service():
            accepts = ", ".join(sorted(value.contracts)) or "no contract (it only initiates)"
            return f" on queue {value.queue}, target for {accepts}"
        case Priority() | Route() | EventNotification() | Binding():
            return f": {_what_for(value)}"


def _what_for(value: Priority | Route | EventNotification | Binding) -> str:
    match value:
        case Priority():
            criteria = ", ".join(one or ANY for one in value.criteria)
            return f"level {value.level} for ({criteria})"
        case Route():
            to = value.service_name or "any service"
            return f"{to} at {value.address}{f' or {value.mirror}' if value.mirror else ''}"
        case EventNotification():
            return f"{_list(value.events)} of {_scope(value)} told to {value.service}"
        case Binding():
            how = " anonymously" if value.is_anonymous else ""
            return f"dialogs to {value.service_name} are secured{how} for {value.principal}"


def _pairs(contract: Contract) -> str:
    return ", ".join(f"{name} by {who}" for name, who in sorted(contract.types.items()))


def _status(queue: Queue) -> str:
    if queue.enqueue_enabled and queue.receive_enabled:
        return "on"
    if not queue.enqueue_enabled and not queue.receive_enabled:
        return "off"
    return "receive off" if queue.enqueue_enabled else "enqueue off"


def _ageing(queue: Queue) -> str:
    interval = queue.receive_ageing
    return "off" if interval is None else show_duration(timedelta(microseconds=interval))


def _most(limit: int | None) -> str:
    return "off" if limit is None else str(limit)


def _retention(queue: Queue) -> str:
    limit = queue.retention_limit
    words = [
        _on_off(queue.retention),
        *([f"{limit.max_rows} messages"] if limit.max_rows else []),
        *([f"{limit.max_bytes} bytes"] if limit.max_bytes else []),
    ]
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words)} a conversation, then {limit.policy} {limit.archive}".rstrip()


def _id(broker_id: bytes | None) -> str:
    return show(broker_id) if broker_id else "any"


def _own_or_id(broker_id: bytes | None) -> str:
    return show(broker_id) if broker_id else "the own one"


def _scope(notification: EventNotification) -> str:
    queue = notification.queue
    return f"queue {queue}" if queue is not None else f"the {notification.scope}"


def _list(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))


def _on_off(flag: bool) -> str:
    return "on" if flag else "off"
