"""Grammar of the statements about objects, endpoints, databases and permissions. PURE.

Reads:  the tokens behind the first words of a statement.      Calls: cursor, tree.
Never:  knows what an option means here: `declaring` and `verdicts` do.
Fails:  with `Unexpected`, at the first token that does not fit.
"""

from collections.abc import Callable
from typing import Any, Final

from brokerd.tsql.cursor import Cursor, Unexpected
from brokerd.tsql.tokens import Kind
from brokerd.tsql.tree import (
    Action,
    Activation,
    Binding,
    Collection,
    Contract,
    Database,
    Endpoint,
    Grant,
    MessageType,
    Notification,
    Priority,
    Queue,
    Route,
    Security,
    Service,
    Statement,
)

Where = dict[str, Any]
"""The fields of `Statement` that say where a statement stands."""
Rule = Callable[[Cursor, Action, Where], Statement | list[Statement] | None]

BROKER_OPTIONS: Final = (
    "ENABLE_BROKER",
    "DISABLE_BROKER",
    "NEW_BROKER",
    "ERROR_BROKER_CONVERSATIONS",
    "HONOR_BROKER_PRIORITY",
    "TRUSTWORTHY",
)
"""Options of a database that concern the broker."""
_VERBS: Final = (
    *("SELECT", "INSERT", "UPDATE", "DELETE", "EXEC", "EXECUTE", "IF", "ELSE", "WHILE", "BEGIN"),
    *("END", "DECLARE", "SET", "PRINT", "CREATE", "ALTER", "DROP", "USE", "GRANT", "DENY"),
    *("REVOKE", "COMMIT", "ROLLBACK", "RETURN", "SEND", "RECEIVE", "WAITFOR", "BACKUP"),
)
"""Words with which other statements begin; nothing ends a statement but the next one."""


def message_type(here: Cursor, action: Action, where: Where) -> MessageType:
    """Read the rest of CREATE, ALTER, DROP MESSAGE TYPE."""
    name = _object_name(here, action, "the name of a message type")
    validation, collection = None, None
    if action is not Action.DROP:
        _owner(here)
        if here.accept("VALIDATION"):
            here.expect("=")
            validation = here.choose("NONE", "EMPTY", "WELL_FORMED_XML", "VALID_XML")
            if validation == "VALID_XML" and here.accept("WITH"):
                here.expect("SCHEMA", "COLLECTION")
                collection = here.names("the name of a schema collection")
    return MessageType(
        action=action, name=name, validation=validation, schema_collection=collection, **where
    )


def contract(here: Cursor, action: Action, where: Where) -> Contract:
    """Read the rest of CREATE, DROP CONTRACT."""
    name = _object_name(here, action, "the name of a contract")
    types: list[tuple[str, str]] = []
    if action is not Action.DROP:
        _owner(here)
        here.expect("(")
        while True:
            kind = here.name("the name of a message type")
            here.expect("SENT", "BY")
            types.append((kind, here.choose("INITIATOR", "TARGET", "ANY").lower()))
            if not here.accept(","):
                break
        here.expect(")")
    return Contract(action=action, name=name, types=tuple(types), **where)


def queue(here: Cursor, action: Action, where: Where) -> Queue:
    """Read the rest of CREATE, ALTER, DROP QUEUE."""
    if action is Action.DROP:
        _if_exists(here)
    name = here.names("the name of a queue")
    said: dict[str, Any] = {}
    if action is not Action.DROP:
        if here.is_any("REBUILD", "REORGANIZE", "MOVE"):
            said["upkeep"] = here.skip().upper
            if said["upkeep"] == "MOVE":
                here.expect("TO")
                here.name("a filegroup")
                said["upkeep"] = "MOVE TO"
        if here.accept("WITH"):
            if said:
                here.parenthesised()
            else:
                said |= _queue_options(here)
        if action is Action.CREATE and here.accept("ON"):
            _name_or_text(here, "a filegroup")
    return Queue(action=action, name=name, **said, **where)


def _queue_options(here: Cursor) -> dict[str, Any]:
    said: dict[str, Any] = {}
    while True:
        match here.choose("STATUS", "RETENTION", "ACTIVATION", "POISON_MESSAGE_HANDLING"):
            case "STATUS":
                here.expect("=")
                said["status"] = here.switch()
            case "RETENTION":
                here.expect("=")
                said["retention"] = here.switch()
            case "ACTIVATION":
                said["activation"] = _activation(here)
            case _:
                here.expect("(", "STATUS", "=")
                said["poison"] = here.switch()
                here.expect(")")
        here.accept(",")  # the comma between options may be left out
        if not here.is_any("STATUS", "RETENTION", "ACTIVATION", "POISON_MESSAGE_HANDLING"):
            return said


