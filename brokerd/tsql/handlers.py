"""Handlers: an App in Python in place of each activation procedure. PURE.

Reads:  the statements of the procedure, the objects around its queue.      Calls: blocks, names.
Never:  writes a handler that loses a message: whatever is not ported yet parks its conversation
        group, with the reason, until somebody has written the code and releases it (IMP-15).
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from brokerd.model import DEFAULT, DIALOG_TIMER, END_DIALOG, ERROR, SYSTEM_TYPES
from brokerd.tsql import tree
from brokerd.tsql.blocks import quoted
from brokerd.tsql.declaring import Objects
from brokerd.tsql.names import is_known, ours, shown
from brokerd.units import printable

_MOST_SOURCE: Final = 200_000
"""Characters of a procedure that are repeated as comment."""
_IDENTIFIER: Final = re.compile(r"[^A-Za-z0-9]+")
_PASSWORD: Final = re.compile(r"(PASSWORD\s*+=\s*+N?+)'[^']*+(?:''[^']*+)*+(?:'|\Z)", re.IGNORECASE)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Types(Struct, frozen=True):
    """A contract: message types by the side that may send them, and those without a body."""

    name: str
    initiator: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    empty: frozenset[str] = frozenset()


class Reader(Struct, kw_only=True):
    """All that is known about the reader of one queue."""

    module: str
    queue: str
    service: str
    procedure: str
    max_readers: int
    contracts: list[Types]
    receives: list[str]
    """Message types that may arrive, in the order of the contracts."""
    path: str = ""
    place: tuple[str, str] = ("", "")
    """Database and name of the procedure, in small letters."""
    source: str = ""
    """The text of the procedure; empty = no script has it."""
    line: int = 0
    strings: tuple[tuple[str, int], ...] = ()
    inside: list[tuple[int, tree.Statement]] = []
    """The statements of the procedure, with their lines."""


def module_name(queue: str, taken: set[str]) -> str:
    """Return the name of the module for a queue; it is added to `taken`."""
    plain = _IDENTIFIER.sub("_", _HUMP.sub("_", queue)).strip("_").lower() or "queue"
    plain = f"q_{plain}" if plain[0].isdigit() else plain
    name, number = f"{plain[:80]}_handler", 1  # with the ending, no module of Python has the name
    while name in taken:
        number += 1
        name = f"{plain[:80]}_{number}_handler"
    taken.add(name)
    return name


def contracts_of(
    home: Objects, queue: str, dialogs: Mapping[str, Iterable[tree.BeginDialog]]
) -> tuple[str, list[Types], list[str]]:
    """Return the first service of a queue, the contracts of its dialogs, and what may arrive.

    The services accept contracts, as targets, and begin dialogs on others, as initiators. If
    neither is known, all contracts of the database are."""
    services = [
        name
        for name, one in home.service.items()
        if one.said.queue and shown(one.said.queue).casefold() == queue.casefold()
    ]
    sides = _sides(home, services, dialogs)
    found: list[Types] = []
    receives: list[str] = []
    for name, roles in sides.items():
        if name == DEFAULT:
            found.append(Types(DEFAULT))
            receives.append(DEFAULT)
            continue
        declared = home.contract.get(name)
        if declared is None:
            continue
        types = _types(home, name, declared.said.types)
        if not types.initiator and not types.any:
            continue  # no dialog can begin
        found.append(types)
        receives += types.any
        receives += types.initiator if "target" in roles else ()
        receives += types.target if "initiator" in roles else ()
    if not found:
        found, receives = [Types(DEFAULT)], [DEFAULT]
    return (services[0] if services else queue), found, list(dict.fromkeys(receives))


def _sides(
    home: Objects, services: list[str], dialogs: Mapping[str, Iterable[tree.BeginDialog]]
) -> dict[str, set[str]]:
    """Return the contracts of some services, and the sides on which these stand in them."""
    sides: dict[str, set[str]] = {}
    for service in services:
        for contract in home.service[service].said.contracts:
            sides.setdefault(contract, set()).add("target")
        for dialog in dialogs.get(service, ()):
            if is_known(dialog.contract):
                sides.setdefault(dialog.contract, set()).add("initiator")
    if not sides:
        return {name: {"target", "initiator"} for name in home.contract} or {DEFAULT: {"target"}}
    return sides


def _types(home: Objects, name: str, said: tuple[tuple[str, str], ...]) -> Types:
    sides: dict[str, list[str]] = {"initiator": [], "target": [], "any": []}
    empty = set()
    for message_type, side in said:
        kind = ours(message_type)
        if kind in SYSTEM_TYPES or any(kind in known for known in sides.values()):
            continue
        sides[side].append(kind)
        declared = home.message_type.get(message_type)
        if declared is not None and declared.said.validation == "EMPTY":
            empty.add(kind)
    return Types(
        name=ours(name),
        initiator=tuple(sides["initiator"]),
        target=tuple(sides["target"]),
        any=tuple(sides["any"]),
        empty=frozenset(empty),
    )


def text_of(reader: Reader) -> str:
    """Return the text of the module."""
    return "\n".join([*_head(reader), *_handler(reader), *_hooks(reader), *_source(reader)]) + "\n"


def _head(reader: Reader) -> Iterator[str]:
    queue, procedure = _plain(reader.queue), _plain(reader.procedure)
    yield f'"""Handler of queue {queue}, in place of the activation procedure {procedure}.'
    yield ""
    yield "Made by brokerd import. A message that is not ported yet parks its conversation group:"
    yield "nothing is lost, and `brokerd group release` hands it out again once the code is there."
    yield '"""'
    yield ""
    yield "import brokerd"
    yield ""
    for number, types in enumerate(reader.contracts):
        if types.name == DEFAULT:
            continue
        yield f"CONTRACT_{number} = brokerd.Contract("
        yield f"    {quoted(types.name)},"
        for side in ("initiator", "target", "any"):
            kinds = getattr(types, side)
            if kinds:
                yield f"    {side}={{"
                for kind in kinds:
                    yield f"        {quoted(kind)}: {'None' if kind in types.empty else 'bytes'},"
                yield "    },"
        yield ")"
    yield f"app = brokerd.App({quoted(reader.service)})"


