"""One module alone assigns the fields of each record of a dialog that sends or acknowledges."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import brokerd
from brokerd.broker.ack_state import AckState
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.outgoing_route import OutgoingRoute

ROOT = Path(brokerd.__file__).parent
OWNERS = {
    "broker/outgoing.py": (Outgoing, {"out", "outgoing", "_out", "_outgoing"}),
    "broker/outgoing_route.py": (OutgoingRoute, {"route", "_route"}),
    "broker/ack_state.py": (AckState, {"acks", "_acks"}),
}
"""The owner of each record, and the names under which other modules have the record."""
MUTATORS = {"append", "appendleft", "clear", "extend", "insert", "pop", "popleft", "remove"}


def _name(node: ast.expr) -> str:
    """Return the last name of `out`, `live.outgoing` or `broker.outgoing(live)`."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case ast.Call(called):
            return _name(called)
        case _:
            return ""


def _targets(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Tuple | ast.List):
        for one in node.elts:
            yield from _targets(one)
    else:
        yield node


def _written(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets) | ast.Delete(targets):
                for one in targets:
                    yield from _targets(one)
            case ast.AugAssign(target) | ast.AnnAssign(target) | ast.For(target):
                yield from _targets(target)
            case ast.Call(ast.Attribute(ast.Attribute() as changed, method)) if method in MUTATORS:
                yield changed


def assigned(source: str, record: type, names: set[str]) -> list[str]:
    """Return the fields of a record that the source assigns or changes in place."""
    fields = set(record.__slots__)  # type: ignore[attr-defined]
    return [
        f"{ast.unparse(one)}, line {one.lineno}"
        for one in _written(ast.parse(source))
        if isinstance(one, ast.Attribute) and one.attr in fields and _name(one.value) in names
    ]


@pytest.mark.parametrize("owner", OWNERS)
def test_only_the_owner_assigns(owner: str) -> None:
    record, names = OWNERS[owner]
    found = {
        str(path.relative_to(ROOT)): assigned(path.read_text(), record, names)
        for path in ROOT.rglob("*.py")
        if path != ROOT / owner
    }
    assert {path: fields for path, fields in found.items() if fields} == {}


@pytest.mark.parametrize(
    "source",
    [
        "out.route.address = None",
        "live.outgoing.route.address: str = ''",
        "before, route.address = route.address, None",
        "broker.outgoing(live).route.matches += 1",
        "del out.route.notice",
    ],
)
def test_an_assignment_elsewhere_is_found(source: str) -> None:
    assert assigned(source, *OWNERS["broker/outgoing_route.py"])


def test_a_change_in_place_is_found() -> None:
    assert assigned("out.acks.errors.append((1, 'x'))", *OWNERS["broker/ack_state.py"])
    assert assigned("broker.outgoing(live).unpublished.popleft()", *OWNERS["broker/outgoing.py"])
    assert not assigned("address = out.route.address", *OWNERS["broker/outgoing_route.py"])
