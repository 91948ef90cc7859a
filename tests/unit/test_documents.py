"""What documents show is right: Python parses, TOML is accepted, members are as they are."""

import ast
import inspect
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import brokerd
from brokerd.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OBJECTS = frozenset(
    {
        "broker",
        "contract",
        "event_notification",
        "message_type",
        "priority",
        "queue",
        "route",
        "service",
    }
)
"""What only a file of objects has."""
OTHERS = (frozenset({"activator", "application"}), frozenset({"dns"}), frozenset({"slo"}))
"""What the files of an activator, of the dynamic routing service and of service levels have."""
MOST_LINES = 200
GENERATED = "python.md"
"""Its blocks are signatures, and a test holds it against the code."""


def blocks(language: str) -> list[object]:
    """Return the text of each block in that language, with the place of its first line as id."""
    params: list[object] = []
    for path in DOCUMENTS:
        if path.name == GENERATED:
            continue
        text = path.read_text()
        for found in re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, found.start(1)) + 1
            params.append(pytest.param(found[1], id=f"{path.relative_to(ROOT)}:{line}"))
    return params


@pytest.mark.parametrize("source", blocks("python"))
def test_a_block_of_python_compiles(source: str) -> None:
    compile(source, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


@pytest.mark.rule("BI-C5")
@pytest.mark.parametrize("source", blocks("toml"))
def test_a_block_of_toml_is_accepted(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `config check`, where it is settings or objects, with what it names beside it."""
    keys = tomllib.loads(source).keys()
    if any(keys & other for other in OTHERS):
        return
    path = tmp_path / ("b.objects.toml" if keys & OBJECTS else "b.toml")
    path.write_text(source)
    (tmp_path / "order.schema.json").write_text("{}")
    (tmp_path / "warehouse.py").write_text("async def app(session): ...")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["config", "check", "--file-only", str(path)])
    assert done.exit_code == 0, done.output


@pytest.mark.rule("SDK-10")
@pytest.mark.parametrize(
    ("kind", "title", "prefix"),
    [(brokerd.App, "`App(service)`", ""), (brokerd.Ctx, "`ctx`", "ctx.")],
)
def test_each_member_of_an_app_and_its_ctx_is_documented(
    kind: type, title: str, prefix: str
) -> None:
    text = (ROOT / "docs/reference/app.md").read_text()
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    cells = " ".join(row.split("|")[1] for row in section.splitlines() if row.startswith("| `"))
    shown = set(re.findall(rf"`(?:await )?{re.escape(prefix)}(\w+)", cells))
    members = {name for name in dir(kind) if not name.startswith("_")}
    members |= {name for name in fields(kind) if not name.startswith("_")}
    assert shown == members - {"service"}


def fields(kind: type) -> set[str]:
    """Return the names of what constructors of a class and its bases assign to `self`."""
    found: set[str] = set()
    for base in kind.__mro__[:-1]:
        constructor: Callable[..., None] | None = vars(base).get("__init__")
        if constructor is not None:
            found |= set(re.findall(r"self\.(\w+) = ", inspect.getsource(constructor)))
    return found


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES


def test_each_page_can_be_reached_from_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text()
    linked = {(ROOT / "docs" / one).resolve() for one in re.findall(r"\]\(([^)#]+)", index)}
    pages = {path for path in (ROOT / "docs").rglob("*.md") if path.name != "index.md"}
    assert pages - linked == set()
