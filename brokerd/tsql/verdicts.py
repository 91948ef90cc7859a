"""Verdicts: the verdict for each statement that declares no object. PURE.

Reads:  statements, and where they stand.      Calls: names, assessment, security.names.
Never:  names a verb, command, setting or view that does not exist: the tests compare each name.
"""

import shlex
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from brokerd.errors import InvalidArgument
from brokerd.security.names import Kind, principal_name
from brokerd.tsql import tree
from brokerd.tsql.assessment import Entry, Verdict
from brokerd.tsql.names import COLUMNS, FUNCTIONS, VIEWS, is_known, ours, shown
from brokerd.units import printable

_HAND, _NONE, _MOVES = Verdict.HAND, Verdict.NONE, Verdict.MOVES


class Around(Struct, frozen=True, kw_only=True):
    """Where a statement stands."""

    handler: str = ""
    """Module of the handler that takes the place of the procedure; empty = there is none."""
    is_trigger: bool = False
    broker: str = "main"
    """Name of the broker that its database becomes."""


def evaluate(  # noqa: C901, PLR0912  # a case for each statement
    said: tree.Statement, entry: Entry, around: Around
) -> None:
    """Set verdict, counterpart and note of an entry."""
    match said:
        case tree.BeginDialog() | tree.Send() | tree.Receive() | tree.GetGroup():
            _verb(said, entry, around)
        case tree.Timer():
            entry.needs("write this call in the program that has the dialog")
            entry.ours = "tx.set_timer(handle, seconds)"
        case tree.Move():
            entry.needs("write this call in the program that has the dialog")
            entry.ours = "tx.move(handle, group)"
        case tree.End():
            _end(said, entry, around)
        case tree.Database():
            _database(said, entry)
        case tree.Endpoint():
            _endpoint(said, entry)
        case tree.Grant():
            _grant(said, entry, around)
        case tree.Security():
            _security(said, entry)
        case tree.Collection():
            entry.ours = "schema or schema_file of a message type"
            entry.needs("a message type has its schema itself: one XSD, without import or include")
        case tree.Mention():
            _mention(said, entry)
        case tree.Read():
            entry.ours = f"brokerd queue browse {shown(said.name)}, or session.browse"
            entry.needs("a query of a queue: browsing takes no message")
        case tree.Dynamic():
            entry.needs(
                "a statement put together at run time: declare what it makes in the file, or "
                "call session.create, which takes any name"
            )
        case tree.Unread():
            entry.verdict = Verdict.UNREAD
            entry.note = f"expected {said.expected}, found {said.found}"
        case _:
            raise AssertionError(f"{type(said).__name__} declares an object")


def _verb(
    said: tree.BeginDialog | tree.Send | tree.Receive | tree.GetGroup, entry: Entry, around: Around
) -> None:
    if around.is_trigger:
        entry.needs(
            "a trigger cannot call brokerd: let the program that changes the table send, or read "
            "the changes from a table of events",
            _NONE,
        )
    elif not around.handler:
        entry.needs("write this call in the program that has the dialog")
    elif isinstance(said, tree.BeginDialog | tree.Send):
        entry.needs(f"{around.handler}.py has this call as a comment: fill in its values")
    match said:
        case tree.BeginDialog():
            _begin_dialog(said, entry)
        case tree.Send():
            kind = ours(said.message_type)
            entry.ours = f'tx.send(handle, body, "{kind}")' if is_known(kind) else "tx.send"
            if said.handles > 1:
                entry.ours = "tx.send([handle, ...], body, message_type)"
        case tree.Receive():
            _receive(said, entry, around)
        case tree.GetGroup():
            entry.ours = f'tx.get_group("{shown(said.queue)}"), and tx.state(group)'
            if around.handler:
                entry.add("a handler has the group already: ctx.group, ctx.state()")


