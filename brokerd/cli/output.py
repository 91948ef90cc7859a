"""Output of commands: tables and colours on a terminal, plain columns elsewhere, JSON on request.

Never:  lets a printed value move the cursor: control characters are made visible (SX-14).
"""

import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

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


def print_line(text: str = "", *, colour: str = "") -> None:
    """Print one line on standard output; `colour`: the one that it has on a terminal."""
    click.echo(painted(printable(text), colour))


def print_verdict(lead: str, colour: str, text: str, *, indent: int = 0) -> None:
    """Print a line whose first words have a colour, wrapped to the width of a terminal.

    `indent`: columns by which the following lines are indented."""
    lead, lines = printable(lead), [printable(text)]
    if sys.stdout.isatty():
        width = max(40, terminal_width())
        lines = textwrap.wrap(
            f"{lead}{lines[0]}",
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines[0] = lines[0][len(lead) :]
    click.echo(painted(lead, colour) + "\n".join(lines))


def painted(text: str, colour: str) -> str:
    """Return text in a colour, if standard output is a terminal that has colours.

    The variable NO_COLOR, if it is not empty, switches colours off."""
    return click.style(text, fg=colour, bold=True) if colour and has_colours() else text


def has_colours() -> bool:
    """Return whether standard output is a terminal on which colours are wanted."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_wanted and sys.stdout.isatty()


def terminal_width() -> int:
    """Return the columns of the terminal; 80 if they are unknown."""
    return shutil.get_terminal_size((80, 24)).columns


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
        _rich_table(title, *fitted(columns, cells, terminal_width()))
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


def fitted(
    columns: Sequence[str], cells: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[list[str]], list[str]]:
    """Return columns and cells that suit a terminal, and the columns that were left out.

    Ids are shortened to as many digits as distinguish those shown. If the table is still too wide,
    columns without any content are left out."""
    rows = [list(row) for row in cells]
    short = _shortened({cell for row in rows for cell in row if _ID.fullmatch(cell)})
    rows = [[short.get(cell, cell) for cell in row] for row in rows]
    if not rows or _natural_width(columns, rows) <= width:
        return list(columns), rows, []
    kept = [at for at in range(len(columns)) if any(row[at] not in _NOTHING for row in rows)]
    left_out = [name for at, name in enumerate(columns) if at not in kept]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows], left_out


_ID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHORT_ID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){0,3}(-[0-9a-f]{12})?")
_NOTHING: Final = frozenset({"", "-", "0", "no"})
_GAP: Final = 2


def _shortened(ids: set[str]) -> dict[str, str]:
    """Return each id with its beginning that no other one has, of 8 digits or more."""
    for size in (8, 13, 18, 23):
        if len({one[:size] for one in ids}) == len(ids):
            return {one: one[:size] for one in ids}
    return {}


def _natural_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return sum(widths) + _GAP * (len(widths) + 1)


def _rich_table(
    title: str, columns: Sequence[str], cells: list[list[str]], left_out: Sequence[str]
) -> None:
    from rich import box  # noqa: PLC0415  # takes a tenth of a second, and only tables need it
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(
        title=Text(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for at, column in enumerate(columns):
        ids = [len(row[at]) for row in cells if _SHORT_ID.fullmatch(row[at])]
        drawn.add_column(
            column, overflow="fold", min_width=max(ids, default=None), no_wrap=bool(ids)
        )
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    console = Console(width=terminal_width(), highlight=False)
    console.print(drawn)
    if left_out:
        console.print(Text(f"  nothing in: {', '.join(left_out)}"))
