"""`brokerd ship`: copies sealed segments of the metrics log to the landing for the report."""

from pathlib import Path

import click
import msgspec

from brokerd.cli.options import config_option, json_option
from brokerd.cli.output import print_json, print_line, warn
from brokerd.config.loading import load
from brokerd.process.exit_statuses import FAILED, OK
from brokerd.reports.shipping import landing_at, ship
from brokerd.units import counted, show_size


@click.command(name="ship")
@click.argument("landing")
@config_option
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Metrics directory.  [default: that of the settings]",
)
@click.option("--remove", is_flag=True, help="Remove segments once they have landed.")
@json_option
def command(
    *, landing: str, config: Path | None, source: Path | None, remove: bool, as_json: bool
) -> int:
    """Copy the sealed segments of the metrics log to LANDING, a directory or a URL of fsspec.

    Each segment is copied at least once, and never half a file: the command may be interrupted and
    repeated at any time, also while the daemon runs. A segment that does not match its manifest is
    not copied but named, and makes the exit status 1.
    """
    directory = source or load(config).settings.metrics_dir
    done = ship(directory, landing_at(landing), remove=remove, say=lambda _: None)
    for one in done.damaged:
        warn(f"not shipped: {one}")
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        removed = f", {done.removed} removed here" if remove else ""
        print_line(
            f"{counted(done.shipped, 'segment')} ({show_size(done.bytes)}) shipped to {landing}, "
            f"{done.already} were there{removed}"
        )
    return FAILED if done.damaged else OK