def _begin_dialog(said: tree.BeginDialog, entry: Entry) -> None:
    contract = ours(said.contract)
    entry.ours = f'session.dialog("{said.to_service}", contract), or session.begin_dialog'
    if is_known(contract) and is_known(said.to_service):
        entry.ours = f'session.begin_dialog(service, "{said.to_service}", "{contract}")'
    if said.encryption is False:
        entry.add("ENCRYPTION = OFF is encryption=False, or default_encryption of the broker")
    if said.broker and said.broker.upper() != "CURRENT DATABASE":
        entry.needs("the id of the far broker is another one here")
    if said.related:
        key = "related_group" if said.related.endswith("GROUP") else "related_conversation"
        entry.add(f"{said.related} is {key}")
    if said.lifetime:
        entry.add("LIFETIME is lifetime, in seconds")


def _receive(said: tree.Receive, entry: Entry, around: Around) -> None:
    queue = shown(said.queue)
    if around.handler:
        entry.ours = f"the App in {around.handler}.py"
        entry.add("the App receives, waits and ends when the queue stays empty")
        return
    most = said.top if said.top.isdigit() else ""
    arguments = [f'"{queue}"', *([most] if most else [])]
    if said.where:
        arguments.append("conversation=handle" if "handle" in said.where else "group=group")
    if said.waits:
        arguments.append(
            f"wait={int(said.timeout) / 1000:g}"
            if said.timeout.isdigit() and len(said.timeout) < 10  # noqa: PLR2004
            else "wait=brokerd.FOREVER"
        )
    entry.ours = f"tx.receive({', '.join(arguments)})"
    entry.add("a message has the columns as fields; its body is bytes, without CAST")


def _end(said: tree.End, entry: Entry, around: Around) -> None:
    if said.cleanup:
        entry.ours = "session.admin.clean_up(handle, reason), or brokerd broker clean-up"
        entry.needs("only administrators may do this, and the other side is not notified")
        return
    entry.ours = "tx.end(handle)" if not said.error else "tx.end(handle, error, description)"
    if around.is_trigger:
        entry.needs("a trigger cannot call brokerd", _NONE)
    elif not around.handler:
        entry.needs("write this call in the program that has the dialog")
    elif said.error:
        entry.needs(
            f"{around.handler}.py has this outcome as a comment: return it where it applies"
        )
    else:
        entry.add("the App ends its side when the other has ended; brokerd.End() does it earlier")


_DATABASE: Final[dict[str, tuple[Verdict, str, str]]] = {
    "ENABLE_BROKER": (_MOVES, "", "a new broker delivers; brokerd broker enable if it was off"),
    "DISABLE_BROKER": (_HAND, "brokerd broker disable NAME", "run it once the broker exists"),
    "NEW_BROKER": (_MOVES, "", "a new broker has an id of its own; later brokerd broker new-id"),
    "ERROR_BROKER_CONVERSATIONS": (
        _HAND,
        "brokerd broker error-conversations NAME",
        "for a broker that was restored; an imported one has no dialogs yet",
    ),
    "HONOR_BROKER_PRIORITY ON": (_MOVES, 'honor_priority = "on" of the broker', ""),
    "HONOR_BROKER_PRIORITY OFF": (_MOVES, 'honor_priority = "off", the default', ""),
    "TRUSTWORTHY ON": (
        _MOVES,
        "",
        "nothing to do: brokers of an instance need no such trust to deliver to one another",
    ),
    "TRUSTWORTHY OFF": (_MOVES, "", "nothing to do"),
}


def _database(said: tree.Database, entry: Entry) -> None:
    entry.verdict, entry.ours, note = _DATABASE.get(said.option, (_HAND, "", ""))
    if note:
        entry.add(note)


def endpoint_settings(said: tree.Endpoint) -> dict[str, str]:
    """Return the keys of `[endpoint]` in the settings, as text."""
    found: dict[str, str] = {}
    if said.address is not None:
        found["listen"] = f'["{said.address}"]'
    if said.port is not None:
        found["port"] = str(said.port)
    if said.state is not None:
        found["state"] = f'"{said.state}"'
    if said.encryption is not None:
        found["encryption"] = f'"{said.encryption}"'
    if said.forwarding is not None:
        found["forwarding"] = "true" if said.forwarding else "false"
    if said.forward_size is not None:
        found["forward_size_mb"] = str(said.forward_size)
    return found


