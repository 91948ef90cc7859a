"""`brokerd event`: event notifications, their services and deliveries (EVT, VIEW-11).

Calls:  the session's `create` and `drop`, and the view `event_notifications`.
Never:  checks a name: the daemon knows the events, and those that a queue can have.
"""

from typing import Any

import click

from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_line, print_rows
from brokerd.cli.session import ask
from brokerd.cli.view_commands import Choice, Shown, listing, showing, since
from brokerd.client.session import Session

_KIND = "event_notification"


@click.group(name="event")
def command() -> None:
    """Notify services, by message, of events in a broker."""


@command.command(name="create")
@click.argument("name")
@click.argument("events", nargs=-1, required=True, metavar="EVENT...")
@click.option("--service", required=True, help="The service to notify.")
@click.option("--queue", help="Only events of this queue.")
@click.option(
    "--scope",
    type=click.Choice(["instance", "broker"]),
    help="Events of every broker of the instance, or of this one.  [default: broker]",
)
@click.option("--target-broker", metavar="GUID", help="The broker of the service, if another.")
@click.option("--fan-in", is_flag=True, help="Share messages with others to the same target.")
@click.option(
    "--activation-timeout",
    metavar="DURATION",
    help="Repeat QUEUE_ACTIVATION if no reader receives for this time.  [default: 10s]",
)
@daemon_options
@json_option
def create(
    *,
    name: str,
    events: tuple[str, ...],
    service: str,
    queue: str | None,
    scope: str | None,
    target_broker: str | None,
    fan_in: bool,
    activation_timeout: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Notify a service of each EVENT from now on.

    An EVENT is a name such as BROKER_QUEUE_DISABLED, or a group such as DDL_SSB_EVENTS. The service
    accepts the contract urn:brokerd:PostEventNotification.
    """
    said = {
        "queue": queue,
        "scope": scope,
        "broker": target_broker,
        "fan_in": "on" if fan_in else None,
        "activation_timeout": activation_timeout,
    }
    given = {key: value for key, value in said.items() if value is not None}

    async def work(session: Session) -> list[object]:
        return await session.create(_KIND, name, events=list(events), service=service, **given)

    _show_changes(ask(work, **options), as_json=as_json)


@command.command(name="drop")
@click.argument("name")
@daemon_options
@json_option
def drop(*, name: str, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Drop an event notification, and end its dialog."""
    _show_changes(ask(lambda session: session.drop(_KIND, name), **options), as_json=as_json)


command.add_command(
    listing(
        "event_notifications",
        "List event notifications: their subscribers and events, and whether deliveries fail.",
        Shown("name", "name"),
        Shown("scope", "of"),
        Shown("queue", "queue"),
        Shown("events", "events", lambda events, _now: ", ".join(events)),
        Shown("service_name", "sent to"),
        Shown("status", "status"),
        Shown("failures", "failures"),
        Shown("last_error", "last error"),
        Shown("undelivered", "undelivered"),
        Shown("last_sent_at", "last sent", since),
        choices=(
            Choice("queue", "queue", "Of this queue."),
            Choice("service", "service_name", "That tell this service."),
        ),
    )
)
command.add_command(
    showing("event_notifications", "Show all columns of an event notification.", "NAME", "name")
)


def _show_changes(changes: list[object], *, as_json: bool) -> None:
    if as_json:
        print_rows(changes)
        return
    for change in changes:
        print_line(str(change["sentence"]) if isinstance(change, dict) else str(change))
