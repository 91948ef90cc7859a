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
    help="Create and alter the objects that this file declares, before clients and peers can "
    "connect; nothing is dropped (`brokerd apply` does that).",
)
@click.option(
    "--no-wait",
    is_flag=True,
    help="Exit if another daemon has the stores on a server; without this, wait and take over.",
)
def command(config: Path | None, objects: Path | None, *, no_wait: bool) -> int:
    """Run the daemon until it is ordered to stop (SIGTERM, SIGINT).

    At SIGHUP the daemon reads its settings again and reopens its log file: log.level, log.file,
    daemon.drain and [checks] change at once, and the log names the settings that need a restart.

    Without a file the defaults and the environment apply: no listener for peers, stores in ./data.
    """
    settings = load(config).settings
    declared = read(objects)[1] if objects is not None else None
    from brokerd.process.daemon import serve  # noqa: PLC0415  # errors in the files come first

    return serve(
        settings,
        declared=declared,
        reread=lambda: load(config).settings,
        waits=not no_wait,
    )
