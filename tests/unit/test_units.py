"""Numbers and lines as people read them, and that no message has a way of its own."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import brokerd
from brokerd.cli.output import in_one_line
from brokerd.units import counted

SOURCES = sorted(Path(brokerd.__file__).parent.rglob("*.py"))
ONE_LINE = {"say", "warn"}
"""They show a line end as an escape (SX-14)."""
BY_HAND = re.compile(r"""'' if \w.* == 1 else 's'|"1 \w.*" if .* == 1 else f""")


def texts(call: ast.Call) -> Iterator[str]:
    """The texts that are written in a call."""
    for part in ast.walk(call):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


@pytest.mark.rule("SX-14")
def test_no_command_says_two_lines_as_one() -> None:
    found = [
        f"{path.name}:{node.lineno}"
        for path in SOURCES
        if path.parent.name == "cli"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ONE_LINE
        and any("\n" in text for text in texts(node))
    ]
    assert found == []


def test_a_message_of_several_lines_fits_into_one() -> None:
    assert in_one_line("it is wrong\nline 1: a\nline 2: b") == "it is wrong: line 1: a; line 2: b"
    assert in_one_line("it is wrong") == "it is wrong"
    assert not in_one_line("")


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (0, ("group",), "0 groups"),
        (1, ("group",), "1 group"),
        (2, ("group",), "2 groups"),
        (1, ("group waits", "groups wait"), "1 group waits"),
        (3, ("group waits", "groups wait"), "3 groups wait"),
    ],
)
def test_things_are_counted(number: int, words: tuple[str, ...], text: str) -> None:
    assert counted(number, *words) == text


def test_no_other_code_chooses_between_one_and_several() -> None:
    found = [
        f"{path.name}: {line.strip()}"
        for path in SOURCES
        for line in path.read_text(encoding="utf-8").splitlines()
        if BY_HAND.search(line)
    ]
    assert found == []
