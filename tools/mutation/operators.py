"""Mutants of a module: each is its source with one small mistake. Pure.

Reads:  source text.
Never:  touches docstrings, annotations, what only type checkers read, texts of errors, or logging:
        no test is expected to notice a mistake there.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

NEGATED: Final = "negated"
OFF_BY_ONE: Final = "off by one"
DROPPED: Final = "term dropped"
SWAPPED: Final = "operator swapped"
DELETED: Final = "statement deleted"
"""Kinds of mistakes."""

_OPPOSITE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_NEIGHBOUR: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_QUIET: Final = frozenset({"debug", "info", "warning", "error", "log", "bind", "append_note"})
"""Methods whose calls are not deleted: what they write is not part of the module's work."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """The source of a module with one mistake."""

    line: int
    """Line of the mistake, from 1."""
    last_line: int
    kind: str
    before: str
    after: str
    source: str

    @property
    def name(self) -> str:
        """Return the change in one line: the mutant's name in the list of equivalent ones."""
        return f"{_one_line(self.before)} => {_one_line(self.after)}"


def mutants(source: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of its lines."""
    tree = ast.parse(source)
    text = _Text(source)
    found = [_mutant(text, *change) for node in _work(tree) for change in _changes(node)]
    return sorted(found, key=lambda one: (one.line, one.kind, one.after))


_Change = tuple[ast.AST, str, str]
"""A node, the kind of the mistake, and the text that takes the node's place."""


def _changes(node: ast.AST) -> Iterator[_Change]:
    yield from _of_value(node)
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield test, NEGATED, f"(not ({ast.unparse(test)}))"
        case (
            ast.Expr(value=ast.Call() | ast.Await())
            | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
            | ast.AugAssign()
            | ast.Delete()
            | ast.Continue()
            | ast.Break()
        ):
            yield node, DELETED, "pass"
        case _:
            pass


def _of_value(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            kind = NEGATED if type(op) in _OPPOSITE else OFF_BY_ONE
            other = (_OPPOSITE | _NEIGHBOUR)[type(op)]
            yield node, kind, ast.unparse(ast.Compare(left, [other()], [right]))
        case ast.BoolOp(op=op, values=values):
            for at in range(len(values)):
                rest = [one for n, one in enumerate(values) if n != at]
                kept = rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
                yield node, DROPPED, f"({ast.unparse(kept)})"
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, SWAPPED, f"({ast.unparse(ast.BoolOp(other_op, values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, NEGATED, f"({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            sign = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
            yield node, SWAPPED, f"({ast.unparse(ast.BinOp(left, sign, right))})"
        case ast.Constant(value=bool() as value):
            yield node, NEGATED, str(not value)
        case ast.Constant(value=int() as value):
            yield node, OFF_BY_ONE, str(value + 1)
        case _:
            pass


def _work(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes in which a mistake can matter."""
    for function in _functions(tree):
        for statement in function.body:
            yield from _inside(statement)


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the outermost functions of a module and of its classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if child.name not in {"__repr__", "__str__"} and not _is_overload(child):
                yield child
        elif isinstance(child, ast.ClassDef | ast.Try) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" not in ast.unparse(child.test)
        ):
            yield from _functions(child)


def _is_overload(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("overload" in ast.unparse(one) for one in function.decorator_list)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    if _is_beside_the_work(node):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "args"} and isinstance(
            node, ast.AnnAssign | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child)


def _is_beside_the_work(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Raise() | ast.Assert() | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))):
            return name in _QUIET
        case _:
            return False


class _Text:
    """A source by lines, whose columns count bytes as those of `ast` do."""

    def __init__(self, source: str) -> None:
        self.lines = source.encode().splitlines(keepends=True)

    def replaced(self, node: ast.expr | ast.stmt, by: str) -> tuple[str, str]:
        """Return the text of a node, and the source with `by` in its place."""
        first, last = node.lineno - 1, _end(node) - 1
        assert node.end_col_offset is not None, "a parsed node has an end"
        head, tail = self.lines[first][: node.col_offset], self.lines[last][node.end_col_offset :]
        old = b"".join(self.lines[first : last + 1])
        old = old[len(head) : len(old) - len(tail)]
        rest = self.lines[:first], self.lines[last + 1 :]
        new = b"".join((*rest[0], head + by.encode() + tail, *rest[1]))
        return old.decode(), new.decode()


def _mutant(text: _Text, node: ast.AST, kind: str, after: str) -> Mutant:
    assert isinstance(node, ast.expr | ast.stmt), "only these are changed"
    before, source = text.replaced(node, after)
    ast.parse(source)  # a mistake of ours, rather than one of the mutant's
    return Mutant(node.lineno, _end(node), kind, before, after, source)


def _end(node: ast.expr | ast.stmt) -> int:
    assert node.end_lineno is not None, "a parsed node has an end"
    return node.end_lineno


def _one_line(text: str) -> str:
    return " ".join(text.split())
