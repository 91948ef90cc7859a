"""Declared objects: reads and checks the declarations of `objects.toml` (design D9).

Reads:  tables of TOML values, from a file or from a client's request.
Calls:  objects.forms, for one object at a time.
Never:  touches a store; `objects.declared.diff` and the catalog use the result.
Fails:  with every problem at once (BI-C3): `ConfigError` for a file, `ObjectsRefused` for a
        request. Names are compared byte by byte and never normalised (OBJ-6).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from brokerd.config.toml_file import Problems, TomlFile, unknown_keys
from brokerd.config.toml_file import read as read_toml
from brokerd.errors import (
    ConfigError,
    DuplicatePriority,
    ObjectInvalid,
    ObjectsRefused,
    Refusal,
)
from brokerd.model import AUTO_CREATED_LOCAL, MSDB, Priority, Route
from brokerd.objects.bindings import refuse_same_service
from brokerd.objects.declared import BROKER_OPTIONS, TABLES, Declared, Kind, Value
from brokerd.objects.forms import KEYS, ObjectForms, Table
from brokerd.security.bindings import Binding

MAX_SCHEMA: Final = 1024 * 1024
"""Largest size of a schema file, in bytes."""

_HINT = (
    "nothing was changed; the keys of each kind of object are listed by its create command, "
    "such as: brokerd queue create --help"
)
BROKER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_OF_BROKER = ("name", *BROKER_OPTIONS)
_ROUTES: Final = (Kind.ROUTE, Kind.INSTANCE_ROUTE)
_OWN_KINDS = tuple(kind for kind in KEYS if kind is not Kind.INSTANCE_ROUTE)


def read(path: Path) -> tuple[TomlFile, Declared]:
    """Read and check a file of declared objects.

    The text of a `schema_file`, which is next to the declaration, becomes the `schema` of its
    message type.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or declares something impossible.
    """
    source = read_toml(path)
    problems = Problems(source)
    data = _with_schemas(source.data, path.parent, problems)
    source = msgspec.structs.replace(source, data=data)
    return source, _parse(data, problems, f"{path}: ", ConfigError)


def parse(data: Table, *, broker: str = Declared().broker) -> Declared:
    """Check the declaration in a client's request.

    `broker`: the broker that the declaration is for if it names none.

    Raises:
        ObjectsRefused: the request declares something impossible; every problem is listed.
    """
    named = data.get("broker", {})
    if isinstance(named, dict):
        data = {**data, "broker": {"name": broker, **named}}
    return _parse(data, Problems(), "", ObjectsRefused)


def parse_from(broker: str, data: Table) -> Declared:
    """Check the declaration in a request of a session with this broker (CLP-39).

    A declaration that names no broker is for the session's broker. In a session with `msdb`
    it is for `main`, because any declaration may contain the routes of `msdb`.

    Raises:
        ObjectsRefused: the request declares something impossible; every problem is listed.
    """
    return parse(data, broker=Declared().broker if broker == MSDB else broker)


def parse_object(kind: Kind, table: Table, present: Declared) -> Declared:
    """Return the declaration `present` with this object in place of any with the same name.

    Raises:
        InvalidName, InvalidPriority, DuplicatePriority, ContractUnusable, ActivationIncomplete,
            ActivationConflict, DuplicateBinding, MayNotOwnCertificates: this is the only problem
            of the object.
        ObjectNotFound: the object refers to one that does not exist.
        ObjectInvalid: any other problem, or more than one.
    """
    problems = Problems()
    known = {one: present.objects(one) for one in KEYS}
    forms = ObjectForms(problems, known)
    name = forms.name(kind, kind, table)
    made = dict(known[kind])
    if name is not None:
        at = f'{kind} "{name}"'
        old, new = made.get(name), forms.value(kind, at, name, table)
        if isinstance(old, Route) and isinstance(new, Route) and "lifetime" not in table:
            new = msgspec.structs.replace(new, expires_at=old.expires_at)
        made[name] = new
        _refuse_twins(kind, [(f"{kind}", one) for one in made.values()], problems)
        if kind is Kind.QUEUE:
            forms.check_activated(kind, new)
    problems.raise_if_any(f"{kind} cannot be used", error=ObjectInvalid, hint="", exact=True)
    return msgspec.structs.replace(
        present,
        **{TABLES[kind]: made},
        lifetimes={**present.lifetimes, **forms.lifetimes},
        begins_anew=frozenset(forms.lifetimes),
        warnings=tuple(forms.warnings),
    )


def parse_options(table: Table, present: Declared) -> Declared:
    """Return the declaration `present` with these options of the broker itself.

    An option of None gets its default value again.

    Raises:
        ObjectInvalid: an option is unknown, or its value is not on or off.
    """
    problems = Problems()
    unknown_keys(table, _OF_BROKER, under=Kind.BROKER, problems=problems)
    forms = ObjectForms(problems, {})
    said = {key: one for key, one in table.items() if one is not None}
    again = {key: getattr(Declared(), key) for key in BROKER_OPTIONS if key in table}
    usual = msgspec.structs.replace(present, **again)  # an option set to None has its default again
    options = {
        option: forms.switch(Kind.BROKER, said, option, default=getattr(usual, option))
        for option in BROKER_OPTIONS
    }
    problems.raise_if_any("broker cannot be altered", error=ObjectInvalid, hint=_HINT)
    return msgspec.structs.replace(present, **options)


def _parse(data: Table, problems: Problems, place: str, error: type[Refusal]) -> Declared:
    declared = _several(data, problems)
    problems.raise_if_any(f"{place}the objects cannot be used", error=error, hint=_HINT)
    return declared


def _several(data: Table, problems: Problems) -> Declared:
    """Return the declaration of one `[broker]`, or of several `[[broker]]` with their objects."""
    given = data.get("broker", {})
    if not isinstance(given, list):
        known = ("broker", *KEYS)
        unknown_keys(data, known, under="", problems=problems)
        return _Reader(data, given, problems).declared("broker")
    unknown_keys(data, ("broker", Kind.INSTANCE_ROUTE), under="", problems=problems)
    found: list[Declared] = []
    for number, table in enumerate(given, start=1):
        at = f"broker[{number}]"
        if not isinstance(table, dict):
            problems.add(at, "is not a table: write [[broker]]")
            continue
        unknown_keys(table, (*_OF_BROKER, *_OWN_KINDS), under=at, problems=problems)
        objects = {key: value for key, value in table.items() if key not in _OF_BROKER}
        # Routes of the instance are declared once for all brokers; the first one carries them.
        if not found and Kind.INSTANCE_ROUTE in data:
            objects[Kind.INSTANCE_ROUTE] = data[Kind.INSTANCE_ROUTE]
        own = {key: value for key, value in table.items() if key in _OF_BROKER}
        one = _Reader(objects, own, problems, under=f"{at}.").declared(at)
        if one.broker in [other.broker for other in found]:
            problems.add(f"{at}.name", f'broker "{one.broker}" is declared twice')
        found.append(one)
    if not found:
        problems.add("broker", "name at least one broker")
        return Declared()
    warnings = tuple(line for one in found for line in one.warnings)
    return msgspec.structs.replace(found[0], others=tuple(found[1:]), warnings=warnings)


class _Reader:
    """Reader of the declaration of one broker, which adds errors to `problems`."""

    def __init__(self, data: Table, broker: object, problems: Problems, *, under: str = "") -> None:
        self._data = data
        self._broker = broker
        self._problems = problems
        self._under = under
        self._known: dict[Kind, dict[str, Any]] = {kind: {} for kind in KEYS}
        self._forms = ObjectForms(problems, self._known)
        self._dropped: set[Kind] = set()

    def declared(self, at: str) -> Declared:
        """Return the whole declaration; `at`: the place of the broker's own options."""
        name, options = self._of_broker(at)
        # In this order a kind refers only to earlier ones, which are then known (queues archive to
        # other queues, so `check_archives` comes last).
        for kind in KEYS:
            self._all(kind)
        self._forms.check_archives()
        instance_routes = self._known.pop(Kind.INSTANCE_ROUTE)
        found: dict[str, Any] = {TABLES[kind]: objects for kind, objects in self._known.items()}
        return Declared(
            broker=name,
            **options,
            **found,
            instance_routes=instance_routes if Kind.INSTANCE_ROUTE in self._data else None,
            lifetimes=self._forms.lifetimes,
            without_local=frozenset(self._dropped),
            warnings=tuple(self._forms.warnings),
        )

    def _of_broker(self, at: str) -> tuple[str, dict[str, Any]]:
        table = self._broker
        if not isinstance(table, dict):
            self._problems.add("broker", "is a section: write [broker] on a line of its own")
            return "main", {}
        unknown_keys(table, _OF_BROKER, under=at, problems=self._problems)
        name = table.get("name", "main")
        if not isinstance(name, str) or not BROKER_NAME.fullmatch(name):
            self._problems.add(f"{at}.name", "1 to 64 letters, digits, dots, - and _")
            name = "main"
        elif name == MSDB:
            self._problems.add(f"{at}.name", "declare the routes of msdb as [[instance_route]]")
        usual = Declared()
        return name, {
            option: self._forms.switch(at, table, option, default=getattr(usual, option))
            for option in BROKER_OPTIONS
        }

    def _all(self, kind: Kind) -> None:
        """Read every `[[kind]]` of the file; leave out those without a usable name."""
        found = self._known[kind]
        placed: list[tuple[str, Value]] = []
        for at, table in self._tables(kind):
            name = self._forms.name(kind, at, table)
            born = kind in _ROUTES and name == AUTO_CREATED_LOCAL.name
            twice = name in found or (born and kind in self._dropped)
            if twice:
                self._problems.add(f"{at}.name", f'"{name}" is declared twice (OBJ-12)')
            if name is None or twice:
                unknown_keys(table, KEYS[kind], under=at, problems=self._problems)
                continue
            if born and "drop" in table:
                self._without_local(kind, at, table)
                continue
            found[name] = self._forms.value(kind, at, name, table)
            placed.append((at, found[name]))
        _refuse_twins(kind, placed, self._problems)

    def _without_local(self, kind: Kind, at: str, table: Table) -> None:
        """Note that the built-in route AutoCreatedLocal is to be dropped (RTE-68)."""
        if table != {"name": AUTO_CREATED_LOCAL.name, "drop": True}:
            self._problems.add(f"{at}.drop", "true, and nothing besides the name (RTE-68)")
        self._dropped.add(kind)

    def _tables(self, kind: Kind) -> Iterable[tuple[str, Table]]:
        given = self._data.get(kind, [])
        under = "" if kind is Kind.INSTANCE_ROUTE else self._under
        if not isinstance(given, list):
            self._problems.add(f"{under}{kind}", f"there may be several: write [[{kind}]]")
            return
        for number, table in enumerate(given, start=1):
            if isinstance(table, dict):
                yield f"{under}{kind}[{number}]", table
            else:
                self._problems.add(f"{under}{kind}[{number}]", f"is not a table: write [[{kind}]]")


