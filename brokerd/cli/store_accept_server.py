"""`brokerd store accept-server`: lets stores go on at another server, or an older one (REL-60)."""

from pathlib import Path

import click

from brokerd.cli.options import config_option, json_option
from brokerd.cli.output import print_json, print_line, warn
from brokerd.config.loading import load
from brokerd.errors import StoreDamaged, UsageError
from brokerd.instance.store_engine import server_options


@click.command(name="accept-server")
@click.option("--yes", is_flag=True, help="Do it; without this, only show what is there.")
@config_option
@json_option
def command(*, yes: bool, config: Path | None, as_json: bool) -> None:
    """Let the stores go on at the server of store.url, though it is not where they were last.

    A daemon passes over a PostgreSQL server that was the primary before its standby was promoted,
    or that is another database system than its data directory notes. Correct store.url if you can.
    If that server is to have the stores now, because they were restored or moved there, or because
    the promoted server is lost for good, this command notes it. What was confirmed elsewhere is
    then lost: each store gets a new incarnation when it is opened, so that peers notice the loss at
    the first contact of each dialog. In another database system a broker starts with delivery off.

    Run this as the user of the daemon, while no daemon has the stores open. A second daemon may
    then be started after you have removed the file server-history from its data directory.
    """
    settings = load(config).settings
    if not settings.is_on_server:
        raise UsageError("the stores are in files: store.url is empty", hint="see -c")
    options = server_options(settings)
    # The driver is an extra, and is there if the options are.
    from brokerd.storage.postgresql.acceptance import (  # noqa: PLC0415
        accept_server,
        find_difference,
    )

    found = (accept_server if yes else find_difference)(settings.store.url, options)
    if as_json:
        print_json(
            {
                "server": found.server,
                "found": found.found._asdict(),
                "noted": found.noted and found.noted._asdict(),
                "brokers": found.brokers,
                "refused": found.is_refused,
                "accepted": yes,
            }
        )
    else:
        print_line(found.show())
    if yes:
        if not as_json:
            print_line("accepted: each store gets a new incarnation when it is opened")
        if not found.brokers:
            warn("note: there are no stores, so that a start makes new ones, which are empty")
    elif found.is_refused:
        raise StoreDamaged(
            f"{found.server} is not where the stores were last; nothing was changed",
            hint="correct store.url, or start the server that was promoted; to lose what only that "
            "one has: brokerd store accept-server --yes",
        )
