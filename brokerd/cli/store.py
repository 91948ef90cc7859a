"""`brokerd store`: copies of a broker's store (MAN-11)."""

from pathlib import Path

import click

from brokerd.cli.listing import noun
from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, say
from brokerd.cli.session import ask
from brokerd.client.session import Session
from brokerd.units import show_size


@click.command(name="backup")
@click.argument("file", type=click.Path(path_type=Path))
@daemon_options
@json_option
def _backup(
    *, file: Path, address: str | None, config: Path | None, broker: str, as_json: bool
) -> None:
    """Have the running daemon write a copy of a broker's store to the new file FILE.

    The copy is of one moment: queues, dialogs, transmission queue and objects together. It is
    looked through before it gets its name. FILE is on the daemon's machine.
    """

    path = file.absolute()

    async def back_up(session: Session) -> int:
        return await session.admin.backup(path)

    size = ask(back_up, address=address, config=config, broker=broker)
    if as_json:
        print_json({"path": str(path), "bytes": size})
        return
    say(f"{path}: {show_size(size)}, verified")


command = noun("store", "Stores of brokers.", _backup)
