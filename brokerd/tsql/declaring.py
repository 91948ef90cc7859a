"""Declaring: applies the statements about objects in order, so that objects remain. PURE.

Reads:  statements.      Calls: names, assessment.
Never:  decides how an object is written: `objects_file` does.

CREATE adds, ALTER changes, DROP removes, as the server would do it. A database becomes a broker.
"""

import re
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from brokerd.tsql import tree
from brokerd.tsql.assessment import Entry, Verdict
from brokerd.tsql.names import database_of, is_known, ours, shown
from brokerd.tsql.tree import Action

_Said = TypeVar("_Said", bound=tree.Statement)


class Declared(Struct):
    """An object: all that was said about it, and the entry of the last statement about it."""

    said: Any
    entry: Entry
    is_created: bool = True
    """False = only an ALTER names it: it was created elsewhere."""


class Objects(Struct):
    """The objects of one database, by name; queues by their name in small letters."""

    database: str
    message_type: dict[str, Declared] = {}
    contract: dict[str, Declared] = {}
    queue: dict[str, Declared] = {}
    service: dict[str, Declared] = {}
    route: dict[str, Declared] = {}
    binding: dict[str, Declared] = {}
    priority: dict[str, Declared] = {}
    notification: dict[str, Declared] = {}
    options: set[str] = set()
    has_dropped_local_route: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is declared."""
        return not any(getattr(self, kind) for kind in KINDS.values())


KINDS: Final = {
    tree.MessageType: "message_type",
    tree.Contract: "contract",
    tree.Queue: "queue",
    tree.Service: "service",
    tree.Route: "route",
    tree.Binding: "binding",
    tree.Priority: "priority",
    tree.Notification: "notification",
}
"""Attribute of `Objects` with the objects of each kind."""
_WORDS: Final = {
    "message_type": "message type",
    "binding": "remote service binding",
    "notification": "event notification",
}
_DECLARATION: Final = re.compile(r"^\s*+<\?xml[^>]*+>\s*+")
LOCAL_ROUTE: Final = "AutoCreatedLocal"
MSDB: Final = "msdb"


class Declaring:
    """The objects that remain after the statements so far."""

    def __init__(self) -> None:
        self.databases: dict[str, Objects] = {}
        self.collections: dict[str, str] = {}
        """Schemas by the name of their collection in small letters."""
        self.schemas: dict[str, str] = {}
        """Schemas that message types are checked by, by the name of the file for each."""
        self.dropped = 0
        """Number of objects that were created and dropped again."""

    def database(self, name: str) -> Objects:
        """Return the objects of a database, by its name in any case."""
        return self.databases.setdefault(name.casefold(), Objects(name))

    def schema_file(self, collection: tree.Name) -> str:
        """Return the name of the file for the schema of a collection; keep the schema."""
        plain = "".join(one if one.isascii() and one.isalnum() else "_" for one in collection[-1])
        file = f"{plain[:80].lower() or 'schema'}.xsd"
        schema = self.collections.get(collection[-1].casefold())
        if schema:
            # The file is UTF-8, whatever encoding the text in the script declares.
            self.schemas[file] = _DECLARATION.sub("", schema)
        return file

    def apply(self, said: tree.Statement, entry: Entry) -> None:
        """Apply a statement about an object."""
        kind = KINDS[type(said)]
        action: Action = said.action  # type: ignore[attr-defined]
        name = _name(said)
        if not is_known(name):
            entry.needs("its name is known only at run time: declare the object by hand")
            return
        database = said.database
        if isinstance(said, tree.Queue):
            database = database_of(said.name) or database
        home = self.database(database)
        objects: dict[str, Declared] = getattr(home, kind)
        key = name.casefold() if kind == "queue" else name
        word = _WORDS.get(kind, kind)
        if action is Action.DROP:
            self._drop(home, objects, key, word, entry)
            return
        old = objects.get(key)
        if action is Action.ALTER:
            if old is None and kind != "queue":
                entry.needs(
                    f"no script creates this {word}: add the change to the object of that name"
                )
                return
            entry.ours = f"[[{_table(kind, home)}]] {name}"
            if isinstance(said, tree.Queue) and said.upkeep:
                entry.ours = ""
                entry.add("nothing to do: a queue has no pages to rebuild or to move")
                return
            if old is None:
                entry.needs("no script creates this queue: only what is said here is declared")
                objects[key] = Declared(said, entry, is_created=False)
                return
            objects[key] = Declared(merged(old.said, said), entry)
            return
        if old is not None and old.is_created:
            entry.add(f"replaces the {word} of line {old.entry.line} of {old.entry.path}")
        objects[key] = Declared(said, entry)
        entry.ours = f"[[{_table(kind, home)}]] {ours(name)}"

    def _drop(
        self, home: Objects, objects: dict[str, Declared], key: str, word: str, entry: Entry
    ) -> None:
        entry.ours = "brokerd apply drops what its file does not declare"
        if word == "route" and key == LOCAL_ROUTE:
            home.has_dropped_local_route = True
            entry.ours = f"[[{_table('route', home)}]] {LOCAL_ROUTE} with drop = true"
            return
        old = objects.pop(key, None)
        if old is not None and old.is_created:
            self.dropped += 1
            old.entry.ours = ""
            old.entry.add(f"dropped in line {entry.line} of {entry.path}")


def merged(old: _Said, new: _Said) -> _Said:
    """Return an object with the changes of an ALTER."""
    changes = {
        field: getattr(new, field)
        for field in new.__struct_fields__
        if field not in _OF_STATEMENT and getattr(new, field) not in (None, (), "")
    }
    if isinstance(old, tree.Queue) and isinstance(new, tree.Queue) and new.activation is not None:
        changes["activation"] = _activation(old.activation, new.activation)
    if isinstance(old, tree.Service) and isinstance(new, tree.Service):
        kept = [one for one in old.contracts if one not in new.without]
        changes["contracts"] = tuple(dict.fromkeys([*kept, *new.contracts]))
        changes.pop("without", None)
    return msgspec.structs.replace(old, **changes)


_OF_STATEMENT: Final = frozenset({*tree.Statement.__struct_fields__, "action", "name"})


def _activation(old: tree.Activation | None, new: tree.Activation) -> tree.Activation | None:
    if new.drop:
        return None
    if old is None:
        # Adding the clause does not switch activation on by itself (OBJ-45).
        return msgspec.structs.replace(new, status=bool(new.status))
    said = {key: value for key in new.__struct_fields__ if (value := getattr(new, key)) is not None}
    return msgspec.structs.replace(old, **{**said, "drop": False})


def _name(said: tree.Statement) -> str:
    name = said.name  # type: ignore[attr-defined]  # every statement about an object has one
    return shown(name) if isinstance(name, tuple) else str(name)


def _table(kind: str, home: Objects) -> str:
    if kind == "route" and home.database.casefold() == MSDB:
        return "instance_route"
    return {"binding": "remote_service_binding", "notification": "event_notification"}.get(
        kind, kind
    )


def new_entry(path: str, line: int, column: int, statement: str) -> Entry:
    """Return the entry of a statement that moves, until somebody knows better."""
    return Entry(path=path, line=line, column=column, statement=statement, verdict=Verdict.MOVES)
