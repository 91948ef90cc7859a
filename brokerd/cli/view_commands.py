"""Views on the command line: `ls` and `show` of any noun, from a table of columns (VIEW).

Calls:  the daemon, a page at a time.
Never:  has code for a single view: each noun lists the columns to show, and their format.
To add a noun: a module with `noun(...)`, and `listing` or `showing` for each of its commands.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from brokerd.admin.views.columns import COLUMNS
from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import ago, print_line, print_rows, quoted, table
from brokerd.cli.session import ask
from brokerd.cli.short_ids import is_shortened, only
from brokerd.client.session import Session
from brokerd.client.views import ViewPage
from brokerd.clock import Instant, SystemClock, is_instant, show_instant
from brokerd.errors import InvalidArgument, ObjectNotFound, UsageError
from brokerd.protocol.admin_verbs import MOST_ROWS
from brokerd.units import parse_duration

DEFAULT_LIMIT: Final = 100
_FINGERPRINT: Final = 16
Row = dict[str, Any]
Form = Callable[[Any, Instant], str]


def plain(value: object, _now: Instant) -> str:
    """Return a value as text, unchanged; a dash for None."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None or value == "" else str(value)


def fingerprint(value: object, _now: Instant) -> str:
    """Return the beginning of the id of a certificate, which tells it from others."""
    return "-" if value is None else str(value)[:_FINGERPRINT]


def since(value: int | None, now: Instant) -> str:
    """Return as text how long ago an instant was."""
    return ago(None if value is None else Instant(value), now)


def until(value: int | None, now: Instant) -> str:
    """Return as text the time until an instant; a dash if the instant is past."""
    if value is None or value <= now:
        return "-"
    return ago(Instant(now - (value - now)), now)


