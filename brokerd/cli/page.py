"""`brokerd page`: the address at which a browser shows the daemon."""

from pathlib import Path

import click
import msgspec

from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, print_line
from brokerd.cli.session import ask
from brokerd.client.admin_answers import PageAddress
from brokerd.client.session import Session


@click.command(name="page")
@daemon_options
@json_option
def command(*, address: str | None, config: Path | None, broker: str, as_json: bool) -> None:
    """Print an address at which a browser shows this daemon, with your permissions.

    It can be opened once, within ten minutes; the browser is then let in until the daemon stops,
    or for http.page_lifetime. Do not pass it on: whoever opens it first is let in as you.
    """

    async def fetch(session: Session) -> PageAddress:
        return await session.admin.open_page()

    found = ask(fetch, address=address, config=config, broker=broker, of_instance=True)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        print_line(found.url)
