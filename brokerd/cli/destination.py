"""`brokerd destination`: addresses of other instances, their faults, retrying (MON-8, NBT-8)."""

from typing import Any

import click

from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, print_line
from brokerd.cli.session import ask
from brokerd.cli.view_commands import Choice, Shown, listing, noun, showing, since, until
from brokerd.client.session import Session
from brokerd.units import counted


@click.command(name="retry")
@click.argument("destination", metavar="ADDRESS|all")
@daemon_options
@json_option
def _retry(*, destination: str, as_json: bool, **place: Any) -> None:  # noqa: ANN401
    """Connect now, without waiting for the end of a suppression; `all`: to every destination."""

    async def retry(session: Session) -> int:
        every = destination.lower() == "all"
        return await session.admin.retry_destination(None if every else destination)

    count = ask(retry, **place)
    if as_json:
        print_json({"destinations": count})
    else:
        print_line(f"{counted(count, 'destination')} tried; see: brokerd destination ls")


command = noun(
    "destination",
    "Addresses of other instances to which messages are sent.",
    listing(
        "destinations",
        "List the destinations: state, waiting messages, and last error.",
        Shown("address", "address"),
        Shown("state", "state"),
        Shown("suppressed_until", "next in", until),
        Shown("pending_messages", "messages"),
        Shown("dialogs", "dialogs"),
        Shown("consecutive_failures", "failures"),
        Shown("status_key", "status"),
        Shown("status_since", "since", since),
        Shown("last_error", "last error"),
        choices=(
            Choice(
                "state", "state", "Only destinations in this state, such as suppressed.", many=True
            ),
        ),
    ),
    showing("destinations", "Show all columns of a destination.", "ADDRESS", "address"),
    _retry,
)
