"""Translation: from scripts to a file of objects, handlers and an assessment (IMP). PURE.

Reads:  the texts of scripts.      Calls: parser, declaring, objects_file, handlers, verdicts.
Never:  reads or writes a file: `cli.import_` does.
Fails:  never with a script: what cannot be read is an entry of the assessment.
"""

from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from brokerd.tsql import handlers, tree
from brokerd.tsql.assessment import Assessment, Entry, ordered
from brokerd.tsql.declaring import KINDS, MSDB, Declared, Declaring, Objects, new_entry
from brokerd.tsql.names import database_of, shown
from brokerd.tsql.objects_file import Broker, broker_name, broker_of, problems_of, text_of
from brokerd.tsql.parser import parse
from brokerd.tsql.queues import activated
from brokerd.tsql.routes import route_blocks
from brokerd.tsql.tokens import Lines
from brokerd.tsql.verdicts import Around, evaluate, is_about_the_broker

_MOST_LABEL = 72
_SYSTEM = ("master", "tempdb", "model")


class Translation(Struct, kw_only=True):
    """The texts that an import writes."""

    assessment: Assessment
    objects: str
    """The file of objects; empty = no script declares one."""
    handlers: dict[str, str]
    """Modules in Python, by name."""
    schemas: dict[str, str]
    """Schemas, by the name of the file for each."""


class _Read(Struct):
    """A script with its lines, and the statements of each module."""

    script: tree.Script
    lines: Lines
    inside: dict[int, list[tree.Statement]]


_Said = tuple[tree.Statement, Entry, _Read]


def translate(scripts: Iterable[tuple[str, str]]) -> Translation:
    """Return the translation of scripts, pairs of a path and a text, in the order of their run."""
    read = [_read(path, _cleaned(text)) for path, text in scripts]
    declaring = Declaring()
    entries = _declare(read, declaring)
    _join_unnamed(declaring)
    modules, readers = _handlers(declaring, read)
    brokers = _brokers(declaring, modules)
    routes = list(route_blocks(declaring.database(MSDB)))
    assessment = Assessment(
        entries=ordered(
            _verdicts(entries, declaring, readers, brokers), [one.script.path for one in read]
        ),
        remarks=_remarks(declaring, brokers),
        files=len(read),
        batches=sum(one.script.batches for one in read),
    )
    objects = ""
    if brokers or routes:
        brokers = brokers or [Broker("main", "", {}, [])]
        objects = text_of(brokers, routes, source=", ".join(one.script.path for one in read[:5]))
        if problems := problems_of(brokers, routes):
            assessment.remarks.append(f"the daemon would refuse the file of objects: {problems}")
    return Translation(
        assessment=assessment,
        objects=objects,
        handlers={one.module: handlers.text_of(one) for one in readers},
        schemas=declaring.schemas,
    )


def _declare(read: list[_Read], declaring: Declaring) -> list[_Said]:
    """Apply all statements about objects; return each statement with its entry and script."""
    entries: list[_Said] = []
    for one in read:
        for statement in one.script.statements:
            if isinstance(statement, tree.Collection):
                declaring.collections[statement.name[-1].casefold()] = statement.schema
            entry = _entry(statement, one)
            entries.append((statement, entry, one))
            if type(statement) in KINDS:
                declaring.apply(statement, entry)
            elif isinstance(statement, tree.Database):
                declaring.database(statement.name).options.add(statement.option)
    return entries


def _verdicts(
    entries: list[_Said],
    declaring: Declaring,
    readers: list[handlers.Reader],
    brokers: list[Broker],
) -> Iterator[Entry]:
    """Yield the entries of the statements that concern the broker, with their verdicts."""
    known = _Known(declaring, entries)
    modules = {one.place: one.module for one in reversed(readers)}
    names = {one.database.casefold(): one.name for one in brokers}
    usual = brokers[0].name if len(brokers) == 1 else "main"
    for statement, entry, one in entries:
        if type(statement) not in KINDS:
            if not known.is_kept(statement):
                continue
            broker = names.get(statement.database.casefold(), usual)
            evaluate(statement, entry, _around(statement, one, modules, broker))
        yield entry


