"""Production code reads time through the clock alone (CLK-4)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import brokerd

HOME = Path(brokerd.__file__).parent
BANNED = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns"},
    "asyncio": {"sleep"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
MEASURED_FROM_OUTSIDE = ("bench/", "testing/", "activation/child_guard.py")
"""What measures a daemon, stands for its world or outlives it may have a time of its own."""


def readings(tree: ast.AST) -> Iterator[str]:
    """Where it reads the machine's time or sleeps."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if node.attr in BANNED.get(name, ()):
                yield f"{name}.{node.attr} in line {node.lineno}"
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                if one.name in BANNED.get(node.module or "", ()):
                    yield f"{node.module}.{one.name} in line {node.lineno}"


@pytest.mark.rule("CLK-4")
def test_only_the_clock_reads_time() -> None:
    found = {}
    for path in sorted(HOME.rglob("*.py")):
        name = path.relative_to(HOME).as_posix()
        if name != "clock.py" and not name.startswith(MEASURED_FROM_OUTSIDE):
            lines = list(readings(ast.parse(path.read_text(encoding="utf-8"))))
            if lines:
                found[name] = lines
    assert found == {}


@pytest.mark.rule("CLK-4")
@pytest.mark.parametrize(
    "text",
    [
        "import time; time.monotonic()",
        "from time import monotonic",
        "import datetime; datetime.datetime.now()",
        "await_ = asyncio.sleep(1)",
    ],
)
def test_a_reading_would_be_seen(text: str) -> None:
    assert list(readings(ast.parse(text)))
