"""`brokerd apply`: make a broker match a file of declared objects (design D9)."""

from pathlib import Path
from typing import TypeGuard

import click

from brokerd.cli.options import instance_options, json_option
from brokerd.cli.output import print_line, print_rows, warn
from brokerd.cli.session import ask
from brokerd.client.session import Session
from brokerd.model import MSDB
from brokerd.objects.declarations import read
from brokerd.units import counted

_MARKS = {"create": "+", "alter": "~", "replace": "!", "drop": "-"}


@click.command(name="apply")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Show the changes without making them.")
@click.option(
    "--terminate-existing",
    is_flag=True,
    help="End the dialogs that need a dropped object, and notify their other sides of the reason.",
)
@instance_options
@json_option
def command(
    *,
    file: Path,
    dry_run: bool,
    terminate_existing: bool,
    address: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Make the brokers named in FILE match it, each all or nothing.

    The file must be complete: an object that it does not declare is dropped, but for the routes and
    bindings that `brokerd peer pair` made. If a dialog still needs such an object, nothing is
    changed at all. A broker that does not exist is created, with a store file of its own.
    """
    source, declared = read(file)
    for warning in declared.warnings:
        warn(f"{file}: {warning}")

    async def apply(session: Session) -> list[object]:
        return await session.apply(
            source.data, dry_run=dry_run, terminate_existing=terminate_existing
        )

    changes = ask(apply, address=address, config=config, broker=MSDB)
    if as_json:
        print_rows(changes)
        return
    several = len(declared.brokers) > 1
    broker = None
    for change in changes:
        if several and isinstance(change, dict) and change.get("broker") != broker:
            broker = change.get("broker")
            print_line(f"broker {broker}:")
        print_line(_line(change))
    for change in changes:
        if _is_new_broker(change):
            became = "would be made" if dry_run else "was made"
            warn(f"{file}: there was no broker {change['name']} here: it {became}")
    said = "would be made" if dry_run else "made"
    count = len(changes)
    print_line(
        f"{counted(count, 'change') if count else 'no changes'} {said if count else 'needed'}"
    )


def _is_new_broker(change: object) -> TypeGuard[dict[str, object]]:
    return isinstance(change, dict) and (change.get("kind"), change.get("action")) == (
        "broker",
        "create",
    )


def _line(change: object) -> str:
    if not isinstance(change, dict):
        return str(change)
    return f"{_MARKS.get(str(change.get('action')), '*')} {change.get('sentence', change)}"
