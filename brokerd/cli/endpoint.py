"""`brokerd endpoint`: the address for peers, its state, and its options (END, MON-5)."""

from typing import Any

import click

from brokerd.cli import object_keys
from brokerd.cli.object_commands import settings_of
from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, print_line
from brokerd.cli.session import ask
from brokerd.cli.view_commands import noun, present
from brokerd.client.session import Session
from brokerd.errors import ObjectNotFound, UsageError

_LASTS = "This lasts until the daemon stops; the next start uses the settings file."
Row = dict[str, Any]


@click.command(name="show")
@daemon_options
@json_option
def _show(*, as_json: bool, **place: Any) -> None:  # noqa: ANN401  # options as click gives them
    """Show the broker endpoint: its state, its addresses, and why it does not listen."""

    async def fetch(session: Session) -> Row:
        rows = await session.view("endpoint")
        if not rows:
            raise ObjectNotFound(
                "this instance has no broker endpoint",
                hint="write an [endpoint] section into its settings, and start it again",
            )
        return dict(rows[0])

    row = ask(fetch, **place)
    if as_json:
        print_json(row)
    else:
        present("endpoint", row)


def _switch(name: str, state: str, text: str) -> click.Command:
    """Return a command that changes the state of the broker endpoint."""

    @click.command(name=name, help=f"{text} {_LASTS}")
    @daemon_options
    @json_option
    def command(**options: Any) -> None:  # noqa: ANN401
        _alter({"state": state}, **options)

    return command


@click.command(name="alter")
@click.argument("settings", nargs=-1, metavar="KEY=VALUE...")
@daemon_options
@json_option
def _alter_some(*, settings: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401
    """Change the broker endpoint while it runs; other options keep their values.

    New addresses leave connections open. A change lasts until the daemon stops; the next start uses
    the settings file.
    """
    said = settings_of("endpoint", settings)
    if not said:
        raise UsageError("nothing is said to change", hint="say KEY=VALUE, such as port=4032")
    _alter(said, **options)


_alter_some.help = f"{_alter_some.help}\n\n{object_keys.help_of('endpoint')}"


def _alter(said: Row, *, as_json: bool, **place: Any) -> None:  # noqa: ANN401
    async def alter(session: Session) -> Row:
        return await session.admin.alter_endpoint(**said)

    row = ask(alter, **place)
    if as_json:
        print_json(row)
        return
    where = ", ".join(row["listener_address"])
    print_line(f"broker endpoint {row['state']}" + (f" at {where}" if row["is_listening"] else ""))
    if row["listen_error"]:
        print_line(f"  does not listen everywhere yet: {row['listen_error']}")
    if row["state"] != "STARTED":
        print_line("  messages for other instances wait in their stores")


command = noun(
    "endpoint",
    "The broker endpoint: where other instances connect.",
    _show,
    _switch("start", "started", "Listen, and connect to the destinations of waiting messages."),
    _switch(
        "stop",
        "stopped",
        "Finish messages in transit, then close the port and all connections; messages wait.",
    ),
    _switch(
        "disable",
        "disabled",
        "Keep the port open, but refuse new connections, and close the existing ones.",
    ),
    _alter_some,
)