def _cleaned(text: str) -> str:
    """Return the text without half surrogate pairs, which no file can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _read(path: str, text: str) -> _Read:
    script = parse(path, text)
    inside: dict[int, list[tree.Statement]] = {}
    for statement in script.statements:
        if statement.module is not None:
            inside.setdefault(statement.module, []).append(statement)
    return _Read(script, Lines(text), inside)


def _entry(statement: tree.Statement, read: _Read) -> Entry:
    at = statement.found_at if isinstance(statement, tree.Unread) else statement.at
    line, column = read.lines.place(at)
    if isinstance(statement, tree.Unread | tree.Dynamic):
        label = statement.said
    elif isinstance(statement, tree.Security):
        label = f"{statement.what} {statement.name}".rstrip()  # the rest may be a password
    else:
        cut = read.script.text[statement.at : min(statement.end, statement.at + 4 * _MOST_LABEL)]
        label = " ".join(cut.split())
    if len(label) > _MOST_LABEL:
        label = label[: _MOST_LABEL - 3] + "..."
    if statement.is_dynamic or isinstance(statement, tree.Dynamic):
        label = f"in a string: {label}"
    return new_entry(read.script.path, line, column, label)


# The databases, as brokers.


def _join_unnamed(declaring: Declaring) -> None:
    """Let statements before any USE belong to the only database that the scripts name."""
    named = [one for one in declaring.databases.values() if one.database and not one.is_empty]
    named = [one for one in named if one.database.casefold() != MSDB]
    unnamed = declaring.databases.get("")
    if unnamed is None or unnamed.is_empty or len(named) != 1:
        return
    home = named[0]
    for kind in KINDS.values():
        setattr(home, kind, {**getattr(unnamed, kind), **getattr(home, kind)})
    home.options |= unnamed.options
    home.has_dropped_local_route |= unnamed.has_dropped_local_route
    del declaring.databases[""]


def _declared_in(declaring: Declaring) -> list[Objects]:
    """Return the databases that become brokers."""
    found = []
    for one in declaring.databases.values():
        is_msdb = one.database.casefold() == MSDB
        kinds = [kind for kind in KINDS.values() if not (is_msdb and kind == "route")]
        if any(getattr(one, kind) for kind in kinds) or (
            one.has_dropped_local_route and not is_msdb
        ):
            found.append(one)
    return found


def _brokers(declaring: Declaring, modules: dict[tuple[str, str], str]) -> list[Broker]:
    databases = _declared_in(declaring)
    taken: set[str] = set()
    made = []
    for one in databases:
        name = "main" if len(databases) == 1 else broker_name(one.database, taken)
        key = one.database.casefold()
        own = {queue: module for (database, queue), module in modules.items() if database == key}
        made.append(broker_of(one, name, declaring, own))
    return made


def _remarks(declaring: Declaring, brokers: list[Broker]) -> list[str]:
    found = []
    if len(brokers) > 1:
        names = ", ".join(one.name for one in brokers)
        found.append(
            f"the scripts are for {len(brokers)} databases, which become brokers of one instance: "
            f"{names}; if they are on several servers, import the scripts of each server alone"
        )
    if declaring.dropped:
        found.append(
            f"{declaring.dropped} objects are created and dropped again; leave out scripts that "
            "clean up"
        )
    return found


# Handlers.


def _handlers(
    declaring: Declaring, read: list[_Read]
) -> tuple[dict[tuple[str, str], str], list[handlers.Reader]]:
    """Return the module for each activated queue, by database and queue; and all readers."""
    procedures = {
        _key(module.database, module.name): (one, number)
        for one in read
        for number, module in enumerate(one.script.modules)
        if module.kind == "PROCEDURE"
    }
    dialogs: dict[str, list[tree.BeginDialog]] = {}
    for one in read:
        for statement in one.script.statements:
            if isinstance(statement, tree.BeginDialog):
                dialogs.setdefault(statement.from_service, []).append(statement)
    modules: dict[tuple[str, str], str] = {}
    readers: list[handlers.Reader] = []
    taken: set[str] = set()
    for database, home in declaring.databases.items():
        for key, declared in home.queue.items():
            activation = activated(declared)
            if activation is None:
                continue
            reader = _reader(home, declared, activation, dialogs, taken)
            reader.place = _key(database, activation.procedure or ("",))
            reader.place = _place(reader.place, procedures)
            found = procedures.get(reader.place)
            if found is None:
                declared.entry.needs(f"no script has the procedure {reader.procedure}")
            else:
                _fill(reader, *found)
            modules[database, key] = reader.module
            readers.append(reader)
    return modules, readers


def _place(wanted: tuple[str, str], known: Collection[tuple[str, str]]) -> tuple[str, str]:
    """Return where a procedure is: a script without USE may be for the database of another one."""
    database, name = wanted
    if wanted in known:
        return wanted
    if database:
        return "", name
    same = [one for one in known if one[1] == name]
    return same[0] if len(same) == 1 else wanted


def _reader(
    home: Objects,
    declared: Declared,
    activation: tree.Activation,
    dialogs: dict[str, list[tree.BeginDialog]],
    taken: set[str],
) -> handlers.Reader:
    queue = shown(declared.said.name)
    service, contracts, receives = handlers.contracts_of(home, queue, dialogs)
    return handlers.Reader(
        module=handlers.module_name(queue, taken),
        queue=queue,
        service=service,
        procedure=".".join(activation.procedure or ("",)),
        max_readers=max(1, activation.max_readers or 1),
        contracts=contracts,
        receives=receives,
    )


def _fill(reader: handlers.Reader, read: _Read, number: int) -> None:
    module = read.script.modules[number]
    reader.path = read.script.path
    reader.source = read.script.text[module.at : module.end]
    reader.line, _ = read.lines.place(module.at)
    reader.strings = module.strings
    reader.inside = [(read.lines.place(one.at)[0], one) for one in read.inside.get(number, [])]


def _key(database: str, name: tree.Name) -> tuple[str, str]:
    return (database_of(name) or database).casefold(), shown(name).casefold()


def _around(
    statement: tree.Statement, read: _Read, modules: dict[tuple[str, str], str], broker: str
) -> Around:
    if statement.module is None:
        return Around(broker=broker)
    module = read.script.modules[statement.module]
    handler = modules.get(_key(module.database, module.name), "")
    return Around(handler=handler, is_trigger=module.kind == "TRIGGER", broker=broker)


# Which statements concern the broker.


class _Known:
    """The names that decide whether a statement concerns the broker."""

    def __init__(self, declaring: Declaring, entries: list[_Said]) -> None:
        homes = list(declaring.databases.values())
        self._queues = {queue for home in homes for queue in home.queue}
        for statement, _, _ in entries:
            if isinstance(statement, tree.Receive | tree.GetGroup | tree.Queue):
                name = statement.queue if not isinstance(statement, tree.Queue) else statement.name
                self._queues.add(shown(name).casefold())
        self._endpoints = {
            one.name for one, _, _ in entries if isinstance(one, tree.Endpoint) and _is_said(one)
        }
        self._principals = {
            name.casefold() for statement, _, _ in entries for name in _principals(statement)
        }
        self._has_broker = any(type(one) in KINDS for one, _, _ in entries)
        self._has_security = bool(self._endpoints) or any(
            isinstance(one, tree.Binding) for one, _, _ in entries
        )

    def is_kept(self, said: tree.Statement) -> bool:
        """Return whether the assessment has an entry for the statement."""
        match said:
            case tree.Read():
                return shown(said.name).casefold() in self._queues
            case tree.Grant():
                return is_about_the_broker(said) or (
                    not said.kind
                    and bool(said.name)
                    and shown(said.name).casefold() in self._queues
                )
            case tree.Endpoint():
                return said.name in self._endpoints
            case tree.Security():
                return self._concerns(said)
            case tree.Database() if said.option.startswith("TRUSTWORTHY"):
                return self._has_broker
            case _:
                return True

    def _concerns(self, said: tree.Security) -> bool:
        if said.what.endswith(("USER", "LOGIN")):
            return said.name.casefold() in self._principals
        if said.what == "ALTER AUTHORIZATION":
            return bool({"SERVICE", "CONTRACT", "ROUTE"} & {one.upper() for one in said.names})
        return self._has_security


def _is_said(endpoint: tree.Endpoint) -> bool:
    said = (endpoint.authentication, endpoint.encryption, endpoint.forwarding)
    return endpoint.action is tree.Action.CREATE or any(one is not None for one in said)


def _principals(said: tree.Statement) -> Iterable[str]:
    match said:
        case tree.Binding():
            return [said.user or ""]
        case tree.Grant() if is_about_the_broker(said):
            return said.principals
        case tree.Security() if said.what.endswith("CERTIFICATE"):
            return said.names
        case _:
            return ()