def _handler(reader: Reader) -> Iterator[str]:
    yield ""
    yield ""
    for number, types in enumerate(reader.contracts):
        said = "" if types.name == DEFAULT else f", contract=CONTRACT_{number}"
        readers = f", max_readers={reader.max_readers}" if reader.max_readers > 1 else ""
        yield f"@app.activate({quoted(reader.queue)}{said}{readers})"
    may_be_empty = any(types.empty for types in reader.contracts)
    kind = "bytes | None" if may_be_empty else "bytes"
    yield f"async def handle(body: {kind}, ctx: brokerd.Ctx) -> brokerd.End | brokerd.Park | None:"
    yield '    """Handle one message: its receive, replies and end are one commit."""'
    yield "    # XML has the encoding that it declares; NVARCHAR is UTF-16:"
    yield '    # body.decode("utf-16-le").'
    yield "    match ctx.message.message_type:"
    parts = _by_type(reader)
    for kind in reader.receives:
        yield f"        case {quoted(kind)}:"
        yield from (f"            # {line}" for line in parts.get(kind, ()))
        yield f"            return brokerd.Park({quoted(f'not ported yet: {kind}')})"
    yield "        case _:"
    for kind in ("", END_DIALOG, ERROR):
        rest = (line for line in parts.get(kind, ()) if kind == "" or not line.endswith("End()"))
        yield from (f"            # {line}" for line in rest)
    yield '            return brokerd.Park("not ported yet: another message type")'


