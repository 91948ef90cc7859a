"""All reference pages: their names, the functions that make them, and the check for stale ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.reference import (
    commands,
    errors,
    events,
    exit_statuses,
    findings,
    lake,
    metrics,
    permissions,
    python_api,
    settings,
    views,
)

ROOT: Final = Path(__file__).resolve().parents[2]
DIRECTORY: Final = Path("docs/reference")
PAGES: Final[dict[str, Callable[[], str]]] = {
    one.FILE: one.render
    for one in (
        *(settings, commands, permissions, python_api),
        *(views, events, metrics, lake, errors, findings, exit_statuses),
    )
}
"""Map of file names to the functions that return their text."""


def stale(root: Path = ROOT) -> list[str]:
    """Return the names of the pages that are missing or differ from the text made now."""
    return [name for name, render in PAGES.items() if _read(root / DIRECTORY / name) != render()]


def write(root: Path = ROOT) -> list[str]:
    """Write the missing and stale pages; return their names."""
    (root / DIRECTORY).mkdir(parents=True, exist_ok=True)
    found = stale(root)
    for name in found:
        (root / DIRECTORY / name).write_text(PAGES[name](), encoding="utf-8")
    return found


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
