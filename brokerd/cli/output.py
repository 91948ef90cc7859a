"""Output of commands: tables on a terminal, plain columns elsewhere, JSON on request.

Never:  lets a printed value move the cursor: control characters are made visible (SX-14).
"""

import shlex
import sys
from collections.abc import Sequence
from datetime import timedelta

import click
import msgspec

from brokerd.clock import SECOND, Instant, dated
from brokerd.units import printable, printable_json, show_duration


def in_one_line(message: str) -> str:
    """Return a message of several lines as one line, for `print_line` and `warn`."""
    first, *details = message.splitlines() or [""]
    return f"{first}: {'; '.join(details)}" if details else first


def quoted(word: str) -> str:
    """Return a word quoted for a shell, without characters that can move the cursor."""
    return shlex.quote(printable(word))


def print_line(text: str = "") -> None:
    """Print one line on standard output."""
    click.echo(printable(text))


def warn(text: str) -> None:
    """Print one line on standard error."""
    click.echo(printable(f"brokerd: {text}"), err=True)


def print_json(value: object, *, indent: int = 2) -> None:
    """Print a value as JSON, on one line unless indented; the form is stable.

    Every command prints an instant as a text such as 2026-01-31T09:00:00.250000Z, and a character
    that could change the look of the output as an escape of JSON.
    """
    text = msgspec.json.encode(dated(msgspec.to_builtins(value)))
    click.echo(printable_json(msgspec.json.format(text, indent=indent) if indent else text))


def print_rows(rows: Sequence[object], after: str | None = None) -> None:
    """Print a list as JSON: `rows`, and in `next` the cursor for `--after`, or null."""
    print_json({"rows": rows, "next": after})


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under a title: with lines on a terminal, as aligned plain text elsewhere."""
    title, columns = printable(title), [printable(column) for column in columns]
    cells = [[printable("" if cell is None else str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(title, columns, cells)
        return
    click.echo(title)
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in [list(columns), *cells]:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo(f"  {text}".rstrip())


def ago(at: Instant | None, now: Instant) -> str:
    """Return how long ago an instant was, in the largest unit; a dash for None."""
    if at is None:
        return "-"
    seconds = max(0, now - at) // SECOND
    for size in (86_400, 3_600, 60):
        if seconds >= size:
            return show_duration(timedelta(seconds=seconds // size * size))
    return f"{seconds}s"


def _rich_table(title: str, columns: Sequence[str], cells: list[list[str]]) -> None:
    from rich import box  # noqa: PLC0415  # takes a tenth of a second, and only tables need it
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)
