"""The cores decide from values alone: nothing in them waits, reads a clock or a file, or draws.

What is checked is the text of each module: what it imports when it runs, what it calls, and that
the values it takes and gives cannot be changed by whoever has them.
"""

import ast
import importlib
from pathlib import Path

import msgspec
import pytest

import brokerd

ROOT = Path(brokerd.__file__).parent
CORES = sorted(
    str(path.relative_to(ROOT.parent).with_suffix("")).replace("/", ".")
    for path in [
        *(ROOT / "protocol").glob("*.py"),
        *(ROOT / "routing").glob("*.py"),
        ROOT / "admin" / "objects" / "merge.py",
        ROOT / "admin" / "objects" / "plan.py",
        ROOT / "activation" / "monitor.py",
        ROOT / "activation" / "decisions.py",
        ROOT / "broker" / "deadlock.py",
        ROOT / "broker" / "poison.py",
    ]
    if path.stem != "__init__"
)
WAITS = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Global)
FORBIDDEN_MODULES = frozenset(
    {"asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "select"}
    | {"selectors", "signal", "socket", "sqlite3", "sqlalchemy", "ssl", "structlog", "subprocess"}
    | {"tempfile", "threading", "time", "urllib", "uvloop", "uuid"}
)
FORBIDDEN_NAMES = {
    "brokerd.clock": {"Clock", "SystemClock"},
    "brokerd.ids": {"IdSource", "RandomIds", "SeededIds"},
    "datetime": {"datetime", "date"},
    "random": {"choice", "randint", "random", "shuffle", "uniform"},
}
CALLS = frozenset({"open", "print", "input", "exec", "eval"})


def running(tree):
    """The nodes of a module that do something; what is imported for types alone does not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from running(node)


def impurities(source):
    """Every construct of a module that makes it more than a function of its arguments."""
    found = []
    for node in running(ast.parse(source)):
        if isinstance(node, WAITS):
            found.append(type(node).__name__)
        elif isinstance(node, ast.Import):
            names = {one.name.partition(".")[0] for one in node.names}
            found += sorted(names & (FORBIDDEN_MODULES | {"random"}))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.partition(".")[0] in FORBIDDEN_MODULES:
                found.append(module)
            wrong = {one.name for one in node.names} & FORBIDDEN_NAMES.get(module, set())
            found += sorted(f"{module}.{name}" for name in wrong)
        elif isinstance(node, ast.Call) and (name := getattr(node.func, "id", "")) in CALLS:
            found.append(f"{name}()")
    return found


@pytest.mark.rule("HK-2")
@pytest.mark.parametrize("name", CORES)
def test_a_core_does_nothing_but_decide(name):
    path = ROOT.parent.joinpath(*name.split(".")).with_suffix(".py")
    assert impurities(path.read_text()) == []


@pytest.mark.rule("HK-2")
@pytest.mark.parametrize("name", CORES)
def test_the_values_of_a_core_stay_as_they_are(name):
    module = importlib.import_module(name)
    values = [
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, msgspec.Struct) and one.__module__ == name
    ]
    assert [one.__name__ for one in values if not one.__struct_config__.frozen] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import time\n", ["time"]),
        ("from os.path import join\n", ["os.path"]),
        ("from brokerd.clock import Clock, Instant\n", ["brokerd.clock.Clock"]),
        ("async def step():\n    await later\n", ["AsyncFunctionDef", "Await"]),
        ("def step():\n    global count\n    print(count)\n", ["Global", "print()"]),
        ("if TYPE_CHECKING:\n    from brokerd.clock import Clock\n", []),
        ("from random import Random\nfrom brokerd.clock import Instant\n", []),
    ],
)
def test_the_check_sees_what_a_core_may_not_do(text, found):
    assert impurities(text) == found