def _hooks(reader: Reader) -> Iterator[str]:
    queue = quoted(reader.queue)
    yield ""
    yield ""
    yield f"@app.on_error({queue})"
    yield "async def failed(error: brokerd.RemoteError, ctx: brokerd.Ctx) -> None:"
    yield '    """The other side ended the dialog with an error; this side ends after the hook."""'
    yield "    ctx.log.warning("
    yield '        "the dialog ended with an error",'
    yield "        number=error.number,"
    yield "        description=error.description,"
    yield "    )"
    yield ""
    yield ""
    yield f"@app.on_end({queue})"
    yield "async def ended(ctx: brokerd.Ctx) -> None:"
    yield '    """The other side ended the dialog; this side ends after the hook."""'
    if not _has_timer(reader):
        return
    yield ""
    yield ""
    yield f"@app.on_timer({queue})"
    yield "async def due(ctx: brokerd.Ctx) -> None:"
    yield '    """A conversation timer is due; the dialog goes on."""'
    yield from (f"    # {line}" for line in _by_type(reader).get(DIALOG_TIMER, ()))
    yield '    raise brokerd.Park("not ported yet: the conversation timer")'


def _has_timer(reader: Reader) -> bool:
    return any(isinstance(one, tree.Timer) for _, one in reader.inside) or any(
        ours(text) == DIALOG_TIMER for text, _ in reader.strings
    )


def _by_type(reader: Reader) -> dict[str, list[str]]:
    """Return what the procedure does for each message type, as lines; "" = before any is asked for.

    A statement belongs to the type whose name is the last in front of it: most procedures compare
    the type and then act."""
    known = {*reader.receives, *SYSTEM_TYPES}
    marks = [(at, ours(text)) for text, at in reader.strings if ours(text) in known]
    places = [at for at, _ in marks]
    found: dict[str, list[str]] = {}
    for line, statement in reader.inside:
        said = _as_python(statement)
        if said:
            number = bisect_left(places, statement.at)
            kind = marks[number - 1][1] if number else ""
            found.setdefault(kind, []).append(f"line {line}: {said}")
    return found


def _as_python(statement: tree.Statement) -> str:  # noqa: PLR0911  # a case for each statement
    """Return the call that has the place of a statement in a handler; empty = it needs none."""
    match statement:
        case tree.Send():
            body = "body, " if statement.has_body else ""
            kind = statement.message_type
            name = quoted(ours(kind)) if is_known(kind) else printable(kind)
            return f"await ctx.tx.send(ctx.dialog, {body}message_type={name})"
        case tree.End() if statement.error:
            said = printable(f"{statement.error}, {statement.description}")
            return f"return brokerd.End(error=..., description=...)  # {said}"
        case tree.End() if not statement.cleanup:
            return "return brokerd.End()"
        case tree.BeginDialog():
            contract = printable(statement.contract)
            to = statement.to_service
            to = quoted(to) if is_known(to) else printable(to)
            return f"ctx.session.dialog({to}, ..., group=ctx.group)  # on contract {contract}"
        case tree.Timer():
            return f"await ctx.tx.set_timer(ctx.dialog, {printable(statement.seconds)})"
        case tree.Move():
            return "await ctx.tx.move(ctx.dialog, ...)"
        case _:
            return ""


def _source(reader: Reader) -> Iterator[str]:
    """Yield the procedure as comment."""
    if not reader.source:
        return
    source = _PASSWORD.sub(r"\1'...'", reader.source[:_MOST_SOURCE])
    said = re.split(r"\r\n|\r|\n", source.rstrip())
    yield ""
    yield ""
    yield f"# {_plain(reader.procedure)}, from line {reader.line} of {printable(reader.path)}:"
    yield "#"
    yield from (f"#     {printable(one.expandtabs(4))}".rstrip() for one in said)
    if len(reader.source) > _MOST_SOURCE:
        yield "#     ... and more"


def _plain(text: str) -> str:
    """Return a name for a docstring or a comment."""
    return printable(text).replace("\\", "/").replace('"', "'")
