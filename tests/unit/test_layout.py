"""The layout of the source tree: the size of modules, and imports without circles."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import brokerd

ROOT = Path(brokerd.__file__).parent
MOST_LINES = 600
LISTS = {"errors.py", "admin/views/columns.py"}
"""Modules that are one long list, in which nobody gets lost."""


def test_no_module_is_longer_than_a_reader_holds_in_mind() -> None:
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in ROOT.rglob("*.py")
    }
    assert {name for name, count in lines.items() if count > MOST_LINES} == LISTS


def circle(imports: dict[str, set[str]]) -> list[str]:
    """A circle of modules that import each other, or nothing."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("brokerd", exclude_type_checking_imports=False)
    packages = {one for one in graph.modules if graph.find_children(one)}
    imports = {
        one: graph.find_modules_directly_imported_by(one) - packages
        for one in graph.modules - packages
    }
    assert len(imports) > 400
    assert circle(imports) == []


@pytest.mark.parametrize(
    ("imports", "found"),
    [({"a": {"b"}, "b": {"a"}}, {"a", "b"}), ({"a": {"b"}, "b": {"c"}}, set())],
)
def test_a_circle_would_be_found(imports: dict[str, set[str]], found: set[str]) -> None:
    assert set(circle(imports)) == found
