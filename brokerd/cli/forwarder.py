"""`brokerd forwarder`: messages for other instances that pass through this one (MON-2, MON-13)."""

from typing import Any

import click

from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json
from brokerd.cli.session import ask
from brokerd.cli.view_commands import Choice, Shown, listing, noun, present, since


@click.command(name="show")
@daemon_options
@json_option
def _show(*, as_json: bool, **place: Any) -> None:  # noqa: ANN401  # options as click gives them
    """Show the numbers of forwarded and dropped messages, the reasons, and the memory in use."""
    (row,) = ask(lambda session: session.view("forwarder_counters"), **place)
    if as_json:
        print_json(row)
    else:
        present("forwarder", row)


command = noun(
    "forwarder",
    "Forwarding: messages that pass through to other instances.",
    _show,
    listing(
        "forwarded_messages",
        "List the messages held now, in memory only; their senders still have them.",
        Shown("from_service_name", "from"),
        Shown("to_service_name", "to"),
        Shown("adjacent_broker_address", "next"),
        Shown("message_sequence_number", "sequence"),
        Shown("message_fragment_number", "fragment"),
        Shown("hops_remaining", "hops"),
        Shown("size_bytes", "bytes"),
        Shown("arrived_at", "arrived", since),
        Shown("conversation_id", "conversation"),
        choices=(
            Choice("to", "to_service_name", "Only messages for this service."),
            Choice("next", "adjacent_broker_address", "Only messages for this next hop."),
        ),
    ),
)
