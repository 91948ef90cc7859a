"""The page of the Python API, from its docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Final

import msgspec

import brokerd
from brokerd.app.app import App
from brokerd.app.contract import Contract
from brokerd.app.deliveries import Delivery
from brokerd.app.dialog import Dialog
from brokerd.app.pool import DialogPool, PoolOptions, Receipt
from brokerd.app.reader import Ctx
from brokerd.app.session import Session
from brokerd.app.tracing import Tracing
from brokerd.client.admin import Admin
from brokerd.client.file_recorder import FileRecorder
from brokerd.client.groups import LockedGroup
from brokerd.client.messages import Message
from brokerd.client.outcomes import End, Park, Reply, Retry
from brokerd.client.recorder import Recorder
from brokerd.client.savepoint import Savepoint
from brokerd.client.session import Session as VerbSession
from brokerd.client.transaction import Transaction
from brokerd.config.field_docs import field_docs
from brokerd.connecting import connect
from tools.reference.markdown import code, fenced, page, prose, table

FILE = "python.md"
_INTRODUCTION = """
What programs import is in the package `brokerd`; the other classes here are what its objects
return. `brokerd.sync` has the same classes and methods without `await`. Durations are seconds, as a
number or a `timedelta`; handles and ids are 16 bytes. The [errors](errors.md) are in
`brokerd.errors`.
"""
PARTS: Final[dict[str, tuple[type, ...]]] = {
    "Sessions": (Session,),
    "Verbs of a session": (VerbSession,),
    "Transactions": (Transaction, Savepoint, LockedGroup),
    "Messages": (Message,),
    "Dialogs, posts and deliveries": (Dialog, Delivery, Receipt, DialogPool, PoolOptions),
    "Apps": (Contract, App, Ctx, Reply, End, Retry, Park),
    "Traces": (Tracing,),
    "Administration": (Admin,),
    "Recording": (Recorder, FileRecorder),
}
_FOR_THE_SDK: Final = frozenset(
    {"ask_commit", "receive_alone", "send_alone", "queue_of"}
    | {"began", "begin_send", "received", "processing"}
)
"""Methods that are public for other modules of brokerd, not for programs."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def render() -> str:
    """Return the page."""
    parts = ["## Connecting", *_function(_definition(connect), "brokerd.connect", level=3)]
    for title, kinds in PARTS.items():
        parts.append(f"## {title}")
        for kind in kinds:
            parts += _class(kind)
    return page("Python", _INTRODUCTION, *parts)


def methods(kind: type) -> list[_Function]:
    """Return the public methods and properties that a class itself defines, without overloads."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef), "a class was asked for"
    return [
        one
        for one in definition.body
        if isinstance(one, _Function)
        and (not one.name.startswith("_"))
        and one.name not in _FOR_THE_SDK
        and "overload" not in _marks(one)
    ]


def name_of(kind: type) -> str:
    """Return the name by which a program refers to a class."""
    exported = getattr(brokerd, kind.__name__, None) is kind
    return f"brokerd.{kind.__name__}" if exported else kind.__name__


def _class(kind: type) -> Iterator[str]:
    if kind is not VerbSession:  # its methods are those of `brokerd.Session` as well
        yield f"### {name_of(kind)}"
    yield from _docstring(inspect.getdoc(kind) or "")
    constructor = vars(kind).get("__init__")
    if constructor is not None and kind.__name__ in _MADE_BY_PROGRAMS:
        definition = _definition(constructor)
        yield fenced([_signature(definition, kind.__name__)], "python")
        yield from _docstring(ast.get_docstring(definition) or "")
    fields = {name: text for name, text in _fields(kind).items() if text and name[0] != "_"}
    if fields:
        rows = [(code(name), prose(text)) for name, text in fields.items()]
        yield table(("Field", "Meaning"), rows)
    for one in methods(kind):
        owner = "Session" if kind is VerbSession else kind.__name__
        yield from _function(one, f"{owner}.{one.name}", level=4)


def _fields(kind: type) -> dict[str, str]:
    """Return the documented fields of a class, with those that its bases in brokerd declare."""
    declared = kind.__mro__ if issubclass(kind, msgspec.Struct) else (kind,)
    owners = [one for one in reversed(declared) if one.__module__.startswith("brokerd.")]
    return {name: text for one in owners for name, text in field_docs(one).items()}


_MADE_BY_PROGRAMS: Final = frozenset(
    {"App", "Contract", "End", "FileRecorder", "Park", "Reply", "Retry", "Tracing"}
)


def _function(one: _Function, name: str, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    if "property" not in _marks(one):
        yield fenced([_signature(one, one.name)], "python")
    yield from _docstring(ast.get_docstring(one) or "")


def _signature(one: _Function, name: str) -> str:
    """Return the signature of a function on one line, or with one line for each argument."""
    args = one.args
    own = [arg for arg in (*args.posonlyargs, *args.args) if arg.arg in ("self", "cls")]
    for group in (args.posonlyargs, args.args):
        group[:] = [arg for arg in group if arg not in own]
    awaited = "await " if isinstance(one, ast.AsyncFunctionDef) and not _yields(one) else ""
    result = f" -> {ast.unparse(one.returns)}" if one.returns else ""
    words = re.split(r", (?![^\[(]*[\])])", ast.unparse(args)) if ast.unparse(args) else []
    words = [re.sub(r"(?<=: )(.+?)=", r"\1 = ", word) for word in words]
    short = f"{awaited}{name}({', '.join(words)}){result}"
    if len(short) <= 88:  # noqa: PLR2004  # what fits a page
        return short
    return f"{awaited}{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){result}"


def _yields(one: _Function) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(one))


def _docstring(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring; the errors become a list."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph == "Raises: nothing.":
            continue
        heading = re.match(r"Raises(, [^:\n]+)?:\n", paragraph)
        if heading is None:
            if paragraph:
                yield prose(paragraph)
            continue
        entries = re.split(r"\n(?=\S)", textwrap.dedent(paragraph[heading.end() :]))
        lines = []
        for entry in entries:
            names, _, when = " ".join(entry.split()).partition(": ")
            lines.append(f"- {', '.join(map(code, names.split(', ')))}: {prose(when)}")
        yield f"Raises{heading[1] or ''}:"
        yield "\n".join(lines)


def _definition(function: object) -> _Function:
    assert callable(function), "a function was asked for"
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(found, _Function), "a function was asked for"
    return found


def _marks(one: _Function) -> set[str]:
    return {mark.id for mark in one.decorator_list if isinstance(mark, ast.Name)}
