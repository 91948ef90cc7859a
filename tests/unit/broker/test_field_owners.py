"""Each field of the records that many modules share is assigned by one module.

The owner keeps the invariant of the field; all others call a method of the record, or of the owner.

A few methods are copied on the way of every message, where a call costs more than what it does.
Such a method has one statement, and each copy is that statement.
"""

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import brokerd
from brokerd.broker.ack_state import AckState
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.outgoing_route import OutgoingRoute
from brokerd.broker.state import Group, Live
from brokerd.broker.transaction import Transaction

PACKAGE = Path(brokerd.__file__).parent
MUTATORS = {"append", "appendleft", "clear", "extend", "insert", "pop", "popleft", "remove"}


class Record(NamedTuple):
    """A shared record: where its fields are assigned, and what variables that refer to it are
    called."""

    kind: type
    module: str
    variables: frozenset[str]
    owners: dict[str, str]
    """Modules that own a field although they do not define the record."""
    in_place: bool = False
    """Whether others may not change a field in place either, such as append to a list."""
    copies: frozenset[str] = frozenset()
    """Methods of one statement that the modules in `COPYING` copy instead of calling them."""


COPYING = {
    "broker/changeset.py",
    "broker/transaction.py",
    "delivery/fastpath/rows.py",
    "delivery/fastpath/sends.py",
    "delivery/fastpath/short_dialogs.py",
}
"""Modules on the way of every message."""

RECORDS = (
    Record(
        Live,
        "broker/state.py",
        frozenset({"live", "peer", "target", "initiator"}),
        {
            "beyond": "broker/backlog.py",
            "beyond_unread": "broker/backlog.py",
            "body_key": "broker/unfinished.py",
            "counting": "broker/backlog.py",
            "kept": "broker/retention.py",
            "outgoing": "broker/broker.py",
            "parts": "broker/unfinished.py",
            "parts_size": "broker/unfinished.py",
            "parts_stored": "broker/unfinished.py",
            "touched": "broker/endpoints.py",
        },
        copies=frozenset({"pin", "unpin", "stepped", "joined"}),
    ),
    Record(
        Group,
        "broker/state.py",
        frozenset({"group"}),
        {"entry": "broker/ready_groups.py"},
    ),
    Record(
        Transaction,
        "broker/transaction.py",
        frozenset({"tx", "_tx", "transaction", "holder"}),
        {"receiving": "broker/receive_waiters.py", "waits_for": "broker/state.py"},
    ),
    Record(
        Outgoing,
        "broker/outgoing.py",
        frozenset({"out", "outgoing", "_out", "_outgoing"}),
        {},
        in_place=True,
    ),
    Record(
        OutgoingRoute, "broker/outgoing_route.py", frozenset({"route", "_route"}), {}, in_place=True
    ),
    Record(AckState, "broker/ack_state.py", frozenset({"acks", "_acks"}), {}, in_place=True),
)


@functools.cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return what can assign or change a field; each record looks at the same modules."""
    kinds = ast.Attribute | ast.Call | ast.Assign | ast.AugAssign
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))


def assigned(source: str, *, in_place: bool = False) -> Iterator[tuple[str, str, int]]:
    """Yield each assignment to a field, or deletion of one: the variable, the field and the line.

    `in_place`: yield the calls that change a field in place as well."""
    for node in nodes(source):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                yield name_of(node.value), node.attr, node.lineno
            case ast.Call(ast.Attribute(ast.Attribute() as field, method)):
                if in_place and method in MUTATORS:
                    yield name_of(field.value), field.attr, field.lineno
            case _:
                pass


def name_of(node: ast.expr) -> str:
    """Return the last name of `out`, `live.outgoing` or `broker.outgoing(live)`."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case ast.Call(called):
            return name_of(called)
        case _:
            return ""


def effect(statement: ast.stmt) -> tuple[str, ...] | None:
    """Return what a statement does to the fields that it assigns, whatever their record is called.

    None = it does something else as well."""
    match statement:
        case ast.AugAssign(ast.Attribute(attr=field), operator, ast.Constant(value)):
            return field, type(operator).__name__, repr(value)
        case ast.Assign(value=ast.Name() | ast.Attribute()):
            fields = {one.attr for one in statement.targets if isinstance(one, ast.Attribute)}
            return (*fields, "=") if len(fields) == 1 else None
        case _:
            return None


