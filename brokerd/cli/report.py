"""`brokerd report`: runs the report job, which needs Spark and is installed separately."""

import csv
import sys
from datetime import date as calendar
from pathlib import Path

import click
import msgspec

from brokerd.cli.options import LocalDirectory, config_option, is_url, json_option
from brokerd.cli.output import print_json, print_line, print_rows, table, warn
from brokerd.config.loading import load
from brokerd.errors import UsageError
from brokerd.reports.comparison import Difference, compare
from brokerd.reports.query import Answer, Column, ask, tables
from brokerd.reports.questions import QUESTIONS, Question
from brokerd.reports.report import Days, run_report
from brokerd.units import counted

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of texts that a spreadsheet would run."""

ROWS_SHOWN = 200
"""Maximum number of rows of an answer that are printed as a table."""

LAST = "last"
"""Value of an option that means the newest day that has landed."""


@click.group(name="report")
def command() -> None:
    """Make the nightly report from the metrics log."""


@command.command()
@config_option
@click.option("--input", "source", type=LocalDirectory(), help="Directory of segments.")
@click.option(
    "--landing",
    help="Directory or URL to which segments are shipped.  [default: that of the metrics log]",
)
@click.option("--date", help="The day, such as 2026-11-18, or `last`: the newest that has landed.")
@click.option("--to", help="The last day of several; --date is the first.")
@click.option(
    "--forget-removed",
    is_flag=True,
    help="Make these days from the segments in the landing now, and drop segments that were added "
    "before and have been removed from the landing.",
)
@click.option(
    "--keep-days",
    type=click.IntRange(min=35),
    help="Remove older days from OUTPUT/lake; their pages stay.",
)
@click.option(
    "--publish", metavar="URL", help="Copy the pages to this URL, such as s3://bucket/reports."
)
@click.option("--output", type=LocalDirectory(), required=True, help="Directory of the reports.")
@json_option
def run(
    *,
    config: Path | None,
    source: Path | None,
    landing: str | None,
    date: str | None,
    to: str | None,
    forget_removed: bool,
    keep_days: int | None,
    publish: str | None,
    output: Path,
    as_json: bool,
) -> int:
    """Make the report of a day, OUTPUT/<day>/report.html; or one report of all segments in --input.

    With --date, landed segments that have changed are first added to OUTPUT/lake, and the day
    is compared with earlier days. Segments that were added stay, even if they are removed from
    the landing. Pages of other days are made again if segments of these days, or of days that
    they are compared with, have landed late. With neither --date nor --landing there is one
    report of all sealed segments; without --input, of those that the settings name.

    Exit status: 0 all is fine, 1 something needs a look, 2 something needs action or no report
    could be made; for several days, the most severe. 64 means wrong usage, as in every command.
    """
    by_day = date is not None or landing is not None
    if source is not None and by_day:
        raise click.UsageError("--input makes one report of all; it takes no --date or --landing")
    if forget_removed and not by_day:
        raise click.UsageError("--forget-removed is about days; it needs --date or --landing")
    if keep_days is not None and not by_day:
        raise click.UsageError("--keep-days is about days; it needs --date or --landing")
    if publish is not None and (not by_day or not is_url(publish)):
        raise click.UsageError("--publish needs a URL, and --date or --landing")
    _check(date, to)
    settings = load(config).settings
    landed = landing if landing and is_url(landing) else landing and Path(landing)
    result = run_report(
        source or landed or settings.metrics_dir,
        output,
        state_dir=settings.instance.data_dir,
        say=warn if as_json else print_line,
        days=Days(date or LAST, to, forget_removed, keep_days, publish) if by_day else None,
    )
    if as_json:
        again = [{"date": day, "because": why} for day, why in result.made_again.items()]
        page = str(result.page) if result.page else None
        print_json({"verdict": result.verdict, "page": page, "made_again": again})
    return result.exit_status


def _check(first: str | None, to: str | None) -> None:
    """Raise `UsageError` for a text that is not a day; the job checks that the day has landed."""
    for option, text in (("--date", None if first == LAST else first), ("--to", to)):
        if text is not None and not _is_day(text):
            raise UsageError(f"{option} {text} is no day", hint="say one such as 2026-11-18")
    if to is not None and first in {None, LAST}:
        raise click.UsageError("--to needs --date, the first day")
    if to is not None and first is not None and to < first:
        raise UsageError(
            f"--to {to} is before --date {first}", hint="--date is the first day, --to the last"
        )


def _is_day(text: str) -> bool:
    try:
        return calendar.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


@command.command(name="compare")
@click.argument("one", type=click.Path(path_type=Path, exists=True))
@click.argument("other", type=click.Path(path_type=Path, exists=True))
@json_option
def _compare(*, one: Path, other: Path, as_json: bool) -> None:
    """Show the differences between two reports: directories such as reports/2026-11-18.

    The command reads the summary.json of both reports, and needs neither Spark nor Java.
    """
    rows = compare(one, other)
    if as_json:
        print_rows([{**msgspec.structs.asdict(row), "change": row.change} for row in rows])
        return
    if not rows:
        print_line(f"nothing differs between {one} and {other}")
        return
    table(
        "Largest differences first",
        ["what", "where", one.name, other.name, "change"],
        [[row.what, row.where, _number(row.one), _number(row.other), _change(row)] for row in rows],
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _change(row: Difference) -> str:
    return "new" if row.change is None else f"{row.change:+,.0%}"


@command.command()
@click.argument("reports", type=LocalDirectory())
@click.argument("question", default="")
@click.argument("values", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--date", help="Only this day, such as 2026-11-18.")
@click.option("--to", help="The last day of several; --date is the first.")
@click.option("--tables", "show_tables", is_flag=True, help="Show the tables and their columns.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_option
def query(
    *,
    reports: Path,
    question: str,
    values: tuple[str, ...],
    date: str | None,
    to: str | None,
    show_tables: bool,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Answer a question about the days in REPORTS/lake, by its name or in SQL.

    QUESTION is the name of a ready question, or a SELECT of DuckDB over the tables. A parameter
    `$name` in it gets its value from NAME=VALUE. Without QUESTION the ready questions are listed.
    Nothing is changed, and neither Spark nor Java is needed: pip install 'brokerd[lake]'.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json are two forms; choose one")
    if show_tables:
        _show_tables(reports, as_json=as_json)
        return
    if not question:
        _show_questions(as_json=as_json)
        return
    if date == LAST:
        raise UsageError("--date last is for `run`", hint="say a day such as 2026-11-18")
    _check(date, to)
    ready = QUESTIONS.get(question)
    given = _given(values, ready)
    if ready is None and not question.split()[1:]:
        raise UsageError(
            f"there is no question named {question}", hint="brokerd report query REPORTS lists them"
        )
    answer = ask(
        reports,
        question if ready is None else ready.sql,
        given=given,
        first=date or "",
        last=to or date or "",
    )
    title = "Answer" if ready is None else ready.about
    _show_answer(answer, title, as_csv=as_csv, as_json=as_json)


def _given(values: tuple[str, ...], ready: Question | None) -> dict[str, str]:
    """Return the values of parameters by name; raise `UsageError` if a ready question lacks one."""
    for value in values:
        if "=" not in value:
            raise UsageError(f"{value} is no NAME=VALUE", hint="quote SQL, so that it is one word")
    given = dict(value.split("=", 1) for value in values)
    for name, example in (ready.needs if ready else {}).items():
        if name not in given:
            assert ready is not None
            raise UsageError(
                f"the question {ready.name} needs {name}=VALUE", hint=f"such as {name}={example}"
            )
    return given


def _show_questions(*, as_json: bool) -> None:
    every = QUESTIONS.values()
    if as_json:
        print_rows([{"name": one.name, "about": one.about, "sql": _sql(one)} for one in every])
        return
    rows = [
        [" ".join([one.name, *(f"{name}=VALUE" for name in one.needs)]), one.about] for one in every
    ]
    table("Ready questions", ["question", "about"], rows)


def _sql(one: Question) -> str:
    return " ".join(one.sql.split())


def _show_tables(reports: Path, *, as_json: bool) -> None:
    found = tables(reports)
    rows = [
        {"table": one.name, "column": column.name, "type": column.type} | _meaning(column)
        for one in found.values()
        for column in one.columns
    ]
    if as_json:
        print_rows(rows)
        return
    columns = ["table", "column", "type", "meaning", "unit"]
    table("Tables of the lake", columns, [[row[name] for name in columns] for row in rows])


def _meaning(column: Column) -> dict[str, str]:
    return {"meaning": column.meaning, "unit": column.unit}


def _show_answer(answer: Answer, title: str, *, as_csv: bool, as_json: bool) -> None:
    if as_json:
        print_rows([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
        return
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(map(_harmless, answer.columns))
        writer.writerows([_harmless(cell) for cell in row] for row in answer.rows)
        return
    table(title, answer.columns, answer.rows[:ROWS_SHOWN])
    if len(answer.rows) > ROWS_SHOWN:
        left = len(answer.rows) - ROWS_SHOWN
        warn(f"{counted(left, 'more row')}: --json and --csv print them all")


def _harmless(value: object) -> object:
    """Put a quote before text that begins like a formula; replace control characters (BI-L4)."""
    if not isinstance(value, str):
        return value
    text = "'" + value if value.startswith(_FORMULA) else value
    return "".join(letter if letter.isprintable() else " " for letter in text)
