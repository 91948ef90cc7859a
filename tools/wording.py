"""Wording check: the first words of docstrings, against `docs/internals/style.md`.

Reads:  the docstrings under brokerd, spark_jobs, tools and migrations, and `tools/wording.toml`,
        which has the number of those of each package that still begin badly.
Fails:  if a package has more of them than allowed, or fewer: then lower its number in the file.
"""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("brokerd", "spark_jobs", "tools", "migrations")
ALLOWED = Path("tools/wording.toml")
RIDDLES = re.compile(
    r"(?:Whoever|Whose|Whom|Who|What|Its|It|They|These|Those|This|That|The same|The other|Of"
    r"|So many|So much|Such|Ones|Told|Asked|Nobody|Nothing)\b"
)
"""First words that no docstring may have: clauses without a subject, and pronouns."""
CLAUSES = re.compile(r"(?:Whether|Where|When|Which|How|As|One)\b")
"""First words that no function's docstring may have: it begins with an order ("Return whether …").
"""


def docstrings(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of each docstring of a module, and whether it is that of a function."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for one in body:
            if (
                isinstance(one, ast.Expr)
                and isinstance(one.value, ast.Constant)
                and isinstance(one.value.value, str)
            ):
                yield one.lineno, one.value.value, acts(node) and one is body[0]


def acts(node: ast.AST) -> bool:
    """Return whether a definition is a function, but not a property, which names a value."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any("property" in ast.unparse(one) for one in node.decorator_list)


def package(path: Path) -> str:
    """Return the folder that counts a file: `brokerd/broker`, or `brokerd` for a loose module."""
    return "/".join(path.parts[: min(2, len(path.parts) - 1)])


def found(root: Path) -> dict[str, list[str]]:
    """Return the places of docstrings that begin badly, by package."""
    bad: dict[str, list[str]] = defaultdict(list)
    for part in PARTS:
        for path in sorted((root / part).rglob("*.py")):
            short = path.relative_to(root)
            for line, text, is_action in docstrings(path):
                begins = text.lstrip()
                if RIDDLES.match(begins) or (is_action and CLAUSES.match(begins)):
                    first = text.strip().splitlines()[0]
                    bad[package(short)].append(f"{short}:{line}: {first}")
    return bad


def complaints(bad: dict[str, list[str]], allowed: dict[str, int]) -> list[str]:
    """Return a line for each package whose count is not the allowed one."""
    wrong = []
    for name in sorted(bad.keys() | allowed.keys()):
        count, most = len(bad.get(name, ())), allowed.get(name, 0)
        if count > most:
            wrong.append(f"{name}: {count} docstrings begin badly, {most} may")
        elif count < most:
            wrong.append(f"{name}: {count} docstrings begin badly, so write {count} in {ALLOWED}")
    return wrong


def main(argv: list[str]) -> int:
    """Check the counts, or with `--list [PACKAGE]` print the docstrings; return the exit status."""
    bad = found(ROOT)
    if argv[:1] == ["--list"]:
        for name, places in sorted(bad.items()):
            if argv[1:] in ([], [name]):
                print("\n".join(places))
        return 0
    wrong = complaints(bad, tomllib.loads((ROOT / ALLOWED).read_text())["allowed"])
    for one in wrong:
        print(one, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