def _activation(here: Cursor) -> Activation:
    here.expect("(")
    said: dict[str, Any] = {}
    while not here.accept(")"):
        match here.choose("STATUS", "PROCEDURE_NAME", "MAX_QUEUE_READERS", "EXECUTE", "DROP"):
            case "DROP":
                said["drop"] = True
            case "STATUS":
                here.expect("=")
                said["status"] = here.switch()
            case "PROCEDURE_NAME":
                here.expect("=")
                said["procedure"] = here.names("the name of a procedure")
            case "MAX_QUEUE_READERS":
                here.expect("=")
                said["max_readers"] = here.number("a number of readers")
            case _:
                here.expect("AS")
                token = here.peek()
                is_text = token is not None and token.kind is Kind.STRING
                said["execute_as"] = (
                    here.text("a user") if is_text else here.name("SELF, OWNER or a user")
                )
        if not here.is_next(")"):
            here.accept(",")
    return Activation(**said)


def service(here: Cursor, action: Action, where: Where) -> Service:
    """Read the rest of CREATE, ALTER, DROP SERVICE."""
    name = _object_name(here, action, "the name of a service")
    home: tuple[str, ...] | None = None
    contracts: list[str] = []
    without: list[str] = []
    if action is not Action.DROP:
        _owner(here)
        if here.accept("ON"):
            here.expect("QUEUE")
            home = here.names("the name of a queue")
        elif action is Action.CREATE:
            here.refuse("ON QUEUE")
        if here.accept("("):
            while True:
                kept = contracts
                if here.is_any("ADD", "DROP"):
                    kept = contracts if here.skip().upper == "ADD" else without
                    here.expect("CONTRACT")
                kept.append(here.name("the name of a contract"))
                if not here.accept(","):
                    break
            here.expect(")")
    return Service(
        action=action,
        name=name,
        queue=home,
        contracts=tuple(contracts),
        without=tuple(without),
        **where,
    )


def route(here: Cursor, action: Action, where: Where) -> Route:
    """Read the rest of CREATE, ALTER, DROP ROUTE."""
    name = _object_name(here, action, "the name of a route")
    said: dict[str, Any] = {}
    if action is not Action.DROP:
        _owner(here)
        here.expect("WITH")
        keys = {
            "SERVICE_NAME": "service",
            "BROKER_INSTANCE": "broker",
            "ADDRESS": "address",
            "MIRROR_ADDRESS": "mirror",
        }
        while True:
            option = here.choose(*keys, "LIFETIME")
            here.expect("=")
            if option == "LIFETIME":
                said["lifetime"] = here.number("a number of seconds")
            else:
                said[keys[option]] = here.text("a string")
            here.accept(",")
            if not here.is_any(*keys, "LIFETIME"):
                break
    return Route(action=action, name=name, **said, **where)


def binding(here: Cursor, action: Action, where: Where) -> Binding:
    """Read the rest of CREATE, ALTER, DROP REMOTE SERVICE BINDING."""
    name = _object_name(here, action, "the name of a remote service binding")
    said: dict[str, Any] = {}
    if action is not Action.DROP:
        _owner(here)
        if action is Action.CREATE:
            here.expect("TO", "SERVICE")
            said["service"] = here.text("the name of a service, as a string")
        here.expect("WITH")
        while True:
            option = here.choose("USER", "ANONYMOUS")
            here.expect("=")
            if option == "USER":
                said["user"] = here.name("the name of a user")
            else:
                said["anonymous"] = here.switch()
            if not here.accept(","):
                break
    return Binding(action=action, name=name, **said, **where)


def priority(here: Cursor, action: Action, where: Where) -> Priority:
    """Read the rest of CREATE, ALTER, DROP BROKER PRIORITY."""
    name = _object_name(here, action, "the name of a priority")
    said: dict[str, Any] = {}
    if action is not Action.DROP:
        here.expect("FOR", "CONVERSATION")
        if here.accept("SET"):
            here.expect("(")
            while not here.accept(")"):
                option = here.choose(
                    "CONTRACT_NAME", "LOCAL_SERVICE_NAME", "REMOTE_SERVICE_NAME", "PRIORITY_LEVEL"
                )
                here.expect("=")
                if option == "PRIORITY_LEVEL":
                    usual = here.accept("DEFAULT")
                    said["level"] = 5 if usual else here.number("a level from 1 to 10")
                else:
                    key = {"CONTRACT_NAME": "contract"}.get(option, option[:-5].lower())
                    said[key] = _name_or_text(here, "a name, or ANY")
                if not here.is_next(")"):
                    here.expect(",")
    return Priority(action=action, name=name, **said, **where)


