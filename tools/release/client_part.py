"""Client part: which files are the client's, and the two wheels that one wheel is parted into.

Reads:  the sources in a wheel, and `[tool.brokerd.client]` of pyproject.toml.
Calls:  `ast`, to find what a module imports; nothing of brokerd is imported.
Never:  changes a file of brokerd: `brokerd-client` and `brokerd` have no file in common, and
        together they have what the wheel had (MAN-20).
"""

import ast
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.release.wheel_files import Wheel

PACKAGE = "brokerd"
CLIENT = "brokerd-client"


def modules_of_client(files: Mapping[str, bytes], without: list[str]) -> list[str]:
    """Return the paths of all modules that `import brokerd` can load, now or in a function.

    `without`: packages that a client does without. What they import is not looked at.
    """
    found: set[str] = set()
    pending = [PACKAGE]
    while pending:
        name = pending.pop()
        path = _path(name, files)
        if path is None or path in found or _is_in(name, without):
            continue
        found.add(path)
        pending += ancestors(name)
        pending += [one for one in imports(files[path]) if one.split(".")[0] == PACKAGE]
    return sorted(found)


def imports(source: bytes) -> Iterator[str]:
    """Yield the names that a module imports outside `if TYPE_CHECKING`."""
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def ancestors(name: str) -> list[str]:
    """Return the packages around a module."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _path(name: str, files: Mapping[str, bytes]) -> str | None:
    stem = name.replace(".", "/")
    return next((one for one in (f"{stem}/__init__.py", f"{stem}.py") if one in files), None)


def _is_in(name: str, packages: list[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in packages)


def client_of(whole: Wheel, settings: Mapping[str, Any]) -> Wheel:
    """Return the wheel of the client alone."""
    names = [*modules_of_client(whole.files, settings["without"]), f"{PACKAGE}/py.typed"]
    own = {canonicalize_name(one) for one in settings["dependencies"]}
    extras = list(settings["extras"])
    instead = {"Name": CLIENT, "Summary": settings["description"]}
    fields = [
        (name, instead.get(name, value))
        for name, value in whole.fields
        if (name != "Provides-Extra" or value in extras)
        and (name != "Requires-Dist" or _is_needed(value, own, extras))
    ]
    info = {name: data for name, data in whole.info.items() if name.startswith("licenses/")}
    return Wheel(
        name=CLIENT,
        version=whole.version,
        tags=["py3-none-any"],
        files={name: whole.files[name] for name in names},
        info={"METADATA": whole.metadata_with(fields), **info},
        generator=whole.generator,
    )


def rest_of(whole: Wheel, client: Wheel) -> Wheel:
    """Return the wheel of everything else, which requires the client of the same version."""
    first = next(at for at, (name, _) in enumerate(whole.fields) if name == "Requires-Dist")
    fields = list(whole.fields)
    fields.insert(first, ("Requires-Dist", f"{CLIENT}=={whole.version}"))
    return replace(
        whole,
        files={name: data for name, data in whole.files.items() if name not in client.files},
        info={**whole.info, "METADATA": whole.metadata_with(fields)},
    )


def _is_needed(requirement: str, own: Set[str], extras: list[str]) -> bool:
    one = Requirement(requirement)
    marker = str(one.marker or "")
    if "extra ==" not in marker:
        return canonicalize_name(one.name) in own
    return any(f'extra == "{extra}"' in marker for extra in extras)
