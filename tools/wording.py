"""Wording check: first words of docstrings and names of methods, as `docs/internals/style.md` asks.

Reads:  the modules under brokerd, spark_jobs, tools and migrations.
Fails:  if a docstring begins with a clause or a pronoun in place of a subject, or if a function of
        brokerd has a name that says nothing about what it does.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("brokerd", "spark_jobs", "tools", "migrations")
RIDDLES = re.compile(
    r"(?:Whoever|Whose|Whom|Who|What|Its|It|They|These|Those|This|That|The same|The other|Of"
    r"|So many|So much|Such|Ones|Told|Asked|Nobody|Nothing)\b"
)
"""First words that no docstring may have: clauses without a subject, and pronouns."""
CLAUSES = re.compile(r"(?:Whether|Where|When|Which|How|As|One)\b")
"""First words that no function's docstring may have; write "Return whether …" instead."""
VAGUE = re.compile(
    r"_*(?:asked|befall|go_on|heard?|insist|judge|let_go|look|of|said|say|take|tell|told)_*"
)
"""Names that no function may have, with or without a leading underscore: a verb of the trade says
more (`dequeue`, `claim`, `notify`, `report`, `poll`, `evaluate`, `release`, `resume`)."""


def check(path: Path, *, names: bool) -> Iterator[tuple[int, str]]:
    """Yield line and text of each fault of a module; `names`: check names of functions, too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and names:
            yield from vague_name(node.lineno, node.name)
        for line, text, describes_action in docstrings(node):
            if begins_badly(text, acts=describes_action):
                yield line, text.splitlines()[0]


def vague_name(line: int, name: str) -> Iterator[tuple[int, str]]:
    """Yield line and complaint if the name of a function is vague."""
    if VAGUE.fullmatch(name):
        yield line, f"def {name}: the name does not say what it does"


def docstrings(node: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of each docstring right below a node, and whether of a function."""
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return
    for one in body:
        if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
            continue
        if isinstance(one.value.value, str):
            yield one.lineno, one.value.value.strip(), acts(node) and one is body[0]


def begins_badly(text: str, *, acts: bool) -> bool:
    """Return whether a docstring begins badly; `acts`: whether it is that of a function."""
    return bool(RIDDLES.match(text) or (acts and CLAUSES.match(text)))


def acts(node: ast.AST) -> bool:
    """Return whether a definition is a function, but not a property, which names a value."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any("property" in ast.unparse(one) for one in node.decorator_list)


def found(root: Path) -> list[str]:
    """Return a line for each fault under a folder, with its place."""
    return [
        f"{path.relative_to(root)}:{line}: {text}"
        for part in PARTS
        for path in sorted((root / part).rglob("*.py"))
        for line, text in check(path, names=part == "brokerd")
    ]


def main() -> int:
    """Print the faults; return the exit status."""
    wrong = found(ROOT)
    for one in wrong:
        print(one, file=sys.stderr)
    if wrong:
        print("see docs/internals/style.md, Words and Sentences", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