def _refuse_twins(kind: Kind, placed: Sequence[tuple[str, Value]], problems: Problems) -> None:
    """Add a problem for each object that decides about the same dialogs as an earlier one."""
    if kind is Kind.PRIORITY:
        _refuse_same_criteria(placed, problems)
    elif kind is Kind.REMOTE_SERVICE_BINDING:
        bindings = [(at, one) for at, one in placed if isinstance(one, Binding)]
        refuse_same_service(bindings, problems)


def _refuse_same_criteria(placed: Iterable[tuple[str, Value]], problems: Problems) -> None:
    """Add a problem for each priority that has the criteria of an earlier one (OBJ-51)."""
    first: dict[object, str] = {}
    for at, one in placed:
        assert isinstance(one, Priority), "others have no criteria"
        other = first.setdefault(one.criteria, one.name)
        if other != one.name:
            text = f'"{one.name}" has the criteria of "{other}" (OBJ-51)'
            problems.add(at, text, error=DuplicatePriority)


def _with_schemas(data: dict[str, Any], folder: Path, problems: Problems) -> dict[str, Any]:
    """Return the tables with the text of each schema in place of its file name."""
    brokers = data.get("broker")
    changed = dict(data)
    if isinstance(brokers, list):
        changed["broker"] = [
            _inlined(one, folder, f"broker[{number}].", problems) if isinstance(one, dict) else one
            for number, one in enumerate(brokers, start=1)
        ]
    return _inlined(changed, folder, "", problems)


