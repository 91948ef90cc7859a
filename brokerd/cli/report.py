"""`brokerd report`: has the report job run, which needs Spark and is installed apart."""

from pathlib import Path

import click

from brokerd.admin.report import run_report
from brokerd.cli.options import config_option, json_option
from brokerd.cli.output import print_json, say, warn
from brokerd.config import load


@click.group(name="report")
def command() -> None:
    """Make the nightly report from the metrics log."""


@command.command()
@config_option
@click.option("--input", "source", type=click.Path(path_type=Path), help="Directory of segments.")
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Directory of the report."
)
@json_option
def run(*, config: Path | None, source: Path | None, output: Path, as_json: bool) -> int:
    """Read the sealed segments and write the report; without --input those of the settings.

    Exit status: 0 all is fine, 1 something needs a look, 2 something needs action or no report
    could be made.
    """
    settings = load(config).settings
    result = run_report(
        source or settings.metrics_dir,
        output,
        state_dir=settings.instance.data_dir,
        say=warn if as_json else say,
    )
    if as_json:
        print_json({"verdict": result.verdict, "page": str(result.page) if result.page else None})
    return result.exit_status
