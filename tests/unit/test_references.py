"""What documents, docstrings and messages name exists: files of the repository, and commands."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest

from brokerd.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("brokerd", "docs", "tests", "spark_jobs", "tools", "migrations", "config", "deploy")
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tests").rglob("*.md"),
        *(one for one in (ROOT / "config").iterdir() if one.is_file()),
        *(one for one in (ROOT / "deploy").rglob("*") if one.is_file() and one.suffix != ".py"),
    ]
)
SOURCES = sorted(
    path
    for part in ("brokerd", "spark_jobs", "tools", "migrations")
    for path in (ROOT / part).rglob("*.py")
)
NAMED = re.compile(r"(?<![\w./*<-])((?:[\w.-]+/)*[\w-]+\.(?:md|py))(?![\w*-])")
MADE_UP = frozenset(
    {
        "alone.py",
        "assessment.md",
        "chain.py",
        "collect.py",
        "courier.py",
        "ledger.py",
        "packing_queue_handler.py",
        "replay.py",
        "shop.py",
        "soak.py",
        "test_warehouse.py",
        "ticking.py",
        "warehouse.py",
    }
)
"""Files of the reader's own, in examples."""
CALL = re.compile(r"(?<!install )\bbrokerd((?: [a-z][a-z-]*)+)([^`\n;]*)")
OPTION = re.compile(r"(?<=[\s\[(])--[a-z][a-z-]*")


@cache
def files() -> frozenset[str]:
    """Every path of the repository, and each end of it that begins after a slash."""
    found = [path.relative_to(ROOT) for part in PARTS for path in (ROOT / part).rglob("*")]
    found += [path.relative_to(ROOT) for path in ROOT.iterdir()]
    ends = ("/".join(path.parts[at:]) for path in found for at in range(len(path.parts)))
    return frozenset(ends)


def above(name: str) -> str:
    """Return the path that a link leads to, without the steps up to the common folder."""
    return re.sub(r"^(?:\.\./)+", "", name)


def docstrings_and_comments(path: Path) -> str:
    comments = re.findall(r"#.*", path.read_text())
    return "\n".join([*(one for _, one in strings(path)), *comments])


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each string; what is put into one at run time is left as braces."""
    inside = set[int]()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(one) for one in node.values}
            whole = (one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
            yield node.lineno, "".join(map(str, whole))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.lineno, node.value


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_names_files_that_exist(path: Path) -> None:
    named = set(NAMED.findall(path.read_text())) - MADE_UP
    missing = {one for one in named if above(one) not in files()}
    assert missing == set()


def test_docstrings_and_comments_name_files_that_exist() -> None:
    missing = {
        (str(path.relative_to(ROOT)), one)
        for path in SOURCES
        for one in set(NAMED.findall(docstrings_and_comments(path))) - MADE_UP
        if above(one) not in files()
    }
    assert missing == set()


def test_each_docstring_follows_what_it_is_about() -> None:
    """Two in a row are one that belongs to an attribute further up."""
    wrong = [
        f"{path.relative_to(ROOT)}:{second.lineno}"
        for path in SOURCES
        for node in ast.walk(parsed(path))
        for body in (getattr(node, "body", None),)
        if isinstance(body, list)
        for first, second in pairwise(body)
        if is_text(first) and is_text(second)
    ]
    assert wrong == []


def is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def test_nothing_cites_rules_that_are_not_in_the_repository() -> None:
    citing = [
        str(path.relative_to(ROOT))
        for path in [*DOCUMENTS, *SOURCES]
        if re.search(r"house.style", path.read_text(), re.IGNORECASE)
    ]
    assert citing == []


def wrong_calls(text: str, *, prose: bool) -> Iterator[str]:
    """Calls of `brokerd` in a text that its commands do not know.

    In prose a word behind the name may be a verb; it is taken for a command where one is."""
    for words, rest in CALL.findall(text):
        command: click.Command = cli
        context = click.Context(cli)
        said = words.split()
        known: list[str] = []
        for word in said:
            if not isinstance(command, click.Group):
                break
            found = command.get_command(context, word)
            if found is None:
                if known or not prose or set(said[1:2]) & verbs():
                    yield f"brokerd {' '.join([*known, word])}"
                command = cli
                break
            command = found
            known.append(word)
        if known and command is not cli:
            options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
            own = re.split(r"[.,:](?:\s|$)|\bor\b|\bbrokerd\b", re.sub(r'"[^"]*"', "", rest))[0]
            for option in OPTION.findall(own):
                if option not in options | {"--help"}:
                    yield f"brokerd {' '.join(known)} {option}"


@cache
def verbs() -> frozenset[str]:
    """The second words of commands: what follows a noun is one of them."""
    context = click.Context(cli)
    nouns = (cli.get_command(context, name) for name in cli.list_commands(context))
    groups = (one for one in nouns if isinstance(one, click.Group))
    return frozenset(name for one in groups for name in one.list_commands(context))


def test_a_wrong_call_is_seen() -> None:
    assert list(wrong_calls("brokerd dialog list --state X", prose=True)) == ["brokerd dialog list"]
    assert list(wrong_calls("brokerd dialogs ls", prose=True)) == ["brokerd dialogs"]
    assert list(wrong_calls("brokerd dialog ls --stat X", prose=True)) == [
        "brokerd dialog ls --stat"
    ]
    assert list(wrong_calls("brokerd keeps them; brokerd dialog ls", prose=True)) == []


def test_messages_and_docstrings_name_commands_that_exist() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {call}"
        for path in SOURCES
        for line, text in strings(path)
        for call in wrong_calls(text, prose=True)
    ]
    assert wrong == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_names_commands_that_exist(path: Path) -> None:
    text = path.read_text()
    code = re.findall(r"`[^`\n]+`", text) + re.findall(r"(?m)^(?:#\s+)?(?:\$ )?brokerd .*$", text)
    wrong = [call for one in code for call in wrong_calls(one, prose=not one.startswith("`"))]
    assert wrong == []
