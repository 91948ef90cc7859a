"""What no module of brokerd may do, read from its sources (SX-13, SX-19)."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path for part in ("brokerd", "spark_jobs", "migrations") for path in (ROOT / part).rglob("*.py")
)
DANGEROUS = {
    "cPickle",
    "cloudpickle",
    "dill",
    "ftplib",
    "joblib",
    "marshal",
    "pickle",
    "ruamel",
    "shelve",
    "tarfile",
    "telnetlib",
    "xmlrpc",
    "yaml",
    "zipfile",
}
"""Modules that run what they read, unpack archives, or talk in clear."""
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
XML = {"xml", "lxml", "defusedxml"}
READS_XML = {
    "brokerd/objects/validation.py",  # expat without DOCTYPE; lxml aside, for XSD
    "brokerd/dynamic_routing/route_service.py",  # after a check by validation
    "brokerd/dynamic_routing/requests.py",  # escapes what it writes
    "brokerd/events/payload.py",  # escapes what it writes
    "brokerd/bench/drawing.py",  # escapes what it writes
}
SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|DROP|ALTER|PRAGMA|ATTACH)\b")
WRITES_SQL = ("brokerd/storage/", "brokerd/reports/", "migrations/", "spark_jobs/")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports(path: Path) -> set[str]:
    found = set[str]()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_there_are_sources() -> None:
    assert len(SOURCES) > 300


@pytest.mark.rule("SX-13")
def test_no_module_reads_what_runs() -> None:
    assert [name_of(path) for path in SOURCES if imports(path) & DANGEROUS] == []
    called = [
        f"{name_of(path)}:{node.lineno} {node.func.id}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in RUNS_TEXT
    ]
    assert called == []
    assert {name_of(path) for path in SOURCES if imports(path) & XML} <= READS_XML


@pytest.mark.rule("SX-13", "SX-14")
def test_the_text_of_a_statement_has_nothing_from_outside() -> None:
    """Values are bound. What stands in a text is a name or text of the module's own: a constant, a
    column of a table, what another function of the store has put together; never a field."""
    assert [one for path in SOURCES for one in strange_statements(path)] == []


def strange_statements(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.JoinedStr):
            plain = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "?" for part in node.values
            )
            if not SQL.search(plain):
                continue
            if not name_of(path).startswith(WRITES_SQL):
                yield f"{name_of(path)}:{node.lineno} SQL outside storage"
            for part in node.values:
                if isinstance(part, ast.FormattedValue) and not is_own(part):
                    yield f"{name_of(path)}:{node.lineno} {ast.unparse(part.value)}"


def is_own(part: ast.FormattedValue) -> bool:
    """Whether an interpolated value can be a piece of SQL, and not a value."""
    if part.conversion != -1:
        return False  # !r and !s are for values
    match part.value:
        case ast.Attribute(attr=("name" | "value"), value=ast.Name(id=of)):
            return of in OWN_NAMES
        case ast.Attribute(attr=name, value=ast.Name()) if name.isupper():
            return True  # a constant of another module
        case ast.Attribute(attr="value", value=ast.Attribute(value=ast.Name(id=kind))):
            return kind[:1].isupper()  # State.CLOSED.value
        case ast.Attribute() | ast.Subscript():
            return False
        case _:
            return True


OWN_NAMES = {"table", "column", "index"}
"""What is declared in `storage.tables`, and has no name from outside."""


@pytest.mark.rule("SX-13")
def test_a_field_in_a_statement_would_be_found() -> None:
    for text, own in (
        ("f'DELETE FROM {table}'", True),
        ("f'SELECT {tables.MAGIC}'", True),
        ("f'SELECT {queue.name}'", False),
        ("f'SELECT {row[0]}'", False),
        ("f'SELECT {name!r}'", False),
    ):
        (part,) = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FormattedValue))
        assert is_own(part) is own, text


@pytest.mark.rule("SX-19")
def test_no_broad_except_hides_an_error() -> None:
    """It raises again, or names the error and passes it on: to a log, a result, a caller."""
    hiding = [
        f"{name_of(path)}:{node.lineno}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type) and not passes_on(node)
    ]
    assert hiding == []


def passes_on(handler: ast.ExceptHandler) -> bool:
    inside = [one for line in handler.body for one in ast.walk(line)]
    return any(
        isinstance(one, ast.Raise)
        or (isinstance(one, ast.Name) and one.id == handler.name)
        or (isinstance(one, ast.Attribute) and one.attr in ("exception", "print_exc"))
        for one in inside
    )


def is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    broad = ("Exception", "BaseException")
    return any(isinstance(one, ast.Name) and one.id in broad for one in kinds)