def copied(record: Record) -> set[tuple[str, ...]]:
    """Return the effects of the methods that may be copied; each has a single statement."""
    effects: set[tuple[str, ...]] = set()
    for name in record.copies:
        method = ast.parse(textwrap.dedent(inspect.getsource(getattr(record.kind, name)))).body[0]
        assert isinstance(method, ast.FunctionDef)
        _docstring, statement = method.body  # more than one: it can no longer be copied
        done = effect(statement)
        assert done is not None, f"{record.kind.__name__}.{name} can no longer be copied"
        effects.add(done)
    return effects


def copies(record: Record, source: str) -> set[int]:
    """Return the lines with copies of methods that may be copied."""
    known = copied(record)
    return {
        node.lineno
        for node in nodes(source)
        if isinstance(node, ast.Assign | ast.AugAssign) and effect(node) in known
    }


def violations(record: Record, path: str, source: str) -> list[str]:
    """Return the assignments of a module to fields that it does not own."""
    fields = set(record.kind.__dict__["__slots__"])
    allowed = copies(record, source) if path in COPYING else set()
    return [
        f"{path}:{line}: {variable}.{field}"
        for variable, field, line in assigned(source, in_place=record.in_place)
        if variable in record.variables
        and field in fields
        and path not in {record.module, record.owners.get(field)}
        and line not in allowed
    ]


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: one.kind.__name__)
def test_a_field_is_assigned_by_its_owner_only(record: Record) -> None:
    found = [
        one
        for path in sorted(PACKAGE.rglob("*.py"))
        for one in violations(
            record, path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
        )
    ]
    assert not found, "call a method of the record, or of the field's owner"


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: one.kind.__name__)
def test_every_owner_of_a_field_assigns_it(record: Record) -> None:
    for field, module in record.owners.items():
        source = (PACKAGE / module).read_text(encoding="utf-8")
        here = {one for variable, one, _ in assigned(source) if variable in record.variables}
        is_filled = f"live.{field}." in source  # a list that the owner fills and clears
        assert field in here or is_filled, f"{module} does not assign {field}: remove the row"


@pytest.mark.parametrize(
    "statement",
    [
        "live.gone = True",
        "one.live.gone = True",
        "count, live.gone = 1, True",
        "live.pins += 1",
        "live.pins: int = 1",
        "first = live.gone = True",
        "live.beyond = 0",
    ],
)
def test_an_assignment_elsewhere_is_found(statement: str) -> None:
    assert len(violations(RECORDS[0], "verbs/sends.py", statement)) == 1
    owner = RECORDS[0].owners.get("beyond" if "beyond" in statement else "", RECORDS[0].module)
    assert not violations(RECORDS[0], owner, statement)


@pytest.mark.parametrize(
    ("statement", "record"),
    [
        ("out.route.address = None", OutgoingRoute),
        ("live.outgoing.route.address: str = ''", OutgoingRoute),
        ("before, route.address = route.address, None", OutgoingRoute),
        ("broker.outgoing(live).route.matches += 1", OutgoingRoute),
        ("del out.route.notice", OutgoingRoute),
        ("out.acks.errors.append((1, 'x'))", AckState),
        ("broker.outgoing(live).unpublished.popleft()", Outgoing),
    ],
)
def test_an_assignment_or_a_change_in_place_elsewhere_is_found(
    statement: str, record: type
) -> None:
    (row,) = [one for one in RECORDS if one.kind is record]
    assert violations(row, "verbs/sends.py", statement)


def test_a_field_that_is_only_read_is_no_assignment() -> None:
    (row,) = [one for one in RECORDS if one.kind is OutgoingRoute]
    assert not violations(row, "verbs/sends.py", "address = out.route.address")


@pytest.mark.parametrize(
    ("statement", "is_copy"),
    [
        ("live.pins += 1", True),
        ("live.pins -= 1", True),
        ("live.endpoint = after", True),
        ("live.serial = peer.serial = self._serial", True),
        ("progress[got.key] = peer.endpoint = got", True),
        ("live.pins += 2", False),
        ("live.pins = 0", False),
        ("live.gone = True", False),
        ("live.endpoint = peer.serial = after", False),
        ("live.endpoint, peer.endpoint = sent, got", False),
        ("live.endpoint = replace(live.endpoint)", False),
    ],
)
def test_only_copies_of_a_method_are_allowed_on_the_way_of_every_message(
    statement: str, *, is_copy: bool
) -> None:
    assert bool(violations(RECORDS[0], "delivery/fastpath/sends.py", statement)) != is_copy
    assert violations(RECORDS[0], "verbs/sends.py", statement)


def test_every_module_that_may_copy_has_a_copy() -> None:
    for path in COPYING:
        assert copies(RECORDS[0], (PACKAGE / path).read_text(encoding="utf-8")), path