def _inlined(
    data: Mapping[str, Any], folder: Path, under: str, problems: Problems
) -> dict[str, Any]:
    tables = data.get(Kind.MESSAGE_TYPE)
    if not isinstance(tables, list):
        return dict(data)
    made: list[object] = []
    for number, table in enumerate(tables, start=1):
        if not isinstance(table, dict) or "schema_file" not in table:
            made.append(table)
            continue
        rest = dict(table)
        at = f"{under}{Kind.MESSAGE_TYPE}[{number}].schema_file"
        if "schema" in rest:
            problems.add(at, "say either schema or schema_file")
        rest["schema"] = _text(folder, rest.pop("schema_file"), at, problems)
        made.append(rest)
    return {**data, Kind.MESSAGE_TYPE.value: made}


def _text(folder: Path, name: object, at: str, problems: Problems) -> str:
    if not isinstance(name, str):
        problems.add(at, "the name of a file, beside this one")
        return " "
    try:
        with (folder / name).open("rb") as file:
            raw = file.read(MAX_SCHEMA + 1)
        if len(raw) > MAX_SCHEMA:
            problems.add(at, f"{name}: larger than {MAX_SCHEMA} bytes")
        return raw.decode("utf-8-sig")
    except OSError as error:
        problems.add(at, f"{name}: cannot be read: {error.strerror or error}")
    except UnicodeDecodeError:
        problems.add(at, f"{name}: is not UTF-8")
    return " "
