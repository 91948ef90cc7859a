"""Forms of declared objects: from a table in a file or a request to a value, and back (OBJ).

Reads:  one table of TOML values.      Calls: validation, to try the schema of a message type.
Never:  touches a store, or stops at the first problem: each problem is added to `Problems`.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Final

from brokerd import ids
from brokerd.config.toml_file import Problems, did_you_mean, unknown_keys
from brokerd.errors import (
    ActivationConflict,
    BrokerError,
    ContractUnusable,
    InvalidArgument,
    InvalidName,
    InvalidPriority,
    ObjectNotFound,
)
from brokerd.ids import BrokerId
from brokerd.model import (
    ANY,
    CONFIGURATION_NOTICE,
    CONFIGURATION_SERVICE,
    DEFAULT,
    DEFAULT_PRIORITY,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    POST_EVENT_NOTIFICATION,
    SYSTEM_TYPES,
    Activation,
    Contract,
    EventNotification,
    MessageType,
    Priority,
    Queue,
    RetentionLimit,
    RetentionPolicy,
    Route,
    SentBy,
    Service,
    Validation,
)
from brokerd.objects import activation as declared_activation
from brokerd.objects import bindings as declared_bindings
from brokerd.objects import notifications
from brokerd.objects import poison as declared_poison
from brokerd.objects.declared import NO_QUEUE_KEY, NO_SERVICE_KEY, Kind, Value, is_built_in
from brokerd.objects.keys import (
    MAX_NAME,
    MAX_REMOTE_NAME,
    read_duration,
    read_limit_or_off,
    read_number,
)
from brokerd.objects.validation import check_of
from brokerd.routing.address import LOCAL, TRANSPORT, normalise
from brokerd.security.bindings import Binding
from brokerd.units import parse_duration, show_duration, show_size

_MAX_LIFETIME = 2**31 - 1
_ROUTE_KEYS = ("name", "service", "broker", "address", "mirror", "lifetime")
KEYS: Final = {
    Kind.MESSAGE_TYPE: ("name", "validation", "schema", "require_body", "validate_on_send"),
    Kind.CONTRACT: ("name", "types"),
    Kind.QUEUE: (
        "name",
        "status",
        "receive_ageing",
        "activation",
        "retention",
        "retention_limit",
        "max_messages",
        "max_bytes",
        "poison_handling",
        *declared_poison.KEYS,
    ),
    Kind.SERVICE: ("name", "queue", "contracts"),
    Kind.PRIORITY: ("name", "contract", "local_service", "remote_service", "level"),
    Kind.ROUTE: _ROUTE_KEYS,
    Kind.INSTANCE_ROUTE: _ROUTE_KEYS,
    Kind.REMOTE_SERVICE_BINDING: declared_bindings.KEYS,
    Kind.EVENT_NOTIFICATION: notifications.KEYS,
}
"""Keys that a table of each kind may have; each kind refers only to earlier kinds."""

Table = Mapping[str, object]


_BUILT_IN: Final = (DEFAULT, POST_EVENT_NOTIFICATION, CONFIGURATION_NOTICE)
"""Contracts that every broker has (OBJ-30, EVT-3, BCN-1)."""


class ObjectForms:
    """Reader of the tables of one declaration; a table may refer to objects read before."""

    def __init__(self, problems: Problems, known: dict[Kind, dict[str, Value]]) -> None:
        self._problems = problems
        self._known = known
        self.warnings: list[str] = []
        self.lifetimes: dict[str, int] = {}
        """Declared lifetimes in seconds, by kind and name of the route (RTE-64)."""

    def name(self, kind: Kind, at: str, table: Table) -> str | None:
        """Return the name of an object; if it is not usable, add a problem and return None."""
        name = table.get("name")
        why = _name_problem(kind, name)
        if why:
            self._problems.add(f"{at}.name", why, error=InvalidName)
            return None
        return str(name)

    def value(self, kind: Kind, at: str, name: str, table: Table) -> Value:
        """Return the object that a table declares; meaningless if problems were added."""
        unknown_keys(table, KEYS[kind], under=at, problems=self._problems)
        made: Value
        match kind:
            case Kind.MESSAGE_TYPE:
                made = self._message_type(at, name, table)
            case Kind.CONTRACT:
                made = self._contract(at, name, table)
            case Kind.QUEUE:
                made = self._queue(at, name, table)
            case Kind.SERVICE:
                made = self._service(at, name, table)
            case Kind.PRIORITY:
                made = self._priority(at, name, table)
            case Kind.ROUTE | Kind.INSTANCE_ROUTE:
                made = self._route(kind, at, name, table)
            case Kind.REMOTE_SERVICE_BINDING:
                made = self._binding(at, name, table)
            case Kind.EVENT_NOTIFICATION:
                made = self._notification(at, name, table)
            case Kind.BROKER:
                raise AssertionError("a broker is no object of a broker")
        return made

    # One method for each kind.

    def _message_type(self, at: str, name: str, table: Table) -> MessageType:
        word = table.get("validation", Validation.NONE.value)
        words = [kind.value for kind in Validation]
        if not isinstance(word, str) or word not in words:
            self._problems.add(f"{at}.validation", _none_of(word, words))
            return MessageType(name=name)
        kind = Validation(word)
        require = self.switch(at, table, "require_body") if "require_body" in table else None
        if require is not None and not kind.is_structured:
            self._problems.add(f"{at}.require_body", f"means nothing for {kind} (OBJ-19)")
        return MessageType(
            name=name,
            validation=kind,
            schema=self._schema(at, kind, table.get("schema")),
            require_body=require,
            validate_on_send=self.switch(at, table, "validate_on_send", default=False),
        )

    def _schema(self, at: str, kind: Validation, text: object) -> str | None:
        """Return the schema of a type; try it first, as a bad one has to fail at load (OBJ-15)."""
        if not kind.has_schema:
            if text is not None:
                self._problems.add(f"{at}.schema", f"validation {kind} needs no schema (OBJ-15)")
            return None
        if not isinstance(text, str) or not text.strip():
            self._problems.add(f"{at}.schema", f"validation {kind} needs the text of one (OBJ-15)")
            return None
        try:
            check_of(kind, text)
        except ValueError as error:
            self._problems.add(f"{at}.schema", str(error))
        return text

    def _contract(self, at: str, name: str, table: Table) -> Contract:
        given, known = table.get("types"), self._known[Kind.MESSAGE_TYPE]
        if not isinstance(given, dict) or not given:
            self._problems.add(
                f"{at}.types",
                'say who may send what: types = { "Order" = "initiator" } (OBJ-23)',
                error=ContractUnusable,
            )
            return Contract(name=name, types={})
        types: dict[str, SentBy] = {}
        for message_type, who in given.items():
            place = f'{at}.types."{message_type}"'
            if message_type in SYSTEM_TYPES:
                self._problems.add(place, "system types are part of every contract (OBJ-27)")
            elif message_type != DEFAULT and message_type not in known:
                self._unknown(place, "message type", message_type, known)
            if not isinstance(who, str) or who not in list(SentBy):
                self._problems.add(place, _none_of(who, [side.value for side in SentBy]))
            else:
                types[message_type] = SentBy(who)
        # Only if all types were read: an invalid one may have been meant for the initiator.
        if len(types) == len(given) and set(types.values()) == {SentBy.TARGET}:
            self._problems.add(
                f"{at}.types",
                "the initiator could send nothing, so no dialog can begin (OBJ-24)",
                error=ContractUnusable,
            )
        return Contract(name=name, types=types)

    def _queue(self, at: str, name: str, table: Table) -> Queue:
        status = self.switch(at, table, "status")
        return Queue(
            key=NO_QUEUE_KEY,
            name=name,
            enqueue_enabled=status,
            receive_enabled=status,
            activation=self._activation(f"{at}.activation", name, table.get("activation")),
            receive_ageing=self._ageing(at, table),
            retention=self.switch(at, table, "retention", default=False),
            retention_limit=read_limit(
                f"{at}.retention_limit", table.get("retention_limit"), self._problems
            ),
            max_messages=self._most(at, table, "max_messages"),
            max_bytes=self._most(at, table, "max_bytes", or_size=True),
            poison_handling=self.switch(at, table, "poison_handling"),
            poison=declared_poison.read_poison(at, table, self._problems),
        )

    def check_archives(self) -> None:
        """Check that the archive of each queue is another declared queue (PBT-24)."""
        known = self._known[Kind.QUEUE]
        queues = {name: one for name, one in known.items() if isinstance(one, Queue)}
        for name in check_archives(queues):
            self._unknown(f"queue {name}.retention_limit.archive", "other queue", name, queues)

    def check_activated(self, at: str, queue: Value) -> None:
        """Check that a queue with activation has no QUEUE_ACTIVATION notification (ACT-35)."""
        declared = [
            one
            for one in self._known[Kind.EVENT_NOTIFICATION].values()
            if isinstance(one, EventNotification)
        ]
        assert isinstance(queue, Queue), "only a queue is activated"
        for _, name in notifications.activated_twice([queue], declared):
            self._problems.add(
                f"{at}.activation",
                f'event notification "{name}" is for QUEUE_ACTIVATION of "{queue.name}", which '
                "excludes activation of its own (ACT-35)",
                error=ActivationConflict,
            )

    def _ageing(self, at: str, table: Table) -> int | None:
        """Return the time, in microseconds, after which a waiting group gains a level (PBT-16).

        None = off."""
        return read_duration(
            table.get("receive_ageing"),
            partial(self._problems.add, f"{at}.receive_ageing"),
            least=timedelta(milliseconds=1),
            rule="PBT-16",
            or_off=True,
        )

    def _most(self, at: str, table: Table, key: str, *, or_size: bool = False) -> int | None:
        """Return a limit of a queue (REL-42); None = off. `or_size`: texts such as 64MiB count."""
        return read_limit_or_off(
            table.get(key), partial(self._problems.add, f"{at}.{key}"), or_size=or_size
        )

    def _activation(self, at: str, queue: str, table: object) -> Activation | None:
        enabled = self.switch(at, table, "status") if isinstance(table, dict) else True
        spare = self.switch(at, table, "spare") if isinstance(table, dict) else True
        found = declared_activation.read_activation(
            at, table, self._problems, enabled=enabled, spare=spare
        )
        if found is not None and found.enabled and found.max_readers == 0:
            self.warnings.append(f"queue {queue}: max_readers is 0, so nothing starts (OBJ-43)")
        return found

    def _service(self, at: str, name: str, table: Table) -> Service:
        queue, queues = table.get("queue"), self._known[Kind.QUEUE]
        if not isinstance(queue, str):
            self._problems.add(f"{at}.queue", "name the queue of the service (OBJ-32)")
            queue = ""
        elif queue not in queues:
            self._unknown(f"{at}.queue", "queue", queue, queues)
        accepts, contracts = table.get("contracts", []), self._known[Kind.CONTRACT]
        if not isinstance(accepts, list) or not all(isinstance(item, str) for item in accepts):
            self._problems.add(f"{at}.contracts", 'a list of names, such as ["orders/v1"]')
            accepts = []
        for contract in accepts:
            if contract not in _BUILT_IN and contract not in contracts:
                self._unknown(f"{at}.contracts", "contract", contract, contracts)
        return Service(key=NO_SERVICE_KEY, name=name, queue=queue, contracts=frozenset(accepts))

    def _notification(self, at: str, name: str, table: Table) -> EventNotification:
        def add(key: str, problem: str, error: Callable[..., BrokerError] | None = None) -> None:
            self._problems.add(f"{at}.{key}", problem, error=error)

        return notifications.notification(
            name,
            table,
            self._known[Kind.QUEUE],
            self._known[Kind.SERVICE],
            fan_in=self.switch(at, table, "fan_in", default=False),
            add=add,
        )

    def _binding(self, at: str, name: str, table: Table) -> Binding:
        anonymous = self.switch(at, table, "anonymous", default=False)
        return declared_bindings.read_binding(at, name, table, self._problems, anonymous=anonymous)

    def _priority(self, at: str, name: str, table: Table) -> Priority:
        level = table.get("level", DEFAULT_PRIORITY)
        if not isinstance(level, int) or isinstance(level, bool):
            level = 0
        if not LOWEST_PRIORITY <= level <= HIGHEST_PRIORITY:
            text = f"a number from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY} (OBJ-48)"
            self._problems.add(f"{at}.level", text, error=InvalidPriority)
        contract = self._criterion(at, table, "contract")
        contracts = self._known[Kind.CONTRACT]
        if contract not in (None, DEFAULT) and contract not in contracts:
            self._unknown(f"{at}.contract", "contract", str(contract), contracts)
        local, services = self._criterion(at, table, "local_service"), self._known[Kind.SERVICE]
        if local is not None and local not in services:
            self._unknown(f"{at}.local_service", "service", local, services)
        return Priority(
            name=name,
            contract=contract,
            local_service=local,
            remote_service=self._criterion(at, table, "remote_service"),
            level=level,
        )

    def _criterion(self, at: str, table: Table, key: str) -> str | None:
        """Return the name in a criterion; None for ANY or a missing criterion (OBJ-48)."""
        value = table.get(key, ANY)
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_REMOTE_NAME:
            self._problems.add(f"{at}.{key}", "a name, or ANY for every one (OBJ-48)")
            return None
        return None if value == ANY else value

    def _route(self, kind: Kind, at: str, name: str, table: Table) -> Route:
        service = self._route_service(at, table.get("service"))
        broker_id = self._route_broker(at, table.get("broker"))
        address = self._route_address(at, table.get("address"))
        mirror = self._mirror(at, table.get("mirror"), address, service, broker_id)
        if broker_id and not service:
            self._problems.add(f"{at}.broker", "a route with a broker id names a service (RTE-61)")
        if address == TRANSPORT and (service or broker_id):
            self._problems.add(
                f"{at}.address", "TRANSPORT is for routes without service and broker (RTE-62)"
            )
        if broker_id and service == CONFIGURATION_SERVICE:
            self._problems.add(f"{at}.broker", "this service is routed without an id (RTE-63)")
        if table.get("lifetime") is not None:
            self.lifetimes[f"{kind} {name}"] = self._lifetime(at, table["lifetime"])
        return Route(
            name=name, service_name=service, broker_id=broker_id, address=address, mirror=mirror
        )

    # Parts of a route.

    def _route_service(self, at: str, service: object) -> str | None:
        if service is None:
            return None
        if not isinstance(service, str) or not 1 <= len(service) <= MAX_REMOTE_NAME:
            self._problems.add(f"{at}.service", f"1 to {MAX_REMOTE_NAME} characters, or left out")
            return None
        return service

    def _route_broker(self, at: str, broker: object) -> BrokerId | None:
        if broker is None:
            return None
        try:
            return BrokerId(ids.parse(broker if isinstance(broker, str) else ""))
        except ValueError:
            self._problems.add(
                f"{at}.broker", "the id of a broker (a GUID), as brokerd status shows it"
            )
            return None

    def _route_address(self, at: str, address: object, key: str = "address") -> str:
        if not isinstance(address, str):
            self._problems.add(f"{at}.{key}", "TCP://host:port, LOCAL or TRANSPORT (END-13)")
            return LOCAL
        try:
            return normalise(address)
        except InvalidArgument as error:
            self._problems.add(f"{at}.{key}", f"{error.message}; {error.hint} (END-13)")
            return LOCAL

    def _mirror(
        self, at: str, value: object, address: str, service: str | None, broker: BrokerId | None
    ) -> str:
        """Return the second address of a route; empty if it has none (RTE-50)."""
        if value is None:
            return ""
        if not service or not broker:
            self._problems.add(
                f"{at}.mirror", "a mirrored route names service and broker (RTE-50, 9661)"
            )
        mirror = self._route_address(at, value, "mirror")
        if LOCAL in (str(value).upper(), address) or TRANSPORT in (mirror, address):
            self._problems.add(f"{at}.mirror", "both addresses are TCP://host:port (RTE-50)")
        elif mirror == address:
            self._problems.add(f"{at}.mirror", "the same as the address (RTE-50, 9747)")
        return mirror

    def _lifetime(self, at: str, value: object) -> int:
        try:
            seconds = int(parse_duration(value).total_seconds())
        except ValueError as error:
            self._problems.add(f"{at}.lifetime", str(error))
            return 1
        if not 1 <= seconds <= _MAX_LIFETIME:
            self._problems.add(f"{at}.lifetime", f"1 to {_MAX_LIFETIME} seconds (RTE-64)")
        return seconds

    # Small things.

    def switch(self, at: str, table: Table, key: str, *, default: bool = True) -> bool:
        """Return the value of an `on` or `off` key, or its default; accept true and false, too."""
        value = table.get(key, default)
        if isinstance(value, str) and value.lower() in ("on", "off"):
            return value.lower() == "on"
        if not isinstance(value, bool):
            self._problems.add(f"{at}.{key}", _none_of(value, ["on", "off"]))
        return bool(value)

    def _unknown(self, place: str, what: str, name: str, known: Iterable[str]) -> None:
        near = did_you_mean(name, known)
        self._problems.add(place, f'no {what} "{name}" is declared{near}', error=ObjectNotFound)


def describe(value: Value) -> dict[str, object]:
    """Return the table that declares an object; leave out most keys with default values."""
    made: dict[str, object] = {"name": value.name}
    match value:
        case MessageType():
            made |= _describe_type(value)
        case Contract():
            made["types"] = {name: who.value for name, who in value.types.items()}
        case Queue():
            made |= _describe_queue(value)
        case Service():
            made |= {"queue": value.queue, "contracts": sorted(value.contracts)}
        case Priority():
            criteria = zip(KEYS[Kind.PRIORITY][1:4], value.criteria, strict=True)
            made |= {key: one or ANY for key, one in criteria} | {"level": value.level}
        case Route():
            broker_id = None if value.broker_id is None else ids.show(value.broker_id)
            made |= {"service": value.service_name, "broker": broker_id, "address": value.address}
            made["mirror"] = value.mirror or None
        case Binding():
            made |= {"service": value.service_name, "principal": value.principal}
            made["anonymous"] = _on_off(value.is_anonymous)
        case EventNotification():
            made |= notifications.describe(value)
    return {key: one for key, one in made.items() if one is not None}


def _describe_type(kind: MessageType) -> dict[str, object]:
    return {
        "validation": kind.validation.value,
        "schema": kind.schema,
        "require_body": None if kind.require_body is None else _on_off(kind.require_body),
        "validate_on_send": "on" if kind.validate_on_send else None,
    }


def altered(value: Value, table: Table) -> Table:
    """Return the table of an object, altered by the keys of another table.

    In the sections `activation` and `retention_limit`, too, only the given keys change. A key of
    None gets its default again. A new activation is off unless the table says otherwise, and "drop"
    removes an activation (OBJ-45). A lifetime of None is kept in the table, because a missing
    lifetime would leave the old one in force (RTE-66)."""
    old = describe(value)
    new = {**old, **table}
    if new.get("activation") == "drop":
        del new["activation"]
    for section, usual in _SECTIONS.items():
        given, kept = table.get(section), old.get(section)
        if isinstance(given, dict):
            said = {**(kept if isinstance(kept, dict) else usual), **given}
            new[section] = {key: one for key, one in said.items() if one is not None}
    return {key: one for key, one in new.items() if one is not None or key == "lifetime"}


_SECTIONS: Final[dict[str, dict[str, object]]] = {
    "activation": {"status": "off"},
    "retention_limit": {},
}
"""Initial keys of a section that the object does not have yet."""


def _describe_queue(queue: Queue) -> dict[str, object]:
    made: dict[str, object] = {"status": _on_off(queue.is_on)}
    if queue.activation is not None:
        made["activation"] = declared_activation.describe_activation(queue.activation)
    if queue.receive_ageing is not None:
        made["receive_ageing"] = show_duration(timedelta(microseconds=queue.receive_ageing))
    made["retention"] = _on_off(queue.retention)
    limit = queue.retention_limit
    if limit != RetentionLimit():
        said = {"max_rows": limit.max_rows, "max_bytes": limit.max_bytes, "archive": limit.archive}
        made["retention_limit"] = {
            **{key: value for key, value in said.items() if value},
            "policy": limit.policy.value,
        }
    if queue.max_messages is not None:
        made["max_messages"] = queue.max_messages
    if queue.max_bytes is not None:
        made["max_bytes"] = show_size(queue.max_bytes)
    made["poison_handling"] = _on_off(queue.poison_handling)
    return made | declared_poison.describe_poison(queue)


def _on_off(flag: bool) -> str:
    return "on" if flag else "off"


def _name_problem(kind: Kind, name: object) -> str:
    """Return why a name cannot be used for this kind; empty if it can (OBJ-8 to OBJ-11)."""
    if not isinstance(name, str) or not name:
        return "every object has a name that is not empty (OBJ-8)"
    if len(name) > MAX_NAME:
        return f"{len(name)} characters, of which {MAX_NAME} are allowed (OBJ-8)"
    if kind is Kind.QUEUE and name.startswith("#"):
        return "the name of a queue does not begin with # (OBJ-10)"
    if kind in (Kind.SERVICE, Kind.CONTRACT) and name == ANY:
        return "ANY means every one in a priority, so nothing may be called so (OBJ-11)"
    if is_built_in(kind, name):
        return f'"{name}" is built in and not declared (OBJ-30, OBJ-31)'
    return ""


def _none_of(value: object, words: list[str]) -> str:
    near = did_you_mean(value, words) if isinstance(value, str) else ""
    return f"{value!r} is none of {', '.join(words)}{near}"


_KEYS = ("max_rows", "max_bytes", "policy", "archive")
_POLICIES = [policy.value for policy in RetentionPolicy]


def read_limit(at: str, table: object, problems: Problems) -> RetentionLimit:
    """Return the retention limit that a section declares; add errors to `problems`."""
    if table is None:
        return RetentionLimit()
    if not isinstance(table, dict):
        problems.add(at, "is a section: write [queue.retention_limit] below the queue")
        return RetentionLimit()
    unknown_keys(table, _KEYS, under=at, problems=problems)
    rows, size = (_limit(at, table, key, problems) for key in ("max_rows", "max_bytes"))
    policy, archive = table.get("policy", RetentionPolicy.ERROR.value), table.get("archive", "")
    if policy not in _POLICIES:
        problems.add(f"{at}.policy", f"is one of {', '.join(_POLICIES)}")
        policy = RetentionPolicy.ERROR.value
    archives = policy == RetentionPolicy.ARCHIVE
    if not isinstance(archive, str) or bool(archive) != archives:
        problems.add(f"{at}.archive", "names a queue, with policy archive and no other")
        archive = ""
    if not rows and not size:
        problems.add(at, "give max_rows or max_bytes, above 0")
    return RetentionLimit(rows, size, RetentionPolicy(policy), archive)


def check_archives(queues: Mapping[str, Queue]) -> list[str]:
    """Return the names of archives that are not other queues of the file."""
    return [
        queue.retention_limit.archive
        for name, queue in queues.items()
        if queue.retention_limit.archive
        and (queue.retention_limit.archive == name or queue.retention_limit.archive not in queues)
    ]


def _limit(at: str, table: Mapping[str, object], key: str, problems: Problems) -> int:
    return read_number(
        table.get(key, 0),
        partial(problems.add, f"{at}.{key}"),
        least=0,
        most=2**62 - 1,
        usual=0,
        problem="a number of 0 or more; 0 is no limit",
    )
