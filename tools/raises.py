"""Check of the docstrings of the public API: each must name the errors that can be raised.

A docstring has a section `Raises:` (`Raises, when ...:` if the errors are not raised at the call)
with the errors and their conditions, or the line `Raises: nothing.`. Every public function and
method needs one, and each property, special method and constructor that has a `raise` of its own.
The section of a constructor may be in the docstring of its class.

Reads:  the modules below, without importing them.      Fails: with a line for each fault.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PUBLIC: Final = ("brokerd/app", "brokerd/client", "brokerd/sync.py", "brokerd/connecting.py")
_SECTION = re.compile(r"^Raises(, [^:\n]+)?:\n +\w|^Raises: nothing\.$", re.MULTILINE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(root: Path = ROOT) -> list[Path]:
    """Return the modules that are checked."""
    found: list[Path] = []
    for name in PUBLIC:
        path = root / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def problems(path: Path, text: str) -> Iterator[str]:
    """Yield a line for each callable of a module whose docstring has no section `Raises:`."""
    for where, function, holder in _callables(ast.parse(text).body):
        if _is_exempt(function):
            continue
        doc = ast.get_docstring(function) or ""
        if function.name == "__init__" and holder is not None:
            doc = f"{doc}\n{ast.get_docstring(holder) or ''}"
        if not _SECTION.search(doc):
            yield f"{path}:{function.lineno}: {where} does not say what it raises"


def _callables(
    body: Iterable[ast.stmt], holder: ast.ClassDef | None = None
) -> Iterator[tuple[str, _Function, ast.ClassDef | None]]:
    for one in body:
        if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
            yield from _callables(one.body, one)
        elif isinstance(one, _Function):
            yield f"{holder.name}.{one.name}" if holder else one.name, one, holder


def _is_exempt(function: _Function) -> bool:
    marks = {one.id for one in function.decorator_list if isinstance(one, ast.Name)}
    if "overload" in marks:
        return True
    is_special = function.name.startswith("__") and function.name.endswith("__")
    if "property" in marks or is_special:
        return not any(isinstance(one, ast.Raise) for one in ast.walk(function))
    return function.name.startswith("_")


def main() -> int:
    """Print the callables without a section; return 1 if there are any."""
    found = [
        line
        for path in modules()
        for line in problems(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
    ]
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
