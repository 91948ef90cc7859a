"""Mutants of a module: which mistakes are planted, and where none is."""

import pytest

from tools.mutation.operators import Mutant, mutants


def changed(source: str) -> set[tuple[str, str]]:
    return {(one.kind, one.name) for one in mutants(f"def f(a, b):\n    {source}\n")}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("return a < b", {("off by one", "a < b => a <= b")}),
        ("return a is None", {("negated", "a is None => a is not None")}),
        ("return not a", {("negated", "not a => (a)")}),
        ("return a + b", {("operator swapped", "a + b => (a - b)")}),
        ("return 7", {("off by one", "7 => 8")}),
        ("return True", {("negated", "True => False")}),
        ("a.left -= b", {("statement deleted", "a.left -= b => pass")}),
        ("a.left = b", {("statement deleted", "a.left = b => pass")}),
        ("a.close()", {("statement deleted", "a.close() => pass")}),
        ("if a: return b", {("negated", "a => (not (a))")}),
        (
            "return a and b",
            {
                ("term dropped", "a and b => (b)"),
                ("term dropped", "a and b => (a)"),
                ("operator swapped", "a and b => (a or b)"),
            },
        ),
    ],
)
def test_the_mistakes_in_a_statement(source: str, expected: set[tuple[str, str]]) -> None:
    assert changed(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "raise ValueError(a + 1)",
        "assert a < b",
        "a.log.info('seen', b + 1)",
        "b: Literal[1] = a",
        "return f'{a + 1}'",
        "b = a",
    ],
)
def test_no_mistake_is_planted_beside_the_work(source: str) -> None:
    assert changed(source) == set()


def test_what_is_outside_of_functions_or_only_for_type_checkers_stays() -> None:
    source = "LIMIT = 7\nif TYPE_CHECKING:\n    def g(a): return a + 1\nclass C:\n    size = 3\n"
    assert mutants(source) == []


def test_a_mutant_has_one_mistake_and_the_rest_as_it_was() -> None:
    source = 'class C:\n    def f(self, a):\n        x = "ä"; return a[0] < 3  # why\n'
    found = {one.name: one for one in mutants(source)}
    assert {*found} == {"0 => 1", "3 => 4", "a[0] < 3 => a[0] <= 3"}
    assert found["3 => 4"].source == source.replace("3", "4")
    assert (found["0 => 1"].line, found["0 => 1"].last_line) == (3, 3)


def test_a_mistake_over_several_lines_names_all_of_them() -> None:
    source = "def f(a, b):\n    return (\n        a\n        and b  # why\n    )\n"
    (one, *_) = [one for one in mutants(source) if one.after == "(b)"]
    assert isinstance(one, Mutant)
    assert (one.line, one.last_line) == (3, 4)
    assert one.source == "def f(a, b):\n    return (\n        (b)  # why\n    )\n"