def notification(here: Cursor, action: Action, where: Where) -> Notification | list[Statement]:
    """Read the rest of CREATE, DROP EVENT NOTIFICATION."""
    names = [_object_name(here, action, "the name of an event notification")]
    while action is Action.DROP and here.accept(","):
        names.append(here.name("the name of an event notification"))
    here.expect("ON")
    scope = here.choose("SERVER", "DATABASE", "QUEUE")
    said: dict[str, Any] = {"scope": scope}
    if scope == "QUEUE":
        said["queue"] = here.names("the name of a queue")
    if action is Action.DROP:
        return [Notification(action=action, name=one, **said, **where) for one in names]
    if here.accept("WITH"):
        here.expect("FAN_IN")
        said["fan_in"] = True
    here.expect("FOR")
    events = [here.name("an event")]
    while here.accept(","):
        events.append(here.name("an event"))
    here.expect("TO", "SERVICE")
    said["service"] = here.text("the name of a service, as a string")
    if here.accept(","):
        said["broker"] = here.text("the id of a broker, or 'current database'")
    return Notification(
        action=action, name=names[0], events=tuple(one.upper() for one in events), **said, **where
    )


def endpoint(here: Cursor, action: Action, where: Where) -> Statement | None:
    """Read the rest of CREATE, ALTER, DROP ENDPOINT; None = it is not for SERVICE_BROKER."""
    name = _object_name(here, action, "the name of an endpoint")
    said: dict[str, Any] = {}
    if action is Action.DROP:
        return Endpoint(action=action, name=name, **where)
    _owner(here)
    if here.accept("STATE"):
        here.expect("=")
        said["state"] = here.choose("STARTED", "STOPPED", "DISABLED").lower()
    if here.accept("AS"):
        here.choose("TCP", "HTTP")
        said |= _listener(here)
    if not here.accept("FOR"):
        return Endpoint(action=action, name=name, **said, **where) if said else None
    if not here.accept("SERVICE_BROKER"):
        return None
    if here.is_next("("):
        said |= _broker_payload(here)
    return Endpoint(action=action, name=name, **said, **where)


def _listener(here: Cursor) -> dict[str, Any]:
    said: dict[str, Any] = {}
    here.expect("(")
    while not here.accept(")"):
        option = here.name("LISTENER_PORT or LISTENER_IP").upper()
        here.expect("=")
        if option == "LISTENER_PORT":
            said["port"] = here.number("a port")
        elif option == "LISTENER_IP" and here.accept("ALL"):
            said["address"] = "all"
        elif option == "LISTENER_IP":
            inside = here.parenthesised() if here.is_next("(") else (here.skip(),)
            said["address"] = "".join(one.value for one in inside)
        else:
            here.skip_until(",")
        if not here.is_next(")"):
            here.expect(",")
    return said


def _broker_payload(here: Cursor) -> dict[str, Any]:
    said: dict[str, Any] = {}
    here.expect("(")
    while not here.accept(")"):
        option = here.choose(
            "AUTHENTICATION", "ENCRYPTION", "MESSAGE_FORWARDING", "MESSAGE_FORWARD_SIZE"
        )
        here.expect("=")
        match option:
            case "AUTHENTICATION":
                said["authentication"] = _words(here.skip_until(","))
            case "ENCRYPTION":
                said["encryption"] = here.choose("DISABLED", "SUPPORTED", "REQUIRED").lower()
                here.skip_until(",")
            case "MESSAGE_FORWARDING":
                said["forwarding"] = here.choose("ENABLED", "DISABLED") == "ENABLED"
            case _:
                said["forward_size"] = here.number("a size in megabytes")
        if not here.is_next(")"):
            here.expect(",")
    return said


def database(here: Cursor, action: Action, where: Where) -> list[Statement]:
    """Read the rest of CREATE or ALTER DATABASE; return one value for each option of the broker."""
    if action is Action.DROP:
        return []
    if here.is_any("AUDIT", "ENCRYPTION", "SCOPED"):  # statements of their own
        return []
    return database_options(here, where)


def database_options(here: Cursor, where: Where) -> list[Statement]:
    """Read a name and options up to the next statement, also behind RESTORE DATABASE."""
    what = "the name of a database"
    name = here.skip().text if here.is_variable() else here.name(what)
    found: list[Statement] = []
    while not here.is_done and not here.is_next(";") and not here.is_any("GO"):
        token = here.peek()
        word = token.upper if token is not None else ""
        if word in _VERBS and word != "SET":
            break
        last = here.skip()
        at = last.at
        if word in BROKER_OPTIONS:
            if here.is_any("ON", "OFF"):
                last = here.skip()
                word += f" {last.upper}"
            place = {**where, "at": at, "end": last.end}
            found.append(Database(name=name, option=word, **place))
    return found