def _endpoint(said: tree.Endpoint, entry: Entry) -> None:
    if said.action is tree.Action.DROP:
        entry.ours = "brokerd endpoint disable"
        entry.needs("every instance has its endpoint; switch it off if no peer should connect")
        return
    keys = endpoint_settings(said)
    entry.ours = "[endpoint] in the settings"
    if keys:
        entry.ours += ": " + ", ".join(f"{key} = {value}" for key, value in keys.items())
    entry.needs("write this into the settings of the daemon")
    if said.authentication and "CERTIFICATE" not in said.authentication.upper():
        entry.add("there is no Windows authentication: instances know each other by certificate")
    elif said.authentication:
        entry.add("an instance makes its own certificate: brokerd peer pair exchanges them")


_KINDS: Final = ("SERVICE", "CONTRACT", "MESSAGE TYPE", "ROUTE", "REMOTE SERVICE BINDING")


def is_about_the_broker(said: tree.Grant) -> bool:
    """Return whether a grant concerns the broker."""
    return (
        said.kind in (*_KINDS, "ENDPOINT")
        or "RECEIVE" in said.permissions
        or any(
            one.startswith("CREATE ") and one[7:] in (*_KINDS, "QUEUE") for one in said.permissions
        )
    )


def _grant(said: tree.Grant, entry: Entry, around: Around) -> None:
    if said.verb == "DENY":
        entry.needs("there is no DENY: nobody may do what is not granted, once something is", _NONE)
        return
    texts = [text for one in said.principals for text in _grants(said, one, around.broker)]
    if not texts:
        entry.needs("no permission of this kind: control on the broker includes it", _NONE)
        return
    command = "grant" if said.verb == "GRANT" else "revoke"
    entry.ours = "; ".join(f"brokerd {command} {shlex.quote(printable(one))}" for one in texts)
    entry.needs(
        "run it once the principal is known: a user of the machine, client:NAME or peer:NAME"
    )
    if len(said.permissions) > 1:
        entry.add("the other permissions have no counterpart")


def _grants(said: tree.Grant, principal: str, broker: str) -> Iterator[str]:
    """Yield the grants of a statement to one principal; a space in a name becomes a wildcard."""
    name = "".join("?" if one.isspace() else one for one in shown(said.name)) if said.name else ""
    kind = Kind.PEER if said.kind == "ENDPOINT" else Kind.CLIENT
    try:
        to = "public" if principal.lower() == "public" else principal_name(kind, principal)
    except InvalidArgument:  # a Windows account, for example
        to = f"{kind}:NAME"
    if "SEND" in said.permissions and said.kind == "SERVICE":
        yield f"send on {name} to {to}"
    if "RECEIVE" in said.permissions:
        yield f"receive on {broker}/{name} to {to}"
    if "CONNECT" in said.permissions and said.kind == "ENDPOINT":
        yield f"connect on endpoint to {to}"
    if "CONTROL" in said.permissions:
        yield f"control on {broker} to {to}"


def _security(said: tree.Security, entry: Entry) -> None:
    match said.what.split(" ", 1)[1]:
        case "CERTIFICATE":
            entry.ours = "brokerd certificate export, brokerd peer add, brokerd peer pair"
            entry.needs("an instance makes its certificates at its first start; exchange those")
        case "MASTER KEY" | "SYMMETRIC KEY":
            entry.ours = "master.key in the data directory"
            entry.add("nothing to do: an instance makes its key at its first start; back it up")
        case "USER" | "LOGIN":
            entry.ours = "brokerd client new, brokerd peer add"
            entry.needs("a principal is a user of the machine, client:NAME or peer:NAME")
        case _:
            entry.needs("an object has no owner: grants say who may do what", _NONE)


def _mention(said: tree.Mention, entry: Entry) -> None:
    if said.name in FUNCTIONS:
        entry.ours = FUNCTIONS[said.name]
        entry.needs("write this call in the program")
        return
    view = VIEWS.get(said.name) or COLUMNS[said.name]
    if not view.ours:
        entry.needs(view.note, _NONE)
        return
    entry.ours = f'session.view("{view.ours}")'
    entry.needs("a query of a catalog view: read the view in a program, or with a command")
    if view.note:
        entry.add(view.note)
