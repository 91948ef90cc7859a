"""`brokerd serve`: reads the settings and runs the daemon in this process."""

from pathlib import Path

import click

from brokerd.cli.options import config_option
from brokerd.config.loading import load
from brokerd.objects.declarations import read


@click.command(name="serve")
@config_option
@click.option(
    "--objects",
    type=click.Path(path_type=Path),
    help="Make and alter what this file of objects declares before clients and peers are let in; "
    "nothing is dropped (`brokerd apply` does that).",
)
def command(config: Path | None, objects: Path | None) -> int:
    """Run the daemon until it is ordered to stop (SIGTERM, SIGINT).

    At SIGHUP it reads its settings again and opens its log file anew: log.level, log.file,
    daemon.drain and [checks] change at once, and the log names what needs a restart.

    Without a file the defaults and the environment hold: no listener for peers, stores in ./data.
    """
    settings = load(config).settings
    declared = read(objects)[1] if objects is not None else None
    from brokerd.process.daemon import serve  # noqa: PLC0415  # errors in the files come first

    return serve(settings, declared=declared, reread=lambda: load(config).settings)