def took(value: float | None, _now: Instant) -> str:
    """Return a duration as text, in its largest unit with three figures."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value is not None and value >= size:
            return f"{value / size:.3g} {unit}"
    return "-" if value is None else "0 s"


class Shown(NamedTuple):
    """A column of a table."""

    column: str
    header: str
    form: Form = plain


class Choice(NamedTuple):
    """An option of `ls` that chooses rows by a column."""

    option: str
    column: str
    help: str
    many: bool = False


def noun(name: str, text: str, *commands: click.Command) -> click.Group:
    """Return the group of commands of one noun."""
    return click.Group(name=name, help=text, commands=list(commands))


def listing(
    view: str, text: str, *columns: Shown, choices: tuple[Choice, ...] = (), aged: bool = False
) -> click.Command:
    """Return the command `ls` of a view."""
    names = {_joined(one.header): one.column for one in columns}
    names |= {name: name for name in COLUMNS[view]}  # no header hides a column

    def run(**given: Any) -> None:  # noqa: ANN401  # options as click gives them
        chosen = {one.column: given.pop(_parameter(one)) for one in choices}
        where = {name: list(v) if isinstance(v, tuple) else v for name, v in chosen.items() if v}
        where |= _where(given.pop("where"), names)
        page = _fetch(view, where, given)
        if given["as_json"]:
            print_rows(page.rows, page.next)
            return
        now = SystemClock().utc()
        cells = [[one.form(row[one.column], now) for one in columns] for row in page.rows]
        table(view, [one.header for one in columns], cells)
        if page.next is not None:
            print_line(f"there may be more: --after {quoted(page.next)}")

    for one in choices:
        shape = click.option(f"--{one.option}", _parameter(one), multiple=one.many, help=one.help)
        run = shape(run)
    if aged:
        run = click.option(
            "--older-than", metavar="DURATION", help="A duration such as 90s, 2h or 7d."
        )(run)
    run = click.option("--after", metavar="CURSOR", help="Continue where a page ended.")(run)
    run = click.option(
        "--limit",
        type=click.IntRange(1),
        default=DEFAULT_LIMIT,
        show_default=True,
        help="Largest number of rows to show.",
    )(run)
    run = click.option("--all", "everything", is_flag=True, help="Show all rows, page after page.")(
        run
    )
    run = click.option(
        "--where",
        multiple=True,
        metavar="COLUMN=VALUE",
        help="Show only rows with this value; COLUMN may be a header of the table.",
    )(run)
    return click.command(name="ls", help=text)(daemon_options(json_option(run)))


def showing(view: str, text: str, argument: str, *keys: str) -> click.Command:
    """Return the command `show` of a view, which prints all columns of the matching rows.

    They are the rows with the argument as the value of the first of `keys` that finds any."""

    def run(
        *, value: str, address: str | None, config: Path | None, broker: str, as_json: bool
    ) -> None:
        noun = click.get_current_context().command_path.split()[1]

        async def fetch(session: Session) -> list[Row]:
            return await _matching(session, view, keys, value, noun)

        rows = ask(fetch, address=address, config=config, broker=broker)
        if not rows:
            raise ObjectNotFound(
                f"there is no {noun} {value!r}", hint=f"brokerd {noun} ls lists what there is"
            )
        if as_json:
            print_rows(rows)
            return
        for row in rows:
            present(view, row)

    run = click.argument("value", metavar=argument)(run)
    return click.command(name="show", help=text)(daemon_options(json_option(run)))


async def _matching(
    session: Session, view: str, keys: Sequence[str], value: str, noun: str
) -> list[Row]:
    """Return the rows with a value, or one shortened id, in the first column that has it."""
    for key in keys:
        short = is_shortened(key, value)
        try:
            found = await session.view(view, where={key: f"{value}*" if short else value})
        except InvalidArgument:
            if key is keys[-1]:
                raise
            continue
        if short and found:
            only({str(row[key]) for row in found}, value, noun, f"brokerd {noun} ls")
        if found:
            return found
    return []


def present(view: str, row: Row) -> None:
    """Print every column of a row, each on a line of its own."""
    table(view, ("column", "value"), [(name, _shown(name, row[name])) for name in row])


def _shown(name: str, value: object) -> object:
    """Return a value for printing: an instant as text, a dash for None."""
    if type(value) is int and is_instant(name):
        return show_instant(Instant(value))
    return "-" if value is None else value


def _fetch(view: str, where: Row, given: Row) -> ViewPage:
    options: Row = {"where": where}
    if given.get("older_than"):
        options["older_than"] = duration(given["older_than"])

    async def fetch(session: Session) -> ViewPage:
        rows: list[Row] = []
        after, limit = given["after"], given["limit"]
        while True:
            most = min(limit, MOST_ROWS)
            got = await session.view_page(view, after=after, limit=most, **options)
            rows += got.rows
            after = got.next
            # The daemon may return a short page although more rows match, so the remaining number
            # counts.
            limit = given["limit"] if given["everything"] else given["limit"] - len(rows)
            if after is None or limit <= 0:
                return ViewPage(rows, after)

    place = {name: given[name] for name in ("address", "config", "broker")}
    return ask(fetch, **place)


def duration(text: str) -> float:
    """Return the seconds of a duration such as 90s or 2h."""
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise UsageError(f"{text!r} is no duration: {error}") from error


def _joined(name: str) -> str:
    """Return the name of a column as words of a header are joined: far_service."""
    return name.replace(" ", "_").replace("-", "_")


def _where(pairs: tuple[str, ...], names: Mapping[str, str]) -> Row:
    """Return the conditions of `--where`.

    `names`: columns by their names, and by the headers of the printed table (MON-89)."""
    where: dict[str, list[object]] = {}
    for pair in pairs:
        column, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--where {pair!r}: COLUMN=VALUE is expected")
        column = names.get(_joined(column), column)
        where.setdefault(column, []).extend(_values(value))
    return dict(where)


def _values(text: str) -> list[object]:
    """Return the values that a text may mean; only one can match, as a column has one type."""
    known: dict[str, object] = {"true": True, "false": False}
    if text in known:
        return [known[text]]
    return [text, int(text)] if text.lstrip("-").isdecimal() else [text]


def _parameter(choice: Choice) -> str:
    return f"choice_{choice.column}"
