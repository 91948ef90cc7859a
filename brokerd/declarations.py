"""Declared objects: what `objects.toml` says, checked, as values (design D9).

Reads:  one table of TOML values, from a file or from a client's request.
Never:  touches a store; `objects.diff` and the catalog go on from here.
Fails:  with every problem at once (BI-C3): `ConfigError` for a file, `ObjectsRefused` for a
        request. Names are compared byte by byte and never normalised (OBJ-6).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

from brokerd import ids
from brokerd.errors import ConfigError, InvalidArgument, ObjectsRefused, Refusal
from brokerd.ids import BrokerId
from brokerd.model import (
    DEFAULT,
    MSDB,
    SYSTEM_TYPES,
    Activation,
    Contract,
    MessageType,
    Queue,
    Route,
    SentBy,
    Service,
    Validation,
)
from brokerd.objects import NO_QUEUE_KEY, NO_SERVICE_KEY, Declared, Kind, is_built_in
from brokerd.routing.address import LOCAL, TRANSPORT, normalise
from brokerd.tomlfile import Problems, TomlFile, did_you_mean, unknown_keys
from brokerd.tomlfile import read as read_toml
from brokerd.units import parse_duration

MAX_NAME: Final = 128
"""Characters of a local name (OBJ-8)."""
MAX_REMOTE_NAME: Final = 256
MAX_READERS: Final = 32_767
"""OBJ-39."""
BROKER_CONFIGURATION: Final = "SQL/ServiceBroker/BrokerConfiguration"
"""The dynamic routing service (BCN-1)."""

_HINT = "config/ has complete examples; nothing was changed"
_HANDLER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
BROKER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MAX_LIFETIME = 2**31 - 1
_ROUTE_KEYS = ("name", "service", "broker", "address", "lifetime")
_KEYS: Final = {
    Kind.MESSAGE_TYPE: ("name", "validation"),
    Kind.CONTRACT: ("name", "types"),
    Kind.QUEUE: ("name", "status", "receive_ageing", "activation"),
    Kind.SERVICE: ("name", "queue", "contracts"),
    Kind.ROUTE: _ROUTE_KEYS,
    Kind.INSTANCE_ROUTE: _ROUTE_KEYS,
}
_V = TypeVar("_V")
_Table = Mapping[str, object]


def read(path: Path) -> tuple[TomlFile, Declared]:
    """Read and check a file of declared objects.

    Raises:
        ConfigError: it cannot be read, is no TOML, or declares something impossible.
    """
    source = read_toml(path)
    return source, _parse(source.data, Problems(source), f"{path}: ", ConfigError)


def parse(data: _Table) -> Declared:
    """Check the declaration in a client's request.

    Raises:
        ObjectsRefused: it declares something impossible; every problem is listed.
    """
    return _parse(data, Problems(), "", ObjectsRefused)


def _parse(data: _Table, problems: Problems, place: str, error: type[Refusal]) -> Declared:
    declared = _Reader(data, problems).declared()
    problems.raise_if_any(f"{place}the objects cannot be used", error=error, hint=_HINT)
    return declared


class _Reader:
    """Reads one declaration from top to bottom; what is wrong goes to `problems`."""

    def __init__(self, data: _Table, problems: Problems) -> None:
        self._data = data
        self._problems = problems
        self._warnings: list[str] = []
        self._lifetimes: dict[str, int] = {}

    def declared(self) -> Declared:
        unknown_keys(self._data, ("broker", *_KEYS), under="", problems=self._problems)
        name, encryption = self._broker()
        types = self._all(Kind.MESSAGE_TYPE, self._message_type)
        contracts = self._all(
            Kind.CONTRACT, lambda at, name, table: self._contract(at, name, table, types)
        )
        queues = self._all(Kind.QUEUE, self._queue)
        services = self._all(
            Kind.SERVICE, lambda at, name, table: self._service(at, name, table, contracts, queues)
        )
        routes = self._all(Kind.ROUTE, self._route)
        instance_routes = self._all(Kind.INSTANCE_ROUTE, self._route)
        return Declared(
            broker=name,
            default_encryption=encryption,
            message_types=types,
            contracts=contracts,
            queues=queues,
            services=services,
            routes=routes,
            instance_routes=instance_routes if "instance_route" in self._data else None,
            lifetimes=self._lifetimes,
            warnings=tuple(self._warnings),
        )

    # Tables and names.

    def _broker(self) -> tuple[str, bool]:
        table = self._data.get("broker", {})
        if not isinstance(table, dict):
            self._problems.add("broker", "is a section: write [broker] on a line of its own")
            return "main", True
        known = ("name", "default_encryption")
        unknown_keys(table, known, under="broker", problems=self._problems)
        name = table.get("name", "main")
        if not isinstance(name, str) or not BROKER_NAME.fullmatch(name):
            self._problems.add("broker.name", "1 to 64 letters, digits, dots, - and _")
            name = "main"
        elif name == MSDB:
            self._problems.add("broker.name", "declare the routes of msdb as [[instance_route]]")
        return name, self._switch("broker", table, "default_encryption")

    def _all(self, kind: Kind, make: Callable[[str, str, _Table], _V | None]) -> dict[str, _V]:
        """Every `[[kind]]` of the file by name; one without a usable name is left out."""
        found: dict[str, _V] = {}
        names: set[str] = set()
        for at, table in self._tables(kind):
            unknown_keys(table, _KEYS[kind], under=at, problems=self._problems)
            name = self._name(kind, at, table)
            if name in names:
                self._problems.add(f"{at}.name", f'"{name}" is declared twice (OBJ-12)')
            if name is None or name in names:
                continue
            names.add(name)
            value = make(at, name, table)
            if value is not None:
                found[name] = value
        return found

    def _tables(self, kind: Kind) -> Iterable[tuple[str, _Table]]:
        given = self._data.get(kind, [])
        if not isinstance(given, list):
            self._problems.add(kind, f"there may be several: write [[{kind}]]")
            return
        for number, table in enumerate(given, start=1):
            if isinstance(table, dict):
                yield f"{kind}[{number}]", table
            else:
                self._problems.add(f"{kind}[{number}]", f"is not a table: write [[{kind}]]")

    def _name(self, kind: Kind, at: str, table: _Table) -> str | None:
        name = table.get("name")
        why = _name_problem(kind, name)
        if why:
            self._problems.add(f"{at}.name", why)
            return None
        return str(name)

    # One method for each kind.

    def _message_type(self, at: str, name: str, table: _Table) -> MessageType:
        word = table.get("validation", Validation.NONE.value)
        words = [kind.value for kind in Validation]
        if not isinstance(word, str) or word not in words:
            self._problems.add(f"{at}.validation", _none_of(word, words))
            return MessageType(name=name)
        return MessageType(name=name, validation=Validation(word))

    def _contract(
        self, at: str, name: str, table: _Table, known: Mapping[str, MessageType]
    ) -> Contract:
        given = table.get("types")
        if not isinstance(given, dict) or not given:
            self._problems.add(
                f"{at}.types", 'say who may send what: types = { "Order" = "initiator" } (OBJ-23)'
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
        if len(types) == len(given) and set(types.values()) == {SentBy.TARGET}:
            self._problems.add(
                f"{at}.types", "the initiator could send nothing, so no dialog can begin (OBJ-24)"
            )
        return Contract(name=name, types=types)

    def _queue(self, at: str, name: str, table: _Table) -> Queue:
        status = self._switch(at, table, "status")
        return Queue(
            key=NO_QUEUE_KEY,
            name=name,
            enqueue_enabled=status,
            receive_enabled=status,
            receive_ageing=self._ageing(at, table),
            activation=self._activation(f"{at}.activation", name, table.get("activation")),
        )

    def _ageing(self, at: str, table: _Table) -> int | None:
        """`off` unless the table says how long it takes to rise by a level (PBT-16)."""
        value = table.get("receive_ageing", "off")
        if value is False or (isinstance(value, str) and value.lower() == "off"):
            return None
        try:
            interval = parse_duration(value)
        except ValueError as error:
            self._problems.add(f"{at}.receive_ageing", f"off, or a duration: {error}")
            return None
        if not timedelta(milliseconds=1) <= interval <= timedelta(days=1):
            self._problems.add(f"{at}.receive_ageing", "off, or 1ms to 1d (PBT-16)")
        return interval // timedelta(microseconds=1)

    def _activation(self, at: str, queue: str, table: object) -> Activation | None:
        if table is None:
            return None
        if not isinstance(table, dict):
            self._problems.add(at, "is a section: write [queue.activation] below the queue")
            return None
        known = ("handler", "max_readers", "status")
        unknown_keys(table, known, under=at, problems=self._problems)
        handler = table.get("handler")
        if not isinstance(handler, str) or not _HANDLER.fullmatch(handler):
            self._problems.add(f"{at}.handler", 'write "package.module:function" (OBJ-60)')
            handler = ""
        readers = table.get("max_readers", 1)
        if not isinstance(readers, int) or isinstance(readers, bool):
            readers = -1
        if not 0 <= readers <= MAX_READERS:
            self._problems.add(f"{at}.max_readers", f"a number from 0 to {MAX_READERS} (OBJ-39)")
        enabled = self._switch(at, table, "status")
        if enabled and readers == 0:
            self._warnings.append(f"queue {queue}: max_readers is 0, so nothing starts (OBJ-43)")
        return Activation(handler=handler, max_readers=readers, enabled=enabled)

    def _service(
        self,
        at: str,
        name: str,
        table: _Table,
        contracts: Mapping[str, Contract],
        queues: Mapping[str, Queue],
    ) -> Service:
        queue = table.get("queue")
        if not isinstance(queue, str):
            self._problems.add(f"{at}.queue", "name the queue of the service (OBJ-32)")
            queue = ""
        elif queue not in queues:
            self._unknown(f"{at}.queue", "queue", queue, queues)
        accepts = table.get("contracts", [])
        if not isinstance(accepts, list) or not all(isinstance(item, str) for item in accepts):
            self._problems.add(f"{at}.contracts", 'a list of names, such as ["orders/v1"]')
            accepts = []
        for contract in accepts:
            if contract != DEFAULT and contract not in contracts:
                self._unknown(f"{at}.contracts", "contract", contract, contracts)
        return Service(key=NO_SERVICE_KEY, name=name, queue=queue, contracts=frozenset(accepts))

    def _route(self, at: str, name: str, table: _Table) -> Route:
        service = self._route_service(at, table.get("service"))
        broker_id = self._route_broker(at, table.get("broker"))
        address = self._route_address(at, table.get("address"))
        if broker_id and not service:
            self._problems.add(f"{at}.broker", "a route with a broker id names a service (RTE-61)")
        if address == TRANSPORT and (service or broker_id):
            self._problems.add(
                f"{at}.address", "TRANSPORT is for routes without service and broker (RTE-62)"
            )
        if broker_id and service == BROKER_CONFIGURATION:
            self._problems.add(f"{at}.broker", "this service is routed without an id (RTE-63)")
        if "lifetime" in table:
            kind = at.partition("[")[0]
            self._lifetimes[f"{kind} {name}"] = self._lifetime(at, table["lifetime"])
        return Route(name=name, service_name=service, broker_id=broker_id, address=address)

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

    def _route_address(self, at: str, address: object) -> str:
        if not isinstance(address, str):
            self._problems.add(f"{at}.address", "TCP://host:port, LOCAL or TRANSPORT (END-13)")
            return LOCAL
        try:
            return normalise(address)
        except InvalidArgument as error:
            self._problems.add(f"{at}.address", f"{error.message}; {error.hint} (END-13)")
            return LOCAL

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

    def _switch(self, at: str, table: _Table, key: str) -> bool:
        """`on` unless the table says `off`; true and false are understood too."""
        value = table.get(key, True)
        if isinstance(value, str) and value.lower() in ("on", "off"):
            return value.lower() == "on"
        if not isinstance(value, bool):
            self._problems.add(f"{at}.{key}", _none_of(value, ["on", "off"]))
        return bool(value)

    def _unknown(self, place: str, what: str, name: str, known: Iterable[str]) -> None:
        near = did_you_mean(name, known)
        self._problems.add(place, f'no {what} "{name}" is declared{near}')


def _name_problem(kind: Kind, name: object) -> str:
    """Why a name cannot be used for this kind of object; nothing if it can (OBJ-8 to OBJ-11)."""
    if not isinstance(name, str) or not name:
        return "every object has a name that is not empty (OBJ-8)"
    if len(name) > MAX_NAME:
        return f"{len(name)} characters, of which {MAX_NAME} are allowed (OBJ-8)"
    if kind is Kind.QUEUE and name.startswith("#"):
        return "the name of a queue does not begin with # (OBJ-10)"
    if kind in (Kind.SERVICE, Kind.CONTRACT) and name == "ANY":
        return "ANY means every one in a priority, so nothing may be called so (OBJ-11)"
    if kind not in (Kind.ROUTE, Kind.INSTANCE_ROUTE) and is_built_in(kind, name):
        return f'"{name}" is built in and not declared (OBJ-30, OBJ-31)'
    return ""


def _none_of(value: object, words: list[str]) -> str:
    near = did_you_mean(value, words) if isinstance(value, str) else ""
    return f"{value!r} is none of {', '.join(words)}{near}"