def grant(here: Cursor, verb: str, where: Where) -> Grant | None:
    """Read the rest of GRANT, DENY, REVOKE; None = it is not about an object."""
    if verb == "REVOKE" and here.accept("GRANT"):
        here.expect("OPTION", "FOR")
    permissions: list[str] = []
    while not here.is_any("ON", "TO", "FROM"):
        permissions.append(_words(here.skip_until(",", "ON", "TO", "FROM")))
        if not here.accept(","):
            break
    if not ({"SEND", "RECEIVE"} & set(permissions) or here.is_any("ON", "TO", "FROM")):
        return None
    try:
        kind, name = _securable(here) if here.accept("ON") else ("", ())
        here.choose("TO", "FROM")
    except Unexpected:
        if {"SEND", "RECEIVE"} & set(permissions):
            raise
        return None  # a grant of other things, which have names of other forms
    principals = [here.name("the name of a principal")]
    while here.accept(","):
        principals.append(here.name("the name of a principal"))
    here.accept("WITH", "GRANT", "OPTION")
    return Grant(
        verb=verb,
        permissions=tuple(permissions),
        kind=kind,
        name=name,
        principals=tuple(principals),
        **where,
    )


def _securable(here: Cursor) -> tuple[str, tuple[str, ...]]:
    """Return the class of an object, such as MESSAGE TYPE, and its name."""
    words: list[str] = []
    while (token := here.peek(len(words))) is not None and token.kind is Kind.WORD:
        words.append(token.upper)
    kind = ""
    if words and here.is_next(*words, ":", ":"):
        here.accept(*words, ":", ":")
        kind = " ".join(words).removeprefix("OBJECT")
    name = here.names("the name of an object")
    if here.is_next("("):
        here.parenthesised()  # columns
    return kind, name


def collection(here: Cursor, action: Action, where: Where) -> Collection | None:
    """Read the rest of CREATE XML SCHEMA COLLECTION."""
    name = here.names("the name of a schema collection")
    if action is not Action.CREATE:
        return None
    here.expect("AS")
    token, after = here.peek(), here.peek(1)
    schema = ""
    if token is not None and token.kind is Kind.STRING and (after is None or after.text != "+"):
        schema = here.text("a schema")
    return Collection(name=name, schema=schema, **where)


def security(here: Cursor, what: str, where: Where) -> Security:
    """Read the rest of a statement about a certificate, key, user or login."""
    token = here.peek()
    name = ""
    if token is not None and token.kind in (Kind.WORD, Kind.QUOTED, Kind.MACRO):
        name = here.name("a name")
    passed = here.skip_until(*_VERBS)
    names = frozenset(one.value for one in passed if one.kind in (Kind.WORD, Kind.QUOTED))
    return Security(what=what, name=name, names=names, **where)


OBJECTS: Final[dict[tuple[str, ...], Rule]] = {
    ("MESSAGE", "TYPE"): message_type,
    ("CONTRACT",): contract,
    ("QUEUE",): queue,
    ("SERVICE",): service,
    ("ROUTE",): route,
    ("REMOTE", "SERVICE", "BINDING"): binding,
    ("BROKER", "PRIORITY"): priority,
    ("EVENT", "NOTIFICATION"): notification,
    ("ENDPOINT",): endpoint,
    ("DATABASE",): database,
    ("XML", "SCHEMA", "COLLECTION"): collection,
}
"""The grammar of each kind of object, by the words behind CREATE, ALTER and DROP."""
SECURITY: Final = (
    ("CERTIFICATE",),
    ("MASTER", "KEY"),
    ("SYMMETRIC", "KEY"),
    ("USER",),
    ("LOGIN",),
)
"""Words behind CREATE, ALTER and DROP, and behind BACKUP and OPEN, of what `security` reads."""


def _object_name(here: Cursor, action: Action, what: str) -> str:
    if action is Action.DROP:
        _if_exists(here)
    return here.name(what)


def _if_exists(here: Cursor) -> None:
    here.accept("IF", "EXISTS")


def _owner(here: Cursor) -> None:
    if here.accept("AUTHORIZATION"):
        here.name("the name of an owner")


def _name_or_text(here: Cursor, what: str) -> str:
    token = here.peek()
    if token is not None and token.kind is Kind.STRING:
        return here.text(what)
    return here.name(what)


def _words(tokens: tuple[Any, ...]) -> str:
    return " ".join(one.value.upper() if one.kind is Kind.WORD else one.value for one in tokens)
