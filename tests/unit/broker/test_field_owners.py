"""Each field of the records that many modules share is assigned by one module.

The owner keeps the invariant of the field; all others call a method of the record, or of the owner.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import brokerd
from brokerd.broker.state import Group, Live
from brokerd.broker.transaction import Transaction

PACKAGE = Path(brokerd.__file__).parent


class Record(NamedTuple):
    """A shared record: where its fields are assigned, and what variables that refer to it are
    called."""

    kind: type
    module: str
    variables: frozenset[str]
    owners: dict[str, str]
    """Modules that own a field although they do not define the record."""


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
)


def assigned(source: str) -> Iterator[tuple[str, str, int]]:
    """Yield each assignment to a field: the variable, the field and the line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name):
                yield node.value.id, node.attr, node.lineno
            elif isinstance(node.value, ast.Attribute):
                yield node.value.attr, node.attr, node.lineno


def violations(record: Record, path: str, source: str) -> list[str]:
    """Return the assignments of a module to fields that it does not own."""
    fields = set(record.kind.__dict__["__slots__"])
    return [
        f"{path}:{line}: {variable}.{field}"
        for variable, field, line in assigned(source)
        if variable in record.variables
        and field in fields
        and path not in {record.module, record.owners.get(field)}
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
